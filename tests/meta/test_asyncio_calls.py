"""Objects of asyncio behind calls: results, streams, cancellation in both directions, and ends."""

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio

from ergo_py import (
    BadInputError,
    CallTimeoutError,
    Crashed,
    InitError,
    Killed,
    Shutdown,
    TargetDownError,
)
from ergo_py.errors import InitTimeoutError, UnhandledCallError
from ergo_py.meta import Apply, AsyncioCalls, Invoke
from ergo_py.meta import asyncio_thread as module
from tests.actors import Puppet
from tests.meta.owner import Owned, UnprintableExit, eventually, owning


class Device:
    """An object of asyncio that notes the ends of its coroutines."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.begun = threading.Event()
        self.running = self.most = 0
        self.gate: asyncio.Event | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def add(self, left: int, right: int = 0) -> int:
        await asyncio.sleep(0)
        return left + right

    def plain(self) -> str:
        return type(asyncio.get_running_loop()).__module__

    async def fail(self) -> None:
        raise LookupError("no such thing")

    def fail_at_once(self) -> None:
        raise LookupError("not even begun")

    async def leave(self) -> None:
        raise SystemExit(3)

    async def leave_unprintably(self) -> None:
        raise UnprintableExit

    async def cancel_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def wait(self, label: object = "wait") -> object:
        self.loop = asyncio.get_running_loop()
        self.gate = self.gate or asyncio.Event()
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.notes.append(("cancelled", label))
            raise
        finally:
            self.running -= 1
        return label

    def open_gate(self) -> None:
        """Let all coroutines go on, from any thread."""
        assert self.gate is not None and self.loop is not None  # noqa: PT018
        self.loop.call_soon_threadsafe(self.gate.set)

    async def rows(self, count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                self.notes.append(number)
                yield number
                if not number % 7:
                    await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            self.notes.append("closed")

    async def two_rows_and_an_error(self) -> AsyncIterator[int]:
        yield 1
        yield 2
        raise LookupError("no third row")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.notes.append(("closed", threading.get_ident()))


async def begun(device: Device, count: int = 1) -> None:
    assert await trio.to_thread.run_sync(device.begun.wait, 20)
    await eventually(lambda: device.running == count)


async def idle(own: Owned, calls: Any) -> dict[str, str]:
    """Wait until no call is in progress. Returns the numbers of calls."""
    with trio.fail_after(20):
        while True:
            shown = await own.node.inspect_meta(calls)
            if shown["running"] == "0":
                return shown
            await trio.sleep(0.005)


async def call(own: Owned, to: Any, request: Any, into: list[Any], **options: Any) -> None:
    try:
        into.append(await own.node.call(to, request, **options))
    except Exception as error:
        into.append(error)


# -- results -------------------------------------------------------------------------------------


async def test_a_call_answers_with_the_result_of_a_coroutine_or_of_a_plain_method() -> None:
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(Device()))

        assert await own.node.call(calls, Invoke("add", 3, right=4)) == 7
        assert await own.node.call(calls, Invoke("plain")) in ("uvloop", "asyncio.unix_events")
        assert await own.node.call(calls, Apply(lambda device, plus: device.add(1, plus), 2)) == 3
        with pytest.raises(UnhandledCallError):
            await own.node.call(calls, "add")


@pytest.mark.parametrize(
    "method, kind, text",
    [
        ("fail", LookupError, "no such thing"),
        ("fail_at_once", LookupError, "not even begun"),
        ("no_such_method", AttributeError, "no_such_method"),
        ("leave", RuntimeError, "SystemExit"),
        ("leave_unprintably", RuntimeError, "UnprintableExit: <its __str__ raised>"),
        ("cancel_itself", RuntimeError, "CancelledError"),
    ],
)
async def test_an_exception_is_the_answer_and_the_next_call_is_served(
    method: str, kind: type[Exception], text: str
) -> None:
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(Device()))

        with pytest.raises(kind, match=text):
            await own.node.call(calls, Invoke(method))
        assert await own.node.call(calls, Invoke("add", 1)) == 1
        assert (await own.node.inspect_meta(calls))["running"] == "0"


async def test_calls_are_in_progress_at_the_same_time_up_to_the_limit() -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device, at_once=3))
        async with trio.open_nursery() as nursery:
            for number in range(7):
                nursery.start_soon(call, own, calls, Invoke("wait", number), answers)
            await begun(device, 3)
            # The full handler still answers inspections.
            assert (await own.node.inspect_meta(calls))["running"] == "3"
            device.open_gate()
    assert sorted(answers) == list(range(7))
    assert device.most == 3


async def test_a_message_runs_and_its_exception_is_logged() -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        own.node.send(calls, Invoke("fail"))
        own.node.send(calls, "no request")
        assert await own.node.call(calls, Invoke("add", 1)) == 1
        shown = await own.node.inspect_meta(calls)
    assert (shown["done"], shown["failed"]) == ("2", "1")


# -- the object ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_factory_makes_the_object_on_the_loop_and_the_end_closes_it(is_async: bool) -> None:
    made: list[Any] = []

    def make() -> Device:
        asyncio.get_running_loop()
        device = Device()
        made.extend((device, threading.get_ident()))
        return device

    async def make_async() -> Device:
        await asyncio.sleep(0)
        return make()

    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(factory=make_async if is_async else make))
        own.node.send_exit(calls)
        await own.down()
    device, thread = made
    assert device.notes == [("closed", thread)]
    assert thread != threading.get_ident()


class Unclosable:
    async def aclose(self) -> None:
        raise OSError("not flushed")


def refuse_to_close(_target: object) -> None:
    raise OSError("not flushed")


@pytest.mark.parametrize("close", [None, refuse_to_close])
async def test_an_object_that_fails_to_close_is_logged(
    close: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with owning(log_output="stdlib") as own:
        await own.spawn(AsyncioCalls(factory=Unclosable, close=close))
    told = [each for each in caplog.records if "its close function failed" in each.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "OSError: not flushed" in told[0].getMessage()
    assert "Unclosable" in told[0].getMessage()


async def test_an_exception_of_the_factory_fails_the_spawn() -> None:
    async def make() -> None:
        raise OSError("no such server")

    async with owning() as own:
        with pytest.raises(InitError, match="no such server"):
            await own.spawn(AsyncioCalls(factory=make))
        assert own.node.metas() == []


async def test_a_factory_that_takes_too_long_is_cancelled() -> None:
    device, began = Device(), threading.Event()

    async def make() -> Device:
        began.set()
        await device.wait()
        return device

    async with owning() as own:
        for seconds in (0.05, 1.0, 60.0):  # a busy machine may not reach the factory in time
            with pytest.raises(InitTimeoutError):
                await own.spawn(AsyncioCalls(factory=make), init_timeout=seconds)
            assert own.node.metas() == []
            if began.is_set():
                break
    assert device.notes == [("cancelled", "wait")]


async def test_the_loop_of_a_factory_is_used() -> None:
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(Device(), loop_factory=asyncio.SelectorEventLoop))
        assert await own.node.call(calls, Invoke("plain")) == "asyncio.unix_events"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"target": 1, "factory": int},
        {"factory": 3},
        {"factory": int, "close": "aclose"},
        {"target": 1, "at_once": 0},
        {"target": 1, "loop_factory": "uvloop"},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(BadInputError):
        AsyncioCalls(**arguments)


def test_without_uvloop_the_loop_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    assert module.default_loop_factory() is asyncio.new_event_loop


# -- cancellation --------------------------------------------------------------------------------


async def test_a_caller_that_gives_up_cancels_its_coroutine() -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))

        # A call that is given up before it begins never runs. It has more time in the next round.
        seconds = 0.02
        while len(device.notes) < 1:
            await call(own, calls, Invoke("wait", "timeout"), answers, timeout=seconds)
            await idle(own, calls)
            seconds *= 2
        while len(device.notes) < 2:
            with trio.move_on_after(seconds):
                await own.node.call(calls, Invoke("wait", "cancelled"))
            await idle(own, calls)
            seconds *= 2
        device.begun.clear()
        actor = await own.node.spawn(Puppet)
        own.node.send(actor, lambda me: me.call(calls, Invoke("wait", "killed"), timeout=None))
        await begun(device)
        own.node.kill(actor)
        await eventually(lambda: len(device.notes) == 3)
        shown = await idle(own, calls)
    assert isinstance(answers[0], CallTimeoutError)
    assert device.notes == [("cancelled", each) for each in ("timeout", "cancelled", "killed")]
    assert int(shown["cancelled"]) >= 3


async def test_a_call_that_its_caller_gave_up_in_the_mailbox_never_runs() -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device, at_once=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, own, calls, Invoke("wait", "first"), answers)
            await begun(device)
            await call(own, calls, Invoke("wait", "second"), answers, timeout=0.02)
            device.open_gate()
        shown = await own.node.inspect_meta(calls)
    assert isinstance(answers[0], CallTimeoutError)
    assert answers[1] == "first"
    assert (shown["skipped"], device.most) == ("1", 1)


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that were put into the inbox of asyncio's loop."""
    names, put = list[str](), module.LoopThread.put

    def noted(thread: module.LoopThread, function: Any, *args: Any) -> None:
        put(thread, function, *args)
        names.append(function.__name__)

    monkeypatch.setattr(module.LoopThread, "put", noted)
    return names


