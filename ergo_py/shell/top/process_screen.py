"""`ProcessScreen`: everything about a process, in tabs."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from ..._core.vocabulary.text import printable, printable_lines
from ...control.protocol import ControlError
from ...control.rendering import facts, stack_text
from .node_watch import Connection, NodeWatch
from .widgets import Bar, Page, keys

__all__ = ["Confirmation", "ProcessScreen"]

_MESSAGES: Final = 200
"""Messages of a mailbox that are shown."""
_LINES: Final = 1000
"""Lines of a trace that are shown; then it ends, so that a busy process is not traced forever."""
_TRACE: Final = 600.0
"""Seconds of a trace."""
_DRAWING: Final = 0.1
"""Seconds between two drawings of a trace."""
_PATIENCE: Final = 2.0
"""Seconds that a busy process has for the answer."""
_ACTS: Final = {
    "suspend": ("suspend", "suspended"),
    "resume": ("resume", "resumed"),
    "exit": ("ask to end:", "asked"),
    "kill": ("kill", "killed"),
}
"""The question and the answer of each command that changes a process."""


class ProcessScreen(Screen[None]):
    """The tabs of a process or meta-process. Its connection lasts as long as the screen, so the
    number of the process keeps its meaning.
    """

    TABS: ClassVar = ("Info", "Inspect", "State", "Mailbox", "Trace")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace,q", "close", show=False),
        *(Binding(str(n + 1), f"tab({n})", show=False) for n in range(5)),
        Binding("right,tab,l", "next(1)", show=False),
        Binding("left,shift+tab,h", "next(-1)", show=False),
        Binding("c", "contents", show=False),
        Binding("r", "again", show=False),
        Binding("s", "act('suspend')", show=False),
        Binding("u", "act('resume')", show=False),
        Binding("x", "act('exit')", show=False),
        Binding("K", "act('kill')", show=False),
    ]

    def __init__(self, watch: NodeWatch, row: dict[str, Any], interval: float) -> None:
        super().__init__()
        self._watch = watch
        self._row = row
        self._interval = interval
        self._tab = 0
        self._shows_contents = False
        self._connection: Connection | None = None
        self._is_over = False
        self._notice = ""
        # Held here: the worker may draw while the screen is being closed.
        self._title_bar, self._tab_bar, self._notice_bar, self._key_bar = map(
            Bar, ("title", "tabs", "notice", "keys")
        )
        self._page = Page("content")
        self._traced: deque[str] = deque(maxlen=_LINES)

    @property
    def who(self) -> str:
        """The number, the name and the behaviour."""
        words = (self._row["id"], self._row["name"], self._row["behaviour"])
        return printable(" ".join(str(word) for word in words if word is not None))

    def compose(self) -> ComposeResult:
        """The title, the tabs, the content and the keys."""
        yield from (self._title_bar, self._tab_bar, self._page, self._notice_bar, self._key_bar)

    def on_mount(self) -> None:
        """Begin with the first tab."""
        self._page.focus()
        self._restart()

    def on_unmount(self) -> None:
        """Leave the node."""
        if self._connection is not None:
            self._connection.close()

    def on_resize(self) -> None:
        """Draw the bars for the new width."""
        self._show_bars()

    # -- keys --------------------------------------------------------------------------------------

    def action_close(self) -> None:
        """Go back to the list."""
        _ = self.app.pop_screen()

    def action_tab(self, number: int) -> None:
        """Show a tab."""
        self._tab = number
        self._notice = ""
        self._page.show(Text(""))
        self._page.scroll_home(animate=False)
        self._restart()

    def action_next(self, step: int) -> None:
        """Show the next tab."""
        self.action_tab((self._tab + step) % len(self.TABS))

    def action_contents(self) -> None:
        """Show messages, or only their types."""
        if self.TABS[self._tab] in ("Mailbox", "Trace"):
            self._shows_contents = not self._shows_contents
            self._restart()

    def action_again(self) -> None:
        """Ask at once; begin a trace again."""
        self._restart()

    def action_act(self, do: str) -> None:
        """Change the process, if the node permits it and the user confirms it."""
        if "act" not in self._watch.may or self._is_over:
            return

        def confirmed(is_meant: bool | None) -> None:
            if is_meant:
                self._restart(do)

        question = f"{_ACTS[do][0]} {self.who} on {self._watch.node}?"
        _ = self.app.push_screen(Confirmation(printable(question)), confirmed)

    # -- requests ----------------------------------------------------------------------------------

    def _restart(self, act: str | None = None) -> None:
        self._show_bars()
        if not self._is_over:
            self.run_worker(self._work(act), exclusive=True, group="tab")

    async def _work(self, act: str | None) -> None:
        """Fill the tab until the worker is cancelled, by another tab or the end of the screen."""
        try:
            while self._connection is None:
                try:
                    self._connection = await self._connect()
                    self._notice = ""
                except TimeoutError:
                    self._notice = f"{self._watch.node} does not answer"
                    await asyncio.sleep(self._interval)
                self._show_bars()
            if self._is_over:
                self._end("the process has ended")
                return
            if act is not None:
                await self._act(self._connection, act)
            await self._fill(self._connection)
        except OSError:
            self._end(f"the program of {self._watch.node} has ended, and this process with it")

    async def _connect(self) -> Connection:
        """Connect, and check that the number is that of the process in the list: the program may
        have been started again.
        """
        connection = await Connection.open(self._watch.path)
        try:
            found = await connection.ask("info", to=self._row["id"])
            if found["behaviour"] != self._row["behaviour"] or (
                found["uptime"] < self._row["uptime"]
            ):
                raise ConnectionError("another program")
        except ControlError as error:
            if error.code == "no_such_process":
                self._is_over = True
        except BaseException:
            connection.close()
            raise
        return connection

    async def _act(self, connection: Connection, do: str) -> None:
        try:
            answer = await connection.ask(do, to=self._row["id"])
            done = _ACTS[do][1]
            self._notice = done if all(answer.values()) else f"it was {done} already"
        except ControlError as error:
            self._notice = printable(error.text)
        self._show_bars()

    async def _fill(self, connection: Connection) -> None:
        fill: Callable[[Connection], Awaitable[None]]
        fill = self._trace if self.TABS[self._tab] == "Trace" else self._poll
        while not self._is_over:
            try:
                await fill(connection)
                return
            except ControlError as error:
                if error.code == "no_such_process":
                    self._end("the process has ended")
                    return
                self._show(
                    Group(
                        Text(printable_lines(error.text), style="bold red"),
                        Text(stack_text(error), style="dim"),
                    )
                )
                if error.code in ("bad_argument", "not_permitted", "failed", "cancelled"):
                    return
            await asyncio.sleep(self._interval)

    async def _poll(self, connection: Connection) -> None:
        ask = {
            "Info": self._info,
            "Inspect": self._inspect,
            "State": self._state,
            "Mailbox": self._mailbox,
        }[self.TABS[self._tab]]
        while True:
            self._show(await ask(connection))
            await asyncio.sleep(self._interval)

    async def _info(self, connection: Connection) -> RenderableType:
        shown, stack = facts(await connection.ask("info", to=self._row["id"]))
        return Group(_pairs(shown), Text(printable_lines(f"\n{stack}") if stack else "", "dim"))

    async def _inspect(self, connection: Connection) -> RenderableType:
        answer = await connection.ask("inspect", to=self._row["id"], timeout=_PATIENCE)
        return _pairs(answer) if answer else _remark("no diagnostics: it has no handle_inspect")

    async def _state(self, connection: Connection) -> RenderableType:
        answer = await connection.ask("state", to=self._row["id"])
        return _pairs(answer) if answer else _remark("it has no attributes")

    async def _mailbox(self, connection: Connection) -> RenderableType:
        answer = await connection.ask(
            "peek", to=self._row["id"], limit=_MESSAGES, contents=self._shows_contents
        )
        if not answer:
            return _remark("the mailbox is empty")
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head in ("LANE", "CALLBACK", "FROM", "MESSAGE"):
            grid.add_column(head, no_wrap=head != "MESSAGE", overflow="fold")
        key = "message" if self._shows_contents else "message_type"
        for message in answer:
            cells = (message["lane"], message["callback"], message["sender"], message[key] or "-")
            grid.add_row(*(Text(printable(str(cell))) for cell in cells))
        return grid

    async def _trace(self, connection: Connection) -> None:
        self._traced.clear()
        clock = asyncio.get_running_loop().time
        drawn = 0.0
        draw: asyncio.TimerHandle | None = None

        def show() -> None:
            nonlocal drawn, draw
            drawn, draw = clock(), None
            lines = "\n".join(self._traced)
            self._show(_trace(lines) if lines else _remark("waiting for messages"), follow=True)

        def out(text: str) -> None:
            nonlocal draw
            self._traced.append(printable(text.rstrip("\n")))
            if draw is None:
                delay = max(0.0, drawn + _DRAWING - clock())
                draw = asyncio.get_running_loop().call_later(delay, show)

        show()
        try:
            answer = await connection.ask(
                "trace",
                out,
                to=self._row["id"],
                contents=self._shows_contents,
                limit=_LINES,
                seconds=_TRACE,
            )
        finally:
            if draw is not None:
                draw.cancel()
        show()
        missed = f", {answer['missed']} missed" if answer["missed"] else ""
        self._notice = f"the trace has ended: {answer['entries']} entries{missed}; r begins again"
        self._show_bars()

    # -- display -----------------------------------------------------------------------------------

    def _show(self, content: RenderableType, *, follow: bool = False) -> None:
        self._page.show(content, follow=follow)

    def _end(self, text: str) -> None:
        self._is_over = True
        self._notice = text
        self._show_bars()

    def _show_bars(self) -> None:
        self._title_bar.show(
            Text.assemble(
                (f" {printable(self._watch.node)} ", ""),
                ("▸ ", ""),
                (self.who, "bold"),
                style="white on blue",
            )
        )
        tabs = Text(" ")
        for number, name in enumerate(self.TABS):
            style = "bold reverse" if number == self._tab else ""
            tabs.append(f" {number + 1} {name} ", style)
            tabs.append(" ")
        self._tab_bar.show(Text(""), tabs, Text(""))
        notice = [Text(f" {self._notice}", "bold yellow")] if self._notice else []
        self._notice_bar.show(*notice)
        shown = [("esc", "back"), ("1-5 ←→", "tabs"), ("↑↓", "scroll"), ("r", "again")]
        if self.TABS[self._tab] in ("Mailbox", "Trace"):
            shown.append(("c", "types only" if self._shows_contents else "contents"))
        if "act" in self._watch.may:
            shown += [("s", "suspend"), ("u", "resume"), ("x", "exit"), ("K", "kill")]
        self._key_bar.show(keys(self.size.width, *shown))


class Confirmation(ModalScreen[bool]):
    """Asks whether an action is meant."""

    DEFAULT_CSS = """
    Confirmation { align: center middle; }
    Confirmation Bar { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", show=False),
        Binding("n,N,escape,enter,q", "answer(False)", show=False),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question."""
        yield Bar("question")

    def on_mount(self) -> None:
        """Show the question."""
        self.query_one(Bar).show(
            Text(""),
            Text(f"   {self._question}   ", "bold"),
            Text("   y: yes    any of n, esc: no   "),
            Text(""),
        )

    def action_answer(self, is_meant: bool) -> None:
        """Close."""
        _ = self.dismiss(is_meant)


def _pairs(values: dict[str, Any]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(justify="right", style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for key, value in values.items():
        grid.add_row(Text(printable(str(key))), Text(printable(str(value))))
    return grid


def _remark(text: str) -> Text:
    return Text(text, style="dim")


def _trace(lines: str) -> Text:
    text = Text(lines)
    text.highlight_regex(r"(?m)^[\d:.]+", "dim")
    text.highlight_regex(r"(?m)(?<=^.{13})\w+", "cyan")
    return text
