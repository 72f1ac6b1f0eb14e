"""`CrashScreen`, `TreeScreen`, `DeadLetterScreen` and `HelpScreen`: pages about the whole node."""

import asyncio
from typing import ClassVar, Final

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from ..._core.vocabulary.text import printable, printable_lines
from ...control.protocol import ControlError
from ...control.rendering import clock, group_crashes, stack_text
from ..rich_screen import crash_text, tree_text
from .node_watch import Connection, NodeWatch
from .widgets import Bar, Page, keys

__all__ = ["CrashScreen", "DeadLetterScreen", "HelpScreen", "TreeScreen"]

_CRASHES: Final = 100
_LETTERS: Final = 100
_ALIKE: Final = 10
"""How many unnamed children of each behaviour the tree shows."""


class _NodeScreen(Screen[None]):
    """A page that is asked for again at each interval."""

    HEADLINE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,q", "close", show=False),
    ]

    def __init__(self, watch: NodeWatch, interval: float) -> None:
        super().__init__()
        self._watch = watch
        self._interval = interval
        # Held here: the worker may draw while the screen is being closed.
        self._title, self._gap, self._notice, self._keys = map(
            Bar, ("title", "gap", "notice", "keys")
        )
        self._page = Page("content")

    def compose(self) -> ComposeResult:
        """The title, the page and the keys."""
        yield from (self._title, self._gap, self._page, self._notice, self._keys)

    def on_mount(self) -> None:
        """Begin to ask."""
        self._page.focus()
        title = Text.assemble(
            f" {printable(self._watch.node)} ▸ ", (self.HEADLINE, "bold"), style="white on blue"
        )
        self._title.show(title)
        self._gap.show(Text(""))
        self._keys.show(keys(self.size.width, ("esc", "back"), ("↑↓ space", "scroll")))
        self._notify("")
        self.run_worker(self._work())

    def action_close(self) -> None:
        """Go back to the list."""
        _ = self.app.pop_screen()

    async def _work(self) -> None:
        page = self._page
        while True:
            try:
                async with self._watch.connected() as connection:
                    while True:
                        page.show(await self.content(connection))
                        self._notify("")
                        await asyncio.sleep(self._interval)
            except ControlError as error:
                page.show(
                    Group(
                        Text(printable_lines(error.text), style="bold red"),
                        Text(stack_text(error), style="dim"),
                    )
                )
            except OSError:
                self._notify(f"{self._watch.node} has ended, or does not answer")
            await asyncio.sleep(self._interval)

    def _notify(self, text: str) -> None:
        lines = [Text(f" {printable(text)}", "bold white on red")] if text else []
        self._notice.show(*lines)

    async def content(self, connection: Connection) -> RenderableType:
        """Ask for the content."""
        raise NotImplementedError


class CrashScreen(_NodeScreen):
    """The last crashes, with their tracebacks."""

    HEADLINE = "crashes"

    async def content(self, connection: Connection) -> RenderableType:
        """The crashes, the last first."""
        answer = await connection.ask("crashes", count=_CRASHES)
        if not answer:
            return Text("nothing has failed", style="dim")
        parts: list[RenderableType] = []
        for each in reversed(group_crashes(answer)):
            head, lines, traceback = crash_text(each)
            parts += [head, lines, *([] if traceback is None else [traceback]), Text("")]
        return Group(*parts)


class TreeScreen(_NodeScreen):
    """The supervision tree."""

    HEADLINE = "supervision tree"

    async def content(self, connection: Connection) -> RenderableType:
        """The tree, as `ergo tree` shows it."""
        answer = await connection.ask("tree", alike=_ALIKE)
        return tree_text(printable_lines(answer["text"]))


class DeadLetterScreen(_NodeScreen):
    """The last undeliverable messages."""

    HEADLINE = "dead letters"

    async def content(self, connection: Connection) -> RenderableType:
        """The messages, and the numbers of each reason."""
        answer = await connection.ask("dead-letters", count=_LETTERS)
        if not answer["counts"]:
            return Text("no dead letters", style="dim")
        counts = ", ".join(f"{number} {why}" for why, number in answer["counts"].items())
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head in ("AT", "FROM", "TO", "MESSAGE", "WHY"):
            grid.add_column(head, overflow="fold")
        for letter in reversed(answer["last"]):
            names = ("sender", "target", "message_type", "why")
            cells = (clock(letter["at"]), *(letter[name] for name in names))
            grid.add_row(*(Text(printable(str(cell))) for cell in cells))
        total = f"{sum(answer['counts'].values())} in all: {counts}\n"
        return Group(Text(printable(total.rstrip()) + "\n"), grid)


_KEYS: Final = (
    ("↑ ↓ PgUp PgDn Home End", "select a process; j k g G work, too"),
    ("enter, double click", "open a process: info, inspect, state, mailbox, trace"),
    ("/", "filter by a part of a name or of a behaviour; esc shows all again"),
    ("m", "sort by messages in the mailbox"),
    ("r", "sort by messages handled a second"),
    ("l", "sort by load: the share of time in callbacks"),
    ("w", "sort by the worst load so far, which finds a callback that blocked the loop"),
    ("t", "sort by time in callbacks"),
    ("i", "sort by number: the oldest first"),
    ("space", "stop and continue to refresh"),
    ("c", "the last crashes, with tracebacks"),
    ("v", "the supervision tree"),
    ("d", "dead letters: messages that could not be delivered"),
    ("q, Ctrl-C", "leave; the node notices nothing"),
)


class HelpScreen(_NodeScreen):
    """The keys of the list."""

    HEADLINE = "keys"

    async def _work(self) -> None:
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 1), show_header=False)
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column()
        for key, meaning in _KEYS:
            grid.add_row(Text(key), Text(meaning))
        self._page.show(grid)
