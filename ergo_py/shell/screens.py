"""`choose_screen`: selects plain text or ``rich`` for the output of the commands."""

import os
import shutil
import sys

from .plain_screen import Screen

__all__ = ["Screen", "choose_screen", "is_full_terminal"]


def choose_screen(width: int | None = None) -> Screen:
    """The best screen available: ``rich`` at a terminal, if installed; else plain text."""
    if not sys.stdout.isatty():
        return Screen()
    columns = shutil.get_terminal_size().columns if width is None else width
    if _is_simple():
        return Screen(columns)
    try:
        from .rich_screen import RichScreen  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return Screen(columns, is_styled=True)
    return RichScreen(columns)


def is_full_terminal() -> bool:
    """Whether input and output are a terminal that a program can draw on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not _is_simple()


def _is_simple() -> bool:
    return os.environ.get("TERM", "dumb") in ("dumb", "unknown")
