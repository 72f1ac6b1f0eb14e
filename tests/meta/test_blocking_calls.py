"""Blocking objects behind calls, and blocking loops behind messages."""

import gc
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Crashed, InitError, Killed, Normal, Shutdown, TargetDownError
from ergo_py.errors import UnhandledCallError
from ergo_py.meta import Apply, BlockingCalls, Invoke, Poller
from tests.meta.owner import UnprintableExit, eventually, owning
from tests.support import replace_private


class Device:
    """Something that blocks, and says by which thread it was used."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.used_by: list[int] = []
        self.done: list[object] = []
        self.busy = 0
        self.most_busy = 0
        self.closed_by = 0
        self.blocks = threading.Event()
        self.gate = threading.Event()
        self.meeting = threading.Barrier(3)
        self.lock = threading.Lock()

    def work(self, what: object) -> object:
        with self.lock:
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        time.sleep(0)  # a turn for other threads: one at work is seen
        with self.lock:
            self.busy -= 1
            self.used_by.append(threading.get_ident())
            self.done.append(what)
        return what

    def meet(self, what: object) -> object:
        """Work with two other threads in progress."""
        self.meeting.wait(20)
        return self.work(what)

    def block(self) -> str:
        self.blocks.set()
        assert self.gate.wait(20)
        return "at last"

    def fail(self) -> None:
        raise LookupError("no such thing")

    def leave(self) -> None:
        raise SystemExit(3)

    def leave_unprintably(self) -> None:
        raise UnprintableExit

    def close(self) -> None:
        self.closed_by = threading.get_ident()


async def test_a_call_invokes_the_method_of_the_object_and_answers_its_result() -> None:
    device = Device()
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(device))

        assert await owned.node.call(calls, Invoke("work", 7)) == 7
        assert await owned.node.call(calls, Invoke("work", what=None)) is None
        assert (
            await owned.node.call(calls, Apply(lambda target, plus: len(target.done) + plus, 10))
            == 12
        )


async def test_the_owner_runs_a_function_with_the_object_until_the_end() -> None:
    calls = BlockingCalls(factory=Device)
    async with owning() as owned:
        await owned.spawn(calls)

        assert await calls.run(lambda device: device.work("a")) == "a"
        assert await calls.run(lambda device: device.used_by[0] == device.thread)
        with pytest.raises(LookupError, match="no such thing"):
            await calls.run(Device.fail)

    with pytest.raises(TargetDownError):
        await calls.run(Device.fail)


async def test_a_function_of_the_owner_fails_if_the_meta_process_is_killed_meanwhile() -> None:
    begun, go_on = trio.Event(), threading.Event()
    calls = BlockingCalls(factory=Device)
    failed: list[BaseException] = []

    def work(_device: Device) -> None:
        trio.from_thread.run_sync(begun.set)
        go_on.wait()

    async def run() -> None:
        with pytest.raises(TargetDownError) as caught:
            await calls.run(work)
        failed.append(caught.value)

    async with owning() as owned:
        alias = await owned.spawn(calls)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await begun.wait()
                owned.node.kill(alias)
                await eventually(lambda: bool(failed))
                go_on.set()

    assert len(failed) == 1


async def test_functions_of_many_tasks_of_the_owner_run_in_order_and_all_end() -> None:
    begun, gate = threading.Event(), threading.Event()

    def block(_device: Device) -> None:
        begun.set()
        gate.wait()

    calls = BlockingCalls(factory=Device, max_waiting=1)
    async with owning() as owned:
        alias = await owned.spawn(calls)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(calls.run, block)
                await eventually(begun.is_set)
                for number in range(5):
                    nursery.start_soon(calls.run, partial(Device.work, what=number))
                    await trio.testing.wait_all_tasks_blocked()
                waiting = (await owned.node.inspect_meta(alias))["waiting"]
                gate.set()
        done = await calls.run(lambda device: device.done)

    assert waiting == "5"
    assert done == [0, 1, 2, 3, 4]


async def test_an_exception_is_the_answer_and_the_next_call_is_served() -> None:
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(Device()))

        with pytest.raises(LookupError, match="no such thing"):
            await owned.node.call(calls, Invoke("fail"))
        with pytest.raises(AttributeError):
            await owned.node.call(calls, Invoke("no_such_method"))
        with pytest.raises(RuntimeError, match="SystemExit"):
            await owned.node.call(calls, Invoke("leave"))
        with pytest.raises(RuntimeError, match="UnprintableExit: <its __str__ raised>"):
            await owned.node.call(calls, Invoke("leave_unprintably"))
        assert await owned.node.call(calls, Invoke("work", 1)) == 1
        with pytest.raises(UnhandledCallError):
            await owned.node.call(calls, "work")

        shown = await owned.node.inspect_meta(calls)
        assert (shown["done"], shown["failed"], shown["busy"]) == ("5", "4", "0")


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="without a GIL, a garbage collection frees what other threads have referred to",
)
async def test_an_error_is_freed_without_a_garbage_collection() -> None:
    """With it what the failed function had: a connection to a server, which stayed open."""
    held: list[weakref.ref[Device]] = []

    def fail(_: Device) -> None:
        device = Device()
        held.append(weakref.ref(device))
        device.fail()

    calls = BlockingCalls(Device())
    gc.collect()
    gc.disable()
    try:
        async with owning() as owned:
            await owned.spawn(calls)
            for _ in range(3):
                with pytest.raises(LookupError):
                    await calls.run(fail)
            await eventually(lambda: not any(each() for each in held))
    finally:
        gc.enable()

    assert len(held) == 3


async def test_calls_run_in_order_in_the_thread_that_created_the_object() -> None:
    made: list[Device] = []

    def make() -> Device:
        made.append(Device())
        return made[-1]

    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(factory=make))
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(owned.node.call, calls, Invoke("work", number))
                await trio.testing.wait_all_tasks_blocked()
        owned.node.send_exit(calls)
        await owned.down()

    (device,) = made
    assert device.done == list(range(20))
    assert device.most_busy == 1
    assert {*device.used_by, device.closed_by} == {device.thread}
    assert device.thread != threading.get_ident()


async def test_with_several_threads_that_many_calls_are_in_progress() -> None:
    device = Device()
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(device, threads=3))
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(owned.node.call, calls, Invoke("meet", number))

        assert sorted(map(str, device.done)) == [str(number) for number in range(9)]
        assert device.most_busy <= 3
        assert len(set(device.used_by)) == 3
        assert device.closed_by == 0


async def test_a_factory_creates_an_object_for_each_thread() -> None:
    made: list[Device] = []

    def make() -> Device:
        made.append(Device())
        return made[-1]

    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(factory=make, threads=2))
        owned.node.send_exit(calls)
        await owned.down()

    assert len(made) == 2
    assert all(device.closed_by == device.thread for device in made)


async def test_an_exception_of_the_factory_fails_the_spawn_and_closes_the_objects() -> None:
    made: list[Device] = []

    def make() -> Device:
        if made:
            raise ConnectionError("nobody there")
        made.append(Device())
        return made[-1]

    async with owning() as owned:
        with pytest.raises(InitError, match="nobody there"):
            await owned.spawn(BlockingCalls(factory=make, threads=3))

        with trio.fail_after(30):
            await eventually(
                lambda: owned.node.metas() == [] and made[0].closed_by == made[0].thread
            )


async def test_invocations_by_message_are_done_and_their_failures_are_survived() -> None:
    device = Device()
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(device))

        owned.node.send(calls, Invoke("work", "sent"))
        owned.node.send(calls, Invoke("fail"))
        owned.node.send(calls, "what?")
        await owned.node.call(calls, Invoke("work", "called"))

        assert device.done == ["sent", "called"]


async def test_a_call_is_skipped_if_its_caller_gave_up_before_its_turn() -> None:
    device = Device()
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(device))
        owned.node.send(calls, Invoke("block"))
        await eventually(device.blocks.is_set)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(owned.node.call, calls, Invoke("work", "too late"))
            shown = await owned.node.inspect_meta(calls)
            while shown["waiting"] == "0":
                shown = await owned.node.inspect_meta(calls)
            nursery.cancel_scope.cancel()
        device.gate.set()
        await owned.node.call(calls, Invoke("work", "in time"))

        assert (shown["busy"], shown["waiting"]) == ("1", "1")
        assert device.done == ["in time"]
        assert (await owned.node.inspect_meta(calls))["skipped"] == "1"


async def test_surplus_calls_wait_in_the_mailbox() -> None:
    device = Device()
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(device, max_waiting=2))
        owned.node.send(calls, Invoke("block"))
        for number in range(10):
            owned.node.send(calls, Invoke("work", number))
        await eventually(lambda: owned.node.meta_info(calls).lanes["main"] == 7)
        device.gate.set()
        await owned.node.call(calls, Invoke("work", "last"))

        assert device.done == [*range(10), "last"]


async def test_a_stop_waits_for_the_call_in_progress_and_answers_it() -> None:
    device = Device()
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(device))
        answers: list[object] = []

        async def ask(request: Invoke) -> None:
            try:
                answers.append(await owned.node.call(calls, request))
            except TargetDownError as error:
                answers.append(error.reason)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, Invoke("block"))
            await eventually(device.blocks.is_set)
            nursery.start_soon(ask, Invoke("work", "never"))
            await trio.testing.wait_all_tasks_blocked()
            owned.node.send_exit(calls)
            await trio.testing.wait_all_tasks_blocked()
            device.gate.set()

        assert sorted(map(str, answers)) == ["at last", "shutdown"]
        assert device.done == []
        assert await owned.down() == Shutdown()


async def test_blocking_calls_end_when_a_thread_of_theirs_is_killed() -> None:
    async with owning() as owned:
        calls = await owned.spawn(BlockingCalls(Device(), threads=2))
        thread = next(alias for alias in owned.node.metas() if alias != calls)

        owned.node.kill(thread)

        assert await owned.down() == Killed()
        with pytest.raises(TargetDownError):
            await owned.node.call(calls, Invoke("ask", 1), timeout=None)


async def test_an_interrupt_ends_the_wait_of_a_call(tmp_path: Path) -> None:
    def forever(database: sqlite3.Connection) -> None:
        database.execute(
            "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
        ).fetchone()

    async with owning() as owned:
        calls = await owned.spawn(
            BlockingCalls(
                factory=lambda: sqlite3.connect(tmp_path / "db"),
                interrupt=sqlite3.Connection.interrupt,
            ),
            stop_timeout=60,
        )
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises((sqlite3.OperationalError, TargetDownError)):
                    await owned.node.call(calls, Apply(forever), timeout=20)

            nursery.start_soon(ask)
            await eventually(lambda: owned.node.meta_info(calls).messages_in == 1)
            await trio.testing.wait_all_tasks_blocked(0.02)
            with trio.fail_after(30):
                owned.node.send_exit(calls)
                assert await owned.down() == Shutdown()


@pytest.mark.parametrize(
    "make",
    [
        BlockingCalls,
        lambda: BlockingCalls(Device(), factory=Device),
        lambda: BlockingCalls(Device(), threads=0),
        lambda: BlockingCalls(Device(), max_waiting=0),
        lambda: Poller("poll"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: Poller(lambda: None, interval=-1),
        lambda: Poller(lambda: None, receiver=7),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: BlockingCalls(factory=7),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadInputError):
        make()


# -- polling ---------------------------------------------------------------------------------------


def taking(queue: "Queue[Any]", timeout: float = 0.05) -> Callable[[], Any]:
    def poll() -> Any:
        try:
            return queue.get(timeout=timeout)
        except Empty:
            return None

    return poll


async def test_results_of_a_poll_other_than_none_are_sent() -> None:
    queue: Queue[Any] = Queue()
    async with owning() as owned:
        poller = await owned.spawn(Poller(taking(queue, 0.001)))
        for item in ("a", "", 0, "b"):
            queue.put(item)

        assert [await owned.next() for _ in range(4)] == ["a", "", 0, "b"]
        shown = await owned.node.inspect_meta(poller)
        assert shown["sent"] == "4"


async def test_with_each_the_items_of_a_result_are_sent_singly() -> None:
    queue: Queue[Any] = Queue()
    async with owning() as owned:
        await owned.spawn(Poller(taking(queue), each=True))

        queue.put(["a", "b"])
        queue.put([])
        queue.put(("c",))

        assert [await owned.next() for _ in range(3)] == ["a", "b", "c"]


async def test_an_endless_result_does_not_delay_the_stop() -> None:
    async with owning() as owned:
        source = await owned.spawn(Poller(count, each=True), stop_timeout=60.0)
        assert await owned.next() == 0

        with trio.fail_after(20):
            owned.node.send_exit(source)
            await owned.node.wait_ended(source)


async def test_an_exception_of_a_poll_ends_the_poller_and_closes_it_in_its_thread() -> None:
    closed: list[str] = []

    def poll() -> None:
        raise ConnectionError("gone")

    async with owning() as owned:
        await owned.spawn(
            Poller(poll, close=lambda: closed.append(threading.current_thread().name))
        )
        reason = await owned.down()

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, ConnectionError)
        assert closed[0].startswith("ergo-poller-")


async def test_the_stop_wakes_a_poll_that_blocks_forever() -> None:
    woken = threading.Event()

    def poll() -> None:
        woken.wait()

    async with owning() as owned:
        poller = await owned.spawn(Poller(poll, wake=woken.set), stop_timeout=60)

        with trio.fail_after(30):
            owned.node.send_exit(poller, Normal())
            assert await owned.down() == Normal()


async def test_a_poll_that_never_blocks_does_not_use_all_processor_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    looks: list[float] = []

    class Pausing(Poller):
        def pause(self, seconds: float) -> bool:
            pauses.append(seconds)
            return super().pause(seconds)

    # On this clock the function takes no time, also if the thread has to wait for a processor.
    replace_private(monkeypatch, "clock of meta-processes", property(lambda _: lambda: 0.0))
    async with owning() as owned:
        for interval, expected in ((0.0, 0.001), (0.04, 0.04)):
            pauses.clear()
            looks.clear()
            poller = await owned.spawn(
                Pausing(lambda: looks.append(time.monotonic()), interval=interval)
            )
            await eventually(lambda: len(looks) >= 4)
            owned.node.send_exit(poller)
            await owned.down()

            assert set(pauses) == {expected}
            assert all(after - before >= expected for before, after in pairwise(looks))


async def test_a_slow_receiver_slows_the_polling() -> None:
    numbers = iter(range(1_000_000))
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(Poller(lambda: next(numbers), receiver=owned.owner), backlog=10)

        queued = await owned.filled(10)
        go_on()

        assert queued == 10
        assert [await owned.next() for _ in range(1000)] == list(range(1000))