@asynccontextmanager
async def busy_loop(own: Owned, calls: Any, device: Device, puts: list[str]) -> AsyncIterator[None]:
    """Keep asyncio's loop busy, so that it takes all that is put meanwhile in the same pass."""
    held = threading.Event()

    def hold(_: Device) -> None:
        device.begun.set()
        assert held.wait(20)

    device.begun.clear()
    own.node.send(calls, Apply(hold))
    assert await trio.to_thread.run_sync(device.begun.wait, 20)
    puts.clear()
    try:
        yield
    finally:
        held.set()


async def test_a_call_that_begins_and_is_given_up_in_the_same_pass_ends(
    puts: list[str],
) -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        async with busy_loop(own, calls, device, puts):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, own, calls, Invoke("wait", 1), answers)
                await eventually(lambda: puts == ["begin"])
                nursery.cancel_scope.cancel()
            await eventually(lambda: puts == ["begin", "cancel"])
        shown = await idle(own, calls)
    assert (device.running, answers, shown["cancelled"]) == (0, [], "1")


async def test_a_stream_that_begins_and_is_left_in_the_same_pass_ends(
    puts: list[str],
) -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        stream = await own.node.call(calls, Invoke("rows", 1000))

        async def read() -> None:
            async with stream:
                await anext(stream)

        async with trio.open_nursery() as nursery, busy_loop(own, calls, device, puts):
            nursery.start_soon(read)
            await eventually(lambda: puts == ["begin_pump"])
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await eventually(lambda: puts == ["begin_pump", "cancel"])
        await idle(own, calls)
    assert device.notes[-1:] in ([], ["closed"])


