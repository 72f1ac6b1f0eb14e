"""Threads and the loop: nothing is lost, nothing is overtaken, and no thread waits for a loop that
has ended.

Races are looked for in two ways: with a switch interval of a microsecond, and with a bridge that
hesitates around every step that could be raced. The second way is shown to work: bridges that take
the steps in a wrong order are found out by it.
"""

import errno
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import Actor, NodeStoppedError, Reason, Shutdown, open_node
from ergo_py._core import sources
from ergo_py._core.runtime import bridge as bridge_module
from ergo_py._core.runtime.bridge import (
    Bridge,
    Parker,
    ReaderThread,
    bells,
    stack_of,
    thread_names,
    wait_in_slices,
)
from ergo_py._core.runtime.parking import TrioTurns
from tests._core.runtime.from_threads import PATIENCE, T, in_thread, in_threads
from tests.actors import Recorder
from tests.support import needs_proc, open_descriptors, router_of, running_node, thread_of

# -- the bridge alone ------------------------------------------------------------------------------


def complain(error: BaseException) -> None:
    raise AssertionError("a job failed") from error


def make_bridge(kind: type[Bridge] = Bridge) -> Bridge:
    return kind("test@localhost", trio.lowlevel.current_trio_token(), complain)


def hesitate() -> None:
    # Nothing is waited for: it lets the other threads come in between, at unforeseen moments.
    if random.random() < 0.4:
        time.sleep(random.random() * 0.001)


