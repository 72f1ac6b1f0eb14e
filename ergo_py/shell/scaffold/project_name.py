"""`ProjectName`: the name of a new project, in its two spellings."""

import keyword
import re
import sys
from dataclasses import dataclass
from typing import Final

__all__ = ["BadNameError", "ProjectName"]

_LONGEST: Final = 31
"""Characters: the name is also the name of a user of the operating system, for the service."""

_LIBRARY: Final = sys.stdlib_module_names | {"test"}
"""Modules of Python's standard library; Python's own list lacks ``test``."""

_TAKEN: Final = frozenset(
    {"ergo", "ergo_py", "outcome", "pytest", "pytest_ergo_py", "structlog", "tests", "trio"}
    | {"attr", "attrs", "idna", "sniffio", "sortedcontainers"}  # of trio
    | {"build", "deploy", "dist", "wheels"}
)
"""Names of modules that the project itself uses, and of its other folders."""


class BadNameError(Exception):
    """The name cannot be the name of a project. The text says why, and gives an example."""


@dataclass(frozen=True, slots=True)
class ProjectName:
    """The name of a project: ``my-shop`` is the name of its folder, its command and its service,
    and ``my_shop`` the name of its package.
    """

    project: str
    package: str

    @classmethod
    def of(cls, text: str) -> "ProjectName":
        """Check a name that a user has given; ``my_shop`` and ``my-shop`` are the same package.

        Raises:
            BadNameError: it cannot be the name of a package.
        """
        package = text.replace("-", "_")
        if "/" in text or "\\" in text or text in (".", ".."):
            raise BadNameError(
                f"NAME is {text!r}, a path; write the last part only, in the folder that shall "
                "hold the project"
            )
        if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", text):
            raise BadNameError(
                f"NAME is {text!r}; allowed are small letters, digits, and single - or _ between "
                f"them, beginning with a letter{_instead(text)}"
            )
        if keyword.iskeyword(package):
            raise BadNameError(
                f"NAME is {text!r}, a keyword of Python, which `import` cannot name"
                f"{_instead(f'{text}_app')}"
            )
        if package in _LIBRARY:
            raise BadNameError(
                f"NAME is {text!r}, a module of Python's standard library, which the project "
                f"would hide{_instead(f'{text}_app')}"
            )
        if package in _TAKEN:
            raise BadNameError(
                f"NAME is {text!r}, a module or folder that the project itself needs"
                f"{_instead(f'{text}_app')}"
            )
        if len(text) > _LONGEST:
            raise BadNameError(
                f"NAME has {len(text)} characters; allowed are {_LONGEST}, as for a user of the "
                "operating system"
            )
        return cls(text, package)


def _instead(text: str) -> str:
    """A name that is allowed and near to the given text, as the end of a sentence."""
    near = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    near = re.sub(r"^[0-9_]+", "", near)[:_LONGEST].strip("_")
    allowed = near and not keyword.iskeyword(near) and near not in _LIBRARY
    return f"; write `ergo new {near if allowed else 'my_shop'}`"
