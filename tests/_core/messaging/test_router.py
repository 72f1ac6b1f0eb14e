"""Delivery: who is meant by an address, what a full mailbox does, and where a message goes that has
nowhere to go.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint, current_task
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    KEEP,
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Custom,
    DeadlockError,
    Divert,
    Diverted,
    Down,
    Exit,
    MailboxFullError,
    Name,
    Node,
    NodeStoppedError,
    Normal,
    Overflow,
    Priority,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    TargetTypeError,
    Why,
)
from ergo_py._core.messaging.router import _ThreadWaiter
from ergo_py._core.messaging.waiters import TaskCaller
from ergo_py._core.processes.process import Process
from ergo_py._core.tables.mailbox import Mailbox, Verdict
from ergo_py._core.vocabulary.envelopes import CALL, EXIT, MESSAGE, Envelope, Lane
from tests.support import THOROUGH, Puppet, Recorder, process_of, router_of, running_node

FLOOD = 1_000_000 if THOROUGH else 50_000
LANES = pytest.mark.parametrize("priority", list(Priority), ids=["main", "system", "urgent"])


class Busy(Puppet):
    """Handles nothing until ``gate`` is open; then keeps what it is told, and answers a request
    with the request.
    """

    def __init__(self, gate: trio.Event, heard: list[Any] | None = None) -> None:
        super().__init__(heard)
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message is None:
            await self.gate.wait()
        else:
            await super().handle_message(message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.heard.append(request)
        return request


async def busy(node: Node, gate: trio.Event, heard: list[Any] | None = None, **options: Any) -> PID:
    """A process that is busy with its first message, so that everything sent to it queues up until
    ``gate`` is opened.
    """
    pid = await node.spawn(Busy, gate, heard, **options)
    node.send(pid, None)
    await wait_all_tasks_blocked()
    return pid


# -- addresses -------------------------------------------------------------------------------------


async def test_a_process_is_reached_by_pid_name_and_alias_each_time_once(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Puppet, heard, name="known")
        alias = await node.call(pid, lambda me: me.create_alias())
        targets = [pid, "known", Name("known"), Name("known", "test@localhost"), alias]

        sent = [node.send(target, number) for number, target in enumerate(targets)]
        await wait_all_tasks_blocked()

        assert sent == [True] * 5
        assert heard == [0, 1, 2, 3, 4]
        assert node.info().dead_letters == {}


async def test_the_name_of_another_node_is_not_that_of_this_one(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        await node.spawn(Recorder, heard, name="known")

        sent = node.send(Name("known", "elsewhere@host"), "astray")
        await wait_all_tasks_blocked()

        assert sent is False
        assert heard == []
        assert node.info().dead_letters == {Why.NO_NODE: 1}


async def test_a_message_names_its_sender(autojump_clock: MockClock) -> None:
    senders: list[PID] = []

    class Receiver(Actor):
        def handle_message(self, message: Any, sender: PID) -> None:
            senders.append(sender)

    async with running_node() as node:
        receiver = await node.spawn(Receiver)
        puppet = await node.spawn(Puppet)

        node.send(receiver, 1)
        await node.call(puppet, lambda me: me.send(receiver, 2))
        await wait_all_tasks_blocked()

        assert senders == [node.pid, puppet]


async def test_a_forwarded_message_keeps_its_sender(autojump_clock: MockClock) -> None:
    senders: list[PID] = []

    class Receiver(Actor):
        def handle_message(self, message: Any, sender: PID) -> None:
            senders.append(sender)

    class Between(Actor):
        def handle_message(self, message: Any, sender: PID) -> None:
            self.forward("receiver", message, sender)

    async with running_node() as node:
        await node.spawn(Receiver, name="receiver")
        between = await node.spawn(Between)
        puppet = await node.spawn(Puppet)

        await node.call(puppet, lambda me: me.send(between, 1))
        await wait_all_tasks_blocked()

        assert senders == [puppet]


async def test_a_pid_from_an_earlier_start_of_the_node_reaches_nobody(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node("same@localhost") as first:
        old = await first.spawn(Recorder)
    async with running_node("same@localhost") as node:
        new = await node.spawn(Recorder, heard)
        while new.number < old.number:
            new = await node.spawn(Recorder, heard)

        sent = node.send(old, "for the one before")
        await wait_all_tasks_blocked()

        assert (old.node, old.number) == (new.node, new.number)
        assert old != new
        assert sent is False
        assert heard == []


@pytest.mark.parametrize(
    "target",
    [None, 7, b"name", ("test@localhost", 1, 1), object(), Recorder],
    ids=lambda target: type(target).__name__,
)
async def test_what_is_no_address_is_refused_by_every_verb_that_takes_one(
    autojump_clock: MockClock, target: Any
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)
        plain: list[Callable[[Any], Any]] = [
            lambda it: it.send(target, 1),
            lambda it: it.send_after(1, target, 1),
            lambda it: it.send_every(1, target, 1),
            lambda it: it.send_exit(target, Normal()),
            lambda it: it.kill(target),
        ]
        of_a_process: list[Callable[[Any], Any]] = [
            lambda me: me.forward(target, 1, puppet),
            lambda me: me.link(target),
            lambda me: me.unlink(target),
            lambda me: me.monitor(target),
            lambda me: me.demonitor(target),
        ]

        for verb in plain:
            with pytest.raises(TargetTypeError, match="PID"):
                verb(node)
        for verb in (*plain, *of_a_process):
            await node.call(puppet, lambda me, verb=verb: _refused(TargetTypeError, verb, me))
        for waits in (node.call, node.send_wait):
            with pytest.raises(TargetTypeError):
                await waits(target, 1)
        for look in (node.wait_ended, node.inspect):
            with pytest.raises(TargetTypeError):
                await look(target)
        with pytest.raises(TargetTypeError):
            node.process_info(target)

        info = node.info()
        assert (info.timers, info.relations, info.dead_letters, info.crashed) == (0, 0, {}, 0)


def _refused(error: type[Exception], verb: Callable[[Any], Any], me: Any) -> None:
    with pytest.raises(error):
        verb(me)


async def test_a_priority_that_is_none_is_refused_and_nothing_is_sent(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        wrong: Any
        for wrong in (7, -1, "high"):
            with pytest.raises(ValueError, match="Priority"):
                node.send(pid, 1, priority=wrong)
            with pytest.raises(ValueError, match="Priority"):
                node.send("nobody", 1, priority=wrong)
            with pytest.raises(ValueError, match="Priority"):
                await node.send_wait(pid, 1, priority=wrong)
            with pytest.raises(ValueError, match="Priority"):
                await node.call(pid, 1, priority=wrong)
            with pytest.raises(ValueError, match="Priority"):
                node.send_after(1, pid, 1, priority=wrong)

        await wait_all_tasks_blocked()

        assert heard == []
        assert node.info().dead_letters == {}
        assert node.info().timers == 0


# -- order -----------------------------------------------------------------------------------------


@LANES
async def test_messages_of_one_sender_at_one_priority_arrive_in_sending_order(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, name="receiver")
        puppet = await node.spawn(Puppet)

        async def send_many(me: Puppet) -> None:
            for number in range(1_000):
                me.send(pid if number % 2 else "receiver", number, priority=priority)
                if not number % 100:
                    await trio.lowlevel.checkpoint()

        await node.call(puppet, send_many)
        await wait_all_tasks_blocked()

        assert heard == list(range(1_000))


BOUNDS: dict[str, dict[str, Any]] = {
    "unbounded": {},
    "bounded by one": {"mailbox_size": 1, "overflow": Overflow.WAIT},
    "bounded closely": {"mailbox_size": 4, "overflow": Overflow.WAIT},
    "bounded": {"mailbox_size": 40, "overflow": Overflow.WAIT},
    "never full": {"mailbox_size": 5000},
}
"""Ways for a thread: straight into the mailbox, under a lock, by way of the bridge, and after
having waited.
"""
bounds = pytest.mark.parametrize("options", BOUNDS.values(), ids=BOUNDS)


@bounds
async def test_messages_of_threads_arrive_in_the_order_in_which_each_thread_sent_them(
    options: dict[str, Any],
) -> None:
    heard: list[tuple[int, int]] = []
    async with running_node(limit=60) as node:
        pid = await node.spawn(Recorder, heard, **options)

        def send_many(thread: int) -> None:
            for number in range(500):
                assert node.send(pid, (thread, number)) is True

        async with trio.open_nursery() as nursery:
            for thread in range(4):
                nursery.start_soon(trio.to_thread.run_sync, send_many, thread)
        await node.call(pid, "all?")

        assert len(heard) == 2_000
        for thread in range(4):
            assert [number for who, number in heard if who == thread] == list(range(500))


@bounds
async def test_a_thread_that_uses_several_addresses_of_one_process_does_not_overtake_itself(
    options: dict[str, Any],
) -> None:
    heard: list[Any] = []
    async with running_node(limit=60) as node:
        pid = await node.spawn(Recorder, heard, name="ada", **options)

        def send_many() -> None:
            for number in range(0, 1000, 2):
                node.send("ada", number)
                node.send(pid, number + 1)

        await trio.to_thread.run_sync(send_many)
        await node.call(pid, "all?")

        assert heard == list(range(1000))


@pytest.mark.parametrize(
    "options", [{}, {"mailbox_size": 101}, {"mailbox_size": 101, "overflow": Overflow.WAIT}]
)
async def test_threads_that_send_to_a_sleeper_wake_the_loop_once(options: dict[str, Any]) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, **options)
        await wait_all_tasks_blocked()

        thread = threading.Thread(target=lambda: [node.send(pid, number) for number in range(100)])
        thread.start()
        thread.join()
        waiting = router_of(node).bridge.pending
        await node.call(pid, "all?")

        assert waiting == 1
        assert heard == list(range(100))


async def test_what_a_thread_puts_into_a_mailbox_as_its_owner_ends_is_a_dead_letter() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)

        def come_too_late() -> None:
            # As if it had seen the process open, and lost the processor for a moment.
            process.main.append((MESSAGE, node.pid, None, "late"))
            process.stir()

        await trio.to_thread.run_sync(come_too_late)
        router_of(node).bridge.catch_up()

        assert [(letter.target, letter.message_type) for letter in node.dead_letters()] == [
            (pid, "str")
        ]
        assert not process.main


@pytest.mark.parametrize("name", [None, "ada"])
@pytest.mark.parametrize("size", [2, 100])
async def test_a_thread_that_saw_a_bounded_process_just_before_its_end_leaves_a_dead_letter(
    size: int, name: str | None
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name=name, mailbox_size=size, overflow=Overflow.WAIT)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)

        # As if the thread had looked for the receiver, and lost the processor for a moment.
        process.accepting = process.measured = True
        router_of(node).processes[pid] = process
        if name is not None:
            router_of(node).registry.take_name(name, process)
        sent = await trio.to_thread.run_sync(node.send, name or pid, "late")
        del router_of(node).processes[pid]
        router_of(node).bridge.catch_up()

        assert sent is True
        assert [(letter.target, letter.message_type) for letter in node.dead_letters()] == [
            (pid, "str")
        ]
        assert not process.main


async def test_a_place_that_was_promised_is_given_back_when_its_message_is_in_it() -> None:
    heard: list[Any] = []
    sent_meanwhile: list[bool] = []

    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=3)
        box = process_of(node, pid).mailbox

        class Hurried(Mailbox):
            __slots__ = ()

            def redeem(self, lane: Lane) -> None:
                super().redeem(lane)
                # What a thread sends at this moment, which is the first one in which it may go
                # straight in.
                sent_meanwhile.append(self.take_in((MESSAGE, node.pid, None, "second")))

        box.promise(Lane.MAIN)
        box.__class__ = Hurried
        router_of(node).arrive_promised(
            process_of(node, pid), Lane.MAIN, (MESSAGE, node.pid, None, "first")
        )
        await node.call(pid, "all?")

    assert sent_meanwhile == [True]
    assert heard == ["first", "second"]


def in_a_thread(function: Callable[..., Any], *args: Any) -> Any:
    """What a thread gets that does this while the loop stands still."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("priority", Priority)
