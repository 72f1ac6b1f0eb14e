"""The end of a meta-process: always the same order, every step bounded; a part that will not end is
reported and abandoned.
"""

import asyncio
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    Actor,
    Crashed,
    Custom,
    Exit,
    InitError,
    Killed,
    MetaProcess,
    Normal,
    NotAllowedError,
    Priority,
    Published,
    Reason,
    Shutdown,
    TargetDownError,
    Why,
    open_node,
)
from ergo_py._core.metas.termination import Phase
from tests._core.metas.metas import (
    COLOURS,
    InTask,
    InTaskServedInThread,
    InThread,
    InThreadServedOnLoop,
    Owned,
    in_thread,
    owning,
)
from tests.actors import Failed, Puppet, Witness
from tests.meta.support import meta_of, replace_logger
from tests.support import kernel_of, replace_private, running_node

HELD = 120.0
"""Seconds that stubborn code holds on unless its test lets it go. Much longer than any test may
take.
"""


class Kept:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def error(self, text: str, **fields: Any) -> None:
        self.lines.append((text, fields))

    def of(self, part: str) -> list[dict[str, Any]]:
        return [fields for text, fields in self.lines if part in text]


def keep_log(meta: Any) -> Kept:
    kept = Kept()
    replace_logger(meta, kept)
    return kept


class Refuses(MetaProcess):
    """A reader in a thread that does not end when it is told to, and tries to send."""

    kind = "refuses"

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.ended = threading.Event()
        self.errors: list[BaseException] = []
        self.last: list[Reason] = []

    def start(self) -> None:
        try:
            self.hold_on()
            self.send(self.parent, "after all")
        except NotAllowedError as error:
            self.errors.append(error)
        finally:
            self.ended.set()

    def hold_on(self) -> None:
        self.let_go.wait(HELD)

    def terminate(self, reason: Reason) -> None:
        self.last.append(reason)


# -- readers that will not end ---------------------------------------------------------------------


async def test_a_reader_thread_that_does_not_end_is_reported_counted_and_abandoned() -> None:
    heard: list[Any] = []

    class Subscriber(Actor):
        def init(self) -> None:
            self.subscribe("ergo.thread_abandoned")

        def handle_event(self, event: Published) -> None:
            heard.append(event.message)

    async with owning() as owned:
        await owned.node.spawn(Subscriber)
        meta = Refuses()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        kept = keep_log(meta)

        began = time.perf_counter()
        reason = await owned.end(alias, "asked")
        seconds = time.perf_counter() - began
        line = kept.of("was abandoned")[0]
        info = owned.node.info()
        meta.let_go.set()
        await owned.until(meta.ended.is_set)
        await owned.until(lambda: owned.node.info().reader_threads == 0)

        assert (reason, meta.last) == (Custom("asked"), [Custom("asked")])
        assert seconds < 60
        assert line["thread"] == f"ergo-refuses-{alias.number}"
        assert "in hold_on" in line["exception"]
        # It still takes a place, as long as it is there.
        assert (info.threads_abandoned, info.reader_threads, info.metas) == (1, 1, 0)
        assert heard == [alias]
        assert "cannot send" in str(meta.errors[0])
        assert owned.heard == []
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == [alias]


async def test_time_in_which_the_program_was_stopped_does_not_count(
    mock_clock: MockClock,
) -> None:
    async with owning(limit=10_000) as owned:
        meta = Refuses()
        alias = await owned.spawn(meta, stop_timeout=5.0)
        kept = keep_log(meta)
        owned.node.send_exit(alias, "asked")
        await wait_all_tasks_blocked()

        # Stopped and continued: the clock has gone on, and no thread has had a chance to run since
        # then.
        for _ in range(3):
            mock_clock.jump(6.0)
            await wait_all_tasks_blocked()
        assert kept.of("was abandoned") == []
        meta.let_go.set()
        while not meta_of(meta).ending.gone.is_set():
            await trio.lowlevel.checkpoint()

        assert kept.of("was abandoned") == []
        assert meta.last == [Custom("asked")]
        assert owned.node.info().threads_abandoned == 0


async def test_a_reader_is_abandoned_in_time_even_if_each_wait_ends_late(
    mock_clock: MockClock,
) -> None:
    async with owning(limit=10_000) as owned:
        meta = Refuses()
        alias = await owned.spawn(meta, stop_timeout=5.0)
        kept = keep_log(meta)
        owned.node.send_exit(alias, "asked")
        turns = 0
        while not kept.of("was abandoned"):
            await wait_all_tasks_blocked()
            mock_clock.jump(6.0)
            turns += 1
            assert turns < 100
        meta.let_go.set()
        while not meta_of(meta).ending.gone.is_set():
            await trio.lowlevel.checkpoint()

        assert owned.node.info().threads_abandoned == 1


