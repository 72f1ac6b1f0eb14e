"""The live view of ``ergo top``: the list, its keys, a node that is blocked, ends and comes
back.
"""

import asyncio
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("textual", reason="needs the package textual")

from ergo_py import PID, Actor
from ergo_py.blocking.loop_thread import OwnedNode, open_node
from tests.shell.top.rig import HOSTILE, Shelf, until, watched


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("view@here", control="look", log_output="none", watchdog=None) as node:
        yield node


def fill(node: OwnedNode, count: int) -> None:
    for number in range(count):
        node.spawn(Shelf, name=f"shelf-{number:03}")


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (20, 5), (10, 3)])
def test_the_list_fits_a_terminal_of_any_size(node: OwnedNode, size: tuple[int, int]) -> None:
    fill(node, 60)
    node.spawn(Shelf, name="a name that is longer than the column" * 4)

    async def story() -> None:
        async with watched("view", size) as view:
            await until(lambda: view.app.processes.found == 61)
            lines = view.app.processes.text.splitlines()

            assert len(lines) == view.app.processes.size.height
            assert all(len(line) <= size[0] for line in lines)
            assert view.bar("title").split()[:3] == ["ergo", "top", "view@here"]
            if size[0] >= 80:
                assert view.bar("heads").split()[:3] == ["ID", "NAME", "BEHAVIOUR"]
                assert lines[0].split()[:3] == ["1", "shelf-000", "Shelf"]
            # Columns that do not fit are left out; a wide terminal has all.
            assert ("UP" in view.bar("heads").split()) == (size[0] == 200)

    asyncio.run(story())


def test_keys_and_clicks_choose_the_order(node: OwnedNode) -> None:
    fill(node, 3)

    async def story() -> None:
        async with watched("view", sort="mailbox") as view:
            assert "MAIL↓" in view.bar("heads")
            for key, head in (("r", "MSG/S↓"), ("w", "WORST↓"), ("t", "TIME↓"), ("m", "MAIL↓")):
                await view.press(key)
                await view.see(head, "heads")
            await view.press("i")
            await until(lambda: "↓" not in view.bar("heads"))
            where = view.bar("heads").index("TIME")
            await view.pilot.click("#heads", offset=(where + 1, 0))
            await view.see("TIME↓", "heads")

    asyncio.run(story())


def test_the_fullest_mailbox_comes_first(node: OwnedNode) -> None:
    fill(node, 5)
    node.suspend("shelf-003")
    for _ in range(7):
        node.send("shelf-003", "a message")

    async def story() -> None:
        async with watched("view", sort="mailbox") as view:
            await until(lambda: view.names[:1] == ["shelf-003"])
            assert view.names == ["shelf-003", "shelf-000", "shelf-001", "shelf-002", "shelf-004"]
            assert "7 messages waiting" in view.bar("figures")

    asyncio.run(story())


def test_a_filter_shows_only_the_processes_that_match(node: OwnedNode) -> None:
    fill(node, 30)

    async def story() -> None:
        async with watched("view") as view:
            await view.press("slash", *"shelf-01")
            await until(lambda: view.app.processes.found == 10)
            # A letter that sorts in the list is a letter here.
            await view.press("r")
            await until(lambda: view.app.processes.found == 0)
            await view.press("backspace", "enter")
            await until(lambda: len(view.names) == 10)
            assert view.names == [f"shelf-{number:03}" for number in range(10, 20)]
            assert "10 of 30 have shelf-01 in" in view.bar("figures")
            await view.press("escape")
            await until(lambda: view.app.processes.found == 30)

    asyncio.run(story())


def test_the_view_scrolls_and_asks_for_the_rows_near_the_screen_only(node: OwnedNode) -> None:
    fill(node, 300)

    async def story() -> None:
        async with watched("view") as view:
            table = view.app.processes
            page = table.page
            await view.press("end")
            await until(lambda: view.names[-1:] == ["shelf-299"] and len(view.names) == page)
            assert table.cursor == 299
            assert (table.row_at(299 - 2 * page), table.row_at(100)) == (None, None)
            await view.press("pageup", "up")
            assert table.cursor == 299 - (page - 1) - 1
            await until(lambda: "…" not in table.text)
            await view.press("home", "down", "j", "k")
            await until(lambda: view.names[:2] == ["shelf-000", "shelf-001"])
            assert table.cursor == 1

    asyncio.run(story())


def test_the_cursor_follows_its_process_while_it_is_on_the_screen(node: OwnedNode) -> None:
    fill(node, 10)

    async def story() -> None:
        async with watched("view", sort="mailbox") as view:
            await until(lambda: len(view.names) == 10)
            await view.press("down", "down", "down")
            node.suspend("shelf-003")
            node.send("shelf-003", "a message")
            await until(lambda: view.names[0] == "shelf-003")
            assert view.app.processes.cursor == 0

    asyncio.run(story())


def test_a_pause_keeps_the_rows(node: OwnedNode) -> None:
    fill(node, 2)

    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: len(view.names) == 2)
            await view.press("space")
            await view.see("paused", "title")
            # The request of the key; from here on the view asks for nothing.
            await asyncio.sleep(0.5)
            node.spawn(Shelf, name="late")
            await asyncio.sleep(0.5)
            assert "late" not in view.names
            await view.press("space")
            await until(lambda: "late" in view.names)

    asyncio.run(story())


