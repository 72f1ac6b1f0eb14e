"""`trio.from_thread` in the threads of ergo_py: readers, plain callbacks, dispatchers, tasks."""

import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import outcome
import pytest
import trio
from trio import from_thread
from trio.lowlevel import current_task
from trio.testing import MockClock

from ergo_py import (
    Actor,
    Crashed,
    Killed,
    MetaProcess,
    Normal,
    NotAllowedError,
    Shutdown,
    TargetDownError,
    Threads,
)
from ergo_py._core.runtime import thread_parent
from ergo_py._core.runtime.thread_parent import HostTask, ThreadParent, unmet
from ergo_py._core.vocabulary.errors import TaskEndedError
from ergo_py.errors import InitTimeoutError
from ergo_py.info import Dispatcher
from ergo_py.meta import Apply, BlockingCalls
from tests._core.metas.metas import InThread, in_thread, owning
from tests.actors import Failed
from tests.dispatched import Doer, in_threads
from tests.support import kernel_of, running_node

colour: ContextVar[str] = ContextVar("colour", default="none")


async def shout(word: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"{word.upper()} {colour.get()}"


async def fail() -> None:
    raise Failed("on the loop")


def use_all() -> list[Any]:
    """Use every function of `trio.from_thread` in the thread in which this runs."""
    colour.set("red")
    loop_thread = from_thread.run_sync(threading.get_ident)
    assert loop_thread != threading.get_ident()
    from_thread.check_cancelled()
    with pytest.raises(Failed, match="on the loop"):
        from_thread.run(fail)
    asynchronous: Any = shout
    with pytest.raises(TypeError, match="synchronous function"):
        from_thread.run_sync(asynchronous, "not awaited")
    # Context variables go to the loop, and do not come back.
    assert from_thread.run_sync(colour.get) == "red"
    from_thread.run_sync(colour.set, "blue")
    return [from_thread.run(shout, "hello"), colour.get()]


ALL = ["HELLO red", "red"]


def until_cancelled(begun: threading.Event) -> None:
    """A loop as it is written for `trio.to_thread`."""
    while True:
        from_thread.check_cancelled()
        begun.set()
        threading.Event().wait(0.001)


# -- readers -------------------------------------------------------------------------------------


class Reader(MetaProcess):
    """Runs a function in ``start``, and keeps its outcome."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def start(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.done.set()


async def test_trio_is_the_trio_that_the_record_of_threads_was_written_for() -> None:
    # If this fails after an update of trio: compare trio/_threads.py with thread_parent.py.
    assert unmet() == []


async def test_another_trio_is_noticed() -> None:
    class Message:
        context: Any
        queue: Any

        def run_in_host_task(self, token: Any) -> Any:
            message = self

            def elsewhere() -> Any:
                return message

            return elsewhere

        def run_sync(self) -> None: ...

    assert unmet(SimpleNamespace()) == [
        "the record of a thread has no entries",
        "Run has no unprotected_afn, context or queue",
        "Run.run_in_host_task keeps its message elsewhere",
        "RunSync has no run_sync, context or queue",
        "RunSync.run_in_host_task keeps its message elsewhere",
    ]
    assert unmet(SimpleNamespace(RunSync=Message))[-1] == (
        "RunSync.run_in_host_task keeps its message elsewhere"
    )


async def test_a_reader_uses_from_thread_without_a_token() -> None:
    reader = Reader(use_all)
    async with owning() as own:
        assert await own.node.wait_ended(await own.spawn(reader)) == Normal()
    assert reader.result == ALL


async def test_messages_of_a_reader_arrive_before_its_function_runs_on_the_loop() -> None:
    late: list[int] = []
    async with owning() as own:

        def look(number: int) -> None:
            # Sent before, so it is in the mailbox, if the owner has not handled it already.
            if len(own.heard) + len(own.node.peek(own.owner)) <= number:
                late.append(number)

        class Sending(MetaProcess):
            def start(self) -> None:
                for number in range(200):
                    self.send(self.parent, number)
                    from_thread.run_sync(look, number)

        # A bound makes each message take the bridge.
        await own.node.wait_ended(await own.spawn(Sending(), backlog=2))
        await own.node.call(own.owner, "all")
    assert own.heard == list(range(200))
    assert late == []


async def test_check_cancelled_stops_a_reader_that_is_written_for_trios_threads() -> None:
    begun = threading.Event()
    reader = Reader(until_cancelled, begun)

    async def stop() -> None:
        async with owning() as own:
            alias = await own.spawn(reader)
            await in_thread(lambda: begun.wait(20))
            own.node.send_exit(alias)
            assert await own.node.wait_ended(alias) == Shutdown()
            assert own.node.info().threads_abandoned == 0
            assert own.node.crashes() == []

    # Captured: a cancellation that is taken for an exception meant for the whole program would
    # leave this test without a failure.
    assert await outcome.acapture(stop) == outcome.Value(None)
    assert isinstance(reader.error, trio.Cancelled)


async def test_a_stop_cancels_the_coroutine_that_a_reader_waits_for() -> None:
    begun = threading.Event()

    async def sleep() -> None:
        begun.set()
        await trio.sleep_forever()

    def read() -> list[str]:
        seen = []
        for function in (sleep, trio.sleep_forever):
            try:
                from_thread.run(function)
            except trio.Cancelled:
                seen.append(function.__name__)
        return seen

    reader = Reader(read)
    async with owning() as own:
        alias = await own.spawn(reader)
        await in_thread(lambda: begun.wait(20))
        own.node.send_exit(alias)
        await own.node.wait_ended(alias)
    assert reader.result == ["sleep", "sleep_forever"]


@pytest.mark.parametrize("shield", [True, False])
async def test_a_coroutine_that_refuses_to_end_is_cut_off_with_its_reader(shield: bool) -> None:
    begun = threading.Event()

    async def refuse() -> None:
        begun.set()
        while True:
            try:
                with trio.CancelScope(shield=shield):
                    await trio.sleep_forever()
            except trio.Cancelled:
                if shield:
                    raise

    reader = Reader(from_thread.run, refuse)
    async with owning() as own:
        alias = await own.spawn(reader, stop_timeout=0.05)
        await in_thread(lambda: begun.wait(20))
        own.node.send_exit(alias)
        await own.node.wait_ended(alias)
        assert own.node.info().threads_abandoned == 1
        # The thread is free again.
        await in_thread(lambda: reader.done.wait(20))
    assert isinstance(reader.error, trio.Cancelled if shield else trio.RunFinishedError)


async def test_a_reader_that_outlives_its_node_learns_that_the_loop_has_ended() -> None:
    gate, errors = threading.Event(), []

    def outlive() -> None:
        gate.wait(20)
        for function in (from_thread.run, from_thread.run_sync):
            try:
                function(trio.sleep, 0)
            except trio.RunFinishedError as error:
                errors.append(str(error))
        from_thread.check_cancelled()

    reader = Reader(outlive)
    async with owning() as own:
        await own.spawn(reader, stop_timeout=0.05)
    gate.set()
    await in_thread(lambda: reader.done.wait(20))
    assert len(errors) == 2
    assert isinstance(reader.error, trio.Cancelled)


async def test_a_cancellation_in_a_reader_that_is_not_being_stopped_is_a_crash() -> None:
    def steal() -> None:
        cancellation = kernel_of(own.node).raise_cancel
        assert cancellation is not None
        cancellation()

    async with owning() as own:
        reason = await own.node.wait_ended(await own.spawn(Reader(steal)))
    assert isinstance(reason, Crashed)


async def test_with_another_trio_threads_have_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_parent, "_differences", ["another trio"])
    reader, served = Reader(from_thread.check_cancelled), InThread()
    async with owning() as own:
        reason = await own.node.wait_ended(await own.spawn(reader))
        assert isinstance(reason, Crashed)
        assert "wasn't created by Trio" in str(reason)
        # A worker thread is trio's own, with trio's own record.
        alias = await own.spawn(served)
        assert await own.node.call(alias, lambda _me, _caller: from_thread.run_sync(int, "5")) == 5


async def test_the_calls_of_a_blocking_object_use_from_thread() -> None:
    async with owning() as own:
        alias = await own.spawn(BlockingCalls(object()))
        assert await own.node.call(alias, Apply(lambda _target: use_all())) == ALL


# -- plain callbacks of a meta-process -----------------------------------------------------------


class Plain(MetaProcess):
    """Uses `trio.from_thread` in every plain callback."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def init(self) -> None:
        self.seen["init"] = use_all()

    async def start(self) -> None:
        await trio.sleep_forever()

    def handle_message(self, message: Any, sender: Any) -> None:
        self.seen["handle_message"] = use_all()

    def handle_call(self, request: Any, caller: Any) -> Any:
        return request() if callable(request) else use_all()

    def terminate(self, reason: Any) -> None:
        self.seen["terminate"] = use_all()


async def test_every_plain_callback_uses_from_thread() -> None:
    plain = Plain()
    async with owning() as own:
        alias = await own.spawn(plain)
        own.node.send(alias, "message")
        assert await own.node.call(alias, "call") == ALL
    assert plain.seen == dict.fromkeys(("init", "handle_message", "terminate"), ALL)


async def test_a_stop_lets_a_callback_finish_and_a_kill_cancels_it() -> None:
    begun, stopped = threading.Event(), threading.Event()
    results: list[Any] = []

    def work() -> str:
        begun.set()
        assert stopped.wait(20)
        from_thread.check_cancelled()
        return "finished"

    async def ask(target: Any, request: Any) -> None:
        try:
            results.append(await own.node.call(target, request, timeout=None))
        except TargetDownError as error:
            results.append(error.reason)

    async with owning() as own:
        for end, request in (
            (own.node.send_exit, work),
            (own.node.kill, lambda: until_cancelled(begun)),
            (own.node.kill, lambda: from_thread.run(sleep_noted)),
        ):
            alias = await own.spawn(Plain())

            async def sleep_noted() -> None:
                begun.set()
                await trio.sleep_forever()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, alias, request)
                await in_thread(lambda: begun.wait(20))
                end(alias)
                stopped.set()
                await own.node.wait_ended(alias)
            begun.clear()
        assert own.node.info().threads_abandoned == 0
    assert results == ["finished", Killed(), Killed()]