async def test_no_verb_works_for_an_abandoned_reader() -> None:
    class Tries(Refuses):
        def start(self) -> None:
            self.hold_on()
            for attempt in (
                lambda: self.send(self.parent, "no"),
                lambda: self.send_after(0, self.parent, "no"),
                lambda: self.request(self.parent, "no"),
                lambda: self.spawn(InThread()),
                self.stop,
            ):
                try:
                    attempt()
                except NotAllowedError as error:
                    self.errors.append(error)
            self.ended.set()

    async with owning() as owned:
        meta = Tries()
        await owned.end(await owned.spawn(meta, stop_timeout=0.01))
        meta.let_go.set()
        await owned.until(meta.ended.is_set)
        await wait_all_tasks_blocked()

        assert len(meta.errors) == 5
        assert owned.heard == []
        assert owned.node.metas() == []


async def test_an_abandoned_reader_cannot_send_while_terminate_still_runs() -> None:
    class ComesBackLate(Refuses):
        async def terminate(self, reason: Reason) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            self.send(self.parent, "last word")
            self.let_go.set()
            while not self.ended.is_set():  # noqa: ASYNC110 - a thread sets no event of trio's
                await trio.sleep(0.001)

    async with owning() as owned:
        meta = ComesBackLate()
        await owned.end(await owned.spawn(meta, stop_timeout=1.0))
        await owned.until(meta.ended.is_set)
        await wait_all_tasks_blocked()

        assert "cannot send" in str(meta.errors[0])
        assert owned.heard == ["last word"]


async def test_the_file_of_a_reader_is_not_closed_before_the_reader_has_ended() -> None:
    ours, theirs = socket.socketpair()

    class Holds(Refuses):
        def hold_on(self) -> None:
            self.opened(ours)
            super().hold_on()

    with theirs:
        async with owning() as owned:
            meta = Holds()
            await owned.end(await owned.spawn(meta, stop_timeout=0.01))
            open_while_used = ours.fileno() >= 0
            meta.let_go.set()
            await owned.until(lambda: ours.fileno() == -1)

            assert open_while_used


async def test_a_node_stops_in_time_even_if_its_readers_do_not_end() -> None:
    metas = [Refuses() for _ in range(20)]
    began = time.perf_counter()
    async with owning(stop_timeout=0.2) as owned:
        for meta in metas:
            await owned.spawn(meta, stop_timeout=600.0)
        began = time.perf_counter()
    seconds = time.perf_counter() - began
    for meta in metas:
        meta.let_go.set()
        meta.ended.wait(20)

    report = owned.node.exit_report
    assert report is not None
    assert seconds < 60
    assert [one.behaviour for one in report.abandoned].count("Refuses") == 20
    # Even so each has its last word, once, though a busy machine may come to it later.
    with trio.fail_after(60):
        await owned.until(lambda: all(meta.last for meta in metas))
    assert all(len(meta.last) == 1 for meta in metas)


async def test_a_reader_task_that_swallows_its_cancellation_is_cut_off() -> None:
    class Swallows(InTask):
        async def start(self) -> None:
            self.notes.append("start")
            while True:
                try:
                    await trio.sleep(HELD)
                except trio.Cancelled:
                    self.notes.append("swallowed")

    async with owning() as owned:
        meta = Swallows()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        kept = keep_log(meta)
        with trio.fail_after(30):
            await owned.end(alias, "asked")

        assert "swallowed" in meta.notes
        assert meta.notes[-1] == ("terminate", Custom("asked"))
        assert len(kept.of("cut off")) == 1
        await wait_all_tasks_blocked()
        assert all(
            "Swallows" not in task.name for task in kernel_of(owned.node).nursery.child_tasks
        )


# -- handlers that will not end --------------------------------------------------------------------


async def test_a_callback_in_progress_may_finish_and_waiting_messages_are_not_begun() -> None:
    hold = trio.Event()

    async def stay(me: Any) -> None:
        await hold.wait()
        me.notes.append("finished")

    async with owning() as owned:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta)
        owned.node.send(alias, stay)
        await wait_all_tasks_blocked()
        owned.node.send(alias, "waits")
        owned.node.send_exit(alias, "asked")
        await owned.until(lambda: not meta.reading)
        refused = owned.node.send(alias, "too late")
        hold.set()
        await owned.until(lambda: owned.node.metas() == [])

        assert refused is False
        assert meta.notes[-2:] == ["finished", ("terminate", Custom("asked"))]
        assert [message for message, _ in meta.heard] == [stay]


async def test_an_async_handler_that_takes_too_long_is_cancelled() -> None:
    async def stay(me: Any) -> None:
        try:
            await trio.sleep(HELD)
        finally:
            me.notes.append("cancelled")

    async with owning() as owned:
        # Its reader is a task: a thread may not end in so short a time if the machine is busy.
        meta = InTask()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        owned.node.send(alias, stay)
        await wait_all_tasks_blocked()
        with trio.fail_after(30):
            await owned.end(alias, "asked")

        assert meta.notes[-2:] == ["cancelled", ("terminate", Custom("asked"))]


