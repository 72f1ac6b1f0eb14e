"""Bounded mailboxes that are full: refused messages, dropped messages, senders and callers that
wait.
"""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    BadInputError,
    CallTimeoutError,
    ChildSpec,
    Custom,
    Divert,
    Diverted,
    Down,
    Exit,
    LogRecord,
    MailboxFullError,
    Node,
    Overflow,
    Priority,
    TargetDownError,
    Threads,
    Why,
)
from ergo_py.errors import DeadlockError
from ergo_py.supervision import Fate
from tests._core.messaging.busy import LANES, Busy, busy
from tests.actors import Deferring, LogKeeper, Puppet, Recorder
from tests.support import process_of, running_node

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
async def test_drop_newest_drops_messages_without_room(
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
async def test_divert_sends_messages_without_room_to_a_named_process_with_origin_and_tag(
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


async def test_a_message_that_cannot_be_diverted_is_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
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


async def test_two_full_processes_that_divert_to_each_other_cause_no_endless_loop(
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


async def test_a_diverted_message_is_not_diverted_again(autojump_clock: MockClock) -> None:
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
async def test_the_bound_applies_to_each_lane(
    autojump_clock: MockClock, priority: Priority
) -> None:
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
async def test_a_plain_send_to_a_full_mailbox_with_waiting_senders_is_refused(
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
                    # A puppet can wait only for a single answer, so the later even numbers queue up
                    # behind it.
                    assert len(results) == min(number + 1, 2)
            gate.set()

        assert results == [True] * 7
        assert [number for number in heard if number % 2] == [1, 3, 5]
        assert [number for number in heard if not number % 2] == [0, 2, 4, 6]
        assert heard[:5] == [0, 1, 2, 3, 5]
        assert node.process_info(pid).dropped == 0


@LANES
async def test_waiting_senders_enter_as_soon_as_there_is_room(
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


async def test_a_plain_send_does_not_overtake_waiting_senders(autojump_clock: MockClock) -> None:
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


async def test_a_cancelled_send_wait_leaves_no_waiter_behind(autojump_clock: MockClock) -> None:
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


async def test_a_cancelled_send_wait_lets_the_senders_behind_it_continue(
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
async def test_send_wait_is_an_ordinary_send_unless_the_receiver_lets_senders_wait(
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


async def test_send_wait_to_an_unknown_name_returns_false_at_once(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        sent = await node.send_wait("nobody", 1)

        assert sent is False
        assert node.info().dead_letters == {Why.NO_PROCESS: 1}
        assert trio.current_time() == 0


async def test_a_thread_waits_for_room_and_continues_in_order() -> None:
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


async def test_a_thread_that_waits_for_room_is_freed_by_the_receivers_death() -> None:
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


async def test_a_full_mailbox_refuses_a_thread_as_it_refuses_a_task() -> None:
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
async def test_a_diverted_call_is_answered_by_its_new_receiver(
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


async def test_a_diverted_call_ends_with_its_new_receiver(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        gate = trio.Event()
        spill = await node.spawn(Deferring, name="spill")
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


async def test_a_call_diverted_to_its_caller_is_a_deadlock(
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


async def test_a_call_that_waits_for_room_ends_at_its_timeout_and_leaves_no_waiter(
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


# -- an order of the user --------------------------------------------------------------------------


def urgency(message: object) -> int:
    """The largest number first; the opening message of `busy` before all."""
    return -message if isinstance(message, int) else -100


async def test_messages_and_calls_are_served_in_the_order_of_the_receiver() -> None:
    heard: list[Any] = []
    async with running_node() as node, trio.open_nursery() as nursery:
        gate = trio.Event()
        pid = await busy(node, gate, heard, mailbox_size=10, order=urgency)
        for number in (1, 3, 2):
            node.send(pid, number)
        await trio.to_thread.run_sync(node.send, pid, 5)
        nursery.start_soon(node.call, pid, 4)
        await wait_all_tasks_blocked()
        node.send(pid, 0, priority=Priority.HIGH)

        gate.set()
        await wait_all_tasks_blocked()

        assert heard == [0, 5, 4, 3, 2, 1]


async def test_the_order_of_a_child_holds_for_the_messages_that_its_successor_gets(
    autojump_clock: MockClock,
) -> None:
    gate, heard = trio.Event(), list[Any]()
    async with running_node() as node:
        spec = ChildSpec(
            "busy", Busy, gate, heard, mailbox=Fate.KEEP, mailbox_size=10, order=urgency
        )
        await node.supervise([spec])
        node.send("busy", None)
        await wait_all_tasks_blocked()
        for number in (1, 3, 2):
            node.send("busy", number)

        pid = node.whereis("busy")
        assert pid is not None
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == [3, 2, 1]
        assert node.info().dead_letters == {}


async def test_a_message_without_a_place_in_the_order_is_a_dead_letter(
    autojump_clock: MockClock,
) -> None:
    log: list[LogRecord] = []
    async with running_node() as node:
        node.add_logger(await node.spawn(LogKeeper, log))
        pid = await node.spawn(Recorder, mailbox_size=10, order=lambda message: -message)

        assert node.send(pid, "text")
        with pytest.raises(TypeError, match="unary"):
            await node.call(pid, "text")
        await wait_all_tasks_blocked()

        assert [letter.why for letter in node.dead_letters()] == [Why.UNORDERED]
        assert node.process_info(pid).dropped == 2
        assert [line.event for line in log] == ["the order of a message failed"] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"order": urgency},
        {"order": "urgency", "mailbox_size": 10},
        {"order": urgency, "mailbox_size": 10, "dispatcher": Threads()},
    ],
    ids=["without a bound", "not a function", "in a thread"],
)
async def test_an_order_without_a_bound_or_with_a_thread_is_refused(options: Any) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="mailbox_size"):
            await node.spawn(Recorder, **options)
