"""How a handler serves: every message once and in order, each callback where its colour says, and
no sender forgotten.
"""

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Caller,
    CallTimeoutError,
    Crashed,
    Down,
    MetaProcess,
    Overflow,
    Priority,
    Reject,
    TargetDownError,
    Why,
)
from ergo_py._core.messaging.observer import Delivered
from ergo_py._core.vocabulary.envelopes import FENCE, Lane
from ergo_py._core.vocabulary.states import MetaState
from ergo_py.errors import UnhandledCallError
from tests._core.metas.metas import (
    COLOURS,
    InTask,
    InThread,
    InThreadServedOnLoop,
    Owned,
    in_thread,
    owning,
)
from tests.actors import Failed, Puppet, Recorder
from tests.meta.support import meta_of, replace_logger
from tests.support import THOROUGH, router_of

PATIENCE = 20.0
"""Seconds after which something is lost. Only a failing test takes that long."""


# -- colours ---------------------------------------------------------------------------------------


class Where(MetaProcess):
    """Notes the thread in which each of its callbacks runs."""

    def __init__(self) -> None:
        self.threads: dict[str, int] = {}

    def note(self, name: str) -> None:
        self.threads[name] = threading.get_ident()

    def start(self) -> None:
        self.note("start")
        self.pause(60)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.note("handle_inspect")
        return {}


class Plain(Where):
    def init(self) -> None:
        self.note("init")

    def handle_message(self, message: Any, sender: Any) -> None:
        self.note("handle_message")
        self.request("nobody", "anything")

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.note("handle_call")
        return None

    def handle_response(self, response: object) -> None:
        self.note("handle_response")

    def terminate(self, reason: object) -> None:
        self.note("terminate")


class Coloured(Where):
    async def init(self) -> None:
        self.note("init")

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.note("handle_message")
        self.request("nobody", "anything")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.note("handle_call")
        return None

    async def handle_response(self, response: object) -> None:
        self.note("handle_response")

    async def terminate(self, reason: object) -> None:
        self.note("terminate")


class Mixed(Where):
    init, handle_message, handle_response = Plain.init, Plain.handle_message, Plain.handle_response
    handle_call, terminate = Coloured.handle_call, Coloured.terminate


CALLBACKS = {"init", "handle_message", "handle_call", "handle_response", "terminate"}


@pytest.mark.parametrize(
    "kind, on_loop", [(Plain, set()), (Coloured, CALLBACKS), (Mixed, {"handle_call", "terminate"})]
)
async def test_the_colour_of_a_callback_decides_where_it_runs(
    kind: type[Where], on_loop: set[str]
) -> None:
    async with owning() as owned:
        meta = kind()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "message")
        await owned.node.call(alias, "request")
        await owned.node.inspect_meta(alias)
        await owned.until(lambda: "handle_response" in meta.threads)
        await owned.end(alias)

    loop, reader = threading.get_ident(), meta.threads["start"]
    assert meta.threads.keys() == CALLBACKS | {"start", "handle_inspect"}
    assert {name for name, thread in meta.threads.items() if thread == loop} == on_loop | {
        "handle_inspect"
    }
    # The reader's thread is its own.
    assert [name for name, thread in meta.threads.items() if thread == reader] == ["start"]


async def test_a_start_that_is_a_task_runs_on_the_loop() -> None:
    threads: list[int] = []
    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        await owned.in_reader(meta, lambda _me: threads.append(threading.get_ident()))

        assert threads == [threading.get_ident()]
        assert owned.node.meta_info(alias).reader == "task"
        assert owned.node.meta_info(alias).thread is None
        assert owned.node.info().reader_threads == 0


async def test_the_reader_continues_while_a_plain_callback_blocks() -> None:
    held, inside = threading.Event(), threading.Event()
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)

        def block(_me: Any) -> None:
            inside.set()
            held.wait(PATIENCE)

        owned.node.send(alias, block)
        await owned.until(inside.is_set)
        await owned.in_reader(meta, lambda me: me.send(me.parent, "read"))
        await owned.until(lambda: owned.heard == ["read"])
        state = owned.node.meta_info(alias).state
        held.set()

        assert state is MetaState.RUNNING


# -- bursts ----------------------------------------------------------------------------------------