async def test_an_async_handler_that_swallows_its_cancellation_is_abandoned() -> None:
    async def swallow(_me: Any) -> None:
        while True:
            try:
                await trio.sleep(HELD)
            except trio.Cancelled:
                pass

    async with owning() as owned:
        meta = Unguarded()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        kept = keep_log(meta)
        owned.node.send(alias, swallow)
        await wait_all_tasks_blocked()
        with trio.fail_after(60):
            await owned.end(alias, "asked")

        assert meta.last == [Custom("asked")]
        assert kept.of("handler did not end")[0]["callback"] == "handle_message"
        await wait_all_tasks_blocked()
        assert all(
            "Unguarded" not in task.name for task in kernel_of(owned.node).nursery.child_tasks
        )


async def test_a_kill_gives_an_async_handler_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = trio.Event()

    async def swallow(_me: Any) -> None:
        begun.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(HELD)

    replace_private(monkeypatch, "grace of meta-processes", 0.05)
    async with owning() as owned:
        meta = Unguarded()
        alias = await owned.spawn(meta, stop_timeout=HELD)
        kept = keep_log(meta)
        owned.node.send(alias, swallow)
        await begun.wait()

        with trio.fail_after(HELD / 2):
            owned.node.kill(alias)
            await owned.ended(alias)

        assert meta.last == [Killed()]
        assert len(kept.of("handler did not end")) == 1


class Unguarded(Refuses):
    """Its handler runs the functions it gets, on the loop."""

    def start(self) -> None:
        self.pause(HELD)

    async def handle_message(self, message: Any, sender: Any) -> None:
        result = message(self)
        if isinstance(result, Awaitable):
            await result


class UnguardedInThread(Unguarded):
    """The same in a worker thread."""

    def handle_message(self, message: Any, sender: Any) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        message(self)


@pytest.mark.parametrize("end", ["exit", "kill"])
async def test_a_handler_thread_that_does_not_end_is_reported_and_abandoned(end: str) -> None:
    errors: list[BaseException] = []
    ours, theirs = socket.socketpair()

    def stick(me: Any) -> None:
        me.opened(ours)
        inside.set()
        me.let_go.wait(HELD)
        try:
            me.send(me.parent, "after all")
        except NotAllowedError as error:
            errors.append(error)

    class ReadsInTask(UnguardedInThread):
        """A reader thread may not end in so short a time if the machine is busy, and would count,
        too.
        """

        async def start(self) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            await trio.sleep(HELD)

    inside = threading.Event()
    with theirs:
        async with owning() as owned:
            meta = ReadsInTask()
            alias = await owned.spawn(meta, stop_timeout=0.05)
            kept = keep_log(meta)
            owned.node.send(alias, stick)
            await owned.until(inside.is_set)
            (owned.node.kill if end == "kill" else owned.node.send_exit)(alias)
            with trio.fail_after(60):
                await owned.ended(alias)
            still_open = ours.fileno() >= 0
            meta.let_go.set()
            await owned.until(lambda: len(errors) == 1)
            await owned.until(lambda: ours.fileno() == -1)

            assert still_open
            assert "in stick" in kept.of("handler did not end")[0]["exception"]
            assert len(meta.last) == 1
            assert owned.node.info().threads_abandoned == 1
            assert owned.heard == []


async def test_a_deferred_call_ends_even_if_a_later_callback_never_returns() -> None:
    go_on, inside, held = threading.Event(), threading.Event(), threading.Event()
    reasons: list[Reason] = []

    async def call() -> None:
        with pytest.raises(TargetDownError) as caught:
            await owned.node.call(alias, lambda _me, _caller: NO_REPLY, timeout=None)
        reasons.append(caught.value.reason)

    def stick(_me: Any) -> None:
        inside.set()
        held.wait(HELD)

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InTaskServedInThread()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        # All three in a single trip to the thread, which never ends.
        owned.node.send(alias, lambda _me: go_on.wait(HELD))
        nursery.start_soon(call)
        await owned.until(lambda: owned.node.meta_info(alias).lanes["main"] == 1)
        owned.node.send(alias, stick)
        go_on.set()
        await owned.until(inside.is_set)

        await owned.end(alias, "asked")
        await owned.until(lambda: len(reasons) == 1)
        held.set()

        assert reasons == [Custom("asked")]


async def test_a_handler_blocked_in_the_readers_file_is_freed() -> None:
    ours, theirs = socket.socketpair()

    class Duplex(UnguardedInThread):
        def start(self) -> None:
            self.opened(ours)
            began.wait(HELD)

    def pour(_me: Any) -> None:
        began.set()
        try:
            ours.sendall(b"x" * 50_000_000)
        except OSError as error:
            failed.append(error)

    began, failed = threading.Event(), list[OSError]()
    with theirs:
        async with owning() as owned:
            meta = Duplex()
            alias = await owned.spawn(meta, stop_timeout=HELD)
            inner, ending = meta_of(meta), meta_of(meta).ending
            owned.node.send(alias, pour)
            await owned.until(inner.reader.gone.is_set)
            await wait_all_tasks_blocked()
            # The reader has returned by itself, so the handler is first given its time, which is
            # over now.
            assert ending.step_limit is not None
            ending.step_limit.hurry(0.0)
            await owned.ended(alias)

            assert len(failed) == 1
            assert owned.node.info().threads_abandoned == 0


