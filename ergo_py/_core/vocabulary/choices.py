"""The words that options of a node allow, for ``open_node`` and for the command line, which must
start quickly: this module imports nothing else of the package.
"""

from typing import Final

__all__ = ["LEVELS", "OUTPUTS", "PERMISSIONS"]

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50, "off": 100}
"""Log levels by name."""

OUTPUTS: Final = ("auto", "console", "json", "stdlib", "structlog", "none")
"""Log outputs. `Output` has the same words, for type checkers."""

PERMISSIONS: Final = ("look", "act", "attach")
"""Permissions of other programs on a control socket."""