class Hesitant(Bridge):
    """Waits a random moment before each look at its state, and before and after each change."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("_armed", "_closed", "pending"):
            hesitate()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        hesitate()
        super().__setattr__(name, value)
        hesitate()


class LooksAtTheFlagFirst(Hesitant):
    def post(self, job: Callable[..., object], *args: Any) -> None:
        if not self._armed:
            self._arm()
        self.pending.append((job, args))


class TakesTheFlagDownLast(Hesitant):
    def _drain(self) -> None:
        while self.pending:
            job, args = self.pending.popleft()
            job(*args)
        self._armed = False


class RaisesTheFlagBeforeTheLoopHasPromised(Hesitant):
    def _arm(self) -> None:
        self._armed = True
        try:
            self._token.run_sync_soon(self._drain)
        except trio.RunFinishedError:
            self._closed = True
            raise NodeStoppedError(self._node) from None


def rounds_until_one_is_lost(bridge: Bridge, rounds: int, patience: float) -> int | None:
    """Post single jobs and wait for each: a flood would hide that a wake-up is missing."""
    for number in range(rounds):
        done = threading.Event()
        bridge.post(done.set)
        if not done.wait(patience):
            return number
    return None


async def test_no_job_is_lost_however_the_steps_of_thread_and_loop_interleave() -> None:
    bridge = make_bridge(Hesitant)

    with trio.fail_after(60):
        lost = await in_thread(partial(rounds_until_one_is_lost, bridge, 300, PATIENCE))

    assert lost is None


@pytest.mark.parametrize("mutant", [LooksAtTheFlagFirst, TakesTheFlagDownLast])
async def test_a_bridge_that_takes_the_steps_in_another_order_loses_a_job(
    mutant: type[Bridge],
) -> None:
    bridge = make_bridge(mutant)

    with trio.fail_after(60):
        lost = await in_thread(partial(rounds_until_one_is_lost, bridge, 1000, 0.3))

    assert lost is not None


async def test_jobs_of_a_thread_run_in_order_on_the_loop(switching_fast: None) -> None:
    bridge = make_bridge()
    ran: list[tuple[int, int]] = []
    idents: set[int] = set()

    def job(thread: int, number: int) -> None:
        ran.append((thread, number))
        idents.add(threading.get_ident())

    def flood(thread: int) -> None:
        for number in range(2000):
            bridge.post(job, thread, number)

    with trio.fail_after(60):
        await in_threads([partial(flood, thread) for thread in range(4)])
        await in_thread(lambda: bridge.run(int))

    assert idents == {threading.get_ident()}
    for thread in range(4):
        assert [number for who, number in ran if who == thread] == list(range(2000))


@pytest.mark.parametrize("kind", [Bridge, Hesitant])
async def test_jobs_accepted_before_closing_are_run(
    kind: type[Bridge], switching_fast: None
) -> None:
    bridge = make_bridge(kind)
    ran: set[tuple[int, int]] = set()
    accepted: set[tuple[int, int]] = set()
    refused = threading.Barrier(5)

    def job(one: tuple[int, int]) -> None:
        ran.add(one)

    def flood(thread: int) -> None:
        for number in range(10**9):
            try:
                bridge.post(job, (thread, number))
            except NodeStoppedError:
                break
            accepted.add((thread, number))
        refused.wait(PATIENCE)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for thread in range(4):
                nursery.start_soon(in_thread, partial(flood, thread))
            while len(ran) < 20:
                await trio.lowlevel.checkpoint()
            bridge.close()
            await in_thread(lambda: refused.wait(PATIENCE))
    await trio.testing.wait_all_tasks_blocked()

    assert accepted
    assert accepted <= ran


def threads_left_hanging(kind: type[Bridge]) -> int:
    """How many of some threads that ask a loop which is over believe that they will be answered."""

    async def make() -> Bridge:
        return make_bridge(kind)

    bridge = trio.run(make)
    believed = []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait(PATIENCE)
        try:
            bridge.post(int)
        except NodeStoppedError:
            return
        believed.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return len(believed)


def test_a_loop_that_has_ended_leaves_no_thread_waiting() -> None:
    hanging = [threads_left_hanging(Hesitant) for _ in range(40)]

    assert sum(hanging) == 0


def test_a_bridge_that_raises_its_flag_too_early_leaves_a_thread_waiting() -> None:
    hanging = any(threads_left_hanging(RaisesTheFlagBeforeTheLoopHasPromised) for _ in range(400))

    assert hanging


async def test_a_batch_of_jobs_wakes_the_loop_once() -> None:
    soon, done = list[Callable[[], None]](), list[int]()
    loop: Any = SimpleNamespace(run_sync_soon=soon.append)
    bridge = Bridge("test@localhost", loop, complain)

    for number in range(3):
        bridge.post(done.append, number)

    (come,) = soon
    come()
    assert done == [0, 1, 2]


async def test_a_job_is_done_at_once_on_the_loop_and_soon_for_a_thread() -> None:
    bridge, done, soon = make_bridge(), list[str](), trio.Event()

    bridge.do(done.append, "now")
    at_once = list(done)
    await in_thread(lambda: bridge.do(soon.set))

    assert at_once == ["now"]
    with trio.fail_after(PATIENCE):
        await soon.wait()


async def test_catch_up_runs_the_jobs_of_threads_at_once() -> None:
    bridge, done = make_bridge(), list[int]()
    bridge.post(done.append, 1)

    bridge.catch_up()

    assert done == [1]


@needs_proc
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="names of threads are not files here"
)
def test_a_thread_is_named_in_the_system_and_that_leaves_no_file_open() -> None:
    named, release, held, names = threading.Event(), threading.Event(), list[str](), list[str]()

    def stay() -> None:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", encoding="utf-8") as comm:
            names.append(comm.read().strip())
        named.set()
        release.wait(PATIENCE)

    thread = ReaderThread("ergo-named-1", stay)
    thread.start()
    named.wait(PATIENCE)
    stack = thread.stack()
    held += [path for _, path in open_descriptors() if path.endswith("/comm")]
    release.set()
    thread_of(thread).join(PATIENCE)

    assert names == ["ergo-named-1"]
    assert "in stay" in stack
    assert thread_of(thread).daemon
    assert held == []


def test_no_slice_of_a_wait_is_longer_than_the_remaining_time() -> None:
    slices: list[float] = []

    def wait(seconds: float) -> bool:
        slices.append(seconds)
        return False

    came = wait_in_slices(wait, 0.01)

    assert came is False
    assert 0.0 <= min(slices) <= max(slices) <= 0.01


async def test_a_bridge_raises_node_stopped_after_the_end_of_its_loop() -> None:
    asked: list[Any] = []

    def refuse(job: Callable[[], None]) -> None:
        asked.append(job)
        raise trio.RunFinishedError

    loop: Any = SimpleNamespace(run_sync_soon=refuse)
    bridge = Bridge("test@localhost", loop, complain)

    for _ in range(2):
        with pytest.raises(NodeStoppedError, match="its event loop has ended"):
            bridge.post(list)

    assert len(asked) == 1


class ClosedMeanwhile(Bridge):
    """Is closed by code that has done all jobs, just before another job comes."""

    def end(self) -> None:
        self._closed = True

    def _arm(self) -> None:
        self.end()
        super()._arm()


async def test_a_job_that_no_loop_will_take_is_refused() -> None:
    asked: list[Any] = []
    loop: Any = SimpleNamespace(run_sync_soon=asked.append)
    bridge = ClosedMeanwhile("test@localhost", loop, complain)

    with pytest.raises(NodeStoppedError):
        bridge.post(asked.append, "refused")
    bridge.close()

    assert asked == []


class RunsBeforeItRings(ClosedMeanwhile):
    """Runs a job by an earlier wake-up, and is closed, just before the thread of the job rings."""

    def end(self) -> None:
        self.close()


async def test_a_job_that_an_earlier_wake_up_runs_before_the_end_is_accepted() -> None:
    bridge = make_bridge(RunsBeforeItRings)
    ran: list[str] = []

    bridge.post(ran.append, "ran")

    assert ran == ["ran"]
    with pytest.raises(NodeStoppedError):
        bridge.post(ran.append, "refused")


class Equal:
    """Equal to everything, as a message may be."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


