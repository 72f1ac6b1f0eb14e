"""The table of the verbs of a node: complete for both kinds of code, and with errors that say the
line to write.
"""

import asyncio
import inspect
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import trio

from ergo_py import Actor, Application, Caller, ChildSpec, Node, Shutdown
from ergo_py.aio import AsyncioNode
from ergo_py.aio import handle as asyncio_handle
from ergo_py.aio import open_node as open_asyncio_node
from ergo_py.blocking import BlockingNode
from ergo_py.blocking import handle as blocking_handle
from ergo_py.blocking import open_node as open_blocking_node
from ergo_py.errors import BadInputError, NotAllowedError, ProcessUnknownError
from ergo_py.facades import handles
from ergo_py.facades.facade import Asyncio
from ergo_py.facades.node import NodeVerbs
from ergo_py.facades.rows import Direct, Row, Value

ELSEWHERE = {
    "call_from_thread": "`call` does it",
    "control_path": "read with `run`",
    "exit_report": "of the owner: `OwnedNode` and `OpenNode`",
}


def verbs(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and hasattr(cls, name)}


def is_of_asyncio(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Asyncio) and value is not Asyncio


@pytest.mark.parametrize("facade", [AsyncioNode, BlockingNode])
def test_a_facade_has_every_verb_of_the_node(facade: type) -> None:
    assert verbs(Node) - verbs(facade) <= set(ELSEWHERE)


def test_the_facades_differ_in_three_verbs() -> None:
    assert verbs(AsyncioNode) ^ verbs(BlockingNode) == {"ask", "run_async", "run_main"}


@pytest.mark.parametrize("facade", [AsyncioNode, BlockingNode])
def test_a_verb_has_name_arguments_and_text_of_the_method(facade: type) -> None:
    for name in verbs(facade) & verbs(Node) - {"call", "trace", "events"}:
        derived, defined = getattr(facade, name), getattr(Node, name)
        assert derived.__doc__ == defined.__doc__, name
        if callable(derived):
            assert derived.__qualname__ == f"{facade.__name__}.{name}"
            assert inspect.signature(derived).parameters == inspect.signature(defined).parameters


class Counter(Actor):
    def __init__(self, total: int = 0) -> None:
        self.total = total

    def handle_message(self, message: int, sender: Any) -> None:
        self.total += message

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return self.total

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


def on_asyncio(test: Any) -> Any:
    """Run a test on asyncio's loop, with a node."""

    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                async with open_asyncio_node(
                    "aio@localhost", log_output="none", watchdog=None
                ) as node:
                    await test(node)

        asyncio.run(main(), debug=True)

    run.__name__ = test.__name__
    return run


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


@on_asyncio
async def test_asyncio_code_looks_into_processes(node: AsyncioNode) -> None:
    counter = await node.spawn(Counter, 5, name="counter")
    assert await node.suspend(counter)
    node.send(counter, 1)
    assert [queued.message for queued in await node.peek(counter, contents=True)] == ["1"]
    state = await node.replace_state(counter, lambda state: {**state, "total": 10})
    assert state["total"] == 10
    assert await node.resume(counter)
    ticks = await node.send_every(0.001, counter, 2)
    entries = await node.trace(counter, limit=3, seconds=20, types=["int"])
    assert [entry.message_type for entry in entries] == ["int"] * 3
    assert (await node.statistics(counter, seconds=0.01)).pid == counter
    assert await ticks.cancel()
    assert await node.get_state(counter)
    assert [line for line in await node.alive() if "counter" in line]
    assert "counter" in str(await node.tree())
    with pytest.raises(ProcessUnknownError):
        await node.process_info("unknown")
    assert await node.kill(counter)
    await node.wait_ended(counter)
    assert [ended.pid for ended in await node.ended()] == [counter]
    assert len(await node.crashes()) == 1
    assert await node.dead_letters() == []
    assert await node.metas() == []


@on_asyncio
async def test_asyncio_code_runs_tasks_and_maps_streams(node: AsyncioNode) -> None:
    assert await node.run_task(double, 4) == 8
    assert await asyncio.gather(*(node.run_task(double, each) for each in range(3))) == [0, 2, 4]
    assert [each async for each in node.map_stream(double, [1, 2, 3])] == [2, 4, 6]
    with pytest.raises(ZeroDivisionError):
        await node.run_task(divmod, 1, 0)


@on_asyncio
async def test_to_cancel_a_task_of_asyncio_cancels_the_task_of_the_node(node: AsyncioNode) -> None:
    loop, began, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        loop.call_soon_threadsafe(began.set)
        try:
            await trio.sleep_forever()
        finally:
            loop.call_soon_threadsafe(ended.set)

    task = node.run_task(wait)
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()


