"""The life of a meta-process: however thread and loop meet, it ends once, in order, and leaves
nothing.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    Actor,
    Alias,
    Caller,
    Crashed,
    Custom,
    Down,
    Exit,
    InitError,
    MetaProcess,
    NoProcess,
    Normal,
    Overflow,
    Priority,
    Reason,
    SpawnError,
    TargetDownError,
    Why,
)
from ergo_py._core.vocabulary.errors import TooManyReadersError
from ergo_py.errors import InitTimeoutError
from tests._core.metas.metas import (
    COLOURS,
    InTask,
    InThread,
    InThreadServedOnLoop,
    Watching,
    in_thread,
    owning,
)
from tests._core.metas.opened import InitialisedOnLoop, assert_nothing_is_left, fail, spawn_and_fail
from tests.actors import Failed, Puppet
from tests.support import THOROUGH, needs_proc

# -- birth -----------------------------------------------------------------------------------------


class Initialised(InThread):
    """Runs a function as its ``init``, in a worker thread."""

    def __init__(self, function: Callable[[Any], Any], notes: list[Any] | None = None) -> None:
        super().__init__(notes)
        self.function = function

    def init(self) -> None:
        self.function(self)


INITS: list[type[Any]] = [Initialised, InitialisedOnLoop]


async def nap(seconds: float) -> None:
    await trio.sleep(seconds)


@pytest.mark.parametrize("kind", INITS)
async def test_spawn_meta_returns_when_init_is_done_and_the_reader_begins_after_it(
    kind: type[Any],
) -> None:
    meta = kind(lambda me: me.notes.append("init"))
    async with owning() as owned:
        alias = await owned.spawn(meta)
        initialised = list(meta.notes)
        await owned.until(lambda: "start" in meta.notes)

        assert alias == meta.id
        assert initialised[0] == "init"
        assert meta.notes == ["init", "start"]


@pytest.mark.parametrize("kind", INITS)
async def test_an_init_that_raises_leaves_no_meta_process_and_its_error_is_the_cause(
    kind: type[Any],
) -> None:
    meta = kind(partial(fail, "no"))
    async with owning() as owned:
        error = await spawn_and_fail(owned, meta, InitError)

        assert isinstance(error.__cause__, Failed)
        assert meta.notes == []
        assert_nothing_is_left(owned)


@pytest.mark.parametrize("kind", INITS)
async def test_an_init_that_takes_too_long_leaves_no_meta_process(kind: type[Any]) -> None:
    held = threading.Event()
    meta = kind(lambda me: held.wait(20) if kind is Initialised else nap(20))
    async with owning() as owned:
        await spawn_and_fail(owned, meta, InitTimeoutError, init_timeout=0.02)
        held.set()

        assert meta.notes == []
        assert_nothing_is_left(owned)


async def test_an_init_that_swallows_its_timeout_has_failed() -> None:
    async def swallow() -> None:
        try:
            await trio.sleep(20)
        except trio.Cancelled:
            pass

    async with owning() as owned:
        await spawn_and_fail(
            owned, InitialisedOnLoop(lambda _: swallow()), InitTimeoutError, init_timeout=0.02
        )

        assert_nothing_is_left(owned)


@pytest.mark.parametrize("kind", INITS)
async def test_children_and_files_of_a_failing_init_end_with_it(kind: type[Any]) -> None:
    child = InThread()
    read, write = os.pipe()
    file = os.fdopen(read, "rb")

    def spawn_then_fail(me: Any) -> Any:
        me.opened(file)
        if kind is Initialised:
            me.spawn(child)
            raise Failed
        return spawn_on_loop(me)

    async def spawn_on_loop(me: Any) -> None:
        await me.spawn_meta(child)
        raise Failed

    async with owning() as owned:
        await spawn_and_fail(owned, kind(spawn_then_fail), InitError)

        assert child.notes[-1][0] == "terminate"
        assert file.closed
        assert_nothing_is_left(owned)
    os.close(write)


async def test_messages_for_a_meta_process_in_its_init_are_served_after_it() -> None:
    meta = InitialisedOnLoop(lambda me: me.send(me.id, "early") and None)
    async with owning() as owned:
        await owned.spawn(meta)
        await owned.until(lambda: meta.heard == [("early", meta.id)])


async def test_no_message_is_served_before_init_is_done() -> None:
    async def send_and_wait(me: Any) -> None:
        me.send(me.id, "early")
        await wait_all_tasks_blocked()
        served.extend(me.heard)

    served: list[Any] = []
    async with owning() as owned:
        meta = InitialisedOnLoop(send_and_wait)
        await owned.spawn(meta)
        await owned.until(lambda: meta.heard == [("early", meta.id)])

        assert served == []


async def test_a_sender_that_waits_for_room_during_a_failing_init_is_freed() -> None:
    async def wait_and_fail(me: Any) -> None:
        me.send(me.id, "early")
        nursery.start_soon(send, me.id)
        await wait_all_tasks_blocked()
        waited.append(not sent)
        raise Failed

    async def send(alias: Alias) -> None:
        sent.append(await owned.node.send_wait(alias, "finds no room"))

    waited, sent = list[bool](), list[bool]()
    async with owning() as owned, trio.open_nursery() as nursery:
        await spawn_and_fail(
            owned,
            InitialisedOnLoop(wait_and_fail),
            InitError,
            mailbox_size=1,
            overflow=Overflow.WAIT,
        )
        await owned.until(lambda: bool(sent))

        assert (waited, sent) == ([True], [False])


async def test_closing_its_open_file_frees_an_init_abandoned_in_its_thread() -> None:
    ours, theirs = socket.socketpair()
    freed = threading.Event()

    def block(me: Any) -> None:
        me.opened(ours)
        ours.recv(1)
        freed.set()

    with ours, theirs:
        async with owning() as owned:
            await spawn_and_fail(owned, Initialised(block), InitTimeoutError, init_timeout=0.05)

            await owned.until(freed.is_set)
            await owned.until(lambda: ours.fileno() == -1)


async def test_messages_to_a_meta_process_with_a_failing_init_are_dead_letters() -> None:
    async def send_then_fail(me: Any) -> None:
        me.send(me.id, "early")
        raise Failed

    async with owning() as owned:
        await spawn_and_fail(owned, InitialisedOnLoop(send_then_fail), InitError)

        assert [letter.message_type for letter in owned.node.dead_letters()] == ["str"]
        assert owned.node.info().dead_letters[Why.UNHANDLED_AT_EXIT] == 1


@pytest.mark.parametrize("kind", INITS)
@pytest.mark.parametrize("end", ["stop", "kill", "exit"])
async def test_a_meta_process_that_is_ended_during_its_init_never_starts(
    kind: type[Any], end: str
) -> None:
    inside, released = threading.Event(), threading.Event()

    def stay(me: Any) -> Any:
        inside.set()
        if kind is Initialised:
            released.wait(20)
            return None
        return nap(20)

    meta = kind(stay)
    async with owning() as owned, trio.open_nursery() as nursery:

        async def end_it() -> None:
            await owned.until(inside.is_set)
            if end == "stop":
                meta.stop("enough")
            elif end == "kill":
                owned.node.kill(meta.id)
            else:
                owned.node.send_exit(meta.id, "enough")

        nursery.start_soon(end_it)
        with trio.fail_after(30):
            error = await spawn_and_fail(owned, meta, SpawnError)
        released.set()

        assert "was stopped during its init" in str(error)
        assert meta.notes == []
        assert_nothing_is_left(owned)


async def test_an_owner_that_is_killed_during_an_init_leaves_no_meta_process() -> None:
    inside = trio.Event()

    async def stay() -> None:
        inside.set()
        await trio.sleep_forever()

    meta = InitialisedOnLoop(lambda _: stay())
    async with owning() as owned, trio.open_nursery() as nursery:

        async def spawn() -> None:
            with pytest.raises(TargetDownError):
                await owned.spawn(meta)

        nursery.start_soon(spawn)
        await inside.wait()
        owned.node.kill(owned.owner)
        await owned.node.wait_ended(owned.owner)

        assert owned.node.metas() == []
        assert meta.notes == []


async def test_a_thread_the_system_cannot_start_is_an_error_and_leaves_no_meta_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with owning() as owned:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_more)
            error = await spawn_and_fail(owned, InThread(), SpawnError)

        assert "no thread" in str(error)
        assert_nothing_is_left(owned)


async def test_an_owner_that_spawns_many_lets_other_tasks_run() -> None:
    ran = trio.Event()

    async def run() -> None:
        ran.set()

    async def spawn_until_others_run(owner: Puppet) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            for number in range(1000):
                if ran.is_set():
                    return number
                await owner.spawn_meta(InTask())
        return 1000

    async with owning() as owned:
        spawned = await owned.ask_owner(spawn_until_others_run)

        assert spawned <= 100


# -- threads ---------------------------------------------------------------------------------------


async def test_the_limit_of_reader_threads_is_an_error_and_leaves_no_partial_meta_process() -> None:
    async with owning(max_reader_threads=2) as owned:
        first, second = InThread(), InThread()
        await owned.spawn(first)
        await owned.spawn(second)

        error = await spawn_and_fail(owned, InThread(), TooManyReadersError)
        await owned.spawn(InTask())
        await owned.end(first.id)
        await owned.spawn(InThread())

        assert "2" in str(error)
        assert owned.node.info().reader_threads == 2
        assert owned.node.info().max_reader_threads == 2


async def test_concurrent_spawns_do_not_share_the_last_place() -> None:
    async with owning(max_reader_threads=1) as owned:
        outcomes: list[str] = []

        async def spawn_both(owner: Puppet) -> None:
            async def spawn_one() -> None:
                try:
                    await owner.spawn_meta(InitialisedOnLoop(lambda _: nap(0.01)))
                    outcomes.append("spawned")
                except TooManyReadersError:
                    outcomes.append("refused")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(spawn_one)
                nursery.start_soon(spawn_one)

        await owned.ask_owner(spawn_both)

        assert sorted(outcomes) == ["refused", "spawned"]


@dataclass(frozen=True)
class Frozen(MetaProcess):
    """Nothing can be assigned to it."""

    seconds: float

    def start(self) -> None:
        self.pause(self.seconds)


class Unassignable(Frozen):
    """Not even by force."""

    @property
    def _meta(self) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleVariableOverride]
        return None


async def test_a_class_may_be_frozen() -> None:
    async with owning() as owned:
        alias = await owned.spawn(Frozen(1000.0))

        reason = await owned.end(alias, "enough")

        assert reason == Custom("enough")


async def test_a_spawn_that_fails_takes_no_place() -> None:
    async with owning(max_reader_threads=1) as owned:
        await spawn_and_fail(owned, Unassignable(1000.0), AttributeError)

        assert owned.node.info().reader_threads == 0
        await owned.spawn(Frozen(1000.0))


def name_in_system(thread: int | None) -> str:
    return Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").strip()


@needs_proc
async def test_the_system_shows_the_kind_and_the_number_of_a_reader() -> None:
    class Short(InThread):
        kind = "tick"

    class AnExtremelyLongNameOfAClass(InThread):
        pass

    async with owning() as owned:
        metas = [Short(), AnExtremelyLongNameOfAClass()]
        for meta in metas:
            await owned.spawn(meta)
            await owned.until(lambda meta=meta: "start" in meta.notes)  # type: ignore[misc]
        infos = [owned.node.meta_info(meta.id) for meta in metas]

        shown = [name_in_system(info.thread_id) for info in infos]
        assert infos[0].thread == f"ergo-tick-{metas[0].id.number}" == shown[0]
        assert infos[1].thread == f"ergo-anextremelylongnameofaclass-{metas[1].id.number}"
        assert shown[1].startswith("ergo-anextrem")
        assert shown[1].endswith(f"-{metas[1].id.number}")


async def test_threads_of_meta_processes_do_not_use_tokens_of_the_default_limiter() -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    inside, released = threading.Barrier(51), threading.Event()

    def block(_me: Any) -> None:
        inside.wait(20)
        released.wait(20)

    async with owning() as owned:
        metas = [InThread() for _ in range(50)]
        for meta in metas:
            await owned.spawn(meta)
            owned.node.send(meta.id, block)
        await in_thread(lambda: inside.wait(20))

        # Fifty readers and fifty plain handlers block, and none of them uses a token of the
        # limiter, which has forty.
        assert limiter.borrowed_tokens == 0
        await trio.to_thread.run_sync(time.sleep, 0)
        released.set()


@pytest.mark.no_cover
async def test_many_blocked_readers_delay_neither_files_nor_names_nor_programs() -> None:
    # The limiter of threads, which none of them may use, has forty tokens.
    count = 2_000 if THOROUGH else 100
    # Had each of them to be waited for it would take hours; a busy machine needs a minute to start
    # and to end them all.
    async with owning(limit=500) as owned:
        metas = [InThread() for _ in range(count)]

        async def spawn_all(owner: Puppet) -> None:
            for meta in metas:
                await owner.spawn_meta(meta)

        await owned.node.call(owned.owner, spawn_all, timeout=400)
        await owned.until(lambda: owned.node.info().reader_threads == count)

        with trio.fail_after(60):
            async with await trio.open_file(__file__) as file:
                assert await file.readline()
            assert await trio.socket.getaddrinfo("localhost", 80)
            done = await trio.run_process(["true"])
        owned.node.send_exit(owned.owner)
        await owned.node.wait_ended(owned.owner)

        assert done.returncode == 0
        assert all(meta.notes[-1][0] == "terminate" for meta in metas)
    assert owned.readers() == []


# -- reasons ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_start_that_returns_is_a_normal_end(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        meta.give(None)

        assert await owned.ended(meta.id) == Normal()


@pytest.mark.parametrize("colour", COLOURS)
async def test_start_that_raises_is_a_crash_with_its_traceback(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        meta.give(partial(fail, "in start"))
        reason = await owned.ended(meta.id)

        assert reason == Crashed(Failed("in start"))
        assert isinstance(reason, Crashed)
        assert "in fail" in reason.traceback
        assert owned.node.info().crashed == 1


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_handler_that_raises_is_a_crash_and_its_caller_learns_at_once(
    colour: type[Any],
) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        with pytest.raises(TargetDownError) as caught:
            await owned.in_handler(meta, partial(fail, "in handler"))
        await owned.until(lambda: owned.node.metas() == [])

        assert caught.value.reason == Crashed(Failed("in handler"))
        assert meta.notes[-1] == ("terminate", Crashed(Failed("in handler")))


@pytest.mark.parametrize("colour", COLOURS)
async def test_the_end_of_the_owner_ends_the_meta_process_with_the_same_reason(
    colour: type[Any],
) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        owned.node.send_exit(owned.owner, "tired")
        await owned.node.wait_ended(owned.owner)

        assert meta.notes[-1] == ("terminate", Custom("tired"))
        assert owned.node.metas() == []


async def test_a_reader_that_fails_because_it_was_asked_to_end_has_not_crashed() -> None:
    class FailsInThread(InThread):
        def start(self) -> None:
            super().start()
            raise Failed("late")

    class FailsInTask(InTask):
        async def start(self) -> None:
            try:
                await super().start()
            finally:
                raise Failed("late")

    async with owning() as owned:
        for meta in (FailsInThread(), FailsInTask()):
            await owned.spawn(meta)

            assert await owned.end(meta.id, "asked") == Custom("asked")
        assert owned.node.info().crashed == 0


async def test_a_plain_start_that_returns_a_coroutine_suggests_async_def() -> None:
    class Forgot(MetaProcess):
        def start(self) -> Any:
            return nap(0)

    class ForgotInHandler(InThread):
        def handle_message(self, message: Any, sender: Any) -> Any:
            return nap(0)

    async with owning() as owned:
        for meta in (Forgot(), ForgotInHandler()):
            watched: list[Any] = []
            alias = await owned.spawn(meta)
            await owned.node.spawn(Watching, watched, alias)
            owned.node.send(alias, "hello")
            await owned.until(lambda watched=watched: bool(watched))  # type: ignore[misc]
            reason = watched[0][1]

            # A monitor that came after the end gets NoProcess.
            if not isinstance(reason, NoProcess):
                assert isinstance(reason, Crashed)
                assert "write `async def" in str(reason)


@pytest.mark.parametrize("colour", [InTask, InThreadServedOnLoop])
async def test_an_error_meant_for_the_program_is_passed_on_to_it(colour: type[Any]) -> None:
    def interrupt(_me: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with owning() as owned:
            meta = colour()
            await owned.spawn(meta)
            if colour is InTask:
                meta.give(interrupt)
            else:
                owned.node.send(meta.id, interrupt)
            await trio.sleep_forever()


# -- others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_links_monitors_and_the_owner_are_notified_after_terminate(colour: type[Any]) -> None:
    told: list[Any] = []

    class Owner(Actor):
        async def init(self) -> None:
            self.trap_exit = True
            self.alias = await self.spawn_meta(meta)
            self.link(self.alias)
            self.monitor(self.alias)

        def handle_message(self, message: Any, sender: Any) -> None:
            told.append((message, list(meta.notes)))

        def handle_child_exit(self, child: Any, reason: Reason) -> None:
            told.append(((child, reason), list(meta.notes)))

    meta = colour()
    async with owning() as owned:
        await owned.node.spawn(Owner)
        owned.node.send_exit(meta.id, "asked")
        await owned.until(lambda: len(told) == 3)

        reason = Custom("asked")
        assert {message for message, _ in told} == {
            Exit(meta.id, reason),
            Down(meta.id, reason),
            (meta.id, reason),
        }
        assert all(notes[-1] == ("terminate", reason) for _, notes in told)


async def test_a_monitor_of_a_meta_process_that_has_ended_gets_down_at_once() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)
        await owned.end(meta.id)
        notes: list[Any] = []
        await owned.node.spawn(Watching, notes, meta.id)
        await owned.until(lambda: bool(notes))

        assert notes == [("down", NoProcess())]


@pytest.mark.parametrize("colour", COLOURS)
async def test_calls_and_messages_to_an_alias_are_served_in_order(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        await owned.spawn(meta)

        for number in range(200):
            owned.node.send(meta.id, number)
        heard = await owned.node.call(meta.id, "what?", timeout=20)

        assert heard == [(number, owned.node.pid) for number in range(200)]


async def test_priorities_overtake_and_an_inspect_overtakes_every_message() -> None:
    order: list[Any] = []
    hold = trio.Event()

    class Ordered(InThreadServedOnLoop):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "hold":
                await hold.wait()
            order.append(message)

        def handle_inspect(self, *items: str) -> dict[str, str]:
            order.append("inspect")
            return {}

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = Ordered()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "hold")
        await wait_all_tasks_blocked()
        owned.node.send(alias, "normal")
        owned.node.send(alias, "max", priority=Priority.MAX)
        owned.node.send(alias, "high", priority=Priority.HIGH)
        # From a thread, too, where a bounded receiver promises room by lane.
        await in_thread(lambda: owned.node.send(alias, "late max", priority=Priority.MAX))
        nursery.start_soon(owned.node.inspect_meta, alias)
        await wait_all_tasks_blocked()
        lanes = owned.node.meta_info(alias).lanes
        hold.set()
        await owned.until(lambda: len(order) == 6)

        assert lanes == {"system": 4, "main": 1}
        assert order == ["hold", "inspect", "max", "high", "late max", "normal"]


async def test_calls_and_messages_queued_at_the_end_are_answered_and_accounted_for() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThreadServedOnLoop()
        alias = await owned.spawn(meta, stop_timeout=0.05)
        errors: list[BaseException] = []

        async def call(request: Any) -> None:
            with pytest.raises(TargetDownError) as caught:
                await owned.node.call(alias, request, timeout=None)
            errors.append(caught.value)

        async def stay(_me: Any, _caller: Caller) -> None:
            await trio.sleep_forever()

        nursery.start_soon(call, stay)
        await wait_all_tasks_blocked()
        nursery.start_soon(call, "queued")
        await wait_all_tasks_blocked()
        owned.node.send(alias, "left")
        await owned.end(alias, "asked")
        await owned.until(lambda: len(errors) == 2)

        assert {error.reason for error in errors if isinstance(error, TargetDownError)} == {
            Custom("asked")
        }
        assert owned.node.info().dead_letters[Why.UNHANDLED_AT_EXIT] == 1


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_deferred_call_ends_with_the_meta_process_that_deferred_it(
    colour: type[Any],
) -> None:
    callers: list[Caller] = []

    def defer(_me: Any, caller: Caller) -> object:
        callers.append(caller)
        return NO_REPLY

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = colour()
        alias = await owned.spawn(meta)
        results: list[Any] = []

        async def call() -> None:
            try:
                results.append(await owned.node.call(alias, defer, timeout=None))
            except TargetDownError as error:
                results.append(error.reason)

        nursery.start_soon(call)
        await owned.until(lambda: len(callers) == 1)
        await owned.in_handler(meta, lambda me: me.reply(callers[0], "late"))
        await owned.until(lambda: len(results) == 1)
        nursery.start_soon(call)
        await owned.until(lambda: len(callers) == 2)
        await owned.end(alias, "asked")
        await owned.until(lambda: len(results) == 2)

        assert results == ["late", Custom("asked")]
