"""Meta-processes that fail in their spawn, are killed, crash or are abandoned, and the resources
they had opened.
"""

import threading
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Caller,
    Crashed,
    Custom,
    InitError,
    Killed,
    MetaProcess,
    Overflow,
    Reason,
    Shutdown,
    SpawnError,
    TargetDownError,
)
from ergo_py._core.metas.handler import Handler
from ergo_py._core.metas.spawn import spawn_meta
from ergo_py._core.runtime.detached_task import DetachedTask
from ergo_py._core.vocabulary.options import MetaOptions
from tests._core.metas.metas import (
    InTask,
    InThread,
    InThreadServedOnLoop,
    Owned,
    owning,
)
from tests._core.metas.opened import (
    Closed,
    InitialisedOnLoop,
    assert_nothing_is_left,
    fail,
    spawn_and_fail,
)
from tests._core.metas.test_termination import keep_log
from tests.actors import Failed
from tests.meta.support import meta_of
from tests.support import kernel_of, replace_private

# -- undone ----------------------------------------------------------------------------------------


class EndsLate(InTask):
    """Does not end before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = trio.Event()
        self.may_end = trio.Event()

    async def terminate(self, reason: Reason) -> None:
        self.ending.set()
        await self.may_end.wait()
        await super().terminate(reason)


async def test_a_meta_process_with_a_failed_init_refuses_messages_while_its_children_end() -> None:
    async def spawn_then_fail(me: Any) -> None:
        await me.spawn_meta(child)
        raise Failed("in init")

    errors: list[InitError] = []
    async with owning() as owned, trio.open_nursery() as nursery:
        meta, child = InitialisedOnLoop(spawn_then_fail), EndsLate()

        async def spawn() -> None:
            errors.append(await spawn_and_fail(owned, meta, InitError))

        nursery.start_soon(spawn)
        await child.ending.wait()
        sent, stopping = owned.node.send(meta.id, "late"), meta.stopping
        child.may_end.set()
        await owned.until(lambda: bool(errors))

        assert (sent, stopping) == (False, True)
        assert child.notes[-1] == ("terminate", Crashed(Failed("in init")))
        assert "in spawn_then_fail" in errors[0].__notes__[0]
        crash = owned.node.crashes()[0]
        assert (crash.pid, crash.reason, crash.callback) == (
            meta.id,
            Crashed(Failed("in init")),
            "init",
        )
        assert_nothing_is_left(owned)


async def test_an_owner_killed_during_an_init_waits_for_the_children_of_that_init(
    autojump_clock: MockClock,
) -> None:
    async def spawn_and_stay(me: Any) -> None:
        await me.spawn_meta(child)
        inside.set()
        await trio.sleep_forever()

    inside = trio.Event()
    async with owning() as owned, trio.open_nursery() as nursery:
        meta, child = InitialisedOnLoop(spawn_and_stay), EndsLate()

        async def spawn() -> None:
            with pytest.raises(TargetDownError):
                await owned.spawn(meta)

        nursery.start_soon(spawn)
        await inside.wait()
        owned.node.kill(owned.owner)
        await child.ending.wait()
        await wait_all_tasks_blocked()
        waits = meta.id in owned.node.metas()
        child.may_end.set()
        await owned.node.wait_ended(owned.owner)

        assert waits
        assert child.notes[-1] == ("terminate", Shutdown())
        assert meta_of(meta).reason == Shutdown()
        assert owned.node.metas() == []
    assert owned.node.exit_report is not None
    assert owned.node.exit_report.abandoned == ()


# -- kills -----------------------------------------------------------------------------------------


class LastWord(InTask):
    """Needs some time for its last word."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.speaks = trio.Event()

    async def terminate(self, reason: Reason) -> None:
        self.speaks.set()
        await trio.sleep(self.seconds)
        await super().terminate(reason)


@pytest.mark.parametrize(
    "before, meanwhile, seconds, is_said",
    [
        (1, 0, 1.0, True),
        (0, 1, 1.0, True),
        (2, 0, 1.0, False),
        (1, 1, 1.0, False),
        (0, 2, 1.0, False),
        (2, 0, 0.04, True),
        (1, 1, 0.04, True),
    ],
)
async def test_only_a_second_kill_cuts_terminate_short(
    before: int, meanwhile: int, seconds: float, is_said: bool, autojump_clock: MockClock
) -> None:
    async with owning() as owned:
        meta = LastWord(seconds)
        alias = await owned.spawn(meta, stop_timeout=5.0)
        for _ in range(before):
            owned.node.kill(alias)
        owned.node.send_exit(alias, "asked")

        await meta.speaks.wait()
        for _ in range(meanwhile):
            owned.node.kill(alias)
        reason = await owned.ended(alias)

        assert reason == (Killed() if before else Custom("asked"))
        assert (meta.notes[-1] == ("terminate", reason)) is is_said


async def test_a_kill_does_not_extend_the_time_limit(autojump_clock: MockClock) -> None:
    async with owning() as owned:
        meta = LastWord(0.03)
        alias = await owned.spawn(meta, stop_timeout=0.01)
        owned.node.kill(alias)

        await meta.speaks.wait()
        owned.node.kill(alias)
        await owned.ended(alias)

        assert meta.notes[-1] == "start"