# -- kills -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_kill_ends_a_meta_process_and_terminate_still_runs(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)

        owned.node.kill(alias)

        assert await owned.ended(alias) == Killed()
        assert meta.notes[-1] == ("terminate", Killed())


async def test_a_kill_cancels_an_async_callback_at_once() -> None:
    async with owning() as owned:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, stop_timeout=HELD)
        owned.node.send(alias, lambda _me: trio.sleep(HELD))  # noqa: ASYNC105 - awaited by the handler
        await wait_all_tasks_blocked()

        owned.node.kill(alias)
        with trio.fail_after(30):
            await owned.ended(alias)

        assert meta.notes[-1] == ("terminate", Killed())


async def test_a_kill_during_a_graceful_end_hurries_it() -> None:
    async with owning() as owned:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, stop_timeout=HELD)
        owned.node.send(alias, lambda _me: trio.sleep(HELD))  # noqa: ASYNC105 - awaited by the handler
        await wait_all_tasks_blocked()
        owned.node.send_exit(alias, "asked")
        await owned.until(meta_of(meta).reader.gone.is_set)
        # Now the handler is given its time.
        await wait_all_tasks_blocked()

        owned.node.kill(alias)
        with trio.fail_after(30):
            reason = await owned.ended(alias)

        # The first reason counts.
        assert reason == Custom("asked")


async def test_a_second_kill_cuts_every_step_short() -> None:
    async with owning() as owned:
        meta = Refuses()
        alias = await owned.spawn(meta, stop_timeout=HELD)
        owned.node.kill(alias)
        await wait_all_tasks_blocked()

        owned.node.kill(alias)
        with trio.fail_after(30):
            await owned.ended(alias)
        meta.let_go.set()

        assert meta.last == [Killed()]


async def test_an_owner_that_is_killed_twice_ends_its_meta_processes() -> None:
    async with owning() as owned:
        meta = Refuses()
        await owned.spawn(meta, stop_timeout=HELD)
        owned.node.kill(owned.owner)
        await wait_all_tasks_blocked()
        owned.node.kill(owned.owner)
        with trio.fail_after(60):
            await owned.node.wait_ended(owned.owner)
        meta.let_go.set()

        assert len(meta.last) == 1
        assert owned.node.metas() == []


# -- terminate -------------------------------------------------------------------------------------


