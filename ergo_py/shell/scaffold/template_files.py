"""`render`: the files of a new project, from the template in this package."""

from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from .project_name import ProjectName

__all__ = ["render"]

_SUFFIX: Final = ".in"
"""Files of the template have it, so that no tool takes them for code of this package."""
_HIDDEN: Final = {"gitignore", "dockerignore"}
"""Files whose names begin with a dot in the project."""


def render(name: ProjectName) -> Iterator[tuple[str, str]]:
    """The path of each file of a project, relative to its folder, and the content."""
    replacements = {
        "project-name": name.project,
        "project_name": name.package,
        "ergo-version": version("ergo_py"),
    }

    def filled(text: str) -> str:
        for old, new in replacements.items():
            text = text.replace(old, new)
        return text

    for path, file in _walk(files(__name__.rpartition(".")[0]) / "template", ""):
        yield filled(path), filled(file.read_text(encoding="utf-8"))


def _walk(folder: Traversable, above: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            name = entry.name.removesuffix(_SUFFIX)
            yield f"{above}{'.' if name in _HIDDEN else ''}{name}", entry