# -- streams -------------------------------------------------------------------------------------


async def test_an_async_generator_is_read_as_a_stream() -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        parts = [part async for part in own.node.call_stream(calls, Invoke("rows", 1000))]
        shown = await own.node.inspect_meta(calls)
    assert parts == list(range(1000))
    assert device.notes[-1] == "closed"
    assert (shown["running"], shown["done"]) == ("0", "1")


@pytest.mark.counted
async def test_a_slow_reader_slows_the_generator() -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        async with own.node.call_stream(calls, Invoke("rows", 100_000), credit=1) as stream:
            assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
            await eventually(lambda: device.notes[-1] >= 15)
            await trio.testing.wait_all_tasks_blocked(0.02)
            # The part that was read, those in the hands of the reader, and those under way.
            assert device.notes[-1] <= 3 + 2 + 16 + 8
        # Leaving waits until the generator is closed.
        assert device.notes[-1] == "closed"


async def test_a_generator_that_ignores_its_cancellation_is_read_to_its_end() -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        async with own.node.call_stream(calls, Apply(_go_on_in_parts)) as stream:
            assert await anext(stream) == "first"
        await idle(own, calls)
    assert device.notes[-1] == 99


async def _go_on_in_parts(device: Device) -> AsyncIterator[object]:
    yield "first"
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    for number in range(100):
        device.notes.append(number)
        yield number


async def test_an_exception_of_the_generator_is_raised_at_the_reader() -> None:
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(Device()))
        stream = own.node.call_stream(calls, Invoke("two_rows_and_an_error"))
        assert [await anext(stream), await anext(stream)] == [1, 2]
        with pytest.raises(LookupError, match="no third row"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="CancelledError"):
            async for _ in own.node.call_stream(calls, Apply(_cancel_itself_in_parts)):
                pass
        with pytest.raises(RuntimeError, match="SystemExit"):
            async for _ in own.node.call_stream(calls, Apply(_exit_in_parts)):
                pass
        assert (await own.node.inspect_meta(calls))["running"] == "0"


async def _cancel_itself_in_parts(device: Device) -> AsyncIterator[int]:
    await device.cancel_itself()
    yield 1


async def _exit_in_parts(device: Device) -> AsyncIterator[int]:
    await device.leave()
    yield 1


async def test_a_stream_that_is_never_read_occupies_no_place() -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device, at_once=1))
        stream = await own.node.call(calls, Invoke("rows", 5))
        assert (await own.node.inspect_meta(calls))["running"] == "1"
        del stream
        gc.collect()
        assert await own.node.call(calls, Invoke("add", 1)) == 1
    assert device.notes == []