async def test_only_its_own_job_is_taken_back_when_the_bridge_is_closed() -> None:
    bridge = make_bridge(ClosedMeanwhile)
    ran: list[object] = []
    bridge.pending.append((ran.append, (Equal(),)))  # of a thread that has yet to ring

    with pytest.raises(NodeStoppedError):
        bridge.post(ran.append, Equal())

    (left,) = bridge.pending
    bridge.close()
    assert ran == [left[1][0]]


async def test_the_pass_that_closes_the_bridge_runs_no_job_that_comes_later() -> None:
    bridge = make_bridge()
    ran: list[str] = []

    def end() -> None:
        bridge.close()
        # A thread that has looked whether the bridge is closed before this, and has yet to ring.
        bridge.pending.append((ran.append, ("late",)))

    bridge.post(end)
    await trio.testing.wait_all_tasks_blocked()

    assert ran == []
    assert len(bridge.pending) == 1


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_a_bridge_with_a_bell_does_not_use_run_sync_soon() -> None:
    asked: list[Any] = []
    loop: Any = SimpleNamespace(run_sync_soon=asked.append)
    bridge = Bridge("test@localhost", loop, complain)
    bridge.hang_bell()

    bridge.post(list)

    rung = os.eventfd_read(bridge._bell)
    os.close(bridge._bell)
    assert (rung, asked) == (1, [])


async def test_close_runs_accepted_jobs_before_it_returns() -> None:
    bridge, done = make_bridge(), list[int]()
    bridge.post(done.append, 1)

    bridge.close()

    assert done == [1]
    with pytest.raises(NodeStoppedError):
        bridge.post(done.append, 2)


def test_the_stack_of_a_thread_shows_its_current_function() -> None:
    nobody = max(thread_names()) + 1

    here, nowhere = stack_of(threading.get_ident()), stack_of(nobody)

    assert "test_the_stack_of_a_thread_shows_its_current_function" in here
    assert nowhere == ""


