"""A node for the live view to look at, and the view without a terminal."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from ergo_py import PID, Actor, Caller
from ergo_py.shell.node_choice import choose
from ergo_py.shell.top.app import TopApp
from ergo_py.shell.top.widgets import Bar, Page

__all__ = ["HOSTILE", "Shelf", "View", "until", "watched"]

HOSTILE = "[red]x[/red] \x1b]0;owned\x07 \x1b[2J [@click=app.quit]q[/]"
"""Text that a terminal or a markup parser would obey."""


class Shelf(Actor):
    """Keeps what it gets, and tells."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self.note = HOSTILE

    def handle_message(self, message: object, sender: PID) -> None:
        self.items.append(message)

    def handle_call(self, request: object, caller: Caller) -> int:
        return len(self.items)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"count": str(len(self.items)), "note": HOSTILE}


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until it is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


class View:
    """The view, and its keys."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    def bar(self, name: str) -> str:
        return self.app.screen.query_one(f"#{name}", Bar).text

    @property
    def page(self) -> str:
        return self.app.screen.query_one(Page).text

    @property
    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.app.processes.text.splitlines()]

    @property
    def names(self) -> list[str]:
        return [row[1] for row in self.rows if len(row) > 1]

    async def see(
        self, text: str, part: str = "page", repeat: Callable[[], object] | None = None
    ) -> None:
        """Wait until a text is shown. ``repeat`` is called again and again meanwhile: a trace shows
        no message that came before the node had got the request for it.
        """
        shown: Callable[[], str] = (lambda: self.page) if part == "page" else lambda: self.bar(part)

        def is_shown() -> bool:
            if repeat is not None:
                repeat()
            return text in shown()

        try:
            await until(is_shown)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in:\n{shown()}") from None


@asynccontextmanager
async def watched(
    node: str, size: tuple[int, int] = (100, 24), sort: str = "id", interval: float = 0.1
) -> AsyncIterator[View]:
    """The live view of a node."""
    link = choose(node, None)
    link.close()
    app = TopApp(link.path, link.node, link.os_pid, sort=sort, interval=interval)
    async with app.run_test(size=size) as pilot:
        view = View(app, pilot)
        await until(lambda: "alive" in view.bar("figures"))
        yield view
