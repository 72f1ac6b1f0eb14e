"""How the commands look: one place decides whether that is plain text, or what the library ``rich``
makes of a terminal.

What is shown is the same either way; ``control.rendering`` says what a table or a crash has to
tell.
"""

import os
import shutil
import sys
from collections.abc import Mapping

from ..control.rendering import Crash, Table, fit, pairs, table_text

__all__ = ["Screen", "choose_screen"]


class Screen:
    """Plain text, for pipes, for terminals that know nothing else, and where ``rich`` is not
    installed.
    """

    def __init__(self, width: int = 0, *, is_styled: bool = False) -> None:
        self.width = width
        """Columns; 0 is no limit."""
        self._is_styled = is_styled and "NO_COLOR" not in os.environ

    def table(self, table: Table) -> str:
        """A line of heads, and one for each row."""
        return table_text(table, self.width)

    def live_table(self, table: Table) -> str:
        """The same with heads that stand out over the whole width."""
        heads, *rows = self.table(table).splitlines()
        return "\n".join((self._style("7", heads.ljust(self.width)), *rows))

    def pairs(self, these: Mapping[str, object]) -> str:
        """One line for each name and value."""
        return pairs(these)

    def tree(self, text: str) -> str:
        """Who belongs to whom, as a node drew it."""
        return text

    def crash(self, one: Crash) -> str:
        """Why one died."""
        return str(one)

    def alarm(self, text: str) -> str:
        """A line that nobody should overlook."""
        return self._style("1;31", self._fit(text))

    def title(self, text: str) -> str:
        """A line above others."""
        return self._fit(text)

    def aside(self, text: str) -> str:
        """A line that need not be read."""
        return self._style("2", self._fit(text))

    def _fit(self, text: str) -> str:
        return fit(text, self.width) if self.width else text

    def _style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_styled else text


def choose_screen(width: int | None = None) -> Screen:
    """The best that is to be had: at a terminal with ``rich`` installed, that; else plain text."""
    if not sys.stdout.isatty():
        return Screen()
    columns = shutil.get_terminal_size().columns if width is None else width
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return Screen(columns)
    try:
        from .rich_screen import RichScreen  # noqa: PLC0415 - an extra, and not quick to import
    except ImportError:
        return Screen(columns, is_styled=True)
    return RichScreen(columns)
