"""`platform_text`: names the platform as the cause, if a part of the package needs a module that
only Linux and macOS have.
"""

import sys
from typing import Final

__all__ = ["platform_text"]

_POSIX_MODULES: Final = frozenset({"fcntl", "grp", "pwd", "resource", "termios", "tty"})
"""Modules of the standard library that Python has on Linux and macOS only."""


def platform_text(subject: str, error: ModuleNotFoundError) -> str | None:
    """The text of the error, with advice, if ``subject`` cannot be imported because of the
    platform; None if the missing module does not depend on the platform.
    """
    if error.name not in _POSIX_MODULES:
        return None
    return (
        f"{subject} works on Linux and macOS only: it needs the module {error.name!r} of Python's "
        f"standard library, which is missing on this platform ({sys.platform}). Actors, "
        "supervisors, messages and framings work without it; on Windows, run this program in WSL "
        "or in a container"
    )
