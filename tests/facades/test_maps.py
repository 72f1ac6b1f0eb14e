"""`map_stream` of the facades: the items are taken where the code of the caller runs."""

import asyncio
import gc
import itertools
import sqlite3
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from threading import get_ident
from typing import Any

import outcome
import pytest
import trio
import trio.testing
from opentelemetry import trace

from ergo_py import Actor, Caller, NodeStoppedError
from ergo_py.aio import AsyncioNode
from ergo_py.aio import open_node as open_asyncio_node
from ergo_py.blocking import open_node
from ergo_py.blocking.loop_thread import OwnedNode
from ergo_py.facades.demand import WANTED, ThreadDemand
from tests.facades.test_node import on_asyncio
from tests.telemetry.rig import Spans, tracing

colour: ContextVar[str] = ContextVar("colour", default="none")


class OwnError(Exception):
    """An error of the iterable."""


class Numbers(Actor):
    def __init__(self) -> None:
        self.count = itertools.count()

    def handle_call(self, request: object, caller: Caller) -> int:
        return next(self.count)


class Gate:
    """Functions that wait for each other, and count themselves."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.running = self.most = 0
        self.is_full = trio.Event()

    async def pass_on(self, item: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.at_once:
            self.is_full.set()
        await self.is_full.wait()
        await trio.lowlevel.checkpoint()
        self.running -= 1
        return item


class Source:
    """An iterable that notes where it is used."""

    def __init__(self, items: Iterator[int], failure: Exception | None = None) -> None:
        self.items = items
        self.failure = failure
        self.taken = 0
        self.closed = 0
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        try:
            for item in self.items:
                self.threads.add(get_ident())
                self.taken += 1
                yield item
            if self.failure is not None:
                raise self.failure
        finally:
            self.threads.add(get_ident())
            self.closed += 1


async def same(item: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return item


async def fail(item: Any) -> Any:
    raise LookupError(item)


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("maps@localhost", log_output="none", watchdog=None) as node:
        yield node


# -- synchronous code ------------------------------------------------------------------------------


def test_a_cursor_of_sqlite_is_read_in_the_thread_of_its_connection(node: OwnedNode) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        cursor = connection.execute("values (1), (2), (3)")

        assert list(node.map_stream(same, cursor, at_once=1)) == [(1,), (2,), (3,)]


def test_a_generator_that_blocks_does_not_block_the_node(node: OwnedNode) -> None:
    numbers = node.spawn(Numbers)

    def ask() -> Iterator[int]:
        for _ in range(5):
            yield node.call(numbers, "next")

    assert list(node.map_stream(same, ask())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at_once", [1, 3])
def test_functions_run_at_once_and_no_further_item_is_taken(at_once: int, node: OwnedNode) -> None:
    source, gate = Source(itertools.count()), Gate(at_once)

    with node.map_stream(gate.pass_on, source, at_once=at_once) as results:
        for number in range(10):
            assert next(results) == number
            assert source.taken - number - 1 < 2 * at_once

    assert gate.most == at_once
    assert source.threads == {get_ident()}


def test_a_result_does_not_wait_for_a_slow_iterable(node: OwnedNode) -> None:
    is_done = threading.Event()

    async def note(item: int) -> int:
        is_done.set()
        return item

    def items() -> Iterator[int]:
        yield 0
        assert is_done.wait(60)
        yield 1
        raise OwnError("the first result was ready")

    assert next(node.map_stream(note, items())) == 0


def test_a_slow_consumer_leaves_no_function_without_an_item(node: OwnedNode) -> None:
    source, gate = Source(itertools.count()), Gate(4)
    with node.map_stream(gate.pass_on, source, at_once=4) as results:
        assert next(results) == 0
        for number in range(1, 4):
            node.run(lambda _: trio.testing.wait_all_tasks_blocked())
            taken = source.taken  # a result is ready, and there is room for an item
            assert next(results) == number
            assert source.taken == taken + 1


def test_an_exception_of_an_iterable_comes_as_it_is_after_the_results(node: OwnedNode) -> None:
    error = OwnError("no more")
    results = node.map_stream(same, Source(iter([1, 2]), error))

    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(OwnError) as caught:
        next(results)

    assert caught.value is error
    assert "raise self.failure" in "".join(traceback.format_exception(error))
    assert (error.__cause__, error.__context__) == (None, None)
    assert list(results) == []


class Unusable:
    def __iter__(self) -> Iterator[int]:
        raise OwnError("not now")


def test_an_iterable_may_fail_at_once(node: OwnedNode) -> None:
    with pytest.raises(OwnError, match="not now"):
        next(node.map_stream(same, Unusable()))


def test_to_leave_a_stream_closes_its_generator_in_the_thread_of_the_caller(
    node: OwnedNode,
) -> None:
    source = Source(itertools.count())

    with node.map_stream(same, source) as results:
        next(results)
        assert source.closed == 0

    assert source.closed == 1
    assert source.threads == {get_ident()}
    assert list(results) == []


def test_a_dropped_stream_closes_its_generator_in_the_thread_of_the_caller(
    node: OwnedNode,
) -> None:
    source = Source(itertools.count())

    for _ in node.map_stream(same, source):
        break
    gc.collect()

    assert source.closed == 1
    assert source.threads == {get_ident()}
    node.run(until_all_have_ended)


async def until_all_have_ended(node: Any) -> None:
    while node.info().processes > 1:
        await trio.lowlevel.checkpoint()


def test_a_failure_of_the_function_closes_the_generator(node: OwnedNode) -> None:
    source = Source(itertools.count())

    with pytest.raises(LookupError):
        next(node.map_stream(fail, source))

    assert source.closed == 1


def test_a_generator_that_has_ended_is_not_closed_again(node: OwnedNode) -> None:
    source = Source(iter([1]))

    assert list(node.map_stream(same, source)) == [1]
    assert source.closed == 1


def test_the_end_of_the_node_closes_the_generator(node: OwnedNode) -> None:
    source = Source(itertools.count())
    results = node.map_stream(same, source)
    next(results)
    node.close()

    with pytest.raises(NodeStoppedError):
        next(results)

    assert source.closed == 1
    results.close()


def test_a_generator_may_stop_its_node(node: OwnedNode) -> None:
    closed: list[int] = []

    def items() -> Iterator[int]:
        try:
            yield 0
            node.close()
            yield 1
        finally:
            closed.append(get_ident())

    with pytest.raises(NodeStoppedError):
        list(node.map_stream(same, items()))

    assert closed == [get_ident()]


def test_a_thread_may_close_a_stream_while_another_takes_an_item(node: OwnedNode) -> None:
    begun, may_end, closed = threading.Event(), threading.Event(), list[int]()

    def items() -> Iterator[int]:
        try:
            begun.set()
            assert may_end.wait(60)
            yield 0
        finally:
            closed.append(get_ident())

    results = node.map_stream(same, items())
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(lambda: (list(results), get_ident()))
        assert begun.wait(60)
        results.close()
        assert closed == []
        may_end.set()
        assert reading.result(60)[0] == []
        assert closed == [reading.result()[1]]


def test_threads_may_share_a_stream(node: OwnedNode) -> None:
    source = Source(iter(range(200)))
    results = node.map_stream(same, source, at_once=3)

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(list, results) for _ in range(4)]

    assert sorted(itertools.chain(*(each.result() for each in found))) == list(range(200))


class Interrupted:
    """An iterator during which a user presses Ctrl-C, at every second item."""

    def __init__(self) -> None:
        self.steps = itertools.count()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        step = next(self.steps)
        if step == 10:
            raise StopIteration
        if step % 2:
            raise KeyboardInterrupt
        return step


def test_ctrl_c_in_an_iterator_loses_no_item(node: OwnedNode) -> None:
    results, found, interrupts = node.map_stream(same, Interrupted()), list[int](), 0

    while True:
        try:
            found.append(next(results))
        except StopIteration:
            break
        except KeyboardInterrupt:
            interrupts += 1

    assert (found, interrupts) == ([0, 2, 4, 6, 8], 5)


async def trio_numbers() -> AsyncIterator[int]:
    for number in range(3):
        await trio.lowlevel.checkpoint()
        yield number


def test_an_async_iterable_of_synchronous_code_runs_on_the_loop_of_the_node(
    node: OwnedNode,
) -> None:
    assert list(node.map_stream(same, trio_numbers())) == [0, 1, 2]


# -- asyncio ---------------------------------------------------------------------------------------


class AsyncSource(Source):
    """The same as an async iterable, which also notes its task."""

    def __init__(self, items: Iterator[int], failure: BaseException | None = None) -> None:
        super().__init__(items)
        self.error = failure
        self.tasks: set[object] = set()

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for item in self.items:
                self.note()
                self.taken += 1
                await asyncio.sleep(0)
                yield item
            if self.error is not None:
                raise self.error
        finally:
            await asyncio.sleep(0)
            self.note()
            self.closed += 1

    def note(self) -> None:
        self.threads.add(get_ident())
        self.tasks.add(asyncio.current_task())


SOURCES: list[Callable[..., Any]] = [Source, AsyncSource]


@pytest.mark.parametrize("make", SOURCES)
def test_an_iterable_of_asyncio_code_runs_on_its_loop(make: Any) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        source = make(iter(range(20)))

        assert [each async for each in node.map_stream(same, source)] == list(range(20))

        assert source.threads == {get_ident()}
        assert source.closed == 1
        assert len(getattr(source, "tasks", [1])) == 1

    check()


@on_asyncio
async def test_an_async_generator_may_use_the_node_of_its_stream(node: AsyncioNode) -> None:
    numbers = await node.spawn(Numbers)

    async def ask() -> AsyncIterator[int]:
        for _ in range(5):
            yield await node.call(numbers, "next")

    assert [each async for each in node.map_stream(same, ask())] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("at_once", [1, 3])
def test_no_further_item_of_asyncio_code_is_taken(make: Any, at_once: int) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        source, gate = make(itertools.count()), Gate(at_once)
        async with node.map_stream(gate.pass_on, source, at_once=at_once) as results:
            for number in range(10):
                assert await anext(results) == number
                assert source.taken - number - 1 <= 2 * at_once
        assert gate.most == at_once

    check()


@pytest.mark.parametrize("make", SOURCES)
def test_an_exception_of_an_iterable_of_asyncio_code_comes_as_it_is(make: Any) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        error = OwnError("no more")
        results = node.map_stream(same, make(iter([1, 2]), error))

        assert [await anext(results), await anext(results)] == [1, 2]
        with pytest.raises(OwnError) as caught:
            await anext(results)

        assert caught.value is error
        assert "raise self." in "".join(traceback.format_exception(error))
        with pytest.raises(StopAsyncIteration):
            await anext(results)

    check()


@on_asyncio
async def test_an_iterable_that_is_cancelled_by_itself_ends_the_stream(node: AsyncioNode) -> None:
    results = node.map_stream(same, AsyncSource(iter([1]), asyncio.CancelledError("lost")))

    assert await anext(results) == 1
    with pytest.raises(asyncio.CancelledError, match="lost"):
        await anext(results)


@on_asyncio
async def test_a_cancelled_step_does_not_cancel_the_iterable(node: AsyncioNode) -> None:
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def items() -> AsyncIterator[int]:
        for number in range(3):
            asked.set()
            await may_go_on.wait()
            yield number

    results = node.map_stream(same, items())
    step = asyncio.ensure_future(anext(results))
    await asked.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    may_go_on.set()

    assert [each async for each in results] == [0, 1, 2]


@pytest.mark.parametrize("make", SOURCES)
def test_to_leave_a_stream_closes_the_iterable_of_asyncio_code(make: Any) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        source = make(itertools.count())
        async with node.map_stream(same, source) as results:
            await anext(results)
            assert source.closed == 0
        assert source.closed == 1
        assert source.threads == {get_ident()}
        assert [each async for each in results] == []

    check()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - a generator may be closed by the garbage collector
        await asyncio.sleep(0)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("how", ["failure", "dropped"])
def test_the_end_of_a_stream_closes_the_iterable_of_asyncio_code(make: Any, how: str) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        source = make(itertools.count())
        if how == "failure":
            with pytest.raises(LookupError):
                await anext(node.map_stream(fail, source))
        else:
            await anext(node.map_stream(same, source))
            gc.collect()
        await until(lambda: source.closed == 1)
        assert source.threads == {get_ident()}

    check()


@on_asyncio
async def test_an_exception_of_the_close_is_raised_where_the_stream_is_closed(
    node: AsyncioNode,
) -> None:
    async def items() -> AsyncIterator[int]:
        try:
            while True:
                yield 0
        finally:
            raise OwnError("not closed")

    results = node.map_stream(same, items(), at_once=1)
    assert await anext(results) == 0
    with pytest.raises(OwnError, match="not closed"):
        await results.aclose()


@on_asyncio
async def test_an_iterable_may_close_its_own_stream(node: AsyncioNode) -> None:
    closed: list[int] = []

    async def items() -> AsyncIterator[int]:
        try:
            yield 0
            await results.aclose()
            yield 1
        finally:
            closed.append(get_ident())

    results = node.map_stream(same, items(), at_once=1)

    assert await anext(results) == 0
    assert [each async for each in results] == []
    await until(lambda: closed == [get_ident()])
    await until(lambda: len(asyncio.all_tasks()) == 1)


@pytest.mark.parametrize("make", SOURCES)
def test_a_node_that_stops_closes_the_iterable_of_asyncio_code(make: Any) -> None:
    async def main() -> None:
        source = make(itertools.count())
        async with open_asyncio_node(log_output="none", watchdog=None) as node:
            results = node.map_stream(same, source)
            await anext(results)
        with pytest.raises(NodeStoppedError):
            await anext(results)
        await results.aclose()
        assert source.closed == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_open_stream_lets_asyncio_end() -> None:
    source = AsyncSource(itertools.count())

    async def main(node: AsyncioNode) -> object:
        results = node.map_stream(same, source)
        await anext(results)
        return results

    async def opened() -> object:
        async with open_asyncio_node(log_output="none", watchdog=None) as node:
            return await main(node)

    assert asyncio.run(asyncio.wait_for(opened(), 60)) is not None
    assert source.closed == 1


def test_an_iterable_has_the_context_variables_of_the_first_reader() -> None:
    spans, found = Spans(), list[tuple[str, object]]()

    async def items() -> AsyncIterator[int]:
        for number in range(3):
            found.append((colour.get(), trace.get_current_span()))
            yield number

    async def main() -> object:
        async with open_asyncio_node(
            tracing=tracing(spans), log_output="none", watchdog=None
        ) as node:
            results = node.map_stream(same, items())
            colour.set("green")
            with spans.provider.get_tracer("test").start_as_current_span("request") as span:
                assert [each async for each in results] == [0, 1, 2]
            return span

    assert found == [("green", asyncio.run(main()))] * 3


# -- the source on the node ------------------------------------------------------------------------


async def test_a_thread_takes_an_item_first_and_then_a_result_that_is_ready() -> None:
    demand = ThreadDemand()

    async def take() -> outcome.Outcome[str]:
        return outcome.Value("result")

    demand.ask()
    assert await demand.step(take) is WANTED
    demand.give(outcome.Value("item"))
    demand.ask()
    assert (await demand.step(take)).unwrap() == "result"
    assert await demand.step(take) is WANTED
