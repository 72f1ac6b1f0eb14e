import difflib
import gc
import json
import logging
import re
from functools import cache
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sphinx.domains.python import PythonDomain
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.search.en import SearchEnglish

import ergo_py
import ergo_py.blocking
import ergo_py.cluster
import ergo_py.devices
import ergo_py.entities
import ergo_py.meta
import ergo_py.network
import ergo_py.pipelines
import ergo_py.testing
import ergo_py.workers

project = "ergo_py"
author = "ergo_py contributors"
copyright = "2026, ergo_py contributors"
release = version = version_of("ergo_py")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
# performance.md has a copy of the parts in this folder.
exclude_patterns = ["_build", "performance"]

# Nothing is fetched while building, and a reference that leads nowhere fails the build. The names
# of Python and trio that have a link are listed in inventories; others are shown without a link.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.txt"),
    "trio": ("https://trio.readthedocs.io/en/stable", "inventories/trio.txt"),
}
nitpicky = True
# Types in signatures come with the module that defines them, type variables and private types too:
# public types are found (see `lead_to_public_name`), and the others are shown without a link.
nitpick_ignore_regex = [("py:.*", r"(?!ergo_py\b).*"), ("py:class", r"ergo_py(\.\w+){2,}")]

myst_heading_anchors = 3