async def test_what_a_thread_sends_to_a_name_without_a_holder_never_reaches_a_later_one(
    priority: Priority,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)

        early = in_a_thread(node.send, "service", "early")
        node.register("service", pid)
        late = in_a_thread(lambda: node.send("service", "late", priority=priority))
        await wait_all_tasks_blocked()

        assert (early, late) == (False, True)
        assert heard == ["late"]
        [letter] = node.dead_letters()
        assert (letter.target, letter.why) == ("service", Why.NO_PROCESS)


async def test_what_a_thread_sends_to_one_that_takes_no_more_never_reaches_its_successor() -> None:
    heard: list[Any] = []
    ended = trio.Event()

    class Leaves(Recorder):
        async def terminate(self, reason: Any) -> None:
            await ended.wait()

    async with running_node() as node:
        first = await node.spawn(Leaves, heard, name="service")
        second = await node.spawn(Recorder, heard)
        node.send_exit(first, "enough")
        await wait_all_tasks_blocked()

        early = in_a_thread(node.send, "service", "early")
        node.unregister("service")
        node.register("service", second)
        late = in_a_thread(node.send, "service", "late")
        await wait_all_tasks_blocked()
        ended.set()

        assert (early, late) == (False, True)
        assert heard == ["late"]
        [letter] = node.dead_letters()
        assert (letter.target, letter.why) == ("service", Why.STOPPING)


