"""A pipeline without a source: each call to it is an item, and is answered when the item has
ended.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import Actor, ChildSpec, Drain, Name, Node, Reject
from ergo_py.errors import CallTimeoutError, MailboxFullError, TargetDownError
from ergo_py.network import Memory
from ergo_py.pipelines import Batch, Item, Pipeline, Sink, Stage
from ergo_py.telemetry.figures import read_figures
from ergo_py.telemetry.metrics import families_of
from tests.meta.owner import eventually
from tests.meta.wires import MovableClock
from tests.pipelines.broker import QUICK, Collect, in_virtual_time
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


class Bury(Batch):
    async def handle_batch(self, items: list[Item]) -> list[object]:
        return ["buried" for _ in items]


class Complaints(Actor):
    """Keeps the items that were given up, or refuses them."""

    def __init__(self, items: list[Item], *, refuses: bool = False) -> None:
        self.items, self.refuses = items, refuses

    def handle_call(self, request: Item, caller: object) -> object:
        if self.refuses:
            raise Reject(OSError("no room"))
        self.items.append(request)
        return "buried"


@in_virtual_time
async def test_the_answer_of_poison_is_no_answer_to_a_call() -> None:
    async with serving(Halve(), poison=Bury()) as node:
        with pytest.raises(ValueError, match="3 is odd"):
            await node.call("half", 3, timeout=100.0)


@pytest.mark.parametrize("refuses", [False, True])
@in_virtual_time
async def test_poison_on_another_node_gets_the_item_and_the_caller_its_own_error(
    refuses: bool,
) -> None:
    network, given_up = Memory(types=[Item]), list[Item]()
    async with (
        running_node("a@test", network=network, limit=1000.0) as here,
        running_node("b@test", network=network, limit=1000.0) as there,
    ):
        await there.spawn(Complaints.spec(given_up, refuses=refuses), name="complaints")
        plan = Pipeline.spec(Halve(), retry=QUICK, poison=Name("complaints", "b@test"))
        await here.supervise([ChildSpec("half", plan)])
        with pytest.raises(ValueError, match="3 is odd"):
            await here.call("half", Item(3, "key"), timeout=100.0)

    found = [(item.body, item.key, str(item.error)) for item in given_up]
    assert found == ([] if refuses else [(3, "key", "3 is odd")])


@in_virtual_time
async def test_as_many_calls_as_may_wait_can_fail_at_once() -> None:
    sink = Collect(batch=1)
    sink.shut()
    answers: list[object] = []

    async def ask(node: Node, request: object) -> None:
        try:
            answers.append(await node.call("half", request, timeout=100.0))
        except TypeError:
            answers.append("refused")

    keyed = Halve().times(2, key=lambda item: item.body + 0)
    bounded = serving(keyed, sink, most_unacknowledged=501)
    async with bounded as node, trio.open_nursery() as nursery:
        for request in (*[2] * 501, *["text"] * 500, 4):
            nursery.start_soon(ask, node, request)
            await trio.testing.wait_all_tasks_blocked()
        sink.gate.set()

    assert answers.count("refused") == 500
    assert sink.bodies == [1] * 501 + [2]


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


@pytest.mark.parametrize("most", [1, 3])
@in_virtual_time
async def test_as_many_calls_wait_as_may_be_open_and_the_next_is_refused(most: int) -> None:
    sink = Collect(batch=1)
    sink.shut()
    answers: list[object] = []

    async def ask(node: Node) -> None:
        answers.append(await node.call("half", 2, timeout=None))

    bounded = serving(Halve(), sink, most_unacknowledged=most)
    async with bounded as node, trio.open_nursery() as nursery:
        for _ in range(2 * most):
            nursery.start_soon(ask, node)
            await trio.testing.wait_all_tasks_blocked()
        figures = await node.inspect("half")
        assert (figures["open"], figures["waiting"]) == (str(most), str(most))
        [waiting] = [
            sample.value
            for family in families_of(read_figures(node))
            if family.metric.name == "ergo_pipeline_waiting"
            for sample in family.samples
        ]
        assert waiting == most
        request = Item(8)
        with pytest.raises(MailboxFullError, match=rf"most_unacknowledged={most} ") as caught:
            await node.call("half", request, timeout=None)
        assert caught.value.message is request
        sink.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await node.call("half", 8) == 4

    assert answers == [1] * 2 * most


@in_virtual_time
async def test_a_full_pipeline_of_another_node_says_which_bound_it_has() -> None:
    sink, network = Collect(), Memory()
    sink.shut()
    async with (
        running_node("a@test", network=network, limit=1000.0) as here,
        running_node("b@test", network=network, limit=1000.0) as there,
        trio.open_nursery() as nursery,
    ):
        plan = Pipeline.spec(Halve(), sink, most_unacknowledged=1)
        await there.supervise([ChildSpec("half", plan)])
        for _ in range(2):
            nursery.start_soon(there.call, "half", 2)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(MailboxFullError, match="as its most_unacknowledged=1 allows"):
            await here.call(Name("half", "b@test"), 2)
        sink.gate.set()


@pytest.mark.parametrize("most", [1, 5, 100])
@in_virtual_time
async def test_a_call_that_was_given_up_leaves_its_place_to_another(most: int) -> None:
    sink = Collect(batch=1)
    sink.shut()
    bounded = serving(Halve(), sink, most_unacknowledged=most)
    async with bounded as node, trio.open_nursery() as nursery:
        for _ in range(most):
            nursery.start_soon(partial(node.call, "half", 2, timeout=None))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as callers:
            for _ in range(most):
                callers.start_soon(give_up, node)
        assert (await node.inspect("half"))["waiting"] == "0"
        refused: list[MailboxFullError] = []
        for _ in range(most):
            nursery.start_soon(wait_or_be_refused, node, refused)
        await trio.testing.wait_all_tasks_blocked()
        assert refused == []
        sink.gate.set()


async def give_up(node: Node) -> None:
    with pytest.raises(CallTimeoutError):
        await node.call("half", 4, timeout=1.0)


async def wait_or_be_refused(node: Node, refused: list[MailboxFullError]) -> None:
    try:
        await node.call("half", 6, timeout=None)
    except MailboxFullError as error:
        refused.append(error)


@in_virtual_time
async def test_a_drain_answers_open_calls_and_refuses_the_others_at_once() -> None:
    sink = Collect()
    sink.shut()
    answers: list[object] = []

    async def ask(node: Node, request: object) -> None:
        try:
            # The pipeline lives on: to ask it again would not help.
            answers.append(await node.service("half").call(request, timeout=None, retry=True))
        except TargetDownError as error:
            answers.append((request, error.begun))

    bounded = serving(Halve(), sink, most_unacknowledged=1)
    async with bounded as node, trio.open_nursery() as nursery:
        for request in (2, 4):
            nursery.start_soon(ask, node, request)
            await trio.testing.wait_all_tasks_blocked()
        assert await node.call("half", Drain(1.0)) == 1
        assert answers == [(4, False)]
        await ask(node, 6)
        sink.gate.set()

    assert answers == [(4, False), (6, False), 1]


@in_virtual_time
async def test_a_stop_answers_open_calls_and_the_next_process_those_that_wait() -> None:
    sink = Collect()
    sink.shut()
    answers: list[object] = []

    async def ask(node: Node, request: object) -> None:
        answers.append(await node.service("half").call(request, timeout=None, retry=True))

    bounded = serving(Halve(), sink, most_unacknowledged=1)
    async with bounded as node, trio.open_nursery() as nursery:
        for request in (2, 4):
            nursery.start_soon(ask, node, request)
            await trio.testing.wait_all_tasks_blocked()
        node.send_exit("half")
        await trio.testing.wait_all_tasks_blocked()
        sink.gate.set()

    assert answers == [1, 2]


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


async def test_a_stuck_step_ends_a_drain(clock: MovableClock) -> None:
    sink = Hang(wakes=True)
    answers: list[object] = []

    async def ask(node: Node) -> None:
        with pytest.raises(TargetDownError):
            await node.call("half", 4, timeout=None)
        answers.append("down")

    async with running_node(limit=5000.0) as node, trio.open_nursery() as nursery:
        plan = Pipeline.spec(Halve(), sink, on_stop=Drain(3000.0))
        await node.supervise([ChildSpec("half", plan)])
        nursery.start_soon(ask, node)
        await trio.to_thread.run_sync(sink.begun.wait)
        node.send_exit("half")
        await trio.testing.wait_all_tasks_blocked(0.01)
        clock.move(1001)
        with trio.fail_after(60.0):
            await eventually(lambda: bool(answers))
