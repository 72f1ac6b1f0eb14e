"""A process in the live view: its tabs, and the commands that change it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("textual", reason="needs the package textual")

from ergo_py import Actor
from ergo_py.blocking.loop_thread import OwnedNode, open_node
from ergo_py.meta import TCPServer
from ergo_py.shell.top.process_screen import ProcessScreen
from tests.shell.top.rig import Shelf, until, watched


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("view@here", control="look,act", log_output="none", watchdog=None) as node:
        node.spawn(Shelf, name="shelf")
        yield node


def test_tabs_show_facts_diagnostics_state_mailbox_and_trace(node: OwnedNode) -> None:
    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: view.names == ["shelf"])
            await view.press("enter")
            await view.see("1 shelf Shelf", "title")
            await view.see("behaviour  Shelf")
            await view.press("2")
            await view.see("count  0")
            # The content is asked for again and again.
            node.send("shelf", "tea")
            await view.see("count  1")
            await view.press("right")
            await view.see("items  ['tea']")
            await view.press("4")
            await view.see("the mailbox is empty")
            node.suspend("shelf")
            node.send("shelf", "cups")
            await view.see("main  handle_message  0     str")
            await view.press("c")
            await view.see("main  handle_message  0     'cups'")
            await view.press("c")
            await view.see("main  handle_message  0     str")
            node.resume("shelf")
            await view.press("5")
            await view.see("waiting for messages")
            await view.see(
                "handle_message(str) from <PID 0 view@here>",
                repeat=lambda: node.send("shelf", "sugar"),
            )
            await view.press("left", "escape")
            await until(lambda: view.names == ["shelf"])

    asyncio.run(story())


def test_a_trace_ends_after_many_entries_and_begins_again(
    node: OwnedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.shell.top.process_screen._LINES", 3)

    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: view.names == ["shelf"])
            await view.press("enter", "5")
            await view.see("waiting for messages")
            await view.see(
                "the trace has ended: 3 entries", "notice", lambda: node.send("shelf", "a")
            )
            await view.press("r")
            await view.see("waiting for messages")

    asyncio.run(story())


class Door(Actor):
    async def init(self) -> None:
        await self.spawn_meta(TCPServer("127.0.0.1", 0))


def test_a_meta_process_shows_its_facts_and_refuses_a_trace(node: OwnedNode) -> None:
    node.spawn(Door, name="door")

    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: len(view.names) == 3)
            await view.press("slash", *"TCPServer", "enter")
            await until(lambda: view.app.processes.found == 1)
            await view.press("enter")
            await view.see("behaviour  TCPServer")
            await view.press("2")
            await view.see("127.0.0.1:")
            for tab in ("3", "5"):
                await view.press(tab)
                await view.see("meta_info")

    asyncio.run(story())


def test_a_process_that_has_ended_says_so(node: OwnedNode) -> None:
    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: view.names == ["shelf"])
            await view.press("enter")
            await view.see("behaviour  Shelf")
            node.kill("shelf")
            await view.see("the process has ended", "notice")
            # The last facts stay, and other tabs ask for nothing.
            await view.press("2", "1")
            await view.press("escape")
            await until(lambda: view.names == [])

    asyncio.run(story())


@pytest.mark.parametrize("other", [{"uptime": 1e9}, {"behaviour": "Bell"}])
def test_a_number_of_an_earlier_program_opens_no_other_process(
    node: OwnedNode, other: dict[str, Any]
) -> None:
    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: view.names == ["shelf"])
            row = {**(view.app.processes.row_at(0) or {}), **other}
            await view.app.push_screen(ProcessScreen(view.app.watch_of_node, row, 0.1))
            await view.see("has ended, and this process with it", "notice")
            assert view.page == ""

    asyncio.run(story())


def test_a_node_that_does_not_answer_for_a_while_is_asked_again(
    node: OwnedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: view.names == ["shelf"])
            monkeypatch.setattr("ergo_py.shell.top.node_watch.GREETING", 0.0)
            await view.press("enter")
            await view.see("view@here does not answer", "notice")
            monkeypatch.setattr("ergo_py.shell.top.node_watch.GREETING", 60.0)
            await view.see("behaviour  Shelf")
            assert view.bar("notice") == ""

    asyncio.run(story())


def test_a_change_is_made_only_after_a_confirmation(node: OwnedNode) -> None:
    async def story() -> None:
        async with watched("view") as view:
            await until(lambda: view.names == ["shelf"])
            await view.press("enter")
            await view.see("suspended  False")
            assert "K kill" in view.bar("keys")
            await view.press("s")
            await view.see("suspend 1 shelf Shelf on view@here?", "question")
            await view.press("n")
            await view.press("s")
            await view.see("suspend 1 shelf Shelf on view@here?", "question")
            await view.press("enter")
            await view.see("suspended  False")
            await view.press("s", "y")
            await view.see("suspended", "notice")
            await view.see("suspended  True")
            await view.press("s", "y")
            await view.see("it was suspended already", "notice")
            await view.press("u", "y")
            await view.see("suspended  False")
            await view.press("K", "y")
            await view.see("the process has ended", "notice")

    asyncio.run(story())


def test_without_permission_there_are_no_keys_for_changes() -> None:
    with open_node("view@here", control="look", log_output="none", watchdog=None) as node:
        node.spawn(Shelf, name="shelf")

        async def story() -> None:
            async with watched("view") as view:
                await until(lambda: view.names == ["shelf"])
                await view.press("enter")
                await view.see("suspended  False")
                for key in ("s", "u", "x", "K"):
                    await view.press(key)
                    assert isinstance(view.app.screen, ProcessScreen)
                await view.see("suspended  False")
                assert "kill" not in view.bar("keys")

        asyncio.run(story())
        assert node.process_info("shelf").suspended is False
