"""Replies in parts: order, credit, failures, and the ends of reader and producer."""

import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    Caller,
    CallTimeoutError,
    NotAllowedError,
    TargetDownError,
    Threads,
    ask,
    exposed,
)
from ergo_py.blocking import handle
from ergo_py.streams import PartStream
from ergo_py.testing import Alone
from tests.actors import Failed, Puppet
from tests.support import running_node


class Source(Actor):
    """Answers in parts, and counts them."""

    def __init__(self) -> None:
        self.produced = 0
        self.closed = 0

    def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "single":
                return 5
            case "counts":
                return (self.produced, self.closed)
            case "later":
                return self.stream(self.slow())
            case "failing":
                return self.stream(self.failing())
            case "list":
                return self.stream(["a", "b"])
            case int():
                return self.stream(self.numbers(request), credit=4)
        return None

    async def numbers(self, count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                self.produced += 1
                yield number
        finally:
            self.closed += 1

    async def slow(self) -> AsyncIterator[str]:
        yield "first"
        await trio.sleep(60)
        yield "second"

    def failing(self) -> Iterator[int]:
        yield 1
        raise Failed("after a part")

    @exposed
    def rows(self, count: int) -> PartStream[int]:
        return self.stream(self.numbers(count))


class AsyncSource(Source):
    async def handle_call(self, request: Any, caller: Caller) -> object:
        return super().handle_call(request, caller)


@pytest.mark.parametrize("cls, options", [(Source, {}), (AsyncSource, {}), (Source, Threads())])
async def test_parts_arrive_in_order_and_end(cls: Any, options: Any) -> None:
    async with running_node() as node:
        source = await node.spawn(cls, **({"dispatcher": options} if options else {}))
        got = [part async for part in node.call_stream(source, 50)]
        me = await node.spawn(Puppet)

        async def read(puppet: Any) -> list[Any]:
            return [part async for part in puppet.call_stream(source, "list")]

        assert await node.call(me, read) == ["a", "b"]
        while len(node.processes()) > 2:
            await trio.lowlevel.checkpoint()

    assert got == list(range(50))


async def test_a_plain_call_returns_the_stream_itself() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        parts = await node.call(source, ask(Source.rows, 3))

        assert [part async for part in parts] == [0, 1, 2]
        with pytest.raises(StopAsyncIteration):
            await anext(parts)


@pytest.mark.parametrize("credit", [None, 1, 10])
async def test_the_producer_is_never_more_than_its_credit_ahead(credit: int | None) -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        stream = node.call_stream(source, 1000, credit=credit)
        limit = credit or 4
        for number in range(30):
            assert await anext(stream) == number
            await wait_all_tasks_blocked()
            produced, _ = await node.call(source, "counts")
            assert produced <= number + 1 + limit
        await stream.aclose()


async def test_nothing_is_produced_before_the_reader_asks() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        parts = await node.call(source, 10)
        await wait_all_tasks_blocked()

        assert await node.call(source, "counts") == (0, 0)
        del parts


async def test_the_callee_handles_other_messages_while_it_streams() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        stream = node.call_stream(source, "later", timeout=None)
        assert await anext(stream) == "first"

        assert await node.call(source, "single") == 5
        await stream.aclose()


async def leave_by_break(stream: Any) -> None:
    async for _ in stream:
        break


async def leave_by_exception(stream: Any) -> None:
    with pytest.raises(Failed):
        async for _ in stream:
            raise Failed


async def leave_by_cancellation(stream: Any) -> None:
    with trio.CancelScope() as scope:
        async for _ in stream:
            scope.cancel()


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_by_cancellation])
async def test_a_reader_that_leaves_ends_the_producer(leave: Any) -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        await leave(node.call_stream(source, 1_000_000))
        gc.collect()
        while node.processes() != [source]:
            await trio.lowlevel.checkpoint()

        assert (await node.call(source, "counts"))[1] == 1


async def test_a_reader_that_dies_with_the_stream_in_its_hands_ends_the_producer() -> None:
    kept: list[Any] = []

    async def read(puppet: Any) -> None:
        stream = puppet.call_stream(source, 1_000_000)
        kept.append(stream)
        await anext(stream)

    async with running_node() as node:
        source = await node.spawn(Source)
        me = await node.spawn(Puppet)
        await node.call(me, read)
        assert len(node.processes()) == 3
        node.kill(me)
        await node.wait_ended(me)
        while node.processes() != [source]:
            await trio.lowlevel.checkpoint()


async def test_the_end_of_the_callee_is_told_to_the_reader() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        stream = node.call_stream(source, "later", timeout=None)
        assert await anext(stream) == "first"
        node.kill(source)
        with pytest.raises(TargetDownError) as caught:
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    assert caught.value.target == source


async def test_a_failure_of_the_producer_is_raised_after_its_parts() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        stream = node.call_stream(source, "failing")
        assert await anext(stream) == 1
        with pytest.raises(Failed, match="after a part"):
            await anext(stream)
        assert await node.call(source, "single") == 5


async def test_a_part_that_takes_too_long_is_a_timeout(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        stream = node.call_stream(source, "later", timeout=2.0)
        assert await anext(stream) == "first"
        with pytest.raises(CallTimeoutError):
            await anext(stream)
        while node.processes() != [source]:
            await trio.lowlevel.checkpoint()


async def test_a_reply_that_its_caller_no_longer_awaits_is_not_produced() -> None:
    class Late(Source):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            with trio.CancelScope(shield=True):
                await release.wait()
            return self.stream(self.numbers(5))

    release = trio.Event()
    async with running_node() as node:
        late = await node.spawn(Late)
        with pytest.raises(CallTimeoutError):
            await anext(node.call_stream(late, 5, timeout=0.0))
        release.set()
        await wait_all_tasks_blocked()
        gc.collect()
        while node.processes() != [late]:
            await trio.lowlevel.checkpoint()


async def test_a_single_answer_is_refused_with_the_line_to_write() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)
        with pytest.raises(NotAllowedError, match=r"return self\.stream\(parts\)"):
            await anext(node.call_stream(source, "single"))
        with pytest.raises(TargetDownError):
            await anext(node.call_stream("missing", "single"))


async def test_wrong_arguments_are_refused() -> None:
    class Wrong(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            with pytest.raises(BadInputError, match="iterable"):
                self.stream(request)
            with pytest.raises(BadInputError, match="credit"):
                self.stream([], credit=0)
            return "checked"

    async with running_node() as node:
        wrong = await node.spawn(Wrong)
        assert await node.call(wrong, 5) == "checked"
        with pytest.raises(BadInputError, match="credit"):
            node.call_stream(wrong, 5, credit=0)
        with pytest.raises(BadInputError, match="timeout"):
            node.call_stream(wrong, 5, timeout=-1)
        assert node.processes() == [wrong]


async def test_a_thread_reads_parts() -> None:
    async with running_node() as node:
        source = await node.spawn(Source)

        def read() -> tuple[list[Any], Any]:
            blocking = handle(node)
            everything = list(blocking.call_stream(source, 5))
            with blocking.call_stream(source, 1_000_000) as parts:
                return everything, next(parts)

        assert await trio.to_thread.run_sync(read) == ([0, 1, 2, 3, 4], 0)
        while node.processes() != [source]:
            await trio.lowlevel.checkpoint()


async def test_a_behaviour_alone_has_no_streams() -> None:
    class Reading(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.call_stream("source", message)

    with pytest.raises(NotAllowedError, match="with a node"):
        await Alone(Reading).message(5)
    with pytest.raises(NotAllowedError, match="with a node"):
        (await Alone(Source).call(5)).result()
