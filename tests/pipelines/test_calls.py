"""A pipeline without a source: each call to it is an item, and is answered when the item has
ended.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import ChildSpec, Node
from ergo_py.errors import CallTimeoutError, TargetDownError
from ergo_py.pipelines import Item, Pipeline, Sink, Stage
from tests.meta.owner import eventually
from tests.meta.wires import MovableClock
from tests.pipelines.broker import QUICK, Collect, in_virtual_time, until
from tests.support import running_node


class Halve(Stage):
    async def handle(self, item: Item) -> object:
        if item.body % 2:
            raise ValueError(f"{item.body} is odd")
        return item.body // 2


@asynccontextmanager
async def serving(*steps: Any, **options: Any) -> AsyncIterator[Node]:
    keywords: dict[str, Any] = {"retry": QUICK, **options}
    async with running_node(limit=1000.0) as node:
        await node.supervise([ChildSpec("half", Pipeline.spec(*steps, **keywords))])
        yield node


@in_virtual_time
async def test_a_call_is_answered_after_the_sink_by_the_body_of_the_last_stage() -> None:
    sink = Collect()
    sink.shut()
    answers: list[object] = []

    async def ask(node: Node, request: object) -> None:
        answers.append(await node.call("half", request))

    async with serving(Halve(), sink) as node, trio.open_nursery() as nursery:
        nursery.start_soon(ask, node, 4)
        nursery.start_soon(ask, node, Item(6, "key"))
        await trio.testing.wait_all_tasks_blocked()
        assert (await node.inspect("half"))["open"] == "2"
        assert answers == []

        sink.gate.set()

    assert sorted(answers, key=str) == [2, 3]
    assert sorted(sink.bodies) == [2, 3]


@in_virtual_time
async def test_a_call_has_the_error_of_an_item_that_is_given_up_also_with_poison() -> None:
    poison = Collect()

    async with serving(Halve(), Collect()) as node:
        with pytest.raises(ValueError, match="3 is odd"):
            await node.call("half", 3)
        assert (await node.inspect("half"))["acknowledged"] == "0"
    async with serving(Halve(), Collect(), poison=poison) as node:
        with pytest.raises(ValueError, match="5 is odd"):
            await node.call("half", 5)

    assert poison.bodies == [5]


@in_virtual_time
async def test_calls_beyond_the_bound_wait_and_those_given_up_meanwhile_cost_no_work() -> None:
    sink = Collect(batch=1)
    sink.shut()

    bounded = serving(Halve(), sink, most_unacknowledged=1)
    async with bounded as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.call, "half", 2)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CallTimeoutError):
            await node.call("half", 4, timeout=1.0)
        nursery.start_soon(node.call, "half", 6)
        await trio.testing.wait_all_tasks_blocked()
        assert (await node.inspect("half"))["taken"] == "1"
        sink.gate.set()

    assert sink.bodies == [1, 3]


@in_virtual_time
async def test_a_drain_answers_open_calls_and_the_end_of_the_process_those_that_wait() -> None:
    sink = Collect()
    sink.shut()
    answers: list[object] = []

    async def ask(node: Node, request: object) -> None:
        try:
            answers.append(await node.call("half", request, timeout=None))
        except TargetDownError:
            answers.append("down")

    bounded = serving(Halve(), sink, most_unacknowledged=1)
    async with trio.open_nursery() as nursery, bounded as node:
        for request in (2, 4):
            nursery.start_soon(ask, node, request)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(node.drain)
        await trio.testing.wait_all_tasks_blocked()
        sink.gate.set()
        await until(lambda: answers)

    assert answers == [1, "down"]


class Hang(Sink):
    """Does not return from its first batch; ``wake`` makes it return, if it is told so."""

    stuck_after = 1000.0

    def __init__(self, *, wakes: bool) -> None:
        super().__init__()
        self.wakes = wakes
        self.begun, self.over = threading.Event(), threading.Event()

    def handle_batch(self, items: list[Item]) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.over.wait()

    def wake(self) -> None:
        if self.wakes:
            self.over.set()


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.mark.parametrize("wakes", [True, False])
async def test_a_stuck_step_ends_the_pipeline_and_the_next_has_a_new_thread(
    wakes: bool, clock: MovableClock
) -> None:
    sink = Hang(wakes=wakes)
    answers: list[object] = []

    async def ask(node: Node) -> None:
        answers.append(await node.service("half").call(4, timeout=None, retry=True))

    async with running_node(limit=5000.0) as node, trio.open_nursery() as nursery:
        tree = await node.supervise([ChildSpec("half", Pipeline.spec(Halve(), sink))])
        nursery.start_soon(ask, node)
        await trio.to_thread.run_sync(sink.begun.wait)
        clock.move(1001)
        while not (wakes or node.info().threads_abandoned):
            clock.move(6)  # the time that a stop leaves a thread
            await trio.sleep(0.01)
        await eventually(lambda: bool(answers))
        [child] = tree.children()
        assert (child.restarts, node.info().threads_abandoned) == (1, 0 if wakes else 1)
        supervision = node.process_info(tree.pid).supervision
        assert supervision is not None
        assert "Hang did not return for 1000 s" in str(supervision.restarts[-1].reason)
        sink.over.set()

    assert answers == [2]