class Stone(Actor):
    """Blocks the event loop until the test opens the gate."""

    gate = threading.Event()

    def handle_message(self, message: object, sender: PID) -> None:
        self.gate.wait(60)


def test_a_blocked_node_is_reported_and_the_view_goes_on(node: OwnedNode) -> None:
    fill(node, 5)
    node.spawn(Stone, name="stone")
    Stone.gate.clear()

    async def story() -> None:
        async with watched("view") as view:
            node.send("stone", 1)
            try:
                await view.see("THE LOOP IS BLOCKED by Stone.handle_message", "alarm")
                # The keys work, and so does the list.
                await view.press("down", "slash", *"stone", "enter")
                await until(lambda: view.names == ["stone"])
                await view.press("enter")
                await view.see("has been blocked by Stone.handle_message")
                await view.see("self.gate.wait(60)")
            finally:
                Stone.gate.set()
            await view.see("messages in  1")
            await view.press("escape", "escape")
            await until(lambda: view.bar("alarm") == "")

    asyncio.run(story())


def test_the_view_outlives_its_node_and_finds_the_next_node_of_that_name() -> None:
    async def story() -> None:
        first = open_node("view@here", control="look", log_output="none", watchdog=None)
        try:
            first.spawn(Shelf, name="old")
            async with watched("view") as view:
                await until(lambda: view.names == ["old"])
                await view.press("enter")
                await view.see("behaviour  Shelf")
                await asyncio.to_thread(first.close)
                await view.see("has ended, and this process with it", "notice")
                await view.press("escape")
                await view.see("view@here has ended; the view waits", "alarm")

                with open_node(
                    "view@here", control="look", log_output="none", watchdog=None
                ) as second:
                    second.spawn(Shelf, name="new")
                    await until(lambda: view.names == ["new"])
                    await until(lambda: view.bar("alarm") == "")
        finally:
            await asyncio.to_thread(first.close)

    asyncio.run(story())


def test_two_nodes_of_that_name_are_no_replacement() -> None:
    def opened() -> OwnedNode:
        return open_node("view@here", control="look", log_output="none", watchdog=None)

    async def story() -> None:
        first = opened()
        try:
            first.spawn(Shelf, name="old")
            async with watched("view") as view:
                with opened() as second, opened() as third:
                    for other in (second, third):
                        other.spawn(Shelf, name="new")
                    await asyncio.to_thread(first.close)
                    await view.see("2 other programs have a node of this name", "alarm")
                    assert "new" not in view.names
        finally:
            await asyncio.to_thread(first.close)

    asyncio.run(story())


def test_names_from_a_node_are_neither_obeyed_nor_read_as_markup(node: OwnedNode) -> None:
    hostile = type(HOSTILE, (Shelf,), {})
    node.spawn(hostile, name=HOSTILE)

    async def story() -> None:
        async with watched("view", (250, 24)) as view:
            await until(lambda: "[red]x[/red] \\x1b]0;owned\\x07" in view.app.processes.text)
            await view.press("slash", *"[red]")
            await view.see("[red]", "figures")
            await view.press("enter", "enter")
            await view.see(
                "[red]x[/red] \\x1b]0;owned\\x07 \\x1b[2J [@click=app.quit]q[/]", "title"
            )
            for tab in "123":
                await view.press(tab)
                await view.see("[red]x[/red] \\x1b]0;owned\\x07 \\x1b[2J")
            # No letter of it is a control character, on any part of the screen.
            parts = (view.bar("title"), view.page, view.app.export_screenshot())
            assert not any("\x1b" in part or "\x07" in part for part in parts)

    asyncio.run(story())


def test_wide_characters_keep_the_columns_in_line(node: OwnedNode) -> None:
    from rich.cells import cell_len

    node.spawn(Shelf, name="茶")
    node.spawn(Shelf, name="tea")

    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: len(view.names) == 2)
            lines = view.app.processes.text.splitlines()[:2]
            columns = [cell_len(line[: line.index("Shelf")]) for line in lines]
            assert columns[0] == columns[1] == view.bar("heads").index("BEHAVIOUR")

    asyncio.run(story())


class Teapot(Actor):
    def handle_message(self, message: object, sender: PID) -> None:
        raise KeyError(HOSTILE)


def test_pages_show_crashes_the_tree_dead_letters_and_the_keys(node: OwnedNode) -> None:
    node.spawn(Teapot, name="teapot")
    node.spawn(Shelf, name="shelf")

    async def story() -> None:
        async with watched("view") as view:
            await view.press("c")
            await view.see("nothing has failed")
            await view.press("escape", "d")
            await view.see("no dead letters")
            await view.press("escape", "v")
            await view.see("─ teapot ")
            node.send("teapot", 1)
            node.send("a name without a process", 2)
            await view.press("escape", "c")
            await view.see("crashed: KeyError: '[red]x[/red]")
            await view.see("raise KeyError(HOSTILE)")
            await view.press("escape", "d")
            await view.see("1 in all: ")
            await view.press("escape", "question_mark")
            await view.see("sort by messages in the mailbox")
            await view.press("escape")
            await until(lambda: view.names == ["shelf"])

    asyncio.run(story())