# -- dispatchers ---------------------------------------------------------------------------------


@in_threads
async def test_a_callback_with_a_dispatcher_uses_from_thread(where: Dispatcher) -> None:
    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)
        assert await node.call(pid, lambda _me: use_all()) == ALL


@in_threads
async def test_its_coroutine_runs_in_the_task_of_the_process(where: Dispatcher) -> None:
    async def name_of_task() -> str:
        return str(current_task().name)

    async with running_node() as node:
        pid = await node.spawn(Doer, dispatcher=where)
        other = await node.spawn(Doer)
        assert await node.call(pid, lambda _me: from_thread.run(name_of_task)) == "Doer"
        # So a call that would wait for itself is found.
        error = await node.call(pid, lambda me: from_thread.run(own_error, me))
        assert type(error).__name__ == "DeadlockError"
        assert await node.call(pid, lambda me: from_thread.run(me.call, other, "all")) == []


async def own_error(actor: Any) -> Exception | None:
    try:
        await actor.call(actor.pid, "all")
    except Exception as error:
        return error
    return None


@in_threads
async def test_a_kill_reaches_a_callback_through_from_thread(where: Dispatcher) -> None:
    begun = threading.Event()

    async def sleep_noted() -> None:
        begun.set()
        await trio.sleep_forever()

    unchecked: list[str] = []

    def sleep_then_check(_me: Any) -> None:
        try:
            from_thread.run(sleep_noted)
        except trio.Cancelled:
            from_thread.check_cancelled()
            unchecked.append("check_cancelled must raise, too")

    async with running_node() as node:
        for work in (lambda _me: until_cancelled(begun), sleep_then_check):
            pid = await node.spawn(Doer, dispatcher=where)
            node.send(pid, work)
            await in_thread(lambda: begun.wait(20))
            node.kill(pid)
            assert await node.wait_ended(pid) == Killed()
            begun.clear()
        assert node.info().threads_abandoned == 0
    assert unchecked == []