async def test_a_job_that_fails_is_reported_and_the_next_job_runs() -> None:
    failures: list[BaseException] = []
    ran = threading.Event()
    bridge = Bridge("test@localhost", trio.lowlevel.current_trio_token(), failures.append)

    def both() -> None:
        bridge.post(divmod, 1, 0)
        bridge.post(ran.set)

    await in_thread(both)
    with trio.fail_after(PATIENCE):
        await in_thread(lambda: ran.wait(PATIENCE))

    assert ran.is_set()
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_a_job_that_fails_at_the_end_is_reported_and_the_next_job_runs() -> None:
    failures: list[BaseException] = []
    ran: list[int] = []
    bridge = Bridge("test@localhost", trio.lowlevel.current_trio_token(), failures.append)
    bridge.post(divmod, 1, 0)
    bridge.post(ran.append, 1)

    bridge.close()

    assert ran == [1]
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_the_last_turn_of_a_loop_runs_all_jobs() -> None:
    turns: list[Callable[[], None]] = []
    ran: list[int] = []

    def take_one(job: Callable[[], None]) -> None:
        if turns:
            raise trio.RunFinishedError
        turns.append(job)

    loop: Any = SimpleNamespace(run_sync_soon=take_one)
    bridge = Bridge("test@localhost", loop, complain)
    for number in range(1000):
        bridge.post(ran.append, number)

    turns[0]()

    assert ran == list(range(1000))


async def test_an_open_bridge_is_found_by_the_thread_of_its_loop() -> None:
    bridge = make_bridge()
    bridge.loop_thread = -1

    found = [bridge_module.bridge_in(-1), bridge_module.bridge_in(-2)]
    bridge.close()

    assert found == [bridge, None]
    assert bridge_module.bridge_in(-1) is None


async def test_jobs_that_make_new_jobs_let_other_tasks_run() -> None:
    bridge = make_bridge()
    turns = 0
    left = 100

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            bridge.post(again)

    bridge.post(again)
    with trio.fail_after(PATIENCE):
        while left:
            turns += 1
            await trio.lowlevel.checkpoint()

    assert turns >= 50


async def test_a_job_may_close_the_bridge_after_the_jobs_accepted_before() -> None:
    bridge = make_bridge()
    ran: list[str] = []

    bridge.post(bridge.close)
    bridge.post(ran.append, "accepted before")
    await trio.testing.wait_all_tasks_blocked()

    assert ran == ["accepted before"]
    with pytest.raises(NodeStoppedError):
        bridge.post(int)


async def test_run_gives_the_result_or_the_error_to_the_thread() -> None:
    bridge = make_bridge()

    result = await in_thread(lambda: bridge.run(threading.get_ident))
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: bridge.run(divmod, 1, 0))

    assert result == threading.get_ident()


async def test_run_on_the_loop_does_not_wait_for_the_loop() -> None:
    bridge = make_bridge()

    assert bridge.run(divmod, 7, 2) == (3, 1)


class Interrupted(Bridge):
    """Gets a signal around each step that could be raced, a single signal at a time."""

    __slots__ = ("is_inside",)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_armed", "_closed", "pending"):
            self.interrupt()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_armed":
            self.interrupt()

    def interrupt(self) -> None:
        if not getattr(self, "is_inside", True):
            self.is_inside = True
            signal.raise_signal(signal.SIGUSR1)
            self.is_inside = False


async def test_a_signal_handler_may_post_in_the_middle_of_posting_and_of_draining() -> None:
    bridge = make_bridge(Interrupted)
    assert isinstance(bridge, Interrupted)
    ran: Counter[str] = Counter()
    asked = 0

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal asked
        asked += 1
        bridge.post(ran.update, ["signal"])

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        bridge.is_inside = False
        with trio.fail_after(PATIENCE):
            for number in range(20):
                bridge.post(ran.update, ["loop"])
                # A single job at a time, since the next would hide that a job was missing.
                while ran["loop"] <= number:
                    await trio.lowlevel.checkpoint()
        bridge.is_inside = True
        await trio.testing.wait_all_tasks_blocked()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert asked >= 20
    assert ran == {"loop": 20, "signal": asked}


def test_a_parker_returns_only_its_first_value() -> None:
    parker: Parker[str] = Parker()

    parker.settle("first")
    parker.settle("second")

    assert parker.wait(0)
    assert parker.value == "first"


def test_a_parker_keeps_its_first_value_after_its_thread_was_woken() -> None:
    parker: Parker[str] = Parker()

    parker.settle("first")
    assert parker.wait(0)
    parker.settle("second")

    assert parker.value == "first"


def test_a_parker_without_a_value_returns_at_its_timeout() -> None:
    parker: Parker[str] = Parker()

    assert not parker.wait(0.001)
    assert parker.value is None