# -- crashes ---------------------------------------------------------------------------------------


async def test_a_crash_is_logged_with_its_callback_and_message_type() -> None:
    async with owning() as owned:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta)
        kept = keep_log(meta)

        owned.node.send(alias, partial(fail, "on purpose"))
        owned.node.send(alias, "waits")
        await owned.ended(alias)

        (line,) = kept.of("meta-process crashed")
        assert (line["callback"], line["message_type"]) == ("handle_message", "partial")
        assert (line["waiting"], line["error"]) == (1, str(Crashed(Failed("on purpose"))))
        assert "in fail" in line["exception"]
        (crash,) = owned.node.crashes()
        assert (crash.callback, crash.message_type) == ("handle_message", "partial")


async def test_a_reader_that_fails_does_not_fail_the_handlers_call_in_progress() -> None:
    async def stay(_me: Any, _caller: Caller) -> str:
        await hold.wait()
        return "served"

    hold = trio.Event()
    answers: list[str] = []
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta)
        kept = keep_log(meta)

        async def call() -> None:
            answers.append(await owned.node.call(alias, stay, timeout=None))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        meta.give(partial(fail, "on purpose"))
        await owned.until(lambda: meta_of(meta).reason is not None)
        hold.set()
        await owned.ended(alias)

        assert answers == ["served"]
        (line,) = kept.of("meta-process crashed")
        assert line["callback"] == "start"
        assert "message_type" not in line
        (crash,) = owned.node.crashes()
        assert (crash.callback, crash.message_type) == ("start", None)


# -- shut, and left behind -------------------------------------------------------------------------


async def test_a_sender_that_waits_for_room_is_refused_at_once_when_the_receiver_ends() -> None:
    hold = trio.Event()
    sent: list[bool] = []
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InTask()
        alias = await owned.spawn(meta, mailbox_size=1, overflow=Overflow.WAIT)
        owned.node.send(alias, lambda _me: hold.wait())
        await wait_all_tasks_blocked()
        owned.node.send(alias, "waits")

        async def send() -> None:
            sent.append(await owned.node.send_wait(alias, "finds no room"))

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        before = list(sent)
        owned.node.send_exit(alias, "asked")
        await wait_all_tasks_blocked()
        told = list(sent)
        hold.set()
        await owned.ended(alias)

        assert (before, told) == ([], [False])


class InitEndsLate(InTask):
    """Needs some time after its ``init`` was cut off."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.inside = trio.Event()

    async def init(self) -> None:
        self.inside.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.end_init()

    async def end_init(self) -> None:
        await trio.sleep(self.seconds)


class InitHasTasks(InitEndsLate):
    """Waits for tasks of its own meanwhile: it cannot be cut off."""

    async def end_init(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, self.seconds)


def spawn_in_detached_task(owned: Owned, parent: Any, meta: Any, errors: list[str]) -> DetachedTask:
    """Spawn a meta-process as a reader's thread does, where no task waits for it."""

    async def spawn() -> None:
        try:
            await spawn_meta(meta_of(parent), meta, MetaOptions(stop_timeout=5.0), detached)
        except SpawnError as error:
            errors.append(str(error))

    detached = DetachedTask()
    detached.start(kernel_of(owned.node), spawn, "spawn")
    return detached


@pytest.mark.parametrize(
    "kind, seconds, is_left",
    [(InitEndsLate, 1.0, False), (InitEndsLate, 60.0, True), (InitHasTasks, 60.0, True)],
)
async def test_an_init_that_is_cut_off_has_its_time_to_end_and_no_more(
    kind: type[InitEndsLate], seconds: float, is_left: bool, autojump_clock: MockClock
) -> None:
    async with owning(limit=300.0) as owned:
        parent, meta, errors = InTask(), kind(seconds), list[str]()
        await owned.spawn(parent)
        detached = spawn_in_detached_task(owned, parent, meta, errors)
        await meta.inside.wait()
        kept, began = keep_log(meta), trio.current_time()

        await meta_of(meta).shut(Custom("asked"))

        assert meta_of(meta).reason == Custom("asked")
        assert trio.current_time() - began == pytest.approx(5.0 if is_left else 1.0)
        assert errors == (
            [] if is_left else [f"{kind.__name__} was stopped during its init: asked"]
        )
        assert kept.of("abandoned") == ([{"callback": "init"}] if is_left else [])
        assert owned.node.metas() == [parent.id]
        assert owned.node.meta_info(parent.id).children == ()
        await detached.gone.wait()
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == (
        [meta.id] if is_left else []
    )