@on_asyncio
async def test_asyncio_code_uses_topics_and_applications(node: AsyncioNode) -> None:
    await node.open_topic("prices", buffer=2)
    assert await node.publish("prices", 7) == 0
    async with await node.events("prices") as prices:
        assert (await anext(prices)).message == 7
    assert (await node.events())["prices"] in (0, 1)
    assert (await node.event_info("prices")).name == "prices"
    await node.close_topic("prices")
    await node.load_applications(Application("shop", [ChildSpec("till", Counter, 3)]))
    assert await node.start_applications() == ["shop"]
    assert await node.call("till", "total") == 3
    assert [each.name for each in await node.applications()] == ["shop"]
    assert await node.stop_applications() == ["shop"]
    assert await node.drain(1) == []
    assert node.draining


def test_a_node_that_was_asked_to_stop_is_stopping() -> None:
    async def main() -> bool:
        async with open_asyncio_node(log_output="none", watchdog=None) as node:
            await node.stop()
            return node.stopping

    assert asyncio.run(main(), debug=True)


def test_an_unknown_verb_names_its_neighbour_or_the_way_to_run_a_function() -> None:
    with open_blocking_node(log_output="none", watchdog=None) as node:
        for name, text in {
            "control_path": "write `node.run(lambda node: node.control_path)`",
            "call_from_thread": "BlockingNode has no 'call_from_thread': `call` does it",
            "supervize": "BlockingNode has no 'supervize'; did you mean `supervise`?",
            "_supervise": "BlockingNode has no '_supervise'",
            "xyz": "BlockingNode has no 'xyz'",
            "link": "belongs to a process: write `self.link(…)` in a callback of an actor",
            "spawn_meta": "write `self.spawn_meta(…)` in a callback of an actor",
        }.items():
            with pytest.raises(AttributeError) as caught:
                getattr(node, name)
            assert str(caught.value).replace("OwnedNode", "BlockingNode").endswith(text)
            assert caught.value.obj is None  # or Python suggests another


@on_asyncio
async def test_an_unknown_verb_of_an_asyncio_node_is_awaited_in_the_line(node: AsyncioNode) -> None:
    with pytest.raises(
        AttributeError, match=r"write `await node\.run\(lambda node: node\.control_path\)`"
    ):
        _ = node.control_path  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert await node.run(lambda node: node.control_path) is None


@pytest.mark.parametrize(
    "name, text",
    [
        ("ask", "write `asyncio.create_task(node.call(…))`"),
        ("close", "write `await node.stop()`"),
        ("run_main", "write `asyncio.run(main())`"),
        ("exit_report", "`opened.exit_report` after its block"),
    ],
)
def test_an_error_names_the_asyncio_line_for_a_blocking_verb(name: str, text: str) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        with pytest.raises(AttributeError) as caught:
            getattr(node, name)
        assert text in str(caught.value)

    check()


@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction' is deprecated")  # from 3.14 on
def test_a_verb_is_async_for_frameworks_if_it_is_awaited() -> None:
    """FastAPI and `unittest` ask the function, and would drop its coroutine."""
    facades = [AsyncioNode, *(each for each in vars(handles).values() if is_of_asyncio(each))]

    plain = {
        name
        for facade in facades
        for name in verbs(facade)
        if callable(getattr(facade, name))
        and not asyncio.iscoroutinefunction(getattr(facade, name))
    }

    assert plain == {
        *("send", "reply", "reply_error", "stop_soon", "at", "address"),
        *("run_task", "call_stream", "map_stream"),
    }


@on_asyncio
async def test_a_mock_of_an_asyncio_node_is_awaited(node: AsyncioNode) -> None:
    mock = create_autospec(AsyncioNode, instance=True)

    await mock.kill("x")

    mock.kill.assert_awaited_once_with("x")


async def sleep_on_asyncio(*_: object) -> None:
    await asyncio.sleep(0.01)


@on_asyncio
async def test_asyncio_code_on_the_loop_of_the_node_is_told_to_use_trio(node: AsyncioNode) -> None:
    results = node.map_stream(sleep_on_asyncio, [1])
    for verb in (
        node.run(lambda _: sleep_on_asyncio()),
        node.run_task(sleep_on_asyncio),
        anext(results),
    ):
        with pytest.raises(RuntimeError) as caught:
            await verb
        assert any("`await trio.sleep(…)`" in note for note in caught.value.__notes__)


def test_asyncio_code_that_synchronous_code_runs_is_told_to_use_trio() -> None:
    with (
        open_blocking_node(log_output="none", watchdog=None) as node,
        pytest.raises(RuntimeError) as caught,
    ):
        node.run(lambda _: sleep_on_asyncio())
    assert any("`await trio.sleep(…)`" in note for note in caught.value.__notes__)


@on_asyncio
async def test_other_threads_of_an_asyncio_program_get_verbs_that_block(node: AsyncioNode) -> None:
    await node.spawn(Counter, 5, name="counter")
    blocking = blocking_handle(node)

    assert await asyncio.to_thread(blocking.call, "counter", "total") == 5
    assert await asyncio_handle(blocking).call("counter", "total") == 5


async def enter_a_blocking_node() -> None:
    opened: Any = open_blocking_node(log_output="none", watchdog=None)
    try:
        async with opened:
            pass
    finally:
        opened.close()


async def await_a_node() -> None:
    opened: Any = open_asyncio_node()
    await opened


