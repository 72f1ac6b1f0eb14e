"""`RichScreen`: output with the library ``rich``. Imported only if ``rich`` is installed and the
output is a terminal.
"""

import io
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table as Grid
from rich.text import Text

from .._core.vocabulary.text import printable
from ..control.rendering import Crash, Table, narrowed
from .plain_screen import Screen

__all__ = ["RichScreen", "crash_text", "style_of", "tree_text"]

_STRETCHES: Final = frozenset(
    {"NAME", "BEHAVIOUR", "DOING", "MESSAGE", "WHY", "CALLBACK", "FROM", "TO", "NODE"}
)
"""The columns that shrink in a narrow terminal; numbers are never cut."""
_STATES: Final = {
    "running": "green",
    "sleep": "dim",
    "suspended": "yellow",
    "stopping": "red",
    "init": "cyan",
}


def _is_nonzero(cell: str) -> bool:
    return cell not in ("0", "0%", "-")


_STYLES: Final[dict[str, Callable[[str], str]]] = {
    "NAME": lambda cell: "dim" if cell == "-" else "bold",
    "BEHAVIOUR": lambda _: "cyan",
    "STATE": lambda cell: _STATES.get(cell, ""),
    "MAIL": lambda cell: "bold yellow" if _is_nonzero(cell) else "dim",
    "MSG/S": lambda cell: "bold" if _is_nonzero(cell) else "dim",
    "LOAD": lambda cell: "bold" if _is_nonzero(cell) else "dim",
    "ERRORS": lambda cell: "bold red" if _is_nonzero(cell) else "dim",
    "DOING": lambda _: "dim",
    "WHY": lambda _: "red",
}


def style_of(head: str, cell: str) -> str:
    """The style of a cell in the column ``head``."""
    style = _STYLES.get(head)
    return "" if style is None else style(cell)


def tree_text(text: str) -> Text:
    """A supervision tree with colours, as drawn by the node."""
    shown = Text(text)
    shown.highlight_regex(r"(?m)^[ │├└─]+", "dim")
    shown.highlight_regex(r"<(PID|Alias) [^>]*>", "dim")
    for state, style in _STATES.items():
        shown.highlight_regex(rf"(?m)\b{state}\b(?=[^(]*\)$)", style)
    return shown


def crash_text(crash: Crash) -> tuple[Text, Text, Padding | None]:
    """The first line of a crash, the facts, and the traceback, with colours."""
    head = Text.assemble((crash.who, "bold"), ": ", (crash.reason, "bold red"))
    facts = Text("\n".join(f"    {line}" for line in crash.facts), style="dim")
    if not crash.traceback:
        return head, facts, None
    code = Syntax(
        "\n".join(crash.traceback),
        "pytb",
        theme="ansi_dark",
        background_color="default",
        word_wrap=True,
    )
    return head, facts, Padding(code, (0, 0, 0, 4))


class RichScreen(Screen):
    """Output with colours, and with columns that shrink where they may."""

    def table(self, table: Table) -> str:
        """A line of heads, and a line for each row."""
        return self._table(table, "bold", is_wide=False)

    def live_table(self, table: Table) -> str:
        """The same with highlighted heads over the whole width."""
        return self._table(table, "reverse", is_wide=True)

    def _table(self, table: Table, head_style: str, *, is_wide: bool) -> str:
        table = narrowed(table, self.width)
        grid = Grid(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=head_style, expand=is_wide
        )
        for head, shown in zip(table.heads, table.shown_heads(), strict=True):
            grid.add_column(
                Text(
                    shown,
                    style="bold" if head == table.sorted_by else "",
                    no_wrap=True,
                    overflow="ellipsis",
                ),
                justify="right" if head in table.right else "left",
                no_wrap=head not in _STRETCHES,
                overflow="ellipsis",
                ratio=1 if is_wide and head == table.heads[-1] else None,
            )
        for row in table.rows:
            grid.add_row(
                *(self._cell(head, cell) for head, cell in zip(table.heads, row, strict=True))
            )
        lines = self._render(grid).splitlines()
        if table.below:
            interleaved = [lines[0]]
            for line, below in zip(lines[1:], table.below, strict=True):
                interleaved += [line, *(self._line(f"        {text}", "dim") for text in below)]
            lines = interleaved
        return "\n".join(lines)

    def pairs(self, values: Mapping[str, object]) -> str:
        """A line for each name and value; several lines for a long value."""
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        grid.add_column(justify="right", style="cyan", no_wrap=True)
        grid.add_column(overflow="fold")
        for key, value in values.items():
            grid.add_row(Text(printable(str(key))), Text(printable(str(value))))
        return self._render(grid)

    def tree(self, text: str) -> str:
        """The supervision tree, as drawn by the node."""
        return self._render(tree_text(text), soft_wrap=True)

    def crash(self, crash: Crash) -> str:
        """A crash and its reason."""
        head, facts, traceback = crash_text(crash)
        parts = [self._render(head, soft_wrap=True), self._render(facts, no_wrap=True)]
        if traceback is not None:
            parts.append(self._render(traceback))
        return "\n".join(parts)

    def alarm(self, text: str) -> str:
        """A warning line."""
        return self._line(text, "bold white on red")

    def title(self, text: str) -> str:
        """A title line."""
        return self._line(text, "bold")

    def aside(self, text: str) -> str:
        """A hint line."""
        return self._line(text, "dim")

    def _cell(self, head: str, cell: str) -> Text:
        # Never markup: cells contain untrusted text.
        return Text(cell, style=style_of(head, cell), no_wrap=True, overflow="ellipsis")

    def _line(self, text: str, style: str) -> str:
        return self._render(Text(text, style=style), no_wrap=True)

    def _render(
        self, content: RenderableType, *, no_wrap: bool | None = None, soft_wrap: bool = False
    ) -> str:
        console = Console(
            file=io.StringIO(), force_terminal=True, width=self.width, highlight=False, markup=False
        )
        with console.capture() as taken:
            console.print(
                content,
                no_wrap=no_wrap,
                soft_wrap=soft_wrap,
                overflow=None if soft_wrap else "ellipsis",
            )
        return "\n".join(line.rstrip() for line in taken.get().rstrip("\n").split("\n"))