async def test_an_abandoned_callback_cannot_use_the_loop_of_its_process(
    mock_clock: MockClock,
) -> None:
    begun, gate, done = threading.Event(), threading.Event(), threading.Event()
    errors: list[NotAllowedError] = []

    class Slow(Actor):
        def init(self) -> None:
            begun.set()
            gate.wait(20)
            try:
                from_thread.run(trio.sleep, 0)
            except NotAllowedError as error:
                errors.append(error)
            done.set()

    async def time_out_during_init() -> None:
        # The node does not begin an init whose time is over.
        await in_thread(lambda: begun.wait(20))
        mock_clock.jump(2.0)

    async with running_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(time_out_during_init)
        with pytest.raises(InitTimeoutError):
            await node.spawn(Slow, dispatcher=Threads(), init_timeout=1.0)
        gate.set()
        await in_thread(lambda: done.wait(20))
    assert len(errors) == 1


# -- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, Threads(), Threads("sums", 1)], ids=str)
async def test_the_thread_of_a_task_uses_from_thread(where: Dispatcher | None) -> None:
    begun = threading.Event()
    async with running_node() as node:
        assert await node.run_task(use_all, dispatcher=where) == ALL
        for work in (until_cancelled, lambda _: from_thread.run(note_and_sleep)):

            async def note_and_sleep() -> None:
                begun.set()
                await trio.sleep_forever()

            task = node.run_task(work, begun, dispatcher=where)
            await in_thread(lambda: begun.wait(20))
            task.cancel()
            with pytest.raises(TaskEndedError):
                await task
            begun.clear()
        assert node.info().threads_abandoned == 0
    # The thread goes back to trio with trio's own record.
    assert await in_thread(lambda: from_thread.run_sync(int, "5")) == 5


# -- the parts -----------------------------------------------------------------------------------


async def test_a_coroutine_for_a_closed_nursery_never_begins() -> None:
    class Closed:
        raise_cancel = None

        def __init__(self, router: Any) -> None:
            self.router = router

        def start(self, function: Any, *args: Any, name: str) -> None:
            raise RuntimeError("Nursery is closed to new arrivals")

    async with running_node() as node:
        host = HostTask(Closed(kernel_of(node).router), "closed")
        parent = ThreadParent(kernel_of(node).router.bridge, host)
        with pytest.raises(trio.RunFinishedError, match="stopped"):
            await in_thread(lambda: parent.run(from_thread.run, trio.sleep, 0))


async def test_a_thread_between_two_jobs_is_not_cancelled() -> None:
    async with running_node() as node:
        parent = ThreadParent(kernel_of(node).router.bridge)
        await in_thread(lambda: parent.run(from_thread.check_cancelled))