async def test_a_burst_of_plain_callbacks_takes_a_single_hop() -> None:
    threads: list[int] = []
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta)
        hops = count_hops(meta)
        for _ in range(64):
            owned.node.send(alias, lambda _me: threads.append(threading.get_ident()))
        await owned.until(lambda: len(threads) == 64)

        assert len(set(threads)) == 1
        assert len(hops) == 1


def count_hops(meta: Any) -> list[float]:
    """Have every hop to a worker thread noted."""
    hops: list[float] = []
    watch: Callable[[], None] = meta_of(meta).kernel.thread_fairness.watch

    def counted() -> None:
        hops.append(time.perf_counter())
        watch()

    meta_of(meta).kernel.thread_fairness.watch = counted  # type: ignore[method-assign]
    return hops


@pytest.mark.parametrize("colour", COLOURS)
async def test_no_message_of_many_bursts_is_lost_or_served_twice(colour: type[Any]) -> None:
    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)

        for number in range(1000):
            owned.node.send(alias, number)
        await owned.until(lambda: len(meta.heard) >= 1000)

        assert [message for message, _ in meta.heard] == list(range(1000))
        assert owned.node.meta_info(alias).messages_in == 1000


async def test_callbacks_of_both_colours_take_turns_in_the_order_of_the_messages() -> None:
    order: list[str] = []

    class Both(InThread):
        def handle_message(self, message: Any, sender: Any) -> None:
            order.append(message)

        async def handle_call(self, request: Any, caller: Caller) -> object:
            order.append(request)
            return None

    async with owning() as owned, trio.open_nursery() as nursery:
        alias = await owned.spawn(Both())
        for number in range(50):
            owned.node.send(alias, f"message {number}")
            nursery.start_soon(owned.node.call, alias, f"call {number}")
            await wait_all_tasks_blocked()
        await owned.until(lambda: len(order) == 100)

        assert order == [f"{what} {number}" for number in range(50) for what in ("message", "call")]


async def test_an_inspect_is_answered_between_two_messages_of_a_burst() -> None:
    gate = threading.Semaphore(0)
    served: list[int] = []

    def serve(number: int, _me: Any) -> None:
        gate.acquire(timeout=PATIENCE)
        served.append(number)

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThread()
        alias = await owned.spawn(meta)
        for number in range(20):
            owned.node.send(alias, partial(serve, number))
        await owned.until(lambda: meta.serving == 1)
        told: list[int] = []

        async def inspect() -> None:
            await owned.node.inspect_meta(alias)
            told.append(len(served))

        nursery.start_soon(inspect)
        await wait_all_tasks_blocked()
        gate.release()
        # The second message has to wait, so this comes to an end only if the inspect does not.
        await owned.until(lambda: bool(told))
        for _ in range(19):
            gate.release()
        await owned.until(lambda: len(served) == 20)

        assert told == [1]


async def test_senders_that_wait_for_room_are_admitted_during_a_burst() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThread()
        alias = await owned.spawn(meta, mailbox_size=2, overflow=Overflow.WAIT)
        hops = count_hops(meta)

        async def send(number: int) -> None:
            await owned.node.send_wait(alias, number)

        for number in range(200):
            nursery.start_soon(send, number)
        await owned.until(lambda: len(meta.heard) == 200)

        assert sorted(message for message, _ in meta.heard) == list(range(200))
        # Not a hop for each of them.
        assert len(hops) < 200


async def test_a_full_mailbox_applies_the_overflow_rule_of_its_owner() -> None:
    held, inside = threading.Event(), threading.Event()

    def block(_me: Any) -> None:
        inside.set()
        held.wait(PATIENCE)

    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta, mailbox_size=2, overflow=Overflow.DROP_OLDEST)
        owned.node.send(alias, block)
        await owned.until(inside.is_set)
        for number in range(10):
            owned.node.send(alias, number)
        held.set()
        await owned.until(lambda: len(meta.heard) == 3)

        assert [message for message, _ in meta.heard[1:]] == [8, 9]
        assert owned.node.meta_info(alias).dropped == 8
        assert owned.node.info().dead_letters == {Why.DISPLACED: 8}


