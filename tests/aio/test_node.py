"""A node inside an asyncio program: its verbs, cancellation, context variables, and its end."""

import asyncio
import concurrent.futures
import gc
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import (
    NO_REPLY,
    Actor,
    BadInputError,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    InitError,
    Killed,
    NameTakenError,
    NodeStoppedError,
    NotAllowedError,
    Request,
    Shutdown,
    TargetDownError,
    blocking,
)
from ergo_py.aio import AsyncioNode, handle, open_node
from ergo_py.blocking.loop_thread import OwnedNode
from ergo_py.meta import Apply, AsyncioCalls, Invoke
from ergo_py.streams import PartStream
from tests.actors import Failed
from tests.support import running_node

WAITING = threading.Event()
colour: ContextVar[str] = ContextVar("colour", default="none")


@dataclass(frozen=True)
class Total(Request[int]):
    pass


class Counter(Actor):
    def __init__(self, total: int = 0) -> None:
        self.total = total

    def handle_message(self, message: int, sender: Any) -> None:
        self.total += message

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        match request:
            case Total():
                return self.total
            case "colour":
                return colour.get()
            case "parts":
                return self.stream(self.parts(), credit=2)
            case "wait":
                WAITING.set()
                await trio.sleep_forever()
            case "crash":
                raise Failed("as asked")
            case BaseException() as error:
                self.reply_error(caller, error)
                return NO_REPLY
        return None

    async def parts(self) -> AsyncIterator[int]:
        for number in range(5):
            await trio.lowlevel.checkpoint()
            yield number

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


async def sleep_forever(_node: Any) -> None:
    await trio.sleep_forever()


class Refusing(Actor):
    def init(self) -> None:
        raise Failed("not today")


