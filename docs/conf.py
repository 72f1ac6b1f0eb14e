import difflib
import re
from pathlib import Path
from typing import Any

import ergo_py
import ergo_py.blocking
import ergo_py.meta
import ergo_py.testing

project = "ergo_py"
author = "ergo_py contributors"
copyright = "2026, ergo_py contributors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
# What is included in performance.md is no page of its own.
exclude_patterns = ["_build", "performance"]

# Nothing is fetched while building, and a reference that leads nowhere fails the build. What
# belongs to Python or to trio cannot be looked up without a network; what belongs to ergo_py must
# be found.
nitpicky = True
# Types in signatures come with the module that defines them, type variables and private ones too:
# those that are public are found (see `lead_to_public_name`), and the others are shown without a
# link.
nitpick_ignore_regex = [("py:.*", r"(?!ergo_py\b).*"), ("py:class", r"ergo_py(\.\w+){2,}")]

myst_heading_anchors = 3

autodoc_default_options = {
    "members": True,
    "inherited-members": "object,Exception,BaseException,Generic,tuple,Enum",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
toc_object_entries = False

html_theme = "furo"
html_title = "ergo_py"
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
html_show_sphinx = False

PUBLIC = {
    name: f"{module.__name__}.{name}"
    for module in (ergo_py.testing, ergo_py.blocking, ergo_py.meta, ergo_py)
    for name in module.__all__
}
"""Where each public name is documented, whichever module it is defined in."""


def lead_to_public_name(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Signatures name things by the module that defines them; the pages have them where users
    import them from.
    """
    if node.get("refdomain") != "py":
        return None
    name = PUBLIC.get(node.get("reftarget", "").rpartition(".")[2])
    if name is None:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)


ROOT = Path(__file__).parent.parent
NEW_STEP = re.compile(r"^<!-- file: (\S+); since: (\S+) -->\n```python\n", re.MULTILINE)


def mark_new_lines(app: Any, docname: str, source: list[str]) -> None:
    """Mark the lines of a step that the step before does not have. Where nothing is built, readers
    have the sentence above the code.
    """

    def marked(step: re.Match[str]) -> str:
        new, old = (
            (ROOT / path).read_text(encoding="utf-8").splitlines() for path in step.groups()
        )
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        ranges = [
            f"{first + 1}-{last}"
            for tag, _, _, first, last in matcher.get_opcodes()
            if tag in ("insert", "replace")
        ]
        return f"```{{code-block}} python\n:emphasize-lines: {','.join(ranges)}\n\n"

    source[0] = NEW_STEP.sub(marked, source[0])


def setup(app: Any) -> None:
    app.connect("source-read", mark_new_lines)
    # napoleon asks every member for its docstring, private ones too, and some of those teach
    # whoever touches them too early.
    listeners = app.events.listeners["autodoc-skip-member"]
    listeners[:] = [one for one in listeners if one.handler.__module__ != "sphinx.ext.napoleon"]
    app.connect("missing-reference", lead_to_public_name)