def test_a_parker_takes_a_timeout_longer_than_a_lock_can_wait() -> None:
    parker: Parker[str] = Parker()
    parker.settle("here")

    assert parker.wait(1e300)


def test_a_parker_gives_way_with_its_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    parker: Parker[str] = Parker()
    asked: list[bool] = []

    class Settling:
        """Threads of a world: another thread has its turn while this one waits."""

        def give_way(self, is_ready: Callable[[], bool], timeout: float | None) -> float | None:
            asked.append(is_ready())
            parker.settle("in time")
            asked.append(is_ready())
            return timeout

    monkeypatch.setattr(sources, "threads", Settling())

    assert parker.wait(0)
    assert asked == [False, True]


# -- many jobs at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_bell", [True, False], ids=["own bell", "trio's door"])
async def test_many_jobs_are_done_in_several_turns_and_in_order(has_bell: bool) -> None:
    bridge, done, seen = make_bridge(Bridge), list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        if has_bell:
            bridge.hang_bell()
        nursery.start_soon(bridge.serve, TrioTurns(), nullcontext())
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2_000):
            bridge.post(done.append, number)

        while len(done) < 2_000:
            await trio.lowlevel.checkpoint()
            seen.append(len(done))
        bridge.close()

    assert done == list(range(2_000))
    # In two turns of the scheduler at most two batches, since it shuffles its tasks.
    assert max(later - earlier for earlier, later in pairwise([0, *seen])) <= 2 * 256


@pytest.mark.parametrize("way", ["close", "catch_up"])
async def test_many_jobs_are_done_at_once_where_required(way: str) -> None:
    bridge, done = make_bridge(Bridge), list[int]()
    for number in range(2_000):
        bridge.post(done.append, number)

    getattr(bridge, way)()

    assert done == list(range(2_000))
    bridge.close()


# -- a bell of the bridge's own --------------------------------------------------------------------


class TakesARingForNothing(Hesitant):
    """Leaves the flag up when there is nothing to do."""

    def _drain(self) -> None:
        if self.pending:
            super()._drain()


async def served(kind: type[Bridge], use: Callable[[Bridge], T]) -> T:
    """Use a bridge from a thread while it is served."""
    bridge = make_bridge(kind)
    async with trio.open_nursery() as nursery:
        bridge.hang_bell()
        nursery.start_soon(bridge.serve, TrioTurns(), nullcontext())
        await trio.testing.wait_all_tasks_blocked()
        try:
            return await in_thread(lambda: use(bridge))
        finally:
            bridge.close()