async def test_dropping_the_oldest_while_a_thread_takes_messages_loses_no_count(
    switching_fast: None,
) -> None:
    async with owning() as owned:
        meta = InThread()
        alias = await owned.spawn(meta, mailbox_size=1, overflow=Overflow.DROP_OLDEST)

        for number in range(4_000):
            owned.node.send(alias, number)
            if not number % 50:
                await trio.lowlevel.checkpoint()
        await owned.until(lambda: bool(meta.heard) and meta.heard[-1][0] == 3_999)

        heard = [message for message, _ in meta.heard]
        dropped = owned.node.info().dead_letters.get(Why.DISPLACED, 0)
        assert heard == sorted(set(heard))
        assert len(heard) + dropped == 4_000


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_call_is_answered_refused_or_deferred(colour: type[Any]) -> None:
    deferred: list[Caller] = []

    def refuse(_me: Any, _caller: Caller) -> object:
        raise Reject(Failed("no"))

    def defer(_me: Any, caller: Caller) -> object:
        deferred.append(caller)
        return NO_REPLY

    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)
        answer = await owned.node.call(alias, lambda _me, _caller: 42)
        nothing = await owned.node.call(alias, lambda _me, _caller: None)
        with pytest.raises(Failed, match="no"):
            await owned.node.call(alias, refuse)
        with pytest.raises(CallTimeoutError):
            await owned.node.call(alias, defer, timeout=0.01)
        late = await owned.in_handler(meta, lambda me: me.reply(deferred[0], "late"))
        await wait_all_tasks_blocked()

        assert (answer, nothing, late) == (42, None, False)
        assert owned.node.info().late_replies == 1
        assert await owned.node.call(alias, "still there?") == []


async def test_an_unhandled_request_is_refused_and_an_unhandled_message_is_logged() -> None:
    class Silent(MetaProcess):
        def start(self) -> None:
            self.pause(60)

    class Log:
        def warning(self, text: str, **fields: str) -> None:
            lines.append((text, fields))

    lines: list[tuple[str, dict[str, str]]] = []
    async with owning() as owned:
        meta = Silent()
        alias = await owned.spawn(meta)
        replace_logger(meta, Log())
        owned.node.send(alias, "hello")
        with pytest.raises(UnhandledCallError):
            await owned.node.call(alias, "anybody?")

        assert lines == [
            ("unhandled message", {"message_type": "str", "sender": str(owned.node.pid)})
        ]


async def test_a_message_a_worker_sent_before_it_failed_arrives_before_its_down() -> None:
    def send_then_fail(watcher: PID, me: Any) -> None:
        me.send(watcher, "last", priority=Priority.HIGH)
        raise Failed

    async def crash_watched(owned: Owned) -> list[Any]:
        heard: list[Any] = []
        watcher = await owned.node.spawn(Puppet, heard)
        alias = await owned.spawn(InThread())
        await owned.node.call(watcher, lambda me: me.monitor(alias))
        owned.node.send(alias, partial(send_then_fail, watcher))
        await owned.until(lambda: len(heard) == 2)
        return heard

    async with owning() as owned:
        for _ in range(20):
            heard = await crash_watched(owned)

            # Both in the same lane.
            assert heard[0] == "last"
            assert isinstance(heard[1], Down)


async def test_a_callback_may_wait_and_inspects_are_answered_meanwhile() -> None:
    hold = True

    class Waits(InThreadServedOnLoop):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await meta_of(self).handler.wait_in_callback(lambda: hold)
            self.heard.append((message, sender))

    async with owning() as owned:
        meta = Waits()
        alias = await owned.spawn(meta)
        owned.node.send(alias, "first")
        await wait_all_tasks_blocked()
        told = [await owned.node.inspect_meta(alias) for _ in range(3)]
        owned.node.send(alias, "second")
        await wait_all_tasks_blocked()
        before = list(meta.heard)
        hold = False
        meta_of(meta).wake()
        await owned.until(lambda: len(meta.heard) == 2)

        assert told == [{"heard": "0"}] * 3
        assert before == []


async def test_a_callback_that_waits_is_freed_by_the_end() -> None:
    class Waits(InThreadServedOnLoop):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            await meta_of(self).handler.wait_in_callback(lambda: True)
            return "freed"

    async with owning() as owned, trio.open_nursery() as nursery:
        meta = Waits()
        alias = await owned.spawn(meta, stop_timeout=60)
        answers: list[Any] = []

        async def call() -> None:
            try:
                answers.append(await owned.node.call(alias, "anything"))
            except TargetDownError:
                answers.append("down")

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        with trio.fail_after(30):
            await owned.end(alias)
        await owned.until(lambda: bool(answers))

        assert answers == ["freed"]


# -- no wake-up is lost ----------------------------------------------------------------------------


