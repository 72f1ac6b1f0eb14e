"""`TopApp`: the live view with the library ``textual``: scroll, sort, filter, and look into a
process. Imported only if ``textual`` is installed.

It has the colours of the terminal, so it suits light and dark terminals.
"""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.theme import Theme
from textual.widgets import Input

from ..._core.vocabulary.text import printable
from ...control.protocol import ControlError
from ...control.rendering import COLUMNS, blocked_text
from .node_screens import CrashScreen, DeadLetterScreen, HelpScreen, TreeScreen
from .node_watch import NodeWatch, Request
from .process_screen import ProcessScreen
from .widgets import Bar, ProcessList, keys, spark

__all__ = ["TopApp"]

_SORTS: Final = {
    "m": "mailbox",
    "r": "rate",
    "l": "load",
    "w": "worst",
    "t": "time",
    "i": "id",
}
_HEADS: Final = {head: sort for sort, head in COLUMNS.items()}
_HISTORY: Final = 200
"""Frames that the small charts remember."""
_COLOURS: Final = {
    "scrollbar": "ansi_blue",
    "scrollbar-hover": "ansi_bright_blue",
    "scrollbar-active": "ansi_bright_blue",
    "scrollbar-background": "ansi_default",
    "scrollbar-background-hover": "ansi_default",
    "scrollbar-background-active": "ansi_default",
    "scrollbar-corner-color": "ansi_default",
    "input-cursor-background": "ansi_default",
    "input-cursor-foreground": "ansi_default",
    "input-cursor-text-style": "reverse",
    "input-selection-background": "ansi_blue",
    "input-selection-foreground": "ansi_white",
}


def _theme(base: Theme | None) -> Theme:
    """The theme of textual with the terminal's own colours, without those that suit only dark or
    only light terminals.
    """
    assert base is not None
    return replace(base, name="ergo", variables={**base.variables, **_COLOURS})