async def test_the_parts_of_a_message_are_sent_to_its_sender() -> None:
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(Device()))
        await own.node.call(own.owner, lambda me: me.send(calls, Invoke("rows", 40)))
        heard = [await own.next() for _ in range(40)]
        while (await own.node.inspect_meta(calls))["running"] != "0":  # noqa: ASYNC110
            await trio.sleep(0.001)
    assert heard == list(range(40))


async def test_a_stop_ends_open_streams() -> None:
    device = Device()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device), stop_timeout=0.1)
        stream = own.node.call_stream(calls, Apply(_endless))
        assert await anext(stream) == 0
        own.node.send_exit(calls)
        with pytest.raises(TargetDownError) as caught:
            async for _ in stream:
                pass
    assert caught.value.reason == Shutdown()


async def _endless(_device: Device) -> AsyncIterator[int]:
    yield 0
    await asyncio.Event().wait()


# -- ends ----------------------------------------------------------------------------------------


async def test_a_stop_waits_for_calls_in_progress() -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, own, calls, Invoke("wait", "finished"), answers)
            await begun(device)
            own.node.send_exit(calls)
            await trio.testing.wait_all_tasks_blocked(0.01)
            device.open_gate()
        await own.down()
    assert answers == ["finished"]


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_a_stop_cancels_calls_after_half_of_its_time_and_a_kill_at_once(way: str) -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        limit = 0.1 if way == "stop" else 30.0
        calls = await own.spawn(AsyncioCalls(device), stop_timeout=limit)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, own, calls, Invoke("wait", 1), answers)
            await begun(device)
            (own.node.send_exit if way == "stop" else own.node.kill)(calls)
        reason = await own.down()
        assert own.node.info().threads_abandoned == 0
    assert reason == (Shutdown() if way == "stop" else Killed())
    assert [type(answer) for answer in answers] == [TargetDownError]
    assert device.notes == [("cancelled", 1)]


async def test_a_coroutine_that_refuses_to_end_costs_no_more_than_the_time_limit() -> None:
    device, released = Device(), threading.Event()

    async def refuse(device: Device) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                device.begun.set()
                await asyncio.sleep(0.005)

    async def parts(device: Device) -> AsyncIterator[int]:
        yield 1
        await refuse(device)

    answers: list[Any] = []
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device), stop_timeout=0.1)
        stream = own.node.call_stream(calls, Apply(parts))
        assert await anext(stream) == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, own, calls, Apply(refuse), answers)
            assert await trio.to_thread.run_sync(device.begun.wait, 20)
            own.node.send_exit(calls)
            await own.down()
            with pytest.raises(TargetDownError):
                await anext(stream)
        assert own.node.info().threads_abandoned == 1
        released.set()
    assert [type(answer) for answer in answers] == [TargetDownError]


async def test_the_end_of_the_loop_is_the_end_of_the_meta_process() -> None:
    device, answers = Device(), list[Any]()
    async with owning() as own:
        calls = await own.spawn(AsyncioCalls(device))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, own, calls, Invoke("wait", 1), answers)
            await begun(device)
            own.node.send(calls, Apply(_stop_loop))
        reason = await own.down()
    assert isinstance(reason, Crashed)
    assert [type(answer) for answer in answers] == [TargetDownError]


def _same(device: Device) -> Device:
    return device


def _stop_loop(_device: Device) -> None:
    asyncio.get_running_loop().stop()


async def test_nothing_is_left_behind() -> None:
    async with owning() as own:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                device = Device()
                calls = await own.spawn(AsyncioCalls(factory=partial(_same, device)))
                answers: list[Any] = []
                async with trio.open_nursery() as nursery:
                    for number in range(5):
                        nursery.start_soon(call, own, calls, Invoke("wait", number), answers)
                    stream = own.node.call_stream(calls, Invoke("rows", 10_000))
                    assert await anext(stream) == 0
                    await begun(device, 5)
                    own.node.kill(calls)
                await own.down()
                del stream, device, nursery
                gc.collect()
        assert own.node.metas() == []
        assert [str(warning.message) for warning in caught] == []


async def test_an_exception_in_a_task_of_the_library_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave_a_callback_behind(device: Device) -> None:
        asyncio.get_running_loop().call_soon(device.fail_at_once)
        await asyncio.sleep(0.001)

    async with owning(log_output="stdlib") as own:
        calls = await own.spawn(AsyncioCalls(Device()))
        await own.node.call(calls, Apply(leave_a_callback_behind))
        own.node.send(calls, Invoke("fail"))
        await own.node.call(calls, Invoke("add", 1))
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "asyncio: Exception in callback" in text
    assert "not even begun" in text
    assert "a call without a caller failed" in text