@pytest.mark.parametrize(
    "options", [{"mailbox_size": 5, "overflow": Overflow.DROP_OLDEST}, {"mailbox_size": 5}]
)
async def test_a_thread_s_message_to_a_name_goes_to_the_holder_it_found(
    options: dict[str, Any],
) -> None:
    before: list[Any] = []
    after: list[Any] = []
    async with running_node() as node:
        await node.spawn(Recorder, before, name="service", **options)
        second = await node.spawn(Recorder, after)

        sent = [
            in_a_thread(lambda: node.send("service", 1, priority=Priority.HIGH)),
            in_a_thread(node.send, "service", 2),
        ]
        node.unregister("service")
        node.register("service", second)
        sent.append(in_a_thread(node.send, "service", 3))
        await wait_all_tasks_blocked()

        assert sent == [True] * 3
        assert sorted(before) == [1, 2]
        assert after == [3]


async def test_a_thread_does_not_overtake_what_was_kept_for_the_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    sent: list[bool] = []
    gate = trio.Event()
    take_slot = Process.take_slot

    class Waits(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if not gate.is_set():
                await gate.wait()
            heard.append(message)

    def send_meanwhile(process: Process, slot: Any) -> None:
        if slot.kept:
            sent.append(in_a_thread(node.send, "kept", "meanwhile"))
        take_slot(process, slot)

    monkeypatch.setattr(Process, "take_slot", send_meanwhile)
    async with running_node() as node:
        await node.spawn(Supervisor, SupervisorSpec([ChildSpec("kept", Waits, mailbox=KEEP)]))
        first = node.whereis("kept")
        assert first is not None
        for message in ("in progress", "before"):
            assert in_a_thread(node.send, "kept", message)
        await wait_all_tasks_blocked()
        node.kill(first)
        gate.set()
        await node.wait_ended(first)
        await wait_all_tasks_blocked()
        assert in_a_thread(node.send, "kept", "after")
        await wait_all_tasks_blocked()

        assert sent == [False]
        assert heard == ["before", "after"]


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns after a few steps instead of a few thousand."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.no_cover
async def test_threads_that_send_to_a_name_while_its_holder_restarts_lose_nothing_and_keep_their_order(
    often_switching: None,
) -> None:
    heard: list[tuple[int, int]] = []
    refused: list[tuple[int, int]] = []
    threads, messages = 8, 20_000 if THOROUGH else 1_000
    running = threads

    class Service(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message)

    async with running_node() as node:
        child = ChildSpec("service", Service, mailbox=KEEP)
        await node.spawn(Supervisor, SupervisorSpec([child], intensity=1_000_000))

        def send_all(thread: int) -> None:
            numbers = ((thread, number) for number in range(messages))
            refused.extend(message for message in numbers if not node.send("service", message))

        async def run_thread(thread: int) -> None:
            nonlocal running
            await trio.to_thread.run_sync(send_all, thread)
            running -= 1

        async with trio.open_nursery() as nursery:
            for thread in range(threads):
                nursery.start_soon(run_thread, thread)
            while running:
                pid = node.whereis("service")
                if pid is not None:
                    node.kill(pid)
                await checkpoint()
        await wait_all_tasks_blocked()
        letters = sum(node.info().dead_letters.values())

    assert not set(refused) & set(heard)
    for thread in range(threads):
        numbers = [number for who, number in heard if who == thread]
        assert numbers == sorted(set(numbers))
    # What was accepted in the very moment in which the holder ended is a dead letter, too.
    assert len(heard) + letters == threads * messages
    assert letters >= len(refused)


@pytest.mark.parametrize(
    "options", [{}, {"mailbox_size": 2}, {"mailbox_size": 100, "overflow": Overflow.WAIT}]
)
async def test_a_call_does_not_overtake_what_a_thread_has_just_sent(
    options: dict[str, Any],
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, **options)
        await wait_all_tasks_blocked()

        thread = threading.Thread(target=node.send, args=(pid, "first"))
        thread.start()
        thread.join()
        answer = await node.call(pid, "what?")

        assert answer == ["first"]


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.HIGH])
@pytest.mark.parametrize("target", ["pid", "name", "bounded", "nobody"])
async def test_several_messages_at_once_are_delivered_like_one_after_the_other(
    autojump_clock: MockClock, target: str, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        options: dict[str, Any] = {"mailbox_size": 10} if target == "bounded" else {}
        pid = await node.spawn(Recorder, heard, name="ada", **options)
        to = {"name": "ada", "nobody": "nobody"}.get(target, pid)

        router_of(node).send_many(node.pid, to, [1, 2, 3], priority)
        await wait_all_tasks_blocked()

        assert heard == ([] if target == "nobody" else [1, 2, 3])
        assert sum(node.info().dead_letters.values()) == (3 if target == "nobody" else 0)


async def test_a_process_that_sends_to_one_and_another_reaches_each(
    autojump_clock: MockClock,
) -> None:
    left: list[Any] = []
    right: list[Any] = []
    async with running_node() as node:
        one, other = await node.spawn(Recorder, left), await node.spawn(Recorder, right)
        puppet = await node.spawn(Puppet)

        def send_all(me: Any) -> list[bool]:
            return [
                me.send(to, number)
                for number, to in enumerate((one, one, other, PID(*one), other, one))
            ]

        sent = await node.call(puppet, send_all)
        await wait_all_tasks_blocked()

        assert sent == [True] * 6
        assert (left, right) == ([0, 1, 3, 5], [2, 4])


async def test_a_process_that_sends_to_one_that_has_ended_meanwhile_is_told_so(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid, puppet = await node.spawn(Recorder), await node.spawn(Puppet)
        before = await node.call(puppet, lambda me: me.send(pid, 1))
        await wait_all_tasks_blocked()
        node.kill(pid)
        await node.wait_ended(pid)

        after = [await node.call(puppet, lambda me: me.send(pid, 2)) for _ in range(2)]

        assert (before, after) == (True, [False, False])
        assert [letter.why for letter in node.dead_letters()] == [Why.NO_PROCESS, Why.NO_PROCESS]


async def test_a_changed_priority_holds_for_the_next_message_to_the_same_process(
    autojump_clock: MockClock,
) -> None:
    gate, heard = trio.Event(), list[Any]()
    async with running_node() as node:
        pid, puppet = await busy(node, gate, heard), await node.spawn(Puppet)

        def send_three(me: Any) -> None:
            me.send(pid, "normal")
            me.send_priority = Priority.HIGH
            me.send(pid, "high")
            me.send_priority = Priority.NORMAL
            me.send(pid, "normal again")

        await node.call(puppet, send_three)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["high", "normal", "normal again"]


async def test_a_thread_may_send_as_a_process() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        puppet = await node.spawn(Puppet)

        await node.call(puppet, lambda me: trio.to_thread.run_sync(me.send, pid, "from its thread"))
        await wait_all_tasks_blocked(0.01)

        assert heard == ["from its thread"]


# -- full mailboxes: messages ----------------------------------------------------------------------


@LANES
async def test_a_full_mailbox_refuses_by_default_with_target_and_message(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2)
        sent = [node.send(pid, number, priority=priority) for number in range(2)]

        with pytest.raises(MailboxFullError) as caught:
            node.send(pid, "too many", priority=priority)
        gate.set()
        await wait_all_tasks_blocked()

        assert sent == [True, True]
        assert (caught.value.target, caught.value.message, caught.value.limit) == (
            pid,
            "too many",
            2,
        )
        assert heard == [0, 1]
        assert node.process_info(pid).dropped == 1
        assert node.info().dead_letters == {Why.FULL: 1}
        assert node.send(pid, "room again", priority=priority) is True


@LANES
async def test_drop_newest_drops_what_finds_no_room(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2, overflow=Overflow.DROP_NEWEST)

        sent = [node.send(pid, number, priority=priority) for number in range(4)]
        gate.set()
        await wait_all_tasks_blocked()

        assert sent == [True, True, False, False]
        assert heard == [0, 1]
        assert node.process_info(pid).dropped == 2
        assert node.info().dead_letters == {Why.FULL: 2}


@LANES
async def test_drop_oldest_lets_the_newest_take_the_place_of_the_oldest(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2, overflow=Overflow.DROP_OLDEST)

        sent = [node.send(pid, number, priority=priority) for number in range(4)]
        gate.set()
        await wait_all_tasks_blocked()

        assert sent == [True] * 4
        assert heard == [2, 3]
        assert node.process_info(pid).dropped == 2
        assert node.info().dead_letters == {Why.DISPLACED: 2}


@LANES
async def test_divert_sends_what_finds_no_room_to_a_named_process_with_origin_and_tag(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    spilled: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        await node.spawn(Recorder, spilled, name="spill")
        pid = await busy(
            node, gate, heard, mailbox_size=1, overflow=Divert("spill", tag="too much")
        )

        sent = [node.send(pid, number, priority=priority) for number in range(2)]
        gate.set()
        await wait_all_tasks_blocked()

        assert sent == [True, True]
        assert heard == [0]
        assert spilled == [Diverted(pid, "too much", 1, node.pid)]
        assert node.process_info(pid).dropped == 1
        assert node.info().dead_letters == {}


async def test_what_cannot_be_diverted_is_a_dead_letter(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        gate = trio.Event()
        to_nobody = await busy(node, gate, mailbox_size=1, overflow=Divert("nobody"))
        to_itself = await busy(node, gate, name="itself", mailbox_size=1, overflow=Divert("itself"))
        full = await busy(node, gate, name="full", mailbox_size=1)
        to_full = await busy(node, gate, mailbox_size=1, overflow=Divert("full"))
        for pid in (to_nobody, to_itself, full, to_full):
            node.send(pid, "fits")

        sent = [node.send(pid, "does not fit") for pid in (to_nobody, to_itself, to_full)]
        gate.set()

        assert sent == [False, False, False]
        assert node.info().dead_letters == {Why.FULL: 3}
        assert [node.process_info(pid).dropped for pid in (to_nobody, to_itself, to_full)] == [
            1,
            1,
            1,
        ]


async def test_two_full_processes_that_divert_to_each_other_do_not_send_in_circles(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        gate = trio.Event()
        left = await busy(node, gate, name="left", mailbox_size=1, overflow=Divert("right"))
        right = await busy(node, gate, name="right", mailbox_size=1, overflow=Divert("left"))
        node.send(left, 1)

        sent = [node.send(left, 2), node.send(left, 3), node.send(right, 4)]
        gate.set()

        assert sent == [True, False, False]
        assert node.info().dead_letters == {Why.FULL: 2}


async def test_what_was_diverted_once_is_not_diverted_again(autojump_clock: MockClock) -> None:
    seen: list[Any] = []

    class SendsBack(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            seen.append(message)
            seen.append(self.send("full", message))

    async with running_node() as node:
        gate = trio.Event()
        await node.spawn(SendsBack, name="sends back")
        pid = await busy(node, gate, name="full", mailbox_size=1, overflow=Divert("sends back"))
        node.send(pid, "fits")

        node.send(pid, "does not fit")
        await wait_all_tasks_blocked()
        gate.set()

        assert seen == [Diverted(pid, "", "does not fit", node.pid), False]
        assert node.info().dead_letters == {Why.FULL: 1}


@LANES
async def test_the_bound_is_that_of_one_lane(autojump_clock: MockClock, priority: Priority) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1)
        for other in Priority:
            node.send(pid, other.name, priority=other)

        with pytest.raises(MailboxFullError):
            node.send(pid, "too many", priority=priority)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["MAX", "HIGH", "NORMAL"]


@pytest.mark.parametrize("overflow", list(Overflow), ids=lambda rule: rule.name)
async def test_signals_are_not_refused_dropped_or_delayed_by_a_bound(
    autojump_clock: MockClock, overflow: Overflow
) -> None:
    heard: list[Any] = []

    class Watched(Busy):
        def handle_child_exit(self, child: PID, reason: object) -> None:
            self.heard.append(("child exit", reason))

    async with running_node() as node:
        gate = trio.Event()
        linked, monitored = await node.spawn(Puppet), await node.spawn(Puppet)
        pid = await node.spawn(Watched, gate, heard, mailbox_size=1, overflow=overflow)

        async def prepare(me: Puppet) -> None:
            me.trap_exit = True
            me.link(linked)
            me.monitor(monitored)
            me.heard.append(await me.spawn(Puppet))

        node.send(pid, prepare)
        await wait_all_tasks_blocked()
        child = heard.pop()
        node.send(pid, None)
        await wait_all_tasks_blocked()
        for priority in Priority:
            node.send(pid, priority.name, priority=priority)

        for other in (linked, monitored, child):
            node.send_exit(other, "gone")
            await wait_all_tasks_blocked()
        inspected: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def inspect() -> None:
                inspected.append(await node.inspect(pid))

            nursery.start_soon(inspect)
            await wait_all_tasks_blocked()
            for priority in Priority:
                try:
                    node.send(pid, priority.name + " again", priority=priority)
                except MailboxFullError:
                    pass
            gate.set()

        again = " again" if overflow is Overflow.DROP_OLDEST else ""
        assert inspected
        assert [one for one in heard if isinstance(one, Exit | Down | tuple)] == [
            Exit(linked, Custom("gone")),
            Down(monitored, Custom("gone")),
            ("child exit", Custom("gone")),
        ]
        assert [one for one in heard if isinstance(one, str)] == [
            "MAX" + again,
            "HIGH" + again,
            "NORMAL" + again,
        ]


# -- full mailboxes: waiting -----------------------------------------------------------------------


@LANES
async def test_a_plain_send_to_a_full_mailbox_that_lets_others_wait_is_refused(
    autojump_clock: MockClock, priority: Priority
) -> None:
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "fits", priority=priority)

        with pytest.raises(MailboxFullError):
            node.send(pid, "does not fit", priority=priority)
        gate.set()

        assert node.process_info(pid).dropped == 1
        assert node.info().dead_letters == {Why.FULL: 1}


@LANES
async def test_send_wait_waits_for_room_first_come_first_served(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2, overflow=Overflow.WAIT)
        puppet = await node.spawn(Puppet)
        results: list[bool] = []

        async def send(number: int) -> None:
            if number % 2:
                results.append(await node.send_wait(pid, number, priority=priority))
            else:
                results.append(
                    await node.call(
                        puppet,
                        lambda me: me.send_wait(pid, number, priority=priority),
                        timeout=None,
                    )
                )

        async with trio.open_nursery() as nursery:
            for number in range(7):
                nursery.start_soon(send, number)
                await wait_all_tasks_blocked()
                if number < 4:
                    # One puppet can wait for one thing only, so the later even numbers queue up
                    # behind it.
                    assert len(results) == min(number + 1, 2)
            gate.set()

        assert results == [True] * 7
        assert [number for number in heard if number % 2] == [1, 3, 5]
        assert [number for number in heard if not number % 2] == [0, 2, 4, 6]
        assert heard[:5] == [0, 1, 2, 3, 5]
        assert node.process_info(pid).dropped == 0


@LANES
async def test_those_who_wait_are_let_in_as_soon_as_there_is_room(
    autojump_clock: MockClock, priority: Priority
) -> None:
    waited: list[float] = []

    class Slow(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.sleep(1)

    async with running_node() as node:
        pid = await node.spawn(Slow, mailbox_size=4, overflow=Overflow.WAIT)
        node.send(pid, "in progress", priority=priority)
        await wait_all_tasks_blocked()
        for number in range(4):
            node.send(pid, number, priority=priority)

        async def send() -> None:
            began = trio.current_time()
            await node.send_wait(pid, "more", priority=priority)
            waited.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(send)

        assert waited == [1, 2, 3]


async def test_nobody_overtakes_those_who_wait(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")

        async with trio.open_nursery() as nursery:
            for label in ("first", "second", "third"):
                nursery.start_soon(node.send_wait, pid, label)
                await wait_all_tasks_blocked()
            with pytest.raises(MailboxFullError):
                node.send(pid, "in a hurry")
            gate.set()

        await wait_all_tasks_blocked()
        assert heard == ["queued", "first", "second", "third"]


async def test_send_wait_that_is_cancelled_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")

        with trio.move_on_after(1) as scope:
            await node.send_wait(pid, "given up")
        box = process_of(node, pid).mailbox
        left = box.waiters
        gate.set()
        await wait_all_tasks_blocked()

        assert scope.cancelled_caught
        assert left is None
        assert heard == ["queued"]
        assert node.send(pid, "room again") is True


async def test_send_wait_that_is_cancelled_lets_those_behind_it_go_on(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")

        async def send(label: str, scope: trio.CancelScope) -> None:
            with scope:
                await node.send_wait(pid, label)

        async with trio.open_nursery() as nursery:
            scopes = {label: trio.CancelScope() for label in ("first", "given up", "third")}
            for label, scope in scopes.items():
                nursery.start_soon(send, label, scope)
                await wait_all_tasks_blocked()
            scopes["given up"].cancel()
            await wait_all_tasks_blocked()
            gate.set()

        await wait_all_tasks_blocked()
        assert heard == ["queued", "first", "third"]


async def test_send_wait_gives_up_after_its_timeout_with_the_message_as_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")
        began = trio.current_time()

        with pytest.raises(MailboxFullError) as caught:
            await node.send_wait(pid, "given up", timeout=2)
        gate.set()
        await wait_all_tasks_blocked()

        assert trio.current_time() - began == 2
        assert (caught.value.target, caught.value.message) == (pid, "given up")
        assert heard == ["queued"]
        assert node.process_info(pid).dropped == 1
        assert node.info().dead_letters == {Why.FULL: 1}


async def test_send_wait_to_a_process_that_ends_meanwhile_returns_false(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await busy(node, trio.Event(), mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")
        results: list[bool] = []

        async def send() -> None:
            results.append(await node.send_wait(pid, "too late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            node.kill(pid)

        assert results == [False, False]
        assert node.info().dead_letters == {Why.STOPPING: 2, Why.UNHANDLED_AT_EXIT: 1}


@pytest.mark.parametrize(
    "overflow", [Overflow.RAISE, Overflow.DROP_NEWEST, Overflow.DROP_OLDEST, Divert("nobody")]
)
async def test_send_wait_to_one_that_lets_nobody_wait_is_an_ordinary_send(
    autojump_clock: MockClock, overflow: Any
) -> None:
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, mailbox_size=1, overflow=overflow)
        await node.send_wait(pid, "fits")

        if overflow is Overflow.RAISE:
            with pytest.raises(MailboxFullError):
                await node.send_wait(pid, "does not")
        else:
            sent = await node.send_wait(pid, "does not")
            assert sent is (overflow is Overflow.DROP_OLDEST)
        gate.set()

        assert trio.current_time() == 0
        assert node.process_info(pid).dropped == 1


async def test_send_wait_to_nobody_returns_false_at_once(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        sent = await node.send_wait("nobody", 1)

        assert sent is False
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}
        assert trio.current_time() == 0


async def test_a_thread_waits_for_room_and_goes_on_in_order() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2, overflow=Overflow.WAIT)

        def send_many() -> list[bool]:
            return [node.send(pid, number) for number in range(50)]

        results: list[list[bool]] = []

        async def in_thread() -> None:
            results.append(await trio.to_thread.run_sync(send_many))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread)
            await wait_all_tasks_blocked(0.01)
            gate.set()

        await wait_all_tasks_blocked(0.01)
        assert results == [[True] * 50]
        assert heard == list(range(50))


async def test_a_thread_that_waits_for_room_is_let_go_by_the_receivers_death() -> None:
    async with running_node() as node:
        pid = await busy(node, trio.Event(), mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")
        results: list[bool] = []

        async def in_thread() -> None:
            results.append(await trio.to_thread.run_sync(node.send, pid, "too late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread)
            while process_of(node, pid).mailbox.waiters is None:
                await trio.lowlevel.checkpoint()
            node.kill(pid)

        assert results == [False]
        assert node.info().dead_letters == {Why.STOPPING: 1, Why.UNHANDLED_AT_EXIT: 1}


async def test_a_thread_is_refused_by_a_full_mailbox_like_anybody_else() -> None:
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, mailbox_size=1)
        node.send(pid, "queued")

        with pytest.raises(MailboxFullError) as caught:
            await trio.to_thread.run_sync(node.send, pid, "too many")
        gate.set()
        await wait_all_tasks_blocked(0.01)

        assert (caught.value.target, caught.value.message) == (pid, "too many")
        assert node.process_info(pid).dropped == 1
        assert node.info().dead_letters == {Why.FULL: 1}


# -- full mailboxes: calls -------------------------------------------------------------------------


async def ask(
    node: Node, pid: PID, request: object, priority: Priority, answers: dict[object, Any]
) -> None:
    try:
        answers[request] = await node.call(pid, request, timeout=None, priority=priority)
    except MailboxFullError as error:
        answers[request] = error


async def ask_three(
    node: Node, pid: PID, priority: Priority, gate: trio.Event
) -> dict[object, Any]:
    answers: dict[object, Any] = {}
    async with trio.open_nursery() as nursery:
        for request in ("first", "second", "third"):
            nursery.start_soon(ask, node, pid, request, priority, answers)
            await wait_all_tasks_blocked()
        gate.set()
    return answers


@LANES
@pytest.mark.parametrize(
    "overflow", [Overflow.RAISE, Overflow.DROP_NEWEST], ids=lambda rule: rule.name
)
async def test_a_call_that_finds_no_room_raises_mailbox_full_at_once(
    autojump_clock: MockClock, priority: Priority, overflow: Overflow
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2, overflow=overflow)

        answers = await ask_three(node, pid, priority, gate)

        refused = answers.pop("third")
        assert answers == {"first": "first", "second": "second"}
        assert isinstance(refused, MailboxFullError)
        assert (refused.target, refused.message, refused.limit) == (pid, "third", 2)
        assert heard == ["first", "second"]
        assert node.process_info(pid).dropped == 1
        assert trio.current_time() == 0


@LANES
async def test_a_call_that_is_displaced_raises_mailbox_full(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=2, overflow=Overflow.DROP_OLDEST)

        answers = await ask_three(node, pid, priority, gate)

        displaced = answers.pop("first")
        assert answers == {"second": "second", "third": "third"}
        assert isinstance(displaced, MailboxFullError)
        assert heard == ["second", "third"]
        assert node.process_info(pid).dropped == 1


@LANES
async def test_a_call_that_is_diverted_is_answered_by_the_other(
    autojump_clock: MockClock, priority: Priority
) -> None:
    async with running_node() as node:
        gate, open_gate = trio.Event(), trio.Event()
        open_gate.set()
        await node.spawn(Busy, open_gate, name="spill")
        pid = await busy(node, gate, mailbox_size=2, overflow=Divert("spill", tag="calls"))

        answers = await ask_three(node, pid, priority, gate)

        assert answers == {
            "first": "first",
            "second": "second",
            "third": Diverted(pid, "calls", "third", node.pid),
        }


async def test_a_call_that_is_diverted_ends_with_the_one_it_was_diverted_to(
    autojump_clock: MockClock,
) -> None:
    class Keeping(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return NO_REPLY

    async with running_node() as node:
        gate = trio.Event()
        spill = await node.spawn(Keeping, name="spill")
        pid = await busy(node, gate, mailbox_size=1, overflow=Divert("spill"))
        node.send(pid, "fits")

        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(TargetDownError):
                    await node.call(pid, "does not fit", timeout=None)

            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            node.kill(spill)
        gate.set()

        assert pid in node.processes()


async def test_a_call_that_cannot_be_diverted_raises_mailbox_full(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, mailbox_size=1, overflow=Divert("nobody"))
        node.send(pid, "fits")

        with pytest.raises(MailboxFullError):
            await node.call(pid, "does not fit")
        gate.set()


async def test_a_call_that_is_diverted_to_its_own_caller_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def ring_of(me: Puppet) -> tuple[object, ...]:
        with pytest.raises(DeadlockError) as caught:
            await me.call("full", "does not fit", timeout=None)
        return caught.value.ring

    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, name="full", mailbox_size=1, overflow=Divert("caller"))
        node.send(pid, "fits")
        caller = await node.spawn(Puppet, name="caller")

        ring = await node.call(caller, ring_of)
        gate.set()

        assert ring == (caller, caller)


@LANES
async def test_a_call_waits_for_room_in_turn_with_messages(
    autojump_clock: MockClock, priority: Priority
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued", priority=priority)
        answers: dict[object, Any] = {}

        async def send(label: str) -> None:
            await node.send_wait(pid, label, priority=priority)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, node, pid, "call", priority, answers)
            await wait_all_tasks_blocked()
            nursery.start_soon(send, "message")
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, node, pid, "last call", priority, answers)
            await wait_all_tasks_blocked()
            gate.set()

        assert heard == ["queued", "call", "message", "last call"]
        assert answers == {"call": "call", "last call": "last call"}


async def test_a_call_that_waits_for_room_ends_with_its_timeout_and_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")

        with pytest.raises(CallTimeoutError):
            await node.call(pid, "timed out", timeout=1)
        with trio.move_on_after(1):
            await node.call(pid, "cancelled", timeout=None)
        left = process_of(node, pid).mailbox.waiters
        gate.set()
        await wait_all_tasks_blocked()

        assert left is None
        assert heard == ["queued"]
        assert node.info().late_replies == 0


async def test_calls_that_wait_for_room_end_with_the_receiver(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await busy(node, trio.Event(), mailbox_size=1, overflow=Overflow.WAIT)
        node.send(pid, "queued")
        errors: list[BaseException] = []

        async def call() -> None:
            try:
                await node.call(pid, 1, timeout=None)
            except Exception as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            node.kill(pid)

        assert [type(error).__name__ for error in errors] == ["TargetDownError"] * 2


# -- nowhere to go ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target, why",
    [
        ("nobody", Why.NO_PROCESS),
        (Name("nobody"), Why.NO_PROCESS),
        (Name("nobody", "test@localhost"), Why.NO_PROCESS),
        (PID("test@localhost", 1, 1), Why.NO_PROCESS),
        (Alias("test@localhost", 1, 1), Why.NO_PROCESS),
        (Name("nobody", "elsewhere@host"), Why.NO_NODE),
        (PID("elsewhere@host", 1, 1), Why.NO_NODE),
        (Alias("elsewhere@host", 1, 1), Why.NO_NODE),
    ],
    ids=repr,
)
@LANES
async def test_a_message_to_nobody_is_a_dead_letter_and_no_error(
    autojump_clock: MockClock, target: Any, why: Why, priority: Priority
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        sent = await node.call(puppet, lambda me: me.send(target, 3.5, priority=priority))
        [letter] = node.dead_letters()

        assert sent is False
        assert (letter.sender, letter.target, letter.message_type, letter.why) == (
            puppet,
            target,
            "float",
            why,
        )
        assert node.info().dead_letters == {why: 1}


async def test_a_message_to_a_process_that_has_ended_is_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name="gone")
        node.send_exit(pid, Normal())
        await wait_all_tasks_blocked()

        sent = [node.send(pid, 1), node.send("gone", 1)]

        assert sent == [False, False]
        assert node.info().dead_letters == {Why.NO_PROCESS: 2}


async def test_a_message_to_a_process_past_its_stopping_point_is_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    class Slow(Recorder):
        async def terminate(self, reason: object) -> None:
            await trio.sleep(3)

    async with running_node() as node:
        bounded, unbounded = (
            await node.spawn(Slow, heard, mailbox_size=90),
            await node.spawn(Slow, heard),
        )
        for pid in (bounded, unbounded):
            node.send_exit(pid, Normal())
        await wait_all_tasks_blocked()

        sent = [
            node.send(pid, 1, priority=priority)
            for pid in (bounded, unbounded)
            for priority in Priority
        ]
        waited = await node.send_wait(bounded, 1)

        assert sent == [False] * 6
        assert waited is False
        assert node.info().dead_letters == {Why.STOPPING: 7}
        assert heard == []


async def test_messages_that_a_process_did_not_come_to_are_dead_letters(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await busy(node, trio.Event())
        for priority in Priority:
            node.send(pid, 1, priority=priority)

        node.kill(pid)
        await wait_all_tasks_blocked()

        assert node.info().dead_letters == {Why.UNHANDLED_AT_EXIT: 3}
        assert {letter.target for letter in node.dead_letters()} == {pid}


async def test_the_last_dead_letters_are_kept_and_all_are_counted(
    autojump_clock: MockClock,
) -> None:
    async with running_node(dead_letters=3) as node:
        for number in range(10):
            node.send(f"nobody {number}", number)

        assert [letter.target for letter in node.dead_letters()] == [
            "nobody 7",
            "nobody 8",
            "nobody 9",
        ]
        assert [letter.target for letter in node.dead_letters(2)] == ["nobody 8", "nobody 9"]
        assert node.info().dead_letters == {Why.NO_PROCESS: 10}


async def test_a_dead_letter_keeps_the_type_of_the_message_and_not_the_message(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        node.send("nobody", "a secret")

        assert "a secret" not in repr(node.dead_letters())
        assert node.dead_letters()[0].message_type == "str"


@pytest.mark.no_cover
async def test_a_flood_of_messages_to_a_dead_process_costs_no_memory(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        node.kill(pid)
        await wait_all_tasks_blocked()
        for _ in range(2_000):
            node.send(pid, "before")
        before = sys.getallocatedblocks()

        for _ in range(FLOOD):
            node.send(pid, "after")
        grown = sys.getallocatedblocks() - before

        assert node.info().dead_letters == {Why.NO_PROCESS: 2_000 + FLOOD}
        assert grown < 1_000


async def test_a_thread_that_sends_to_nobody_is_told_so() -> None:
    async with running_node() as node:
        sent = await trio.to_thread.run_sync(node.send, "nobody", 1)
        await wait_all_tasks_blocked(0.01)

        assert sent is False
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}


async def test_sending_on_a_node_that_has_stopped_says_so(autojump_clock: MockClock) -> None:
    behaviours: list[Puppet] = []

    def show(me: Puppet) -> None:
        behaviours.append(me)

    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await node.call(pid, show)

    with pytest.raises(NodeStoppedError):
        node.send(pid, 1)
    with pytest.raises(NodeStoppedError):
        node.send("nobody", 1)
    with pytest.raises(NodeStoppedError):
        await node.send_wait(pid, 1)
    with pytest.raises(NodeStoppedError):
        behaviours[0].send(pid, 1)
    with pytest.raises(NodeStoppedError):
        await trio.to_thread.run_sync(node.send, pid, 1)


async def test_a_message_that_was_promised_room_by_one_who_has_ended_since_becomes_a_dead_letter() -> (
    None
):
    async with running_node() as node:
        pid = await node.spawn(Puppet, mailbox_size=1)
        process = process_of(node, pid)
        process.mailbox.promise(Lane.MAIN)
        node.kill(pid)
        await node.wait_ended(pid)

        router_of(node).arrive_promised(process, Lane.MAIN, (MESSAGE, node.pid, pid, "late"))

        assert node.info().dead_letters == {Why.STOPPING: 1}


async def test_a_thread_that_begins_to_wait_for_one_who_has_ended_is_sent_away() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, mailbox_size=1, overflow=Overflow.WAIT)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)
        waiter = _ThreadWaiter(
            router_of(node), process, Lane.MAIN, (MESSAGE, node.pid, pid, "late")
        )

        waiter.begin()

        assert waiter.parker.value is False
        assert node.info().dead_letters == {Why.STOPPING: 1}


async def test_a_thread_that_begins_to_wait_when_there_is_room_again_need_not_wait() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=1, overflow=Overflow.WAIT)
        # It found the mailbox full, and the loop comes to it when it is so no longer.
        waiter = _ThreadWaiter(
            router_of(node), process_of(node, pid), Lane.MAIN, (MESSAGE, node.pid, pid, "in")
        )

        waiter.begin()
        await wait_all_tasks_blocked()

        assert waiter.parker.value is True
        assert heard == ["in"]


async def test_one_that_should_make_room_and_is_taken_in_the_same_moment_is_no_dead_letter() -> (
    None
):
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=1, overflow=Overflow.DROP_OLDEST)
        process = process_of(node, pid)

        class Taken(Mailbox):
            """A thread takes the oldest when it was to be dropped."""

            def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
                process.mailbox = real
                real.push(lane, envelope)
                return Verdict.DISPLACED, None

        real, process.mailbox = process.mailbox, Taken(1, Overflow.DROP_OLDEST)
        sent = node.send(pid, "new")
        await wait_all_tasks_blocked()

        assert sent
        assert heard == ["new"]
        assert node.info().dead_letters == {}


async def test_a_call_that_is_not_delivered_is_answered_and_a_signal_is_no_dead_letter() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        router = router_of(node)
        process = router.processes[pid]
        caller = TaskCaller(pid, 1, pid, "question", current_task())

        router.discard((CALL, pid, caller, "question"), pid, Why.STOPPING, process)
        router.discard((EXIT, pid, None, Normal()), pid, Why.STOPPING, process)

        assert isinstance(caller.error, TargetDownError)
        assert node.dead_letters() == []
