"""`Bar`, `Page` and `ProcessList`: the parts of the live view. They draw `rich` texts line by line,
and never read markup: names and values come from a node.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Final

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from ...control.rendering import Table, narrowed, process_table
from ..rich_screen import style_of

__all__ = ["Bar", "Page", "ProcessList", "keys", "load_bar", "spark"]

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_BAR: Final = 8
"""Characters of the bar in the column LOAD."""
_WIDE: Final = 110
"""Columns of a terminal that has room for the bar."""
_CURSOR: Final = Style(reverse=True)


def spark(values: Iterable[float], width: int) -> str:
    """The last values as a row of bars; the highest value fills a line."""
    shown = list(values)[-width:] if width > 0 else []
    most = max(shown, default=0.0)
    if most <= 0:
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[min(7, int(value / most * 7.999))] for value in shown)


def load_bar(share: float) -> str:
    """A bar for a share from 0 to 1, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)


def keys(width: int, *pairs: tuple[str, str]) -> Text:
    """A line with keys and their effects. In a narrow terminal the last but one is left out
    first.
    """
    shown = list(pairs)
    while len(shown) > 2 and sum(len(key) + len(effect) + 3 for key, effect in shown) > width:
        del shown[-2]
    text = Text(" ")
    for key, effect in shown:
        text.append(key, "bold")
        text.append(f" {effect}  ", "dim")
    return text