class Last(MetaProcess):
    """Runs a function as its ``terminate``, on the loop."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def start(self) -> None:
        self.pause(HELD)

    async def terminate(self, reason: Reason) -> None:
        result = self.function(self)
        if isinstance(result, Awaitable):
            await result


class LastInThread(Last):
    """The same in a worker thread."""

    def terminate(self, reason: Reason) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        self.function(self)


@pytest.mark.parametrize("kind", [Last, LastInThread])
async def test_a_terminate_that_raises_is_reported_and_keeps_the_reason(kind: type[Any]) -> None:
    def fail(_me: Any) -> None:
        raise Failed

    async with owning() as owned:
        meta = kind(fail)
        alias = await owned.spawn(meta)
        kept = keep_log(meta)

        assert await owned.end(alias, "asked") == Custom("asked")
        assert "Failed" in kept.of("terminate raised")[0]["exception"]


async def test_a_terminate_that_takes_too_long_is_cut_off() -> None:
    cancelled: list[bool] = []

    async def stay(_me: Any) -> None:
        try:
            await trio.sleep(HELD)
        finally:
            cancelled.append(True)

    async with owning() as owned:
        meta = Last(stay)
        alias = await owned.spawn(meta, stop_timeout=0.05)
        kept = keep_log(meta)
        with trio.fail_after(30):
            await owned.end(alias)

        assert cancelled == [True]
        assert len(kept.of("terminate was cut off")) == 1


async def test_a_terminate_that_waits_for_a_thread_still_has_its_full_time() -> None:
    class LastInThread(InThread):
        def terminate(self, reason: Reason) -> None:
            super().terminate(reason)
            # However long it takes, it is not yet over when the test looks.
            late.set()
            assert seen.wait(HELD)

    late, seen = threading.Event(), threading.Event()
    async with owning() as owned:
        workers, meta = kernel_of(owned.node).workers, LastInThread()
        alias = await owned.spawn(meta, stop_timeout=HELD)
        kept, ending = keep_log(meta), meta_of(meta).ending
        workers.total_tokens = 1
        await workers.acquire_on_behalf_of(owned)
        owned.node.send_exit(alias, "done")
        await owned.until(
            lambda: ending.phase is Phase.TERMINATING and ending.step_limit is not None
        )

        assert ending.step_limit is not None
        ending.step_limit.hurry(0.0)
        await owned.until(lambda: ending.step_limit is None)
        begun = late.is_set()
        workers.release_on_behalf_of(owned)
        await owned.until(lambda: late.is_set() and ending.step_limit is not None)
        seen.set()
        await owned.ended(alias)

        assert not begun
        assert meta.notes[-1] == ("terminate", Custom("done"))
        assert kept.lines == []
        assert owned.node.info().threads_abandoned == 0


async def test_a_terminate_that_swallows_its_cancellation_is_abandoned() -> None:
    async def swallow(_me: Any) -> None:
        while True:
            try:
                await trio.sleep(HELD)
            except trio.Cancelled:
                pass

    async with owning() as owned:
        meta = Last(swallow)
        alias = await owned.spawn(meta, stop_timeout=0.05)
        with trio.fail_after(30):
            await owned.end(alias)
        await wait_all_tasks_blocked()

        assert all("Last" not in task.name for task in kernel_of(owned.node).nursery.child_tasks)


async def test_an_abandoned_terminate_thread_keeps_the_opened_file_open_until_it_ends() -> None:
    held = threading.Event()
    ours, theirs = socket.socketpair()

    def stick(me: Any) -> None:
        held.wait(HELD)

    class Opens(LastInThread):
        def start(self) -> None:
            self.opened(ours)
            self.pause(HELD)

    with theirs:
        async with owning() as owned:
            meta = Opens(stick)
            alias = await owned.spawn(meta, stop_timeout=0.05)
            with trio.fail_after(30):
                await owned.end(alias)
            still_open = ours.fileno() >= 0
            held.set()
            await owned.until(lambda: ours.fileno() == -1)

            assert still_open


async def test_messages_sent_by_terminate_arrive() -> None:
    async with owning() as owned:
        for kind in (Last, LastInThread):
            meta = kind(lambda me: me.send(me.parent, "last word") and None)
            await owned.end(await owned.spawn(meta))
        await wait_all_tasks_blocked()

        assert owned.heard == ["last word"] * 2


async def test_an_exit_for_the_whole_program_in_terminate_is_passed_on() -> None:
    def leave(_me: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with owning() as owned:
            await owned.end(await owned.spawn(Last(leave)))
            await trio.sleep_forever()


async def test_any_other_exception_in_terminate_ends_only_its_meta_process() -> None:
    def fail(_me: Any) -> None:
        raise asyncio.CancelledError

    async with owning() as owned:
        await owned.end(await owned.spawn(Last(fail)))

        assert not owned.node.stopping


class InPassing(Last):
    """Has its last word without waiting, if its function says that it can."""

    def __init__(self, function: Any, notes: list[Any]) -> None:
        super().__init__(lambda _me: notes.append("terminate"))
        self.in_passing = function
        self.notes = notes

    def _end_in_passing(self, reason: Reason) -> bool:
        self.notes.append(reason)
        can: bool = self.in_passing()
        return can


@pytest.mark.parametrize("can", [False, True])
async def test_a_meta_process_that_can_end_without_waiting_skips_its_terminate(can: bool) -> None:
    notes: list[Any] = []
    async with owning() as owned:
        await owned.end(await owned.spawn(InPassing(lambda: can, notes)), "asked")

        assert notes == [Custom("asked")] + ([] if can else ["terminate"])


async def test_a_failure_while_ending_without_waiting_is_reported_as_terminate_raised() -> None:
    def fail() -> bool:
        raise Failed

    notes: list[Any] = []
    async with owning() as owned:
        meta = InPassing(fail, notes)
        alias = await owned.spawn(meta)
        kept = keep_log(meta)

        assert await owned.end(alias, "asked") == Custom("asked")
        assert "Failed" in kept.of("terminate raised")[0]["exception"]
        assert notes == [Custom("asked")]


# -- children --------------------------------------------------------------------------------------


async def test_a_childs_init_that_swallows_its_cancellation_does_not_delay_its_parent() -> None:
    class Stubborn(InThread):
        async def init(self) -> None:
            inside.set()
            while True:
                try:
                    await trio.sleep(HELD)
                except trio.Cancelled:
                    pass

    class Parent(InThread):
        def terminate(self, reason: Reason) -> None:
            # Not alone, since its reader was abandoned, which may be about to end, or not.
            self.notes.append(("terminate", reason))

    inside = threading.Event()
    async with owning() as owned:
        parent = Parent()
        alias = await owned.spawn(parent, stop_timeout=0.2)
        parent.give(lambda me: me.spawn(Stubborn(), stop_timeout=0.1, init_timeout=HELD))
        await owned.until(inside.is_set)

        with trio.fail_after(30):
            await owned.end(alias, "asked")

        assert owned.node.metas() == []
        # Its reader waited for the child and was left. Its last word is in a thread, beside a child
        # that never lets go of the loop.
        await owned.until(lambda: ("terminate", Custom("asked")) in parent.notes)
        assert parent.notes.count(("terminate", Custom("asked"))) == 1


def spawn_child(child: MetaProcess, me: MetaProcess) -> None:
    me.spawn(child)


async def test_children_end_before_terminate_and_last_started_first() -> None:
    notes: list[Any] = []

    class Named(InThread):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def terminate(self, reason: Reason) -> None:
            notes.append((self.name, reason))

    async with owning() as owned:
        parent = Named("parent")
        alias = await owned.spawn(parent)
        for name in ("first", "second"):
            child = Named(name)
            await owned.in_reader(parent, partial(spawn_child, child))
        children = owned.node.meta_info(alias).children
        await owned.end(alias, "asked")

        assert len(children) == 2
        assert notes == [(name, Custom("asked")) for name in ("second", "first", "parent")]
        assert owned.node.metas() == []


async def test_a_lingering_child_continues_with_the_owner_of_its_parent() -> None:
    async with owning() as owned:
        parent, child = InThread(), InThread()
        alias = await owned.spawn(parent)
        await owned.in_reader(parent, lambda me: me.spawn(child, linger=True))
        before = owned.node.meta_info(child.id).parent
        await owned.end(alias)
        info = owned.node.meta_info(child.id)
        owned.node.send_exit(owned.owner, "owner")
        await owned.node.wait_ended(owned.owner)

        assert (before, info.parent) == (alias, owned.owner)
        assert not info.stopping
        assert child.notes[-1] == ("terminate", Custom("owner"))


async def test_a_lingering_child_ends_with_the_owner_even_if_both_end_at_once() -> None:
    async with owning() as owned:
        parent, child = InThread(), InThread()
        await owned.spawn(parent)
        await owned.in_reader(parent, lambda me: me.spawn(child, linger=True))

        owned.node.send_exit(owned.owner, "owner")
        await owned.node.wait_ended(owned.owner)

        assert owned.node.metas() == []
        assert child.notes[-1][0] == parent.notes[-1][0] == "terminate"


async def test_a_kill_reaches_the_children() -> None:
    async with owning() as owned:
        parent, child = InThread(), InThreadServedOnLoop()
        alias = await owned.spawn(parent)
        await owned.in_reader(parent, lambda me: me.spawn(child, stop_timeout=HELD))
        owned.node.send(child.id, lambda _me: trio.sleep(HELD))  # noqa: ASYNC105 - awaited by the handler
        await wait_all_tasks_blocked()

        owned.node.kill(alias)
        with trio.fail_after(30):
            await owned.ended(alias)

        assert owned.node.metas() == []


# -- leaving the program ---------------------------------------------------------------------------


def run_program(body: str) -> "subprocess.CompletedProcess[str]":
    program = textwrap.dedent(
        """
        import sys, time, threading
        import trio
        from ergo_py import Actor, MetaProcess, open_node

        class Stuck(MetaProcess):
            kind = "stuck"
            def start(self):
                dig_in()
            def handle_message(self, message, sender):
                dig_in()

        def dig_in():
            LOCK.acquire()

        LOCK = threading.Lock()
        LOCK.acquire()

        class Owner(Actor):
            async def init(self):
                self.alias = await self.spawn_meta(Stuck(), stop_timeout=0.2)
        """
    ) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize("part", ["reader", "handler"])
async def test_a_thread_that_never_returns_keeps_neither_node_nor_interpreter(
    part: str,
) -> None:
    body = f"""
        async def main():
            async with open_node("stuck@localhost", log_output="json") as node:
                await node.spawn(Owner)
                if {part == "handler"}:
                    node.send(node.metas()[0], "dig")
                    await trio.sleep(0.1)
            print(len(node.exit_report.abandoned), "abandoned")

        trio.run(main)
        print("left")
    """
    done = await in_thread(lambda: run_program(body))

    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 abandoned\nleft\n"
    assert re.search(r"ergo-stuck-\d+", done.stderr)
    assert "in dig_in" in done.stderr
    assert "did not end and was abandoned" in done.stderr


async def test_a_program_with_a_failing_main_exits_despite_a_blocked_reader() -> None:
    body = """
        async def main():
            async with open_node("stuck@localhost", log_output="none") as node:
                await node.spawn(Owner)
                raise ValueError("main failed")

        trio.run(main)
    """
    done = await in_thread(lambda: run_program(body))

    assert done.returncode == 1
    assert "main failed" in done.stderr


# -- nothing of the loop's is touched --------------------------------------------------------------


async def test_two_nodes_in_the_same_program_are_independent() -> None:
    mine, theirs = InThread(), InThread()
    async with (
        owning() as first,
        open_node("other@localhost", watchdog=None, log_output="none") as other,
    ):
        owner = await other.spawn(Puppet)
        await first.spawn(mine)
        await Owned(other, owner, []).spawn(theirs)

        first.node.send_exit(first.owner)
        await first.node.wait_ended(first.owner)

        assert first.node.metas() == []
        assert other.metas() == [theirs.id]
    assert theirs.notes[-1] == ("terminate", Shutdown())


async def test_a_handler_that_returns_just_as_it_is_abandoned_is_no_straggler() -> None:
    gate = threading.Event()

    class JustInTime:
        """Stands in for the scope around the thread: the thread ends when it is given up."""

        def __init__(self, handler: Any) -> None:
            self.handler = handler

        def cancel(self) -> None:
            gate.set()
            deadline = time.monotonic() + HELD
            while self.handler.worker and time.monotonic() < deadline:
                time.sleep(0.001)

    async with owning() as owned:
        # Its reader is a task: a thread may not end in so short a time if the machine is busy, and
        # would be left as well.
        meta = InTaskServedInThread()
        alias = await owned.spawn(meta, stop_timeout=0.1)
        keep_log(meta)
        owned.node.send(alias, lambda _me: gate.wait(HELD) and None)
        await owned.until(lambda: meta.serving == 1)
        inner: Any = meta_of(meta).handler
        inner.worker_scope = JustInTime(inner)

        await owned.end(alias)

        assert owned.node.info().threads_abandoned == 0


async def test_a_handler_that_never_got_a_thread_is_no_straggler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Served(MetaProcess):
        # A thread may not end in so short a time if the machine is busy, and would be left as well.
        async def start(self) -> None:
            await trio.sleep_forever()

        def handle_message(self, message: Any, sender: Any) -> None:
            raise AssertionError("there is no thread for this")

    replace_private(monkeypatch, "grace of meta-processes", 0.05)
    ours, theirs = socket.socketpair()
    async with owning() as owned:
        workers, meta = kernel_of(owned.node).workers, Served()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        meta.opened(ours)
        workers.total_tokens = 1
        await workers.acquire_on_behalf_of(owned)
        owned.node.send(alias, "never served")
        await wait_all_tasks_blocked()

        await owned.end(alias, "asked")

        workers.release_on_behalf_of(owned)
        assert ours.fileno() == -1
        assert owned.node.info().threads_abandoned == 0
    theirs.close()


# -- needed: an owner that is nothing without it ---------------------------------------------------


class Essential(InTask):
    """Needed unless its spawn says otherwise, as servers are."""

    _needed = True


def crash(me: Any) -> None:
    raise Failed("on purpose")


FAILURES: dict[str, tuple[Callable[[Owned, Any], object], Reason]] = {
    "crashed": (lambda owned, meta: owned.node.send(meta.id, crash), Crashed(Failed("on purpose"))),
    "killed": (lambda owned, meta: owned.node.kill(meta.id), Killed()),
    "told to": (lambda owned, meta: owned.node.send_exit(meta.id, "broken"), Custom("broken")),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("by_class", [True, False])
async def test_an_owner_ends_with_the_failure_of_a_needed_meta_process(
    how: str, by_class: bool
) -> None:
    fail, reason = FAILURES[how]
    ends: list[Any] = []
    async with owning() as owned:
        meta = Essential() if by_class else InTask()
        owner = await owned.node.spawn(Witness, ends)
        await owned.node.call(
            owner, lambda me: me.spawn_meta(meta, **({} if by_class else {"needed": True}))
        )

        fail(owned, meta)
        await owned.node.wait_ended(owner)

    assert ends == [reason]


@pytest.mark.parametrize("how", FAILURES)
async def test_an_owner_survives_the_failure_of_a_meta_process_it_does_not_need(how: str) -> None:
    fail, _ = FAILURES[how]
    async with owning() as owned:
        meta = Essential()
        alias = await owned.spawn(meta, needed=False)

        fail(owned, meta)
        await owned.ended(alias)

        assert await owned.node.call(owned.owner, lambda me: "alive") == "alive"


@pytest.mark.parametrize("reason", [Normal(), Shutdown()])
async def test_a_needed_meta_process_may_end_normally(reason: Reason) -> None:
    async with owning() as owned:
        meta = Essential()
        alias = await owned.spawn(meta)

        owned.node.send_exit(alias, reason)
        await owned.ended(alias)

        assert await owned.node.call(owned.owner, lambda me: "alive") == "alive"


@pytest.mark.parametrize("linked", [True, False])
async def test_an_owner_that_traps_exits_gets_the_failure_once(linked: bool) -> None:
    async with running_node() as node:
        meta = Essential()
        owner = await node.spawn(Puppet)

        async def prepare(me: Any) -> None:
            me.trap_exit = True
            alias = await me.spawn_meta(meta)
            if linked:
                me.link(alias)

        await node.call(owner, prepare)
        node.kill(meta.id)
        await meta_of(meta).wait_gone()

        assert await node.call(owner, "what?") == [Exit(meta.id, Killed())]


async def test_a_meta_process_ends_with_a_child_that_it_needs() -> None:
    async with owning() as owned:
        parent, child = InTask(), Essential()
        alias = await owned.spawn(parent)
        await owned.in_handler(parent, lambda me: me.spawn_meta(child))

        owned.node.send_exit(child.id, "broken")

        assert await owned.ended(alias) == Custom("broken")


async def test_only_the_spawner_gets_the_error_of_an_init_that_fails() -> None:
    class Broken(Essential):
        async def init(self) -> None:
            raise Failed("on purpose")

    async with owning() as owned:
        with pytest.raises(TargetDownError) as caught:
            await owned.node.call(owned.owner, lambda me: me.spawn_meta(Broken()))

        # The owner did not catch it; it was not told anything besides.
        assert isinstance(caught.value.reason, Crashed)
        assert isinstance(caught.value.reason.error, InitError)


# -- accepted messages -----------------------------------------------------------------------------


async def hold(seconds: float, _: Any) -> None:
    """A callback that takes some seconds."""
    await trio.sleep(seconds)


async def held(owned: Owned, meta: Any, count: int = 3) -> threading.Event:
    """Give a meta-process messages that wait behind a callback, until the event is set."""
    let_go, begun = threading.Event(), threading.Event()

    def hold(_: Any) -> Any:
        begun.set()
        return until_set() if isinstance(meta, InThreadServedOnLoop | InTask) else let_go.wait(HELD)

    async def until_set() -> None:
        await owned.until(let_go.is_set)

    owned.node.send(meta.id, hold)
    for number in range(count):
        owned.node.send(meta.id, number)
    await owned.until(begun.is_set)
    return let_go


def unhandled_ints(owned: Owned) -> int:
    return sum(
        letter.message_type == "int" and letter.why is Why.UNHANDLED_AT_EXIT
        for letter in owned.node.dead_letters()
    )


def numbers_of(meta: Any) -> list[int]:
    return [message for message, _ in meta.heard if isinstance(message, int)]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("drain", [0.0, 30.0])
async def test_accepted_messages_are_handled_before_an_orderly_end_if_they_are_drained(
    colour: type[Any], drain: float
) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta, drain=drain)
        let_go = await held(owned, meta)

        owned.node.send_exit(alias, "asked")
        await owned.until(lambda: meta_of(meta).reason is not None)
        late = owned.node.send(alias, 99)
        let_go.set()
        reason = await owned.ended(alias)

        assert (reason, late) == (Custom("asked"), False)
        assert numbers_of(meta) == ([0, 1, 2] if drain else [])
        assert meta.notes[-1] == ("terminate", reason)
        assert unhandled_ints(owned) == (0 if drain else 3)


@pytest.mark.parametrize("way", ["returns", "stops itself", "owner crashes", "owner stops"])
async def test_every_orderly_end_drains_the_accepted_messages(way: str) -> None:
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta, drain=30.0)
        let_go = await held(owned, meta)

        match way:
            case "returns":
                meta.give(None)
            case "stops itself":
                meta.give(lambda me: me.stop())
            case "owner stops":
                owned.node.send_exit(owned.owner, Shutdown())
            case "owner crashes":
                owned.node.send(owned.owner, lambda _: 1 / 0)
        await owned.until(lambda: meta_of(meta).reason is not None)
        let_go.set()
        await owned.ended(alias)

        assert numbers_of(meta) == [0, 1, 2]


@pytest.mark.parametrize("way", ["kill", "crash of start", "crash of a message"])
async def test_a_kill_or_a_crash_drains_nothing(way: str) -> None:
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta, drain=30.0)
        let_go = await held(owned, meta)

        match way:
            case "kill":
                owned.node.kill(alias)
            case "crash of start":
                meta.give(lambda _: 1 / 0)
            case "crash of a message":
                owned.node.send(alias, lambda _: 1 / 0, priority=Priority.HIGH)
                owned.node.send_exit(alias, "asked")
        await owned.until(lambda: meta_of(meta).reason is not None)
        let_go.set()
        await owned.ended(alias)

        assert numbers_of(meta) == []
        assert unhandled_ints(owned) == 3


async def test_messages_that_are_not_drained_in_time_are_dead_letters(
    autojump_clock: MockClock,
) -> None:
    async with owning(limit=10_000) as owned:
        meta = InTask()
        alias = await owned.spawn(meta, drain=10.0, stop_timeout=2.0)
        for _ in range(5):
            owned.node.send(alias, partial(hold, 4.0))
        await wait_all_tasks_blocked()
        began = trio.current_time()

        await owned.end(alias, "asked")

        assert len(meta.heard) == 3
        # The message in progress has the time of a step, and a moment to end when it is cancelled.
        assert 11.9 <= trio.current_time() - began <= 12.6


async def test_a_kill_ends_the_draining(autojump_clock: MockClock) -> None:
    async with owning(limit=10_000) as owned:
        meta = InTask()
        alias = await owned.spawn(meta, drain=100.0)
        for number in range(3):
            owned.node.send(alias, partial(hold, 50.0))
            owned.node.send(alias, number)
        await wait_all_tasks_blocked()
        began = trio.current_time()

        owned.node.send_exit(alias, "asked")
        await trio.sleep(1.0)
        owned.node.kill(alias)
        await owned.ended(alias)

        assert numbers_of(meta) == []
        assert trio.current_time() - began < 3.0


async def test_messages_that_no_handler_has_begun_are_drained() -> None:
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta, drain=30.0)
        # No other task runs in between: the task of the handler is not there yet.
        owned.node.send(alias, 1)
        owned.node.send_exit(alias, "asked")
        await owned.ended(alias)
        idle = InTask()
        await owned.end(await owned.spawn(idle, drain=30.0))

        assert numbers_of(meta) == [1]
        assert numbers_of(idle) == []


async def test_a_reader_learns_of_the_stop_before_the_messages_are_drained() -> None:
    async with owning() as owned:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, drain=30.0)
        let_go = await held(owned, meta)

        owned.node.send_exit(alias, "asked")
        stopping = threading.Event()

        def look(me: Any) -> None:
            while not me.stopping:
                time.sleep(0.001)
            stopping.set()

        meta.give(look)
        await owned.until(stopping.is_set)
        assert meta.reading
        assert numbers_of(meta) == []
        let_go.set()
        await owned.ended(alias)

        assert numbers_of(meta) == [0, 1, 2]
