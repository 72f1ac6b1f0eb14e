"""Delivery: which process an address means, the rules of a full mailbox, and messages without a
receiver.
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
    PID,
    Actor,
    Alias,
    BadInputError,
    Caller,
    ChildSpec,
    DeadLetter,
    Name,
    NodeStoppedError,
    Normal,
    Overflow,
    Priority,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Why,
)
from ergo_py._core.messaging.waiters import TaskCaller, ThreadWaiter
from ergo_py._core.tables.child_slot import ChildSlot
from ergo_py._core.tables.mailbox import Mailbox, Verdict
from ergo_py._core.vocabulary.envelopes import CALL, EXIT, MESSAGE, Envelope, Lane
from ergo_py.errors import TargetTypeError
from ergo_py.supervision import Fate
from tests._core.messaging.busy import LANES, busy
from tests.actors import Puppet, Recorder
from tests.support import THOROUGH, process_of, router_of, running_node

FLOOD = 1_000_000 if THOROUGH else 50_000


# -- addresses -------------------------------------------------------------------------------------


async def test_a_process_is_reached_once_by_pid_by_name_and_by_alias(
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


async def test_a_name_on_another_node_does_not_reach_a_process_of_this_node(
    autojump_clock: MockClock,
) -> None:
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


async def test_a_pid_from_an_earlier_start_of_the_node_reaches_no_process(
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
async def test_every_verb_with_a_target_refuses_a_target_that_is_no_address(
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


async def test_an_invalid_priority_is_refused_and_no_message_is_sent(
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
async def test_messages_of_a_sender_at_the_same_priority_arrive_in_sending_order(
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
"""Ways for a thread: straight into the mailbox, under a lock, through the bridge, and after a wait.
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
async def test_a_thread_that_uses_several_addresses_of_a_process_keeps_its_order(
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
async def test_threads_that_send_to_a_sleeping_process_wake_the_loop_once(
    options: dict[str, Any],
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, **options)
        await wait_all_tasks_blocked()

        thread = threading.Thread(target=lambda: [node.send(pid, number) for number in range(100)])
        thread.start()
        thread.join()
        waiting = len(router_of(node).bridge.pending)
        await node.call(pid, "all?")

        assert waiting == 1
        assert heard == list(range(100))


async def test_a_message_a_thread_puts_into_an_ending_processs_mailbox_is_a_dead_letter() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)

        def come_too_late() -> None:
            # As if it had seen the process open, and lost the processor for a moment.
            process.main.append((MESSAGE, node.pid, None, "late"))
            process.wake_from_any_thread()

        await trio.to_thread.run_sync(come_too_late)
        router_of(node).bridge.catch_up()

        assert [(letter.target, letter.message_type) for letter in node.dead_letters()] == [
            (pid, "str")
        ]
        assert not process.main


@pytest.mark.parametrize("name", [None, "ada"])
@pytest.mark.parametrize("size", [2, 100])
async def test_a_threads_message_to_a_bounded_process_that_just_ended_is_a_dead_letter(
    size: int, name: str | None
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name=name, mailbox_size=size, overflow=Overflow.WAIT)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)

        # As if the thread had looked for the receiver, and lost the processor for a moment.
        process.accepting = process.takes_bounded = True
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