class Bar(Widget, can_focus=False):
    """Lines of text, cut at the edge; hidden while there is no text."""

    DEFAULT_CSS = "Bar { height: auto; width: 1fr; }"

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.lines: list[Text] = []

    @property
    def text(self) -> str:
        """The present lines without colours."""
        return "\n".join(line.plain for line in self.lines)

    def show(self, *lines: Text) -> None:
        """Show these lines. A text in a style fills the whole line with it."""
        if [(each, each.style) for each in lines] == [(each, each.style) for each in self.lines]:
            return
        is_taller = len(lines) != len(self.lines)
        self.lines = list(lines)
        self.display = bool(lines)
        self.refresh(layout=is_taller)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A line for each text."""
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        """Draw a line."""
        if y >= len(self.lines):
            return Strip.blank(self.size.width)
        text = self.lines[y].copy()
        text.truncate(self.size.width, overflow="ellipsis", pad=True)
        return Strip(text.render(self.app.console, end=""), self.size.width)


class Page(ScrollView, can_focus=True):
    """A text of any length that can be scrolled; long lines are wrapped."""

    DEFAULT_CSS = "Page { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; }"
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("space", "page_down", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.content: RenderableType = Text("")
        self._lines: list[Strip] = []
        self._follows = False

    @property
    def text(self) -> str:
        """The present lines without colours."""
        return "\n".join(line.text.rstrip() for line in self._lines)

    def show(self, content: RenderableType, *, follow: bool = False) -> None:
        """Show a content at the present position; with ``follow`` at its end, unless the user has
        scrolled up.
        """
        is_at_end = self.scroll_offset.y >= self.max_scroll_y
        self.content = content
        self._follows = follow
        self._lay_out()
        if follow and is_at_end:
            self.scroll_end(animate=False)

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width or self.size.width
        options = self.app.console.options.update(width=max(1, width), height=None, markup=False)
        self._lines = [
            Strip(line) for line in self.app.console.render_lines(self.content, options, pad=False)
        ]
        self.virtual_size = Size(width, len(self._lines))
        self.refresh()

    def on_resize(self) -> None:
        """Wrap the lines again."""
        self._lay_out()
        if self._follows:
            self.scroll_end(animate=False)

    def render_line(self, y: int) -> Strip:
        """Draw a line."""
        number = y + self.scroll_offset.y
        line = self._lines[number] if number < len(self._lines) else Strip.blank(0)
        return line.crop_extend(0, self.size.width, None)


class ProcessList(ScrollView, can_focus=True):
    """The table of processes. It holds the rows around the visible ones only, and asks for others
    when the user scrolls.
    """

    DEFAULT_CSS = """
    ProcessList {
        height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-gutter: stable;
    }
    """
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home,g", "move(-1000000000)", show=False),
        Binding("end,G", "move(1000000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Moved(Message):
        """Other rows are visible than those at hand."""

    class Opened(Message):
        """The user wants to know more of a process."""

        def __init__(self, row: dict[str, Any]) -> None:
            super().__init__()
            self.row = row

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.cursor: int = 0
        """The index of the selected row."""
        self.found: int = 0
        self._skip = 0
        self._rows: list[dict[str, Any]] = []
        self._table = Table((), ())
        self._sort = "id"
        self._widths: dict[str, int] = {}
        self._followed: int | None = None
        """The number of the process that the user has selected."""
        self._is_stale = False

    # -- rows --------------------------------------------------------------------------------------

    @property
    def page(self) -> int:
        """The number of visible rows."""
        return max(1, self.size.height)

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def window(self) -> tuple[int, int]:
        """The rows to ask for: those that are visible, and a page above and below."""
        skip = max(0, self.scroll_offset.y - self.page)
        return skip, self.scroll_offset.y + 2 * self.page - skip

    def row_at(self, index: int) -> dict[str, Any] | None:
        """The row, if it is at hand."""
        place = index - self._skip
        return self._rows[place] if 0 <= place < len(self._rows) else None

    @property
    def text(self) -> str:
        """The visible rows without colours."""
        return "\n".join(self.render_line(y).text.rstrip() for y in range(self.page))

    def show(self, rows: list[dict[str, Any]], *, skip: int, found: int, sort: str) -> None:
        """Show these rows, the first of which has the index ``skip``."""
        if sort != self._sort:
            self._widths.clear()
        self._rows, self._skip, self.found, self._sort = rows, skip, found, sort
        self._is_stale = False
        self._lay_out()
        first, last = self.scroll_offset.y, self.scroll_offset.y + self.page
        places = {row["id"]: skip + place for place, row in enumerate(rows)}
        here = places.get(self._followed, -1) if self._followed is not None else -1
        if first <= here < last:
            self.cursor = here
        else:
            self._move_to(self.cursor)
        self.refresh()

    def mark_stale(self) -> None:
        """The node does not answer: the rows are those of its last answer."""
        self._is_stale = True
        self.refresh()

    def forget(self) -> None:
        """Begin at the top: the order of the rows is another."""
        self._widths.clear()
        self._followed = None
        self.cursor = 0
        self.scroll_to(y=0, animate=False)

    def _lay_out(self) -> None:
        width = self._width
        longest = max(12, width // 5)
        made = process_table(self._rows, rates=True, sort=self._sort)
        stretching = [made.heads.index(head) for head in ("NAME", "BEHAVIOUR")]
        shortened = tuple(
            tuple(
                _cut(cell, longest) if place in stretching else cell
                for place, cell in enumerate(row)
            )
            for row in made.rows
        )
        # Columns that have been wide stay so: a column that moves is hard to read.
        self._table = narrowed(replace(made, rows=shortened), width)
        for place, head in enumerate(self._table.shown_heads()):
            size = max(map(cell_len, (head, *(row[place] for row in self._table.rows))))
            name = self._table.heads[place]
            self._widths[name] = max(size, self._widths.get(name, 0))
        height = self.found
        if self.virtual_size != Size(width, height):
            self.virtual_size = Size(width, height)

    def on_resize(self) -> None:
        """Choose the columns again."""
        self._widths.clear()
        self._lay_out()
        self._move_to(self.cursor)
        self.post_message(self.Moved())

    # -- the cursor --------------------------------------------------------------------------------

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._select(self.cursor + rows)

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by a screen."""
        self._select(self.cursor + pages * max(1, self.page - 1))

    def action_open(self) -> None:
        """Open the selected process."""
        row = self.row_at(self.cursor)
        if row is not None:
            self.post_message(self.Opened(row))

    def _select(self, index: int) -> None:
        self._move_to(index)
        row = self.row_at(self.cursor)
        self._followed = None if row is None else row["id"]

    def _move_to(self, index: int) -> None:
        self.cursor = max(0, min(index, self.found - 1))
        first = self.scroll_offset.y
        if self.cursor < first:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= first + self.page:
            self.scroll_to(y=self.cursor - self.page + 1, animate=False)
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Ask for the rows that are visible now."""
        super().watch_scroll_y(old_value, new_value)
        first = round(new_value)
        if self.found and (
            self.row_at(first) is None
            or self.row_at(min(first + self.page, self.found) - 1) is None
        ):
            self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Select a row; open it with a double click."""
        self._select(event.y + self.scroll_offset.y)
        if event.chain == 2:
            self.action_open()

    # -- drawing -----------------------------------------------------------------------------------

    @property
    def heads(self) -> Text:
        """The line above the rows."""
        shown = dict(zip(self._table.heads, self._table.shown_heads(), strict=True))
        text = Text(" ")
        for head in self._table.heads:
            style = "bold cyan" if head == self._table.sorted_by else "bold"
            text.append(self._padded(head, shown[head]), style)
            text.append("  ")
        return text

    def head_at(self, x: int) -> str | None:
        """The head of a column at a place on the screen."""
        place = 1
        for head in self._table.heads:
            place += self._width_of(head) + 2
            if x < place:
                return head
        return self._table.heads[-1] if self._table.heads else None

    @property
    def _has_bars(self) -> bool:
        return self._width >= _WIDE

    def _width_of(self, head: str) -> int:
        return self._widths.get(head, len(head)) + (
            _BAR + 1 if head == "LOAD" and self._has_bars else 0
        )

    def _padded(self, head: str, cell: str) -> str:
        width = self._width_of(head)
        if head in self._table.right:
            return " " * max(0, width - cell_len(cell)) + cell
        return cell if head == self._table.heads[-1] else set_cell_size(cell, width)

    def render_line(self, y: int) -> Strip:
        """Draw a row."""
        index = y + self.scroll_offset.y
        row = self.row_at(index)
        width = self._width
        if row is None:
            waiting = "…" if index < self.found else ""
            return Strip([Segment(f" {waiting}".ljust(width), Style(dim=True))], width)
        is_selected = index == self.cursor
        text = Text(" ")
        for head, cell in zip(self._table.heads, self._table.rows[index - self._skip], strict=True):
            style = "dim" if self._is_stale else style_of(head, cell)
            padded = self._padded(head, cell)
            if head == "LOAD" and self._has_bars:
                text.append(load_bar(row["load"]), "" if is_selected or self._is_stale else "green")
                padded = padded[_BAR:]
            text.append(padded, "" if is_selected else style)
            text.append("  ")
        text.truncate(width, overflow="ellipsis", pad=True)
        if is_selected:
            text.stylize(_CURSOR)
        return Strip(text.render(self.app.console, end=""), width)


def _cut(cell: str, width: int) -> str:
    return cell if cell_len(cell) <= width else set_cell_size(cell, width - 1).rstrip() + "…"