async def test_an_abandoned_meta_process_ends_its_children_even_after_cancellation(
    autojump_clock: MockClock,
) -> None:
    class Spawns(InitEndsLate):
        async def init(self) -> None:
            await self.spawn_meta(child)
            await super().init()

    async with owning(limit=300.0) as owned:
        parent, meta, child = InTask(), Spawns(60.0), InTask()
        await owned.spawn(parent)
        detached = spawn_in_detached_task(owned, parent, meta, [])
        await meta.inside.wait()
        meta_of(meta).finish(Custom("asked"))
        await wait_all_tasks_blocked()

        with trio.CancelScope() as nobody_waits:
            nobody_waits.cancel()
            await meta_of(meta).abandon()

        assert meta_of(meta).ending.gone.is_set()
        assert child.notes[-1] == ("terminate", Custom("asked"))
        assert owned.node.metas() == [parent.id]
        await detached.gone.wait()


async def test_a_meta_process_abandoned_in_terminate_closes_its_files(
    autojump_clock: MockClock,
) -> None:
    async with owning(limit=300.0) as owned:
        meta, opened = EndsLate(), Closed()
        alias = await owned.spawn(meta, stop_timeout=60.0)
        inner, kept = meta_of(meta), keep_log(meta)
        meta.opened(opened, unblock=lambda: None)
        owned.node.send_exit(alias, "asked")
        await meta.ending.wait()
        began = trio.current_time()

        await inner.abandon()

        assert trio.current_time() - began == pytest.approx(2.0)
        assert (opened.closed, inner.uses_resources()) == (True, False)
        assert inner.ending.gone.is_set()
        assert kept.of("abandoned") == [{"callback": "terminate"}]
        assert owned.node.metas() == []
    assert owned.node.exit_report is not None
    assert [ended.pid for ended in owned.node.exit_report.abandoned] == [alias]


async def test_a_message_between_the_last_step_of_a_handler_and_its_end_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Handler.serve

    async def serve_and_send(inner: Any, task: Any) -> None:
        await original(inner, task)
        if len(meta.heard) == 1:
            # As a handler of signals may do it.
            owned.node.send(inner.meta.id, "second")

    replace_private(monkeypatch, "serving of meta-processes", serve_and_send)
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "first")
        await wait_all_tasks_blocked()

        meta_of(meta).handler.retire()
        await wait_all_tasks_blocked()

        assert [message for message, _ in meta.heard] == ["first", "second"]
        await owned.end(alias)


async def test_a_meta_process_never_has_its_messages_appended_or_its_calls_served_directly() -> (
    None
):
    async with owning() as owned:
        meta = InTask()
        await owned.spawn(meta)
        inner = meta_of(meta)

        assert not any((inner.takes_direct, inner.takes_bounded, inner.inline))


# -- opened resources ------------------------------------------------------------------------------


async def test_an_opened_file_stays_open_until_terminate_has_run() -> None:
    class Looks(InThread):
        def terminate(self, reason: Reason) -> None:
            seen.append(opened.closed)

    seen: list[bool] = []
    async with owning() as owned:
        meta, opened = Looks(), Closed()
        alias = await owned.spawn(meta)
        meta.opened(opened, unblock=lambda: None)

        meta.give(None)
        await owned.ended(alias)

        assert (seen, opened.closed) == ([False], True)


class Stuck(MetaProcess):
    """Both of its threads stay until they are let go."""

    def __init__(self) -> None:
        self.in_reader, self.in_handler = threading.Event(), threading.Event()
        self.reader_may_go, self.handler_may_go = threading.Event(), threading.Event()

    def start(self) -> None:
        self.in_reader.set()
        self.reader_may_go.wait(30)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.in_handler.set()
        self.handler_may_go.wait(30)


async def leave_both(owned: Owned, meta: Stuck, opened: Closed) -> None:
    """Have both threads left behind."""
    alias = await owned.spawn(meta, stop_timeout=0.05)
    meta.opened(opened, unblock=lambda: None)
    owned.node.send(alias, "stick")
    await owned.until(lambda: meta.in_reader.is_set() and meta.in_handler.is_set())
    await owned.end(alias)


@pytest.mark.parametrize("first", ["reader", "handler"])
async def test_the_last_abandoned_thread_closes_the_opened_file(first: str) -> None:
    async with owning() as owned:
        meta, opened = Stuck(), Closed()
        await leave_both(owned, meta, opened)
        gates = {"reader": meta.reader_may_go, "handler": meta.handler_may_go}
        reader, handler = meta_of(meta).reader, meta_of(meta).handler
        has_gone = {
            "reader": lambda: not reader.uses_resources(),
            "handler": lambda: not handler.abandoned_threads,
        }

        gates.pop(first).set()
        await owned.until(has_gone[first])
        # By now the loop has been told.
        await owned.node.call(owned.owner, "anything", timeout=20)
        between = opened.closed
        for gate in gates.values():
            gate.set()
        await owned.until(lambda: opened.closed)

        assert not between


async def test_a_worker_that_outlives_the_node_closes_the_opened_file() -> None:
    async with owning() as owned:
        meta, opened = Stuck(), Closed()
        await leave_both(owned, meta, opened)
        meta.reader_may_go.set()
        await owned.until(lambda: not meta_of(meta).reader.uses_resources())
    before = opened.closed

    meta.handler_may_go.set()
    with trio.fail_after(30):
        await owned.until(lambda: opened.closed)

    assert not before