def enter_an_asyncio_node() -> None:
    opened: Any = open_asyncio_node()
    with opened:
        pass


def test_a_node_that_is_entered_in_a_wrong_way_says_the_line() -> None:
    with pytest.raises(NotAllowedError, match=r"write `with open_node.* ergo_py\.aio import"):
        asyncio.run(enter_a_blocking_node())
    with pytest.raises(NotAllowedError, match=r"write `async with open_node"):
        asyncio.run(await_a_node())
    with pytest.raises(NotAllowedError, match=r"`async with open_node.* ergo_py\.blocking import"):
        enter_an_asyncio_node()


@pytest.mark.parametrize("make", [blocking_handle, asyncio_handle])
def test_only_an_open_node_has_a_handle(make: Any) -> None:
    for wrong in (None, "demo@localhost", open_asyncio_node()):
        with pytest.raises(BadInputError, match=r"handle\(node\): .* an open node"):
            make(wrong)


@pytest.mark.parametrize("verb", ["send", "call"])
def test_an_error_about_a_handle_as_an_address_names_its_pid(verb: str) -> None:
    with open_blocking_node(log_output="none", watchdog=None) as node:
        supervisor = node.supervise([ChildSpec("counter", Counter)])
        for wrong in (supervisor, supervisor.children()[0], node.run_task(len, "x")):
            with pytest.raises(BadInputError, match=r"write its `\.pid`"):
                getattr(node, verb)(wrong, 1)


def test_an_error_about_a_blocking_call_on_the_loop_names_the_verb_of_a_callback() -> None:
    with (
        open_blocking_node(log_output="none", watchdog=None) as node,
        pytest.raises(NotAllowedError, match=r"or `await self\.call\(\.\.\.\)` in a callback"),
    ):
        node.run(lambda _: node.call("counter", "total"))


@on_asyncio
async def test_verbs_of_asyncio_need_its_loop(node: AsyncioNode) -> None:
    async def elsewhere() -> None:
        for begin in (node.tree, lambda: node.run_task(len, "x"), lambda: node.call("x", 1)):
            with pytest.raises(NotAllowedError, match="no such loop runs in this thread"):
                await begin()

    await asyncio.to_thread(trio.run, elsewhere)


def test_the_same_verb_ends_a_process_for_both_kinds_of_code() -> None:
    with open_blocking_node(log_output="none", watchdog=None) as node:
        pid = node.spawn(Counter)
        assert node.send_exit(pid)
        assert node.wait_ended(pid) == Shutdown()


PAGE = Path(__file__).parent.parent.parent / "docs" / "other-loops.md"

WITH_OVERLOADS = {
    "call": ("blocks", "`await`"),
    "run": ("blocks", "`await`"),
    "entity": ("blocks: `BlockingEntity`", "`await`: `AsyncioEntity`"),
    "events": ("blocks: `BlockingStream`", "`await`: `AsyncioStream`"),
    "call_stream": ("`BlockingStream`, for `for`", "`AsyncioStream`, for `async for`"),
    "map_stream": ("`BlockingStream`, for `for`", "`AsyncioStream`, for `async for`"),
    "run_task": ("`BlockingTask`, a future", "`asyncio.Task`"),
    "ask": ("`concurrent.futures.Future`", "`asyncio.create_task(node.call(…))`"),
    "run_main": ("blocks the main thread", "no verb: asyncio has the thread"),
}


def uses(row: Row) -> tuple[str, str]:
    """How synchronous code and asyncio code use a verb."""
    blocking, asynchronous = (row.wrappers.get(kind) for kind in ("blocking", "asyncio"))
    if isinstance(row, Value):
        return "a value", "a value"
    if isinstance(row, Direct):
        if blocking is None:
            return "returns at once", "returns at once"
        return "a `RemoteNode` with verbs that block", "a `RemoteNode` with verbs to `await`"
    if asynchronous is None:
        return "blocks", "`await`"
    return (
        f"blocks: `{blocking.__name__}`" if blocking else "blocks",
        f"`await`: `{asynchronous.__name__}`",
    )


def lines_of_the_table() -> list[str]:
    """The table of the page: the verbs by their use, in the order of the code."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, row in vars(NodeVerbs).items():
        if isinstance(row, Row):
            groups.setdefault(uses(row), []).append(name)
    for name, use in WITH_OVERLOADS.items():
        groups.setdefault(use, []).append(name)
    return [
        f"| {', '.join(f'`{name}`' for name in names)} | {blocking} | {asynchronous} |"
        for (blocking, asynchronous), names in groups.items()
    ]


def test_the_page_lists_all_verbs_and_their_uses() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| verbs | `ergo_py.blocking` | `ergo_py.aio` |\n|---|---|---|\n")[2]

    assert table.partition("\n\n")[0].splitlines() == lines_of_the_table()
    assert set(WITH_OVERLOADS) | {
        n for n, row in vars(NodeVerbs).items() if isinstance(row, Row)
    } == (verbs(BlockingNode) - {"run_async"})
