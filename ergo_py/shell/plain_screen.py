"""`Screen`: plain output of the commands, and the base of `RichScreen`.

Every screen shows the same content; ``control.rendering`` defines the content of a table or a
crash.
"""

import os
from collections.abc import Mapping

from ..control.rendering import Crash, Table, fit, pairs, table_text

__all__ = ["Screen"]


class Screen:
    """Plain text: for pipes, for simple terminals, and where ``rich`` is not installed."""

    def __init__(self, width: int = 0, *, is_styled: bool = False) -> None:
        self.width = width
        """Columns; 0 for no limit."""
        self._is_styled = is_styled and "NO_COLOR" not in os.environ

    def table(self, table: Table) -> str:
        """A line of heads, and a line for each row."""
        return table_text(table, self.width)

    def live_table(self, table: Table) -> str:
        """The same with highlighted heads over the whole width."""
        heads, *rows = self.table(table).splitlines()
        return "\n".join((self._style("7", heads.ljust(self.width)), *rows))

    def pairs(self, values: Mapping[str, object]) -> str:
        """A line for each name and value."""
        return pairs(values)

    def tree(self, text: str) -> str:
        """The supervision tree, as drawn by the node."""
        return text

    def crash(self, crash: Crash) -> str:
        """A crash and its reason."""
        return str(crash)

    def alarm(self, text: str) -> str:
        """A warning line."""
        return self._style("1;31", self._fit(text))

    def title(self, text: str) -> str:
        """A title line."""
        return self._fit(text)

    def aside(self, text: str) -> str:
        """A hint line."""
        return self._style("2", self._fit(text))

    def _fit(self, text: str) -> str:
        return fit(text, self.width) if self.width else text

    def _style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_styled else text