DESCRIBED_ONCE = (
    ergo_py.Actor,
    ergo_py.MetaProcess,
    ergo_py.Supervisor,
    ergo_py.devices.Device,
    ergo_py.entities.Entity,
)
"""The entry of a class that inherits the members of one of these names the base instead. The verbs
of an actor in the entries of all actors were a third of the reference, and of the time of a build.
"""
FOREIGN = "object,Exception,BaseException,OSError,Generic,tuple,Enum"
# The entries of Actor and Node ask for the members of their private bases.
autodoc_default_options = {
    "members": True,
    "inherited-members": ",".join(
        [FOREIGN, *sorted({cls.__name__ for base in DESCRIBED_ONCE for cls in base.__mro__})]
    ),
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# The package has annotations only; the search for comments parses the source of each function.
autodoc_use_type_comments = False
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
toc_object_entries = False

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"ergo_py {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
html_show_sphinx = False

# The button copies the inputs of a transcript without prompts and output, and there is none on
# printed output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"

NAVIGATION = {
    "index": {
        "Learn": [
            "first-steps",
            "tutorial",
            "choosing",
            "questions",
            "common-mistakes",
            "troubleshooting",
            "glossary",
            "Coming from Ergo <coming-from/ergo>",
            "Coming from Erlang or Elixir <coming-from/erlang>",
            "Coming from pykka <coming-from/pykka>",
            "Coming from Ray <coming-from/ray>",
            "Coming from asyncio <coming-from/asyncio>",
        ],
        "Cookbook": [
            "Recipes <cookbook/index>",
            "cookbook/serial",
            "cookbook/can",
            "cookbook/modbus",
            "cookbook/zeromq",
            "cookbook/udp",
            "cookbook/sqlite",
            "cookbook/postgresql",
            "cookbook/postgres-listen",
            "cookbook/redis",
            "cookbook/rabbitmq",
            "cookbook/mqtt",
            "cookbook/jetstream",
            "cookbook/kafka",
            "cookbook/fastapi",
        ],
        "Guide": [
            "processes",
            "messages-and-calls",
            "supervision",
            "applications",
            "methods",
            "tasks",
            "groups",
            "events",
            "streams",
            "schedules",
            "state-machines",
            "meta-processes",
            "tcp-udp",
            "web",
            "programs-and-files",
            "devices",
            "writing-your-own-bridge",
            "pipelines",
            "threads-and-performance",
            "other-loops",
            "dispatchers",
            "looking-inside",
            "observe",
            "telemetry",
            "network",
            "clusters",
            "entities",
            "deploying",
            "nats",
            "testing",
            "shutting-down",
        ],
        "Reference": [
            "api/index",
            "semantics",
            "design/map",
            "design/decisions",
            "design/fast-paths",
            "design/tests",
            "design/measurements",
            "design/walk",
            "changelog",
        ],
        "Evidence": ["performance", "soak", "chaos", "sizing"],
    },
    "api/index": {
        "API": [
            "node",
            "actors",
            "messages",
            "supervision",
            "meta-processes",
            "bridges",
            "devices",
            "pipelines",
            "web",
            "telemetry",
            "observe",
            "errors",
            "blocking",
            "aio",
            "network",
            "clusters",
            "entities",
            "testing",
        ]
    },
}
"""The pages in the order of the sidebar. The pages themselves link to one another in their text,
which can be read without building.
"""

KEYWORDS = {
    "first-steps": ["getting started", "install", "demo"],
    "tutorial": ["tutorial"],
    "choosing": ["choose", "which", "compare"],
    "questions": ["faq", "question", "windows", "production"],
    "processes": ["process", "actor", "spawn", "mailbox", "link", "monitor"],
    "messages-and-calls": ["message", "call", "send", "request", "reply", "timeout"],
    "supervision": ["supervisor", "supervision", "supervision tree", "restart", "pool"],
    "applications": ["application"],
    "methods": ["method"],
    "tasks": ["task"],
    "groups": ["group", "registry"],
    "events": ["event", "publish", "subscribe"],
    "state-machines": ["state machine", "gen_statem"],
    "meta-processes": ["meta-process", "metaprocess", "blocking"],
    "tcp-udp": ["tcp", "udp", "socket", "tls", "unix socket"],
    "web": ["http", "websocket", "server-sent events"],
    "programs-and-files": ["program", "subprocess", "file", "signal"],
    "devices": ["serial", "device", "bus", "reconnect", "pyserial", "can", "zmq", "zeromq"],
    "writing-your-own-bridge": ["bridge"],
    "pipelines": ["pipeline", "broker", "queue", "redis", "postgres", "acknowledge", "poison"],
    "cookbook/index": ["cookbook", "recipe"],
    "cookbook/serial": ["serial", "serial line", "usb"],
    "cookbook/can": ["can", "can bus"],
    "cookbook/modbus": ["modbus", "plc"],
    "cookbook/zeromq": ["zmq", "zeromq"],
    "cookbook/udp": ["udp", "datagram"],
    "cookbook/sqlite": ["sqlite", "job queue"],
    "cookbook/postgresql": ["postgresql", "postgres"],
    "cookbook/postgres-listen": ["listen", "notify"],
    "cookbook/redis": ["redis"],
    "cookbook/rabbitmq": ["rabbitmq", "amqp"],
    "cookbook/mqtt": ["mqtt", "mosquitto"],
    "cookbook/jetstream": ["jetstream", "nats stream"],
    "cookbook/kafka": ["kafka"],
    "cookbook/fastapi": ["fastapi", "starlette"],
    "threads-and-performance": ["thread"],
    "dispatchers": ["dispatcher"],
    "looking-inside": ["inspect", "trace", "top", "prompt", "repl", "attach", "control socket"],
    "network": ["node", "multiprocessing", "cores"],
    "entities": ["entity", "durable", "persist", "database", "job"],
    "deploying": ["deploy", "container", "systemd"],
    "testing": ["test", "testing", "pytest", "probe"],
    "shutting-down": ["shutdown", "stop"],
    "performance": ["performance", "benchmark"],
}
"""The words for which the search shows these guides first, before the API."""
READ: set[str] = set()
"""The pages that this build has read. Sphinx forgets the index entries of the others when it builds
again, so only a build from scratch has a complete index.
"""

PUBLIC = {
    name: f"{module.__name__}.{name}"
    for module in (
        ergo_py.workers,
        ergo_py.cluster,
        ergo_py.devices,
        ergo_py.pipelines,
        ergo_py.network,
        ergo_py.testing,
        ergo_py.blocking,
        ergo_py.meta,
        ergo_py,
    )
    for name in module.__all__
}
"""Where each public name is documented, whichever module it is defined in."""


class Names(PythonDomain):
    """Sphinx compares each name in a signature with the ends of all names in the pages. Here it
    sees only those with the same last word: for most names, such as ``str``, none.
    """

    _by_last_word: dict[str, dict[str, Any]]
    _seen: dict[str, Any] | None = None
    _counted = -1

    @property
    def objects(self) -> dict[str, Any]:
        return super().objects if self._seen is None else self._seen

    def find_obj(
        self,
        env: Any,
        modname: str,
        classname: str,
        name: str,
        type: str | None,
        searchmode: int = 0,
    ) -> Any:
        if len(self.objects) != self._counted:
            self._counted = len(self.objects)
            self._by_last_word = {}
            for each, entry in self.objects.items():
                self._by_last_word.setdefault(each.rpartition(".")[2], {})[each] = entry
        self._seen = self._by_last_word.get(name.removesuffix("()").rpartition(".")[2], {})
        try:
            return super().find_obj(env, modname, classname, name, type, searchmode)
        finally:
            self._seen = None


def lead_to_public_name(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Signatures name things by the module that defines them; the pages have them where users
    import them from.
    """
    if node.get("refdomain") != "py":
        return None
    above, _, last = node.get("reftarget", "").rpartition(".")
    if last in PUBLIC:
        name = PUBLIC[last]
    elif above in PUBLIC:
        name = f"{PUBLIC[above]}.{last}"
    else:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)


ROOT = Path(__file__).parent.parent
NEW_STEP = re.compile(r"^<!-- file: (\S+); since: (\S+) -->\n```python\n", re.MULTILINE)


def depended_on(app: Any, path: str) -> str:
    """The text of a file; when the file changes, its page is read again."""
    app.env.note_dependency(str(ROOT / path))
    return (ROOT / path).read_text(encoding="utf-8")


def drop_words_of_named_tuples(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """A field without a docstring has that of `collections.namedtuple`, which says nothing."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def name_base(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Lead from a class to the entry with the members that it inherits."""
    if what == "class" and (
        found := next((b for b in obj.__mro__[1:] if b in DESCRIBED_ONCE), None)
    ):
        lines += ["", f"Inherits the members of :class:`~{found.__module__}.{found.__name__}`.", ""]


def add_navigation(app: Any, docname: str, source: list[str]) -> None:
    for caption, pages in NAVIGATION.get(docname, {}).items():
        lines = "\n".join(pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def add_keywords(app: Any, docname: str, source: list[str]) -> None:
    """Put the keywords of a page into the index below its title; the search ranks them highest."""
    if docname in KEYWORDS:
        READ.add(docname)
        title, below = source[0].split("\n", 1)
        entries = "\n".join(f"```{{index}} ! single: {word}\n```" for word in KEYWORDS[docname])
        source[0] = f"{title}\n\n{entries}\n{below}"


def check_search(app: Any, error: Exception | None) -> None:
    """Fail the build if the search does not find the guides by their keywords."""
    if error is not None or app.builder.name != "html":
        return
    text = Path(app.outdir, "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = index["docnames"]
    missing = [
        f"{word} of {page}"
        for page in sorted(READ)
        for word in KEYWORDS[page]
        if not any(
            pages[number] == page and is_main
            for number, _, is_main in index["indexentries"].get(word, ())
        )
    ]
    if missing:
        raise ExtensionError(f"the search does not find {', '.join(missing)}")


def show_changelog(app: Any, docname: str, source: list[str]) -> None:
    """The page in the repository leads to the changelog; the built page is the changelog."""
    if docname == "changelog":
        source[0] = depended_on(app, "CHANGELOG.md")


def mark_new_lines(app: Any, docname: str, source: list[str]) -> None:
    """Mark the lines of a step that the step before does not have. Where nothing is built, readers
    have the sentence above the code.
    """

    def marked(step: re.Match[str]) -> str:
        new, old = (depended_on(app, path).splitlines() for path in step.groups())
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        ranges = [
            f"{first + 1}-{last}"
            for tag, _, _, first, last in matcher.get_opcodes()
            if tag in ("insert", "replace")
        ]
        return f"```{{code-block}} python\n:emphasize-lines: {','.join(ranges)}\n\n"

    source[0] = NEW_STEP.sub(marked, source[0])


def setup(app: Any) -> None:
    # The nodes of all pages stay until the end, and to search them for garbage again and again
    # takes a sixth of the build.
    gc.set_threshold(200_000, 20, 100)
    app.add_domain(Names, override=True)
    # Sphinx makes a record of each event, and prints it for `sphinx-build -vv` only.
    logging.getLogger("sphinx").setLevel(logging.INFO)
    for handler in (mark_new_lines, add_keywords, add_navigation, show_changelog):
        app.connect("source-read", handler)
    app.connect("build-finished", check_search)
    app.connect("autodoc-process-docstring", drop_words_of_named_tuples)
    app.connect("autodoc-process-docstring", name_base)
    # The index asks for the stem of each word of each page.
    SearchEnglish.stem = cache(SearchEnglish.stem)
    # napoleon takes the words before a colon in the docstring of an attribute for its type.
    GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end
    # napoleon asks every member for its docstring, private members too, and some of those raise an
    # error with advice when they are touched too early.
    listeners = app.events.listeners["autodoc-skip-member"]
    listeners[:] = [one for one in listeners if one.handler.__module__ != "sphinx.ext.napoleon"]
    app.connect("missing-reference", lead_to_public_name)