class _Filter(Input):
    """The line at the bottom that takes the filter. Escape gives it up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.clear_filter", show=False),
        Binding("up,down", "app.focus_list", show=False),
    ]

    def open(self) -> None:
        """Take the keys."""
        self.display = True
        self.focus()

    def clear_and_hide(self) -> None:
        """Give the filter up."""
        self.value = ""
        self.display = False

    def hide_if_empty(self) -> None:
        """Hide the line if there is no filter."""
        self.display = bool(self.value)


class TopApp(App[None]):
    """The live view of a node."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    * { scrollbar-size-vertical: 1; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("q,ctrl+d", "quit", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "clear_filter", show=False),
        Binding("space", "pause", show=False),
        Binding("c", "page('crashes')", show=False),
        Binding("v", "page('tree')", show=False),
        Binding("d", "page('dead letters')", show=False),
        Binding("question_mark", "page('help')", show=False),
        *(Binding(key, f"sort('{sort}')", show=False) for key, sort in _SORTS.items()),
    ]

    def __init__(self, path: Path, node: str, os_pid: int, *, sort: str, interval: float) -> None:
        super().__init__(ansi_color=True)
        theme = _theme(self.get_theme("ansi-dark"))
        self.register_theme(theme)
        self.theme = theme.name
        self.animation_level = "none"
        self.error: ControlError | None = None
        """The refusal of the node that ended the view."""
        self.is_interrupted: bool = False
        self._interval = interval
        self._rates: deque[float] = deque(maxlen=_HISTORY)
        self._waiting: deque[float] = deque(maxlen=_HISTORY)
        self._answer: dict[str, Any] | None = None
        self._trouble = ""
        # Held here: the worker may draw while the view is being closed.
        self.processes: ProcessList = ProcessList("processes")
        self._title, self._figures, self._alarm, self._heads, self._keys = map(
            Bar, ("title", "figures", "alarm", "heads", "keys")
        )
        self._filter = _Filter(
            id="filter", placeholder="a part of a name or of a behaviour", compact=True
        )
        self.watch_of_node: NodeWatch = NodeWatch(
            path,
            node,
            os_pid,
            interval=interval,
            request=Request(sort=sort),
            on_rows=self._show_rows,
            on_trouble=self._show_trouble,
        )

    def compose(self) -> ComposeResult:
        """The title, the figures, the table and the keys."""
        yield from (self._title, self._figures, self._alarm, self._heads)
        yield from (self.processes, self._filter, self._keys)

    def on_mount(self) -> None:
        """Begin to follow the node."""
        self.processes.focus()
        self._show_bars()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        try:
            await self.watch_of_node.run()
        except ControlError as error:
            self.error = error
            self.exit()

    # -- news from the node ------------------------------------------------------------------------

    def _show_rows(self, request: Request, answer: dict[str, Any]) -> None:
        self._trouble = ""
        self._answer = answer
        self._rates.append(answer["rate"])
        self._waiting.append(answer["mailbox"])
        self.processes.show(
            answer["rows"], skip=request.skip, found=answer["found"], sort=request.sort
        )
        self._show_bars()

    def _show_trouble(self, text: str) -> None:
        self._trouble = text
        self.processes.mark_stale()
        self._show_bars()

    def _show_bars(self) -> None:
        watch = self.watch_of_node
        width = self.size.width
        title = Text.assemble(
            (" ergo top  ", ""),
            (printable(watch.node), "bold"),
            f"  program {watch.os_pid}",
            style="white on blue",
        )
        aside = "paused " if watch.is_paused else f"every {self._interval:g} s "
        title.append(" " * max(2, width - title.cell_len - len(aside)) + aside)
        self._title.show(title)
        self._figures.show(*self._figure_lines(width))
        alarm = self._alarm_text()
        self._alarm.show(*([Text(f" {alarm}", "bold white on red")] if alarm else []))
        self._heads.show(self.processes.heads)
        self._keys.show(
            keys(
                width,
                ("q", "quit"),
                ("enter", "open"),
                ("/", "filter"),
                (" ".join(_SORTS), "sort"),
                ("c", "crashes"),
                ("v", "tree"),
                ("space", "go on" if watch.is_paused else "pause"),
                ("?", "help"),
            )
        )

    def _alarm_text(self) -> str:
        if self._trouble:
            return printable(self._trouble)
        blocked = None if self._answer is None else self._answer["blocked"]
        return "" if blocked is None else blocked_text(blocked)

    def _figure_lines(self, width: int) -> list[Text]:
        answer = self._answer
        if answer is None:
            return [Text(f" asking {printable(self.watch_of_node.node)} …", "dim"), Text("")]
        chart = max(0, min(40, (width - 62) // 2))
        text = Text(" ")
        text.append(f"{answer['alive']:,}", "bold")
        text.append(" alive   ")
        text.append(f"{answer['mailbox']:,}", "bold yellow" if answer["mailbox"] else "bold")
        text.append(" messages waiting ")
        text.append(spark(self._waiting, chart), "yellow")
        text.append("   ")
        text.append(f"{answer['rate']:,.0f}", "bold")
        text.append(" handled a second ")
        text.append(spark(self._rates, chart), "green")
        find = self.watch_of_node.request.find
        if not find:
            return [text, Text("")]
        return [
            text,
            Text.assemble(
                " ",
                (f"{answer['found']:,}", "bold"),
                f" of {answer['alive']:,} have ",
                (printable(find), "bold cyan"),
                " in their name or behaviour",
            ),
        ]

    # -- keys --------------------------------------------------------------------------------------

    @property
    def _is_at_list(self) -> bool:
        return len(self.screen_stack) == 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the list have no effect on other screens."""
        if action in ("filter", "clear_filter", "pause", "page", "sort", "focus_list", "quit"):
            return self._is_at_list
        return True

    def action_interrupt(self) -> None:
        """Leave: Ctrl-C."""
        self.is_interrupted = True
        self.exit()

    def action_sort(self, sort: str) -> None:
        """Sort by another column."""
        self.processes.forget()
        self._ask(sort=sort)

    def action_pause(self) -> None:
        """Stop or continue to refresh."""
        self.watch_of_node.pause(not self.watch_of_node.is_paused)
        self._show_bars()

    def action_filter(self) -> None:
        """Show the line for the filter."""
        self._filter.open()

    def action_clear_filter(self) -> None:
        """Show all processes again."""
        self._filter.clear_and_hide()
        self.processes.focus()

    def action_focus_list(self) -> None:
        """Leave the line for the filter, and keep the filter."""
        self._filter.hide_if_empty()
        self.processes.focus()

    def action_page(self, name: str) -> None:
        """Show a screen about the whole node."""
        screen = {
            "crashes": CrashScreen,
            "tree": TreeScreen,
            "dead letters": DeadLetterScreen,
            "help": HelpScreen,
        }[name]
        _ = self.push_screen(screen(self.watch_of_node, self._interval))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self.processes.forget()
        self._ask(find=event.value)

    def on_input_submitted(self) -> None:
        """Go back to the list."""
        self.action_focus_list()

    def on_process_list_moved(self) -> None:
        """Ask for the rows that are visible now."""
        self._ask()

    def on_process_list_opened(self, event: ProcessList.Opened) -> None:
        """Show everything about a process."""
        _ = self.push_screen(ProcessScreen(self.watch_of_node, event.row, self._interval))

    def on_click(self, event: events.Click) -> None:
        """Sort by the column of a head."""
        if event.widget is not None and event.widget.id == "heads":
            sort = _HEADS.get(self.processes.head_at(event.x) or "")
            if sort is not None:
                self.action_sort(sort)

    def on_resize(self) -> None:
        """Draw the bars for the new width."""
        self._show_bars()

    def _ask(self, **parts: object) -> None:
        skip, limit = self.processes.window
        self.watch_of_node.change(skip=skip, limit=limit, **parts)