async def test_a_reserved_place_is_released_when_its_message_is_in_it() -> None:
    heard: list[Any] = []
    sent_meanwhile: list[bool] = []

    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=3)
        box = process_of(node, pid).mailbox

        class Hurried(Mailbox):
            __slots__ = ()

            def redeem(self, lane: Lane) -> None:
                super().redeem(lane)
                # A thread sends at this moment, which is the first moment in which its message may
                # go straight in.
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
    """The result of a verb that a thread calls while the loop stands still."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("priority", Priority)
async def test_a_threads_message_to_a_free_name_never_reaches_a_later_holder(
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


async def test_a_threads_message_to_a_stopping_process_never_reaches_its_successor() -> None:
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
async def test_a_threads_message_to_a_name_goes_to_the_holder_it_found(
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


async def test_a_thread_does_not_overtake_messages_kept_for_the_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    sent: list[bool] = []
    gate = trio.Event()
    inherit = ChildSlot.inherit

    class Waits(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if not gate.is_set():
                await gate.wait()
            heard.append(message)

    def send_meanwhile(slot: ChildSlot, *args: Any) -> Any:
        if slot.kept:
            sent.append(in_a_thread(node.send, "kept", "meanwhile"))
        return inherit(slot, *args)

    monkeypatch.setattr(ChildSlot, "inherit", send_meanwhile)
    async with running_node() as node:
        await node.spawn(Supervisor, SupervisorSpec([ChildSpec("kept", Waits, mailbox=Fate.KEEP)]))
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
async def test_threads_that_send_to_a_restarting_name_lose_no_message_and_keep_order(
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
        child = ChildSpec("service", Service, mailbox=Fate.KEEP)
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
    # A message accepted at the moment in which the holder ended is a dead letter, too.
    assert len(heard) + letters == threads * messages
    assert letters >= len(refused)


async def test_the_loop_counts_the_message_of_a_thread_to_a_process_that_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted_in: list[int] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, [], name="service")

        async def end() -> None:
            node.kill(pid)
            await wait_all_tasks_blocked()

        def envelope(sender: Any, to: Any, message: object, _context: object) -> Envelope:
            # The thread has seen that the process takes messages, and has not appended its own yet.
            trio.from_thread.run(end)
            return (MESSAGE, sender, to, message)

        monkeypatch.setattr("ergo_py._core.messaging.router._envelope", envelope)
        router_of(node).dead_letters.announce_to(lambda _: counted_in.append(threading.get_ident()))
        await trio.to_thread.run_sync(node.send, "service", "late")
        await wait_all_tasks_blocked()

        assert counted_in == [threading.get_ident()]


@pytest.mark.parametrize(
    "options", [{}, {"mailbox_size": 2}, {"mailbox_size": 100, "overflow": Overflow.WAIT}]
)
async def test_a_call_does_not_overtake_a_message_a_thread_has_just_sent(
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


async def test_a_process_that_alternates_between_two_targets_reaches_both(
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
                for number, to in enumerate((one, one, other, one._replace(), other, one))
            ]

        sent = await node.call(puppet, send_all)
        await wait_all_tasks_blocked()

        assert sent == [True] * 6
        assert (left, right) == ([0, 1, 3, 5], [2, 4])


async def test_send_returns_false_after_its_target_has_ended(
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
async def test_a_message_without_a_receiver_is_a_dead_letter_and_no_error(
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


async def test_messages_that_a_process_did_not_handle_are_dead_letters(
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


async def test_kept_messages_of_dead_letters_are_shown_on_demand_and_after_redact(
    autojump_clock: MockClock,
) -> None:
    keep = DeadLetter.Keep(bytes=10_000)
    async with running_node(dead_letters=keep, redact=lambda _, value: value[:4]) as node:
        node.send("nobody", "tea, and a secret")

        assert "tea" not in repr(node.dead_letters())
        assert [letter.contents for letter in node.dead_letters(contents=True)] == ["'tea,'"]


async def test_the_message_of_a_dead_letter_is_sent_again_in_the_name_of_its_sender() -> None:
    # By the real clock: the clock of the other tests would pass all limits while a thread works.
    received: list[Any] = []

    class Receiver(Actor):
        def handle_message(self, message: Any, sender: PID) -> None:
            received.append((message, sender))

    async with running_node(dead_letters=DeadLetter.Keep(bytes=10_000)) as node:
        puppet = await node.spawn(Puppet)
        await node.call(puppet, lambda me: me.send("late", "first"))
        node.send("nobody", "second")
        await node.spawn(Receiver, name="late")
        first, second = node.dead_letters()

        assert node.resend(first)
        assert not node.resend(second, "nobody either")
        assert await trio.to_thread.run_sync(node.resend, node.dead_letters()[-1], "late")
        await wait_all_tasks_blocked()

        assert received == [("first", puppet), ("second", node.pid)]
        with pytest.raises(BadInputError, match="whose message this node keeps"):
            node.resend(first)


async def test_a_node_that_keeps_no_messages_cannot_send_a_dead_letter_again(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        node.send("nobody", "text")

        with pytest.raises(BadInputError, match=r"DeadLetter\.Keep"):
            node.resend(node.dead_letters()[0])
        assert node.dead_letters(contents=True) == node.dead_letters()


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


async def test_send_from_a_thread_to_an_unknown_name_returns_false() -> None:
    async with running_node() as node:
        sent = await trio.to_thread.run_sync(node.send, "nobody", 1)
        await wait_all_tasks_blocked(0.01)

        assert sent is False
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}


async def test_sending_on_a_stopped_node_raises_node_stopped(autojump_clock: MockClock) -> None:
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


async def test_a_message_with_a_reserved_place_is_a_dead_letter_if_the_receiver_has_ended() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, mailbox_size=1)
        process = process_of(node, pid)
        process.mailbox.promise(Lane.MAIN)
        node.kill(pid)
        await node.wait_ended(pid)

        router_of(node).arrive_promised(process, Lane.MAIN, (MESSAGE, node.pid, pid, "late"))

        assert node.info().dead_letters == {Why.STOPPING: 1}


async def test_a_thread_that_begins_to_wait_for_an_ended_process_is_refused() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet, mailbox_size=1, overflow=Overflow.WAIT)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)
        waiter = ThreadWaiter(router_of(node), process, Lane.MAIN, (MESSAGE, node.pid, pid, "late"))

        waiter.begin()

        assert waiter.parker.value is False
        assert node.info().dead_letters == {Why.STOPPING: 1}


async def test_a_thread_that_begins_to_wait_when_there_is_room_again_does_not_wait() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard, mailbox_size=1, overflow=Overflow.WAIT)
        # It found the mailbox full, and the loop comes to it when it is so no longer.
        waiter = ThreadWaiter(
            router_of(node), process_of(node, pid), Lane.MAIN, (MESSAGE, node.pid, pid, "in")
        )

        waiter.begin()
        await wait_all_tasks_blocked()

        assert waiter.parker.value is True
        assert heard == ["in"]


async def test_an_oldest_message_taken_by_a_thread_before_its_drop_is_no_dead_letter() -> None:
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


async def test_the_declared_messages_of_a_class_change_nothing_at_run_time() -> None:
    class Counting(Actor[int]):
        def __init__(self) -> None:
            self.heard: list[object] = []

        def handle_message(self, message: object, sender: PID) -> None:
            self.heard.append(message)

        def handle_call(self, request: object, caller: Caller) -> object:
            return list(self.heard)

    assert Actor[int] is Actor
    async with running_node() as node:
        typed: PID[Counting] = await node.spawn(Counting)
        untyped: PID = PID(typed.node, typed.creation, typed.number)
        assert (typed, hash(typed), type(typed)) == (untyped, hash(untyped), type(untyped))

        node.send(typed, "no int")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        node.send(untyped, 1)

        assert await node.call(typed, "all") == ["no int", 1]