def rounds_in_threads_until_one_is_lost(
    rounds: int, patience: float, bridge: Bridge
) -> list[int | None]:
    lost: list[int | None] = []
    threads = [
        threading.Thread(
            target=lambda: lost.append(rounds_until_one_is_lost(bridge, rounds, patience))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lost


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_bells_are_counted_for_their_loop_and_while_they_are_installed() -> None:
    before = bells()

    during, elsewhere = await served(Bridge, lambda bridge: (bridge.run(bells), bells()))

    assert (during - before, elsewhere, bells()) == (1, 0, before)


async def test_pending_jobs_are_counted() -> None:
    bridge = make_bridge(Bridge)
    counted: list[int] = []

    for _ in range(3):
        bridge.post(lambda: counted.append(len(bridge.pending)))
    before = len(bridge.pending)
    await trio.testing.wait_all_tasks_blocked()

    assert (before, counted, len(bridge.pending)) == (3, [2, 1, 0], 0)


async def test_no_job_is_lost_while_the_bridge_has_its_own_bell() -> None:
    with trio.fail_after(60):
        lost = await served(Hesitant, partial(rounds_in_threads_until_one_is_lost, 100, PATIENCE))

    assert lost == [None] * 3


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_a_bridge_that_ignores_a_ring_loses_a_job() -> None:
    with trio.fail_after(60):
        lost = await served(
            TakesARingForNothing, partial(rounds_in_threads_until_one_is_lost, 1000, 0.3)
        )

    assert lost != [None] * 3


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
@pytest.mark.parametrize("kind", [Bridge, Hesitant])
async def test_the_bell_is_never_rung_after_it_is_closed(
    kind: type[Bridge], switching_fast: None
) -> None:
    def flood(bridge: Bridge) -> int:
        for number in range(10**9):
            try:
                bridge.post(int)
            except NodeStoppedError:
                return number
            # The loop is to fall asleep between two posts, so that the bell is rung for each.
            time.sleep(0.0001)
        return 0

    for _ in range(5):
        bridge = make_bridge(kind)
        accepted: list[int] = []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                async def flood_in_thread(
                    bridge: Bridge = bridge, accepted: list[int] = accepted
                ) -> None:
                    accepted.append(await in_thread(lambda: flood(bridge)))

                bridge.hang_bell()
                nursery.start_soon(bridge.serve, TrioTurns(), nullcontext())
                for _ in range(3):
                    nursery.start_soon(flood_in_thread)
                for _ in range(5):
                    await trio.sleep(0.001)
                bridge.close()
                # A file that takes over the number of the bell now must not be written to.
                taken = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
        for fd in taken:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(fd)
            os.close(fd)

        assert len(accepted) == 3


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no other bell here")
async def test_serving_ends_with_the_bridge_and_leaves_no_descriptor_open() -> None:
    before = open_descriptors()
    bridge = make_bridge()
    ran: list[str] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            bridge.hang_bell()
            nursery.start_soon(bridge.serve, TrioTurns(), nullcontext())
            await trio.testing.wait_all_tasks_blocked()
            while_served = open_descriptors()
            bridge.post(ran.append, "job")
            bridge.close()

    assert ran == ["job"]
    assert len(while_served - before) == 1
    assert open_descriptors() <= before


async def test_a_bridge_works_without_a_bell_after_its_serving_was_cancelled() -> None:
    bridge = make_bridge()
    ran: list[str] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            bridge.hang_bell()
            nursery.start_soon(bridge.serve, TrioTurns(), nullcontext())
            await trio.testing.wait_all_tasks_blocked()
            bridge.post(ran.append, "while it was served")
            nursery.cancel_scope.cancel()
        await in_thread(lambda: bridge.run(ran.append, "afterwards"))

    assert ran == ["while it was served", "afterwards"]


async def test_a_bridge_without_eventfd_uses_run_sync_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    bridge = make_bridge()

    bridge.hang_bell()
    await bridge.serve(TrioTurns(), nullcontext())

    assert await in_thread(lambda: bridge.run(lambda: 42)) == 42


async def test_a_bridge_without_a_free_descriptor_uses_run_sync_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", exhausted, raising=False)
    bridge = make_bridge()

    bridge.hang_bell()
    await bridge.serve(TrioTurns(), nullcontext())

    assert await in_thread(lambda: bridge.run(lambda: 42)) == 42


async def test_an_unread_ring_does_not_leave_the_flag_up() -> None:
    bridge = make_bridge()
    ran: list[str] = []
    async with trio.open_nursery() as nursery:
        bridge.hang_bell()
        nursery.start_soon(bridge.serve, TrioTurns(), nullcontext())
        await trio.testing.wait_all_tasks_blocked()
        bridge.post(ran.append, "done by the way")
        bridge.pending.popleft()
        nursery.cancel_scope.cancel()

    with trio.fail_after(30):
        await in_thread(lambda: bridge.run(ran.append, "afterwards"))

    assert ran == ["afterwards"]


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="the system has no eventfd")
async def test_a_bridge_that_fails_stops_the_node_in_an_orderly_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_fd: int) -> int:
        raise OSError(errno.EIO, "broken on purpose")

    ended: list[Reason] = []

    class Ends(Actor):
        def terminate(self, reason: Reason) -> None:
            ended.append(reason)

    with pytest.raises(OSError, match="broken on purpose"):
        async with open_node("broken@test", log_output="none") as node:
            pid = await node.spawn(Ends)
            monkeypatch.setattr(os, "eventfd_read", broken)
            await in_thread(lambda: node.send(pid, "wake up"))
            await trio.sleep_forever()

    assert ended == [Shutdown()]