class Acknowledges(Actor):
    """Acknowledges each message by a function that comes with it."""

    def handle_message(self, message: tuple[int, int, Callable[[], None]], sender: Any) -> None:
        _, _, acknowledge = message
        acknowledge()


class AcknowledgesInThread(InThread):
    def handle_message(self, message: Any, sender: Any) -> None:
        message[2]()


class AcknowledgesOnLoop(InThreadServedOnLoop):
    async def handle_message(self, message: Any, sender: Any) -> None:
        message[2]()


def drip(send: Callable[[Any], object], thread: int, count: int, gap: float) -> int:
    """Send messages, each when the last was acknowledged; returns how many got through.

    In a flood, the next wake-up would hide a missing wake-up. Here every message depends on its
    own.
    """
    choose = random.Random(thread)
    for number in range(count):
        acknowledged = threading.Event()
        send((thread, number, acknowledged.set))
        if not acknowledged.wait(PATIENCE):
            return number
        # Gaps of every length around the time of falling asleep, now and then a gap in which a
        # handler could retire.
        time.sleep(choose.random() * gap)
    return count


RECEIVERS: dict[str, Any] = {
    "a process": None,
    "a thread's handler": AcknowledgesInThread,
    "a task": AcknowledgesOnLoop,
}


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.no_cover
async def test_every_single_message_wakes_its_receiver(receiver: str, switching_fast: None) -> None:
    count, threads = (100_000, 4) if THOROUGH else (500, 4)
    async with owning(limit=3000 if THOROUGH else 60) as owned:
        if RECEIVERS[receiver] is None:
            target: PID | Alias = await owned.node.spawn(Acknowledges)
        else:
            meta = RECEIVERS[receiver]()
            target = await owned.spawn(meta)
        send = partial(owned.node.send, target)
        got: list[int] = []

        async def drip_in_thread(thread: int) -> None:
            got.append(await in_thread(partial(drip, send, thread, count, 0.0002)))

        async with trio.open_nursery() as nursery:
            for thread in range(threads):
                nursery.start_soon(drip_in_thread, thread)

        assert got == [count] * threads


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.no_cover
async def test_every_single_message_of_a_reader_wakes_its_receiver(
    receiver: str, switching_fast: None
) -> None:
    count = 100_000 if THOROUGH else 500
    async with owning(limit=3000 if THOROUGH else 60) as owned:
        if RECEIVERS[receiver] is None:
            target: PID | Alias = await owned.node.spawn(Acknowledges)
        else:
            target = await owned.spawn(RECEIVERS[receiver]())
        readers = [InThread() for _ in range(3)]
        got: list[int] = []

        async def drip_in_reader(number: int, reader: Any) -> None:
            got.append(
                await owned.in_reader(
                    reader, lambda me: drip(partial(me.send, target), number, count, 0.0002)
                )
            )

        async with trio.open_nursery() as nursery:
            for number, reader in enumerate(readers):
                # At most a single message may be ahead, so that the waiting is tried as well.
                await owned.spawn(reader, backlog=1)
                nursery.start_soon(drip_in_reader, number, reader)

        assert got == [count] * 3


@pytest.mark.parametrize("colour", [None, *COLOURS])
@pytest.mark.no_cover
async def test_a_flood_loses_no_message_repeats_no_message_and_keeps_each_senders_order(
    colour: type[Any] | None, switching_fast: None
) -> None:
    count = 400_000 if THOROUGH else 1_500
    heard: list[Any] = []
    async with owning(limit=3000 if THOROUGH else 60) as owned:
        if colour is None:
            target: PID | Alias = await owned.node.spawn(Recorder, heard)
        else:
            meta = colour()
            meta.heard = heard
            target = await owned.spawn(meta)
        readers = [InThread() for _ in range(2)]
        for number, reader in enumerate(readers):
            await owned.spawn(reader, backlog=7)
            reader.give(partial(flood, target, f"reader {number}", count))

        def flood_from_outside(name: str) -> None:
            for number in range(count):
                owned.node.send(target, (name, number))

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(in_thread, partial(flood_from_outside, f"thread {number}"))
        await owned.until(lambda: len(heard) >= 4 * count)
        await wait_all_tasks_blocked()

    by_sender = defaultdict[str, list[int]](list)
    for one in heard:
        name, number = one if colour is None else one[0]
        by_sender[name].append(number)
    assert len(by_sender) == 4
    assert all(numbers == list(range(count)) for numbers in by_sender.values())


