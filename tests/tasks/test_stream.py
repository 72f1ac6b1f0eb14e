"""Streams of results: order, bounds, failures, and nothing left behind when the consumer leaves."""

import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import Actor, BadInputError, Node
from ergo_py._core.vocabulary.errors import TaskEndedError
from ergo_py.tasks import FailedItem
from ergo_py.tasks.stream import MapStream
from tests.actors import Failed, Puppet
from tests.support import running_node


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


class Bench:
    """A function that counts how many calls run at once, and notes their ends."""

    def __init__(self) -> None:
        self.running = self.most = self.started = self.cancelled = 0

    async def work(self, item: Any) -> Any:
        self.started += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(item if isinstance(item, float) else 1.0)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return item


async def gone(node: Node) -> None:
    """Wait until no process is left on the node."""
    while node.processes():
        await trio.lowlevel.checkpoint()


async def test_results_come_in_the_order_of_the_items(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        seconds = [3.0, 1.0, 2.0, 0.5, 5.0, 0.1]
        got = [item async for item in node.map_stream(Bench().work, seconds, at_once=3)]

        assert got == seconds
        await gone(node)


async def test_unordered_results_come_as_they_are_ready(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        stream = node.map_stream(Bench().work, [3.0, 1.0, 2.0], ordered=False)

        assert [item async for item in stream] == [1.0, 2.0, 3.0]


async def test_at_most_at_once_functions_run(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with running_node() as node:
        async for _ in node.map_stream(bench.work, range(20), at_once=4):
            pass

    assert bench.most == 4
    assert bench.started == 20


async def test_a_slow_consumer_stops_the_pulling_of_items() -> None:
    pulled: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            pulled.append(number)
            yield number

    async with running_node() as node:
        stream = node.map_stream(double, items(), at_once=4)
        assert await anext(stream) == 0
        await wait_all_tasks_blocked()
        # Four may run, and four results may wait.
        assert len(pulled) <= 9
        for taken in range(1, 50):
            assert await anext(stream) == 2 * taken
            await wait_all_tasks_blocked()
            assert len(pulled) <= taken + 9
        await stream.aclose()


async def test_nothing_starts_before_the_first_result_is_asked_for() -> None:
    bench = Bench()
    async with running_node() as node:
        stream = node.map_stream(bench.work, [1.0])
        await wait_all_tasks_blocked()
        assert node.processes() == []
        del stream

    assert bench.started == 0


@pytest.mark.parametrize("kind", ["async", "thread", "list", "empty"])
async def test_items_may_come_from_any_iterable(kind: str) -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(5):
            await trio.lowlevel.checkpoint()
            yield number

    async with running_node() as node:
        if kind == "async":
            got = [item async for item in node.map_stream(double, numbers())]
        elif kind == "thread":
            got = [item async for item in node.map_stream(lambda number: 2 * number, range(5))]
        elif kind == "list":
            got = [item async for item in node.map_stream(double, [0, 1, 2, 3, 4])]
        else:
            assert [item async for item in node.map_stream(double, [])] == []
            return
        await gone(node)

    assert got == [0, 2, 4, 6, 8]


async def fail_at_three(number: int) -> int:
    await trio.lowlevel.checkpoint()
    if number == 3:
        raise Failed(number)
    return number


async def test_a_failure_is_raised_in_its_place_and_ends_the_stream() -> None:
    got: list[int] = []
    async with running_node() as node:
        stream = node.map_stream(fail_at_three, range(100), at_once=5)
        with pytest.raises(Failed, match="3") as caught:
            async for number in stream:
                got += [number]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await gone(node)

    assert got == [0, 1, 2]
    assert [entry.name for entry in caught.traceback][-1] == "fail_at_three"


async def test_on_failure_puts_a_value_in_the_place_of_the_result() -> None:
    async with running_node() as node:
        stream = node.map_stream(fail_at_three, range(5), on_failure=FailedItem)
        got = [each async for each in stream]

    failed = got[3]
    assert [got[0], got[1], got[2], got[4]] == [0, 1, 2, 4]
    assert isinstance(failed, FailedItem)
    assert failed.item == 3
    assert isinstance(failed.error, Failed)


async def test_an_on_failure_that_raises_ends_the_stream_with_its_error() -> None:
    def again(item: int, error: Exception) -> int:
        raise LookupError(item) from error

    async with running_node() as node:
        with pytest.raises(LookupError):
            async for _ in node.map_stream(fail_at_three, range(5), on_failure=again):
                pass


async def test_an_item_that_takes_too_long_fails_and_the_others_do_not(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    async with running_node() as node:
        stream = node.map_stream(
            bench.work, [1.0, 9.0, 2.0], timeout=5.0, on_failure=lambda item, error: str(error)
        )
        got = [each async for each in stream]
        await gone(node)

    assert got[0] == 1.0
    assert "took more than 5 s" in str(got[1])
    assert got[2] == 2.0
    assert bench.cancelled == 1


async def test_a_late_item_in_a_thread_fails_at_its_time_limit() -> None:
    opened = threading.Event()
    async with running_node() as node:
        stream = node.map_stream(
            lambda _: opened.wait(30), [1], timeout=0.01, on_failure=FailedItem
        )
        first = await anext(stream)
        assert isinstance(first, FailedItem)
        assert isinstance(first.error, TimeoutError)
        opened.set()
        await stream.aclose()
        await gone(node)


async def test_a_source_that_fails_is_raised_after_the_results_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise Failed("source")

    got: list[int] = []
    async with running_node() as node:
        with pytest.raises(Failed, match="source"):
            async for each in node.map_stream(double, items()):
                got += [each]
        await gone(node)

    assert got == [2, 4]


# -- leaving early ---------------------------------------------------------------------------------


async def leave_by_break(make: Callable[[], MapStream[Any]]) -> None:
    async for _ in make():
        break


async def leave_by_exception(make: Callable[[], MapStream[Any]]) -> None:
    async def consume() -> None:
        async for _ in make():
            raise Failed

    try:
        await consume()
    except Failed:
        pass


async def leave_by_cancellation(make: Callable[[], MapStream[Any]]) -> None:
    with trio.CancelScope() as scope:
        async for _ in make():
            scope.cancel()


async def leave_while_waiting(make: Callable[[], MapStream[Any]]) -> None:
    async def consume() -> None:
        async for _ in make():
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_exception, leave_by_cancellation, leave_while_waiting]
)
async def test_a_consumer_that_leaves_early_leaves_nothing_behind(
    leave: Any, autojump_clock: MockClock
) -> None:
    bench = Bench()
    closed: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append("source")

    async with running_node() as node:
        await leave(lambda: node.map_stream(bench.work, endless(), at_once=4))
        gc.collect()
        await gone(node)
        assert bench.running == 0
        started = bench.started
        await trio.sleep(10)

    assert bench.cancelled > 0
    assert bench.started == started
    assert closed == ["source"]


async def test_a_block_waits_until_the_functions_have_ended(autojump_clock: MockClock) -> None:
    ended: list[int] = []

    async def work(item: int) -> int:
        try:
            if item:
                await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            ended.append(item)
        return item

    async with running_node() as node:
        async with node.map_stream(work, [0, 1, 2]) as results:
            async for _ in results:
                break

        assert sorted(ended) == [0, 1, 2]
        assert node.processes() == []


async def test_a_stream_ends_with_the_process_that_started_it() -> None:
    bench = Bench()
    kept: list[Any] = []

    class Consumer(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            stream = self.map_stream(bench.work, range(10))
            kept.append(stream)
            async for _ in stream:
                pass

    async with running_node() as node:
        consumer = await node.spawn(Consumer)
        node.send(consumer, "go")
        while bench.running == 0:
            await trio.lowlevel.checkpoint()
        node.kill(consumer)
        await node.wait_ended(consumer)
        assert node.processes() == []
        assert bench.running == 0

    with pytest.raises(StopAsyncIteration):
        while True:
            try:
                await anext(kept[0])
            except TaskEndedError:
                pass


async def test_a_consumer_elsewhere_is_woken_when_the_stream_is_killed() -> None:
    async with running_node() as node:
        stream = node.map_stream(Bench().work, range(10))
        errors: list[BaseException] = []

        async def consume() -> None:
            try:
                await anext(stream)
            except TaskEndedError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await wait_all_tasks_blocked()
            for pid in node.processes():
                node.kill(pid)

    assert len(errors) == 1


async def test_several_consumers_share_a_stream() -> None:
    got: list[int] = []
    async with running_node() as node:
        stream = node.map_stream(double, range(50), at_once=3)

        async def consume() -> None:
            async for each in stream:
                got.append(each)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(consume)

    assert sorted(got) == [2 * number for number in range(50)]


async def test_a_task_of_a_stream_may_use_the_verbs_of_the_process() -> None:
    async with running_node() as node:
        echo = await node.spawn(Puppet, ["kept"])
        owner = await node.spawn(Puppet)

        async def ask_all(me: Any) -> list[Any]:
            stream = me.map_stream(lambda _: None, [])
            assert [each async for each in stream] == []

            async def ask(number: int) -> Any:
                await trio.lowlevel.checkpoint()
                return await me.call(echo, "all")

            return [each async for each in me.map_stream(ask, range(3))]

        assert await node.call(owner, ask_all) == [["kept"]] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"items": 5},
        {"at_once": 0},
        {"at_once": 1.5},
        {"timeout": -1},
        {"on_failure": "skip"},
        {"function": 5},
    ],
)
async def test_wrong_arguments_are_refused_at_once(wrong: Any) -> None:
    async with running_node() as node:
        arguments: Any = {"function": double, "items": [1], **wrong}
        with pytest.raises(BadInputError):
            node.map_stream(**arguments)
        assert node.processes() == []


@given(
    delays=st.lists(st.integers(0, 3), max_size=12),
    at_once=st.integers(1, 4),
    ordered=st.booleans(),
    failing=st.integers(0, 12),
)
def test_every_item_has_a_single_result_for_any_delays(
    delays: list[int], at_once: int, ordered: bool, failing: int
) -> None:
    async def work(item: tuple[int, int]) -> int:
        number, delay = item
        for _ in range(delay):
            await trio.lowlevel.checkpoint()
        if number == failing:
            raise Failed
        return number

    async def main() -> list[int]:
        async with running_node() as node:
            stream = node.map_stream(
                work,
                enumerate(delays),
                at_once=at_once,
                ordered=ordered,
                on_failure=lambda item, error: -item[0],
            )
            return [each async for each in stream]

    got = trio.run(main)
    expected = [-number if number == failing else number for number in range(len(delays))]
    assert (got if ordered else sorted(got, key=abs)) == expected