async def test_a_thread_reaches_the_loop_while_the_mock_clock_is_stopped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running_node() as node:
        heard: list[Any] = []
        pid = await node.spawn(Recorder, heard)
        for number in range(20):
            thread = threading.Thread(target=node.send, args=(pid, number))
            thread.start()
            thread.join(PATIENCE)
            await trio.testing.wait_all_tasks_blocked()

    assert heard == list(range(20))


async def test_a_bridge_marked_dead_as_in_a_forked_copy_refuses_every_verb() -> None:
    async with running_node() as other:
        async with running_node("marked@localhost") as node:
            bridge, router = router_of(node).bridge, router_of(node)
            pid = await node.spawn(Recorder)
            thread = bridge.loop_thread

            bridge.forked()
            errors = []
            for verb in (lambda: node.send(pid, "hello"), lambda: bridge.post(print)):
                with pytest.raises(NodeStoppedError) as caught:
                    verb()
                errors.append(str(caught.value))
            stopped = router.stopped
            # The node is not in a copy at all, and has to come down.
            bridge._closed, bridge.loop_thread, router.loop_thread, router.stopped = (
                False,
                thread,
                thread,
                False,
            )

        assert stopped
        assert all("forked" in error for error in errors)
        assert not router_of(other).stopped


async def test_every_bridge_is_marked_dead_in_a_forked_copy() -> None:
    bridges = [make_bridge(), make_bridge()]
    marked: list[int] = []
    bridges[0].when_forked(lambda: marked.append(0))

    bridge_module._mark_dead_in_copy()

    assert marked == [0]
    for bridge in bridges:
        with pytest.raises(NodeStoppedError, match="forked"):
            bridge.check_open()
        assert not bridge.on_loop()


def test_a_thread_starts_where_its_stack_cannot_be_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(size: int = 0) -> int:
        if size:
            raise ValueError("no such size")
        return 0

    monkeypatch.setattr(threading, "stack_size", refuse)
    ran = threading.Event()

    ReaderThread("ergo-test-1", ran.set).start()

    assert ran.wait(PATIENCE)


def test_a_thread_runs_where_the_system_does_not_take_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, refused = os.open, list[str]()

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith("/comm"):
            refused.append(path)
            raise FileNotFoundError(path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    ran = threading.Event()

    ReaderThread("ergo-test-1", ran.set).start()

    assert ran.wait(PATIENCE)
    assert len(refused) == 1


async def test_catch_up_runs_posted_jobs_first() -> None:
    bridge = make_bridge()
    done: list[str] = []
    await in_thread(lambda: bridge.post(done.append, "handed over"))

    bridge.catch_up()
    done.append("next")

    assert done[:2] == ["handed over", "next"]


async def test_a_refused_job_is_not_kept() -> None:
    bridge = make_bridge()
    bridge.close()

    with pytest.raises(NodeStoppedError):
        bridge.post(print, "late")

    assert not bridge.pending


def test_threads_are_known_by_their_names() -> None:
    begun, over = threading.Event(), threading.Event()

    def stay() -> None:
        begun.set()
        over.wait(PATIENCE)

    thread = ReaderThread("ergo-test-names-1", stay)
    thread.start()
    begun.wait(PATIENCE)

    names = thread_names()
    over.set()

    assert names[thread.ident] == "ergo-test-names-1"
    assert names[threading.get_ident()] == threading.current_thread().name


def test_the_main_thread_waits_in_short_slices() -> None:
    answers, asked = iter([False, False, True]), list[float]()

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        return next(answers)

    came = wait_in_slices(wait, None)

    assert came
    # In the main thread, where tests run.
    assert len(asked) == 3
    assert 0 < max(asked) < 1


async def test_a_bell_rings_until_the_posted_jobs_have_run() -> None:
    gc.collect()  # bridges of other tests, whose jobs never ran
    async with running_node() as node:
        ran: list[bool] = []
        thread = threading.Thread(
            target=router_of(node).bridge.post,
            args=(lambda: ran.append(bridge_module.bells_ring()),),
        )
        assert not bridge_module.bells_ring()

        thread.start()
        thread.join()  # blocks the loop

        assert bridge_module.bells_ring()
        await trio.testing.wait_all_tasks_blocked()
        assert ran == [False]
        assert not bridge_module.bells_ring()