def flood(target: PID | Alias, name: str, count: int, me: MetaProcess) -> None:
    for number in range(count):
        me.send(target, (name, number))


# -- in passing ------------------------------------------------------------------------------------


class Passing(InTask):
    """Serves words in the turn of their sender, and leaves all else to its handler."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[Any] = []

    def _serve_in_passing(self, message: Any, sender: Any) -> bool:
        if message == "fail":
            raise Failed
        if isinstance(message, str):
            self.passed.append((message, sender))
        return isinstance(message, str)


async def test_simple_messages_run_in_the_senders_turn_and_others_in_the_handlers() -> None:
    async with owning() as owned:
        meta = Passing()
        alias = await owned.spawn(meta)

        sent = [
            owned.node.send(alias, "one"),
            owned.node.send(alias, 2),
            owned.node.send(alias, "three"),
        ]
        passed = list(meta.passed)
        await owned.until(lambda: len(meta.heard) == 2)

        assert sent == [True] * 3
        assert passed == meta.passed == [("one", owned.node.pid)]
        # The third came while something waited, and does not overtake it.
        assert [message for message, _ in meta.heard] == [2, "three"]
        assert owned.node.meta_info(alias).messages_in == 3


async def test_a_threads_message_is_not_served_in_its_thread() -> None:
    async with owning() as owned:
        meta = Passing()
        alias = await owned.spawn(meta)

        await in_thread(lambda: owned.node.send(alias, "from a thread"))
        await owned.until(lambda: len(meta.passed) + len(meta.heard) == 1)

        assert meta.passed == [("from a thread", owned.node.pid)]


async def test_an_error_while_serving_in_passing_ends_the_meta_process_and_not_the_sender() -> None:
    async with owning() as owned:
        alias = await owned.spawn(Passing())

        sent = owned.node.send(alias, "fail")
        reason = await owned.ended(alias)

        assert sent is True
        assert isinstance(reason, Crashed)
        assert owned.node.send(alias, "late") is False
        (crash,) = owned.node.crashes()
        assert (crash.pid, crash.callback, crash.message_type) == (alias, "handle_message", "str")


async def test_a_message_after_the_decision_to_end_is_not_served_in_passing() -> None:
    async with owning() as owned:
        meta = Passing()
        alias = await owned.spawn(meta)

        owned.node.send_exit(alias, "asked")
        sent = owned.node.send(alias, "late")
        await owned.ended(alias)

        assert sent is False
        assert meta.passed == meta.heard == []


async def test_an_observer_sees_messages_that_would_have_been_served_in_passing() -> None:
    seen: list[Any] = []
    async with owning(observer=seen.append) as owned:
        meta = Passing()
        alias = await owned.spawn(meta)

        owned.node.send(alias, "word")
        await owned.until(lambda: len(meta.heard) == 1)

        assert meta.passed == []
        assert Delivered(alias, owned.node.pid, "word") in seen


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_fence_is_passed_when_all_messages_before_it_were_served(colour: type[Any]) -> None:
    served: list[list[Any]] = []

    class Fence:
        """A waiter for the moment in which a receiver has come so far."""

        def settle(self, value: object, error: object) -> None:
            assert (value, error) == (None, None)
            served.append([message for message, _ in meta.heard])

    async with owning() as owned:
        meta = colour()
        alias = await owned.spawn(meta)
        for number in range(3):
            owned.node.send(alias, number)
        router_of(owned.node).signal(
            meta_of(meta), Lane.MAIN, (FENCE, owned.node.pid, Fence(), None)
        )
        owned.node.send(alias, "behind it")
        await owned.until(lambda: len(meta.heard) == 4)

        assert served == [[0, 1, 2]]


async def test_a_handler_that_finds_no_message_admits_waiting_senders() -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThread()
        alias = await owned.spawn(meta, mailbox_size=1, overflow=Overflow.WAIT)
        box = meta_of(meta).mailbox
        box.limit = -1  # as if its places were promised to others
        nursery.start_soon(owned.ask_owner, lambda owner: owner.send_wait(alias, "let in"))
        await wait_all_tasks_blocked()
        waits = bool(box.waiters)

        box.limit = 1
        meta_of(meta).wake()
        await owned.until(lambda: len(meta.heard) == 1)

        assert waits
        assert meta.heard == [("let in", owned.owner)]


class Lingers(InTask):
    """Takes its time to end."""

    def __init__(self, gate: trio.Event) -> None:
        super().__init__()
        self.gate = gate

    async def handle_call(self, request: Any, caller: Any) -> object:
        raise Failed

    async def terminate(self, reason: Any) -> None:
        await self.gate.wait()


async def test_a_caller_gets_the_failure_of_its_call_before_the_end() -> None:
    gate = trio.Event()
    async with owning() as owned:
        alias = await owned.spawn(Lingers(gate))

        with trio.fail_after(20), pytest.raises(TargetDownError):
            await owned.node.call(alias, "fail", timeout=None)

        assert alias in owned.node.metas()
        gate.set()
        await owned.ended(alias)


@pytest.mark.parametrize("colour", COLOURS)
async def test_the_last_message_is_no_longer_in_progress_in_terminate(
    colour: type[Any],
) -> None:
    seen: list[Any] = []

    class Looks(colour):  # type: ignore[misc]
        def last(self, reason: Any) -> None:
            super().last(reason)
            seen.append(owned.node.meta_info(self.id))

    async with owning() as owned:
        meta = Looks()
        alias = await owned.spawn(meta)
        # The end comes before the handler has had a look for more, and found nothing.
        owned.node.send(alias, lambda me: me.stop())
        await owned.ended(alias)

        assert [(info.callback, info.message_type) for info in seen] == [("terminate", None)]


# -- inspection of a sleeping meta-process ---------------------------------------------------------


class Inspected(InTask):
    """Notes the task of each inspection, and then does as it is told."""

    def __init__(self, act: Callable[[Any], Any] = lambda _me: None) -> None:
        super().__init__()
        self.act = act
        self.tasks: list[Any] = []

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.tasks.append(trio.lowlevel.current_task())
        self.act(self)
        return super().handle_inspect(*items)


@pytest.mark.parametrize("inline", [True, False])
async def test_a_sleeping_meta_process_is_inspected_by_the_task_that_asks(inline: bool) -> None:
    async with owning(inline_calls=inline) as owned:
        meta = Inspected()
        alias = await owned.spawn(meta)

        told = await owned.node.inspect_meta(alias, "this")
        if not inline:
            # The handler has answered, and may not have gone back to sleep yet.
            await owned.until(lambda: owned.node.meta_info(alias).state is MetaState.SLEEP)
        info = owned.node.meta_info(alias)

        assert told == {"heard": "0", "this": "asked"}
        assert (meta.tasks == [trio.lowlevel.current_task()]) is inline
        assert (info.state, info.callback, info.messages_in) == (MetaState.SLEEP, None, 1)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("colour", COLOURS)
async def test_an_inspection_overtakes_a_message_that_has_just_come_and_loses_no_message(
    colour: type[Any], inline: bool
) -> None:
    async with owning(inline_calls=inline) as owned:
        meta = colour()
        alias = await owned.spawn(meta)
        for number in range(50):
            # The handler is awake already, but has not run since.
            owned.node.send(alias, number)
            told = await owned.node.inspect_meta(alias)

            assert told == {"heard": str(number)}
            await owned.until(lambda: meta.heard[-1:] == [(number, owned.node.pid)])  # noqa: B023

        assert [message for message, _ in meta.heard] == list(range(50))
        assert meta.notes[1:] == ["inspect", "message"] * 50


async def test_inspections_and_messages_of_threads_do_not_overlap(switching_fast: None) -> None:
    async with owning() as owned, trio.open_nursery() as nursery:
        meta = InThread()
        alias = await owned.spawn(meta)

        def flood() -> None:
            for number in range(300):
                owned.node.send(alias, number)

        nursery.start_soon(in_thread, flood)
        told: list[int] = []
        while len(meta.heard) < 300:
            told.append(int((await owned.node.inspect_meta(alias))["heard"]))
            await trio.lowlevel.checkpoint()

        assert told == sorted(told)
        assert [message for message, _ in meta.heard] == list(range(300))


async def test_an_inspection_waits_for_the_handler_unless_it_is_next() -> None:
    settled: list[Any] = []

    class Fence:
        def settle(self, value: object, error: object) -> None:
            settled.append((value, error))

    async with owning() as owned:
        meta = InTask()
        alias = await owned.spawn(meta)
        handler = meta_of(meta).handler
        asleep = handler.may_inspect_inline()
        in_its_reader = await owned.in_reader(meta, lambda _me: handler.may_inspect_inline())
        in_its_handler = await owned.in_handler(meta, lambda _me: handler.may_inspect_inline())
        router_of(owned.node).signal(
            meta_of(meta), Lane.URGENT, (FENCE, owned.owner, Fence(), None)
        )
        behind_another = handler.may_inspect_inline()
        await owned.until(lambda: bool(settled))
        owned.node.send_exit(alias)
        while_it_ends = handler.may_inspect_inline()
        await owned.ended(alias)

        assert asleep
        assert [in_its_reader, in_its_handler, behind_another, while_it_ends] == [False] * 4


async def test_a_reader_in_a_task_may_inspect_its_meta_process() -> None:
    async with owning() as owned:
        meta = Inspected()
        alias = await owned.spawn(meta)

        told = await owned.in_reader(meta, lambda _me: owned.node.inspect_meta(alias))

        assert told == {"heard": "0"}
        assert meta.tasks[0] is not trio.lowlevel.current_task()


async def test_an_inspection_may_use_the_verbs_of_the_handler() -> None:
    def configure(me: Any) -> None:
        me.send_priority = Priority.HIGH
        me.send(me.parent, "inspected")
        # Served after the inspection, not in the middle of it.
        me.send(me.id, "to itself")

    async with owning() as owned:
        meta = Inspected(configure)
        alias = await owned.spawn(meta)

        told = await owned.node.inspect_meta(alias)
        await owned.until(lambda: bool(owned.heard and meta.heard))

        assert told == {"heard": "0"}
        assert meta.send_priority is Priority.HIGH
        assert owned.heard == ["inspected"]


@pytest.mark.parametrize("handler_idles", [True, False])
async def test_context_variables_of_an_inspection_stay_with_the_meta_process(
    handler_idles: bool,
) -> None:
    seen: list[str] = []
    variable = ContextVar("variable", default="unset")

    def change(_me: Any) -> None:
        seen.append(variable.get())
        variable.set("by the inspection")

    async with owning() as owned:
        meta = Inspected(change)
        alias = await owned.spawn(meta)
        if handler_idles:
            await owned.in_handler(meta, lambda _me: variable.set("by the handler"))
        variable.set("by the caller")

        await owned.node.inspect_meta(alias)

        assert seen == ["by the handler" if handler_idles else "unset"]
        assert variable.get() == "by the caller"


async def test_an_inspection_that_leaves_a_cancel_scope_open_crashes_its_meta_process_only() -> (
    None
):
    async with owning() as owned:
        meta = Inspected(lambda _me: trio.CancelScope().__enter__().cancel())
        alias = await owned.spawn(meta)

        told = await owned.node.inspect_meta(alias)
        reason = await owned.ended(alias)
        # Not cancelled.
        await trio.lowlevel.checkpoint()

        assert told == {"heard": "0"}
        assert isinstance(reason, Crashed)
        assert "handle_inspect has left a cancel scope open" in str(reason)


async def test_a_meta_process_that_ends_in_an_inspection_keeps_its_reason() -> None:
    def end(me: Any) -> None:
        trio.CancelScope().__enter__()
        me.stop("enough")

    async with owning() as owned:
        meta = Inspected(end)
        alias = await owned.spawn(meta)

        told = await owned.node.inspect_meta(alias)
        reason = await owned.ended(alias)

        assert told == {"heard": "0"}
        assert str(reason) == "enough"


@pytest.mark.parametrize("inline", [True, False])
async def test_any_other_exception_in_an_inspection_ends_only_its_meta_process(
    inline: bool,
) -> None:
    def fail(_me: Any) -> None:
        raise asyncio.CancelledError

    async with owning(inline_calls=inline) as owned:
        alias = await owned.spawn(Inspected(fail))
        with pytest.raises(TargetDownError, match="CancelledError"):
            await owned.node.inspect_meta(alias)
        await owned.ended(alias)

        assert not owned.node.stopping


@pytest.mark.parametrize("inline", [True, False])
async def test_an_error_meant_for_the_program_leaves_an_inspection(inline: bool) -> None:
    def leave(_me: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with owning(inline_calls=inline) as owned:
            meta = Inspected(leave)
            alias = await owned.spawn(meta)
            with pytest.raises(TargetDownError, match="SystemExit"):
                await owned.node.inspect_meta(alias)
            await trio.sleep_forever()