def on_asyncio(test: Callable[[AsyncioNode], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on asyncio's loop, with a node."""

    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                async with open_node("aio@localhost", log_output="none", watchdog=None) as node:
                    await test(node)

        asyncio.run(main(), debug=True)

    run.__name__ = test.__name__
    return run


async def waiting_process(node: AsyncioNode) -> tuple[Any, "asyncio.Task[Any]"]:
    """A process inside a callback, and the call that waits for it."""
    WAITING.clear()
    pid = await node.spawn(Counter, shutdown=0)
    call = asyncio.create_task(node.call(pid, "wait", timeout=None))
    assert await asyncio.to_thread(WAITING.wait, 20)
    return pid, call


@on_asyncio
async def test_the_verbs_of_a_node_are_awaited(node: AsyncioNode) -> None:
    counter = await node.spawn(Counter, 5, name="counter")
    assert node.send(counter, 3)
    assert await node.send_wait("counter", 2)
    assert await node.call("counter", Total()) == 10
    assert await node.whereis("counter") == counter
    assert (await node.info()).processes == 1
    assert (await node.process_info(counter)).name == "counter"
    assert (await node.inspect(counter))["total"] == "10"
    other = await node.spawn(Counter)
    with pytest.raises(NameTakenError):
        await node.register("counter", other)
    assert await node.send_exit(counter)
    assert await node.wait_ended(counter) == Shutdown()
    assert await node.kill(other)
    assert await node.wait_ended(other) == Killed()
    assert not await node.kill(other)
    assert node.name == node.pid.node == "aio@localhost"
    assert dict(node.env) == {}
    assert "asyncio" in repr(node)


@on_asyncio
async def test_errors_are_raised_in_the_waiting_task(node: AsyncioNode) -> None:
    with pytest.raises(InitError, match="not today"):
        await node.spawn(Refusing)
    counter = await node.spawn(Counter)
    with pytest.raises(CallTimeoutError):
        await node.call(await node.spawn(Counter, shutdown=0), "wait", timeout=0.01)
    with pytest.raises(TargetDownError) as caught:
        await node.call(await node.spawn(Counter), "crash")
    assert isinstance(caught.value.reason, Crashed)
    with pytest.raises(BadInputError):
        await node.call(counter, "wait", timeout=-1)


@on_asyncio
async def test_many_calls_wait_at_once(node: AsyncioNode) -> None:
    counter = await node.spawn(Counter, 7)
    assert await asyncio.gather(*(node.call(counter, Total()) for _ in range(50))) == [7] * 50


@pytest.mark.parametrize(
    "answer",
    [concurrent.futures.CancelledError("no"), asyncio.CancelledError("no")],
    ids=["of threads", "of asyncio"],
)
def test_an_answer_that_looks_like_a_cancellation_is_raised_as_a_cause(
    answer: BaseException,
) -> None:
    @on_asyncio
    async def check(node: AsyncioNode) -> None:
        counter = await node.spawn(Counter)
        with pytest.raises(RuntimeError, match="let the callee raise another") as caught:
            await node.call(counter, answer, timeout=20)
        assert caught.value.__cause__ is answer

    check()


@on_asyncio
async def test_an_answer_that_a_future_refuses_is_raised_as_a_cause(node: AsyncioNode) -> None:
    class Owner(Actor):
        async def init(self) -> None:
            self.calls = await self.spawn_meta(AsyncioCalls(iter([])))

        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.calls

    calls = await node.call(await node.spawn(Owner), "calls")
    with pytest.raises(RuntimeError, match="let the callee raise another") as caught:
        await node.call(calls, Invoke("__next__"), timeout=20)
    assert isinstance(caught.value.__cause__, StopIteration)


class Nobodys(Actor):
    """Tells threads when it begins and when it ends."""

    def __init__(self, begun: threading.Event, ended: threading.Event) -> None:
        self.begun, self.ended = begun, ended

    def init(self) -> None:
        self.begun.set()

    def terminate(self, reason: Any) -> None:
        self.ended.set()


@on_asyncio
async def test_a_spawn_that_is_cancelled_leaves_no_process(node: AsyncioNode) -> None:
    begun, ended = threading.Event(), threading.Event()
    spawning = asyncio.create_task(node.spawn(Nobodys, begun, ended))
    await asyncio.sleep(0)
    assert begun.wait(20)  # blocks asyncio's loop, which does not see the PID before it cancels
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning

    assert await asyncio.to_thread(ended.wait, 20)


@on_asyncio
async def test_a_spawn_that_is_cancelled_before_the_node_begins_it_starts_nothing(
    node: AsyncioNode,
) -> None:
    begun, blocked, go_on = (threading.Event() for _ in range(3))

    def block(_: Any) -> None:
        blocked.set()
        go_on.wait(20)

    blocking = asyncio.create_task(node.run(block))
    await asyncio.to_thread(blocked.wait, 20)
    spawning = asyncio.create_task(node.spawn(Nobodys, begun, threading.Event()))
    await asyncio.sleep(0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    go_on.set()
    await blocking

    assert await node.run(lambda inner: inner.processes()) == []
    assert not begun.is_set()


@on_asyncio
async def test_to_cancel_a_task_cancels_its_verb(node: AsyncioNode) -> None:
    counter, waiting = await waiting_process(node)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    # A verb that runs as a task of the node.
    cancelled = threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def sleep(_: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise

    running = asyncio.create_task(node.run(sleep))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(cancelled.wait, 20)
    async with asyncio.timeout(0.01) as limit:
        with pytest.raises(asyncio.CancelledError):
            await node.wait_ended(counter)
    assert limit.expired()


@on_asyncio
async def test_context_variables_go_along(node: AsyncioNode) -> None:
    colour.set("green")
    painted = await node.spawn(Counter)
    assert await node.call(painted, "colour") == "green"
    assert await node.run(lambda _: colour.get()) == "green"
    await node.run(lambda _: colour.set("blue"))
    assert colour.get() == "green"


@on_asyncio
async def test_streams_and_events_are_iterated(node: AsyncioNode) -> None:
    counter = await node.spawn(Counter)
    assert [part async for part in node.call_stream(counter, "parts")] == [0, 1, 2, 3, 4]
    async with node.call_stream(counter, "parts") as parts:
        assert await anext(parts) == 0
    await node.run(lambda inner: inner.open_topic("prices"))
    async with await node.events("prices") as events:
        assert await node.publish("prices", 7) == 1
        assert (await anext(events)).message == 7
        assert "asyncio" in repr(events)
    assert await node.publish("prices", 8) == 0
    stream: PartStream[int] = await node.call(counter, "parts")
    assert isinstance(stream, PartStream)


async def cancel_a_step(stream: Any, let_it_take: Callable[[], object]) -> None:
    """Cancel a step that has taken a part, and asyncio's loop has not seen the part yet."""
    step = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await cancel_in_the_middle(step, let_it_take)


async def cancel_in_the_middle(
    step: asyncio.Future[Any], let_it_take: Callable[[], object]
) -> None:
    let_it_take()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


class Held:
    """A function that has its item, and waits before it returns."""

    def __init__(self, function: Callable[[int], int]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.begun, self.may_end = asyncio.Event(), threading.Event()

    def __call__(self, number: int) -> int:
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.may_end.wait(20)
        return self.function(number)


async def cancel_a_result(stream: Any, held: Held) -> None:
    """The same for a stream that takes items on asyncio's loop."""
    step = asyncio.ensure_future(anext(stream))
    await held.begun.wait()
    held.may_end.set()
    await cancel_in_the_middle(step, lambda: block_until_taken(stream))


def block_until_taken(stream: Any) -> None:
    """Block asyncio's loop until the node has taken a part out of a stream."""
    while "1 taken" not in repr(stream):
        time.sleep(0.001)


@on_asyncio
async def test_a_cancelled_step_keeps_its_part_for_the_next_step(node: AsyncioNode) -> None:
    held = Held(abs)
    async with node.map_stream(held, range(5)) as stream:
        await cancel_a_result(stream, held)
        await cancel_a_step(stream, lambda: None)  # what was kept can be kept again
        assert [part async for part in stream] == [0, 1, 2, 3, 4]


async def same(number: int) -> int:
    return number


class Quiet(Actor):
    """Sets an event when no other task of the node has anything to do."""

    async def handle_message(self, message: threading.Event, sender: object) -> None:
        await trio.testing.wait_all_tasks_blocked()
        message.set()


@on_asyncio
async def test_parts_of_steps_that_are_cancelled_together_keep_their_order(
    node: AsyncioNode,
) -> None:
    quiet, counter = await node.spawn(Quiet), await node.spawn(Counter)

    def block_until_quiet() -> None:
        done = threading.Event()
        node.send(quiet, done)
        assert done.wait(20)

    async def read_after_a_cancellation(stream: Any, got: list[int]) -> None:
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
        got.append(await anext(stream))

    for _ in range(5):
        got: list[int] = []
        async with node.call_stream(counter, "parts") as stream:
            reading = [read_after_a_cancellation(stream, got) for _ in range(3)]
            readers = [asyncio.ensure_future(each) for each in reading]
            await asyncio.sleep(0)
            block_until_quiet()
            for reader in reversed(readers):
                reader.cancel()
                # The node begins the next step of this reader before another is cancelled.
                asyncio.get_running_loop().call_soon(block_until_quiet)
            await asyncio.gather(*readers)
            assert got == [0, 1, 2]
            assert [part async for part in stream] == [3, 4]


@on_asyncio
async def test_steps_that_wait_together_get_their_parts_in_order(node: AsyncioNode) -> None:
    for _ in range(10):
        async with node.map_stream(same, range(5)) as stream:
            assert await asyncio.gather(*[anext(stream) for _ in range(5)]) == [0, 1, 2, 3, 4]


@on_asyncio
async def test_a_cancelled_step_keeps_the_failure_of_its_stream(node: AsyncioNode) -> None:
    def fail(number: int) -> int:
        raise Failed(str(number))

    held = Held(fail)
    async with node.map_stream(held, [7]) as stream:
        await cancel_a_result(stream, held)
        with pytest.raises(Failed, match="7"):
            await anext(stream)
        assert [part async for part in stream] == []


@on_asyncio
async def test_a_closed_stream_has_no_kept_part(node: AsyncioNode) -> None:
    held = Held(abs)
    stream = node.map_stream(held, range(5))
    await cancel_a_result(stream, held)
    await stream.aclose()
    assert [part async for part in stream] == []


class Once(Actor):
    """Gives its parts away to the first caller, when it is told to."""

    def __init__(self, asked: threading.Event, gate: trio.Event) -> None:
        self.parts, self.asked, self.gate = [1, 2, 3], asked, gate

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        self.asked.set()
        await self.gate.wait()
        parts, self.parts = self.parts, []
        return self.stream(parts)


@on_asyncio
async def test_a_cancelled_first_step_does_not_repeat_the_call(node: AsyncioNode) -> None:
    asked, gate = threading.Event(), trio.Event()
    async with node.call_stream(await node.spawn(Once, asked, gate), "take") as stream:
        await cancel_a_step(stream, asked.wait)
        await node.run(lambda _node: gate.set())
        assert [part async for part in stream] == [1, 2, 3]


@on_asyncio
async def test_a_stream_that_is_closed_before_its_answer_gives_the_call_up(
    node: AsyncioNode,
) -> None:
    asked, gate = threading.Event(), trio.Event()
    stream = node.call_stream(await node.spawn(Once, asked, gate), "take", timeout=None)
    step = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(asked.wait)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await step
    await node.run(lambda _node: gate.set())


@on_asyncio
async def test_steps_with_a_time_limit_lose_no_publication(node: AsyncioNode) -> None:
    await node.open_topic("prices")
    events = await node.events("prices")
    got: list[int] = []
    for number in range(50):
        step = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        publishing = asyncio.ensure_future(node.publish("prices", number))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        step.cancel()  # before, while and after the node takes the publication
        try:
            got.append((await step).message)
        except asyncio.CancelledError:
            await publishing
            got.append((await anext(events)).message)
        await publishing
    assert got == list(range(50))


@on_asyncio
async def test_a_service_is_called_across_restarts(node: AsyncioNode) -> None:
    await node.run(lambda inner: inner.supervise([ChildSpec("counter", Counter, 4)]))
    service = await node.service("counter")
    first = service.pid
    assert await service.call(Total()) == 4
    with pytest.raises(TargetDownError):
        await service.call("crash")
    assert await service.send_wait(3)
    assert service.send(2)
    assert await service.call(Total(), retry=True) == 9
    assert service.pid != first
    assert (service.name, "asyncio" in repr(service)) == ("counter", True)


def test_the_end_of_the_block_stops_the_node_and_its_thread() -> None:
    ends: list[Any] = []

    class Noting(Actor):
        def terminate(self, reason: Any) -> None:
            ends.append(reason)

    async def main() -> AsyncioNode:
        async with (opened := open_node(log_output="none")) as node:
            await node.spawn(Noting)
            assert opened.exit_report is None
        assert opened.exit_report is not None
        assert opened.exit_report.stopped
        for verb in (node.info(), node.call("x", 1), node.wait_ended("x")):
            with pytest.raises(NodeStoppedError):
                await verb
        with pytest.raises(NotAllowedError, match="entered before"):
            await opened.__aenter__()
        return node

    asyncio.run(main(), debug=True)
    assert ends == [Shutdown()]


def test_a_node_that_was_not_entered_shows_the_lines_to_write() -> None:
    opened = open_node("x@localhost")

    assert "`async with open_node(…) as node:`" in repr(opened)
    with pytest.raises(AttributeError, match=r"`node\.spawn` inside; at a prompt") as caught:
        _ = opened.spawn  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert caught.value.obj is None


def test_a_wrong_option_is_refused_when_the_block_is_entered() -> None:
    async def main() -> None:
        async with open_node("x@localhost", burst=0):
            pass

    with pytest.raises(BadInputError, match="burst"):
        asyncio.run(main())


def test_a_node_that_stops_by_itself_answers_the_waiting_tasks() -> None:
    async def main() -> Any:
        async with open_node(log_output="none") as node:
            _, call = await waiting_process(node)
            sleep = asyncio.create_task(node.run(sleep_forever))
            await node.run(lambda inner: inner.stop())
            return await asyncio.gather(call, sleep, return_exceptions=True)

    first, second = asyncio.run(main(), debug=True)
    assert isinstance(first, TargetDownError)
    assert isinstance(second, NodeStoppedError)


def test_a_function_that_runs_as_its_node_closes_ends_with_a_teaching_error() -> None:
    async def wait(begun: threading.Event, _node: Any) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            raise BaseExceptionGroup("as of a nursery", [cancelled]) from None

    async def main() -> Any:
        begun = threading.Event()
        async with open_node(log_output="none") as node:
            running = asyncio.create_task(node.run(partial(wait, begun)))
            assert await asyncio.to_thread(begun.wait, 20)
        return await asyncio.gather(running, return_exceptions=True)

    (error,) = asyncio.run(main(), debug=True)
    assert isinstance(error, NodeStoppedError)


def test_asyncio_that_ends_while_a_task_opens_a_node_leaves_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    opened: list[OwnedNode] = []

    def open_slowly(name: str, **options: Any) -> OwnedNode:
        begun.set()
        assert cancelled.wait(20)
        opened.append(blocking.open_node(name, **options))
        return opened[0]

    async def use() -> None:
        async with open_node(log_output="none"):
            raise AssertionError("the block was cancelled before it was entered")

    async def see_the_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async def main() -> None:
        tasks.extend(asyncio.create_task(each()) for each in (use, see_the_end))
        await asyncio.to_thread(begun.wait, 20)

    tasks: list[asyncio.Task[None]] = []
    monkeypatch.setattr("ergo_py.aio.context.open_blocking_node", open_slowly)
    asyncio.run(main())

    assert [task.cancelled() for task in tasks] == [True, True]
    assert opened[0].exit_report is not None


def test_a_block_ends_while_all_threads_of_the_executor_wait_for_its_node() -> None:
    async def main() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with open_node(log_output="none") as node:
            plain = blocking.handle(node)
            waiting = asyncio.create_task(
                asyncio.to_thread(plain.wait_ended, await node.spawn(Counter))
            )
            await asyncio.sleep(0)
        return await waiting

    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await main()

    assert asyncio.run(limited()) == Shutdown()


def test_a_cancelled_block_opens_and_closes_its_node_completely() -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        async def use() -> None:
            async with open_node(log_output="none") as node:
                await node.spawn(Counter)
                await asyncio.sleep(60)

        for turns in (1, 3, 60):
            task = asyncio.create_task(use())
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            names = [each.name for each in set(threading.enumerate()) - before]
            assert [name for name in names if name.startswith("ergo-loop")] == []

    asyncio.run(main(), debug=True)


def test_nothing_is_left_behind() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        async def main() -> None:
            async with open_node(log_output="none") as node:
                counter, first = await waiting_process(node)
                calls = [
                    first,
                    *(
                        asyncio.create_task(node.call(counter, "wait", timeout=None))
                        for _ in range(9)
                    ),
                ]
                await node.info()
                stream = node.call_stream(await node.spawn(Counter), "parts")
                assert await anext(stream) == 0
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in results} == {TargetDownError}

        asyncio.run(main(), debug=True)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_coroutines_of_asyncio_calls_use_a_handle_of_their_node() -> None:
    async def ask(_target: Any, node: AsyncioNode, pid: Any) -> int:
        node.send(pid, 3)
        return await node.call(pid, Total())

    class Owner(Actor):
        async def init(self) -> None:
            self.calls = await self.spawn_meta(AsyncioCalls(object()))

        async def handle_call(self, request: Any, caller: Caller) -> Any:
            return await self.call(self.calls, Apply(ask, *request))

    async with running_node() as node:
        counter = await node.spawn(Counter, 1)
        owner = await node.spawn(Owner)
        assert await node.call(owner, (handle(node), counter)) == 4


def test_a_handle_on_the_loop_of_its_node_is_refused() -> None:
    done: list[str] = []

    async def main() -> None:
        async def check() -> None:
            async with running_node() as node:
                awaited = handle(node).call("x", 1).__await__()
                with pytest.raises(NotAllowedError, match="node itself"):
                    next(awaited)
                done.append("refused")

        trio.run(check)

    asyncio.run(main())
    assert done == ["refused"]


def test_an_exit_in_a_callback_reaches_the_program_at_the_end_of_the_block() -> None:
    steps: list[str] = []

    class Exiting(Actor):
        def handle_message(self, message: int, sender: Any) -> None:
            raise SystemExit(message)

    async def main() -> None:
        try:
            async with open_node("exits@localhost", watchdog=None, log_output="none") as node:
                node.send(await node.spawn(Exiting), 3)
        finally:
            steps.append("left")

    with pytest.raises(SystemExit) as caught:
        asyncio.run(main())
    assert caught.value.code == 3
    assert steps == ["left"]
