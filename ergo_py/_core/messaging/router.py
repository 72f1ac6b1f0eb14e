"""`Router`: resolves each address and delivers each message.

No other module does either, except for two inlined copies of `Router.send` on hot paths.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import Any, Final, cast

import trio
from trio.lowlevel import current_task, enable_ki_protection

from .. import sources
from ..runtime.bridge import Bridge, get_ident
from ..runtime.dispatcher_threads import callback_here, job_here
from ..runtime.parking import TrioTurns, park_as, yield_turn
from ..runtime.time_slices import SLICE
from ..tables.dead_letters import DeadLetters
from ..tables.mailbox import Verdict, Waiter
from ..tables.pending_calls import Callee, Caller, ring_of, waiting_process
from ..vocabulary.envelopes import (
    CALL,
    EVENT,
    MAIN_LANE,
    MESSAGE,
    SYSTEM_LANE,
    TRACED,
    URGENT_LANE,
    Divert,
    Envelope,
    Lane,
    Overflow,
    Priority,
)
from ..vocabulary.errors import (
    BadInputError,
    DeadlockError,
    MailboxFullError,
    NodeStoppedError,
)
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.messages import Diverted, Why
from ..vocabulary.reasons import NoProcess, Reason, is_failure
from .addresses import Addresses
from .clock import Clock
from .hooks import Hook
from .receiver import NO_RECEIVER, AnyProcess, Asker, Receiver
from .remote import RemoteReceiver
from .traces import Mark
from .waiters import TaskWaiter, ThreadWaiter

__all__ = ["Router", "check_priority"]

LANES: Final = (MAIN_LANE, SYSTEM_LANE, URGENT_LANE)
"""The lane of each priority."""

_ACCEPTED: Final = Verdict.ACCEPTED

_LATER: Final = (
    "make room first: let it handle its messages, give it a larger mailbox_size, or use `send`"
)
# Not measured for awaits: the number of the short cuts of calls. Every eighth look reads the clock,
# so slow work ends the budget earlier.
_SHORT_CUTS: Final = 64
"""Most awaits in a row that skip the checkpoint. After these a caller in a loop lets other tasks
run.
"""


def check_priority(priority: object) -> Priority:
    """Return ``priority``, or raise if it is not a `Priority`."""
    if not isinstance(priority, Priority):
        raise BadInputError("priority", priority, "Priority.NORMAL, Priority.HIGH or Priority.MAX")
    return priority


def _is_message(envelope: Envelope) -> bool:
    """Whether an envelope has a message, and neither a call nor an event."""
    kind, _, ref, _ = envelope
    if kind == TRACED:
        return not isinstance(ref, Caller) and ref.kind != EVENT
    return kind == MESSAGE


def _envelope(sender: PID | Alias, to: Target, message: object, context: object | None) -> Envelope:
    if context is None:
        return (MESSAGE, sender, to, message)
    return (TRACED, sender, Mark(MESSAGE, to, context), message)


class Router(Addresses):
    """Resolves targets and puts envelopes into mailboxes, from the loop and, through the bridge,
    from any thread.
    """

    __slots__ = (
        "bridge",
        "clock",
        "dead_letters",
        "deadlocks",
        "free",
        "hooks",
        "inline_calls",
        "loop_thread",
        "numbers",
        "last_receiver",
        "references",
        "sees_all",
        "slice_end",
        "turns",
    )

    def __init__(
        self,
        node: str,
        creation: int,
        bridge: Bridge,
        clock: Clock,
        dead_letters: DeadLetters,
        inline_calls: bool,
        turns: TrioTurns,
        hooks: tuple[Hook, ...] = (),
    ) -> None:
        Addresses.__init__(self, node, creation)
        self.bridge: Bridge = bridge
        self.clock: Clock = clock
        self.dead_letters: DeadLetters = dead_letters
        self.deadlocks: deque[tuple[float, tuple[Any, ...], tuple[str, ...], str]] = deque(
            maxlen=50
        )
        """The last refused rings of calls: time, processes, their names, type of the request."""
        self.turns: TrioTurns = turns
        self.loop_thread: int = bridge.loop_thread
        self.numbers: count[int] = count(1)
        """Numbers of processes and aliases. People type these, so they have their own, slower
        counter.
        """
        self.references: count[int] = count(1)
        """Numbers of calls and tokens, which are far more frequent."""
        self.hooks: tuple[Hook, ...] = hooks
        """The parts of the node that see each message. None of them for most nodes."""
        self.sees_all: bool = any(hook.sees_all for hook in hooks)
        """Whether no message and no call may take a short cut past the router."""
        self.inline_calls: bool = inline_calls and not self.sees_all
        self.free: int = _SHORT_CUTS
        """How many more awaits may skip the checkpoint, before `slice_end`."""
        self.slice_end: float = 0.0
        self.last_receiver: AnyProcess = NO_RECEIVER
        """The receiver of the last message, of any sender. A cache: any thread reads it once and
        writes it once, so it needs no lock.
        """
        bridge.when_forked(self._forked)

    def close(self, why: str = "") -> None:
        """Refuse all messages and calls: the node is down. ``why`` is for their errors."""
        self.stopped: bool = True
        self.bridge.close(why)

    def _forked(self) -> None:
        # In the forked child no thread is the loop's: every verb goes to the bridge, which refuses.
        self.loop_thread = 0
        self.stopped = True
        # The copies of the mailboxes in the child have tasks that never run: an append there would
        # be lost without a word.
        for process in self.processes.values():
            process.close_mailbox()

    def forget_receiver(self) -> None:
        """Forget the receiver of the last message: it has ended."""
        self.last_receiver = NO_RECEIVER

    # -- messages ----------------------------------------------------------------------------------

    # KI protection: a KeyboardInterrupt between the append and the wake-up would leave a message in
    # the mailbox of a process that keeps sleeping.
    @enable_ki_protection
    def send(self, sender: PID | Alias, to: Target, message: object, priority: Priority) -> bool:
        """Deliver a message. False if it became a dead letter.

        Raises:
            MailboxFullError: the receiver's mailbox is full, and its overflow rule refuses.
            TargetTypeError: ``to`` is not an address.
            NodeStoppedError: the node has stopped.
        """
        if type(to) is PID and not priority:
            process = self.last_receiver
            # By identity: equal PIDs are mostly the same object, and if not, the lookup finds the
            # process.
            if to is not process.id:
                self.last_receiver = process = self.processes.get(to, NO_RECEIVER)
            if process.takes_direct or (process.takes_bounded and process.mailbox.has_plenty()):
                # Safe in any thread: an append is atomic, and the receiver marks itself as asleep
                # before it checks its mailbox for the last time. Either it sees this envelope, or
                # this thread sees the mark and wakes it. Hot paths inline these lines; their
                # copies are marked, and tests/test_architecture.py knows them all.
                process.main.append((MESSAGE, sender, None, message))
                if process.task.custom_sleep_data is not None:
                    process.wake_from_any_thread()
                return True
        elif type(to) is Alias and not priority:
            receiver = self.registry.aliases.get(to)
            if receiver is not None and receiver.serves_in_passing(message, sender):
                return True
        return self._send(sender, to, message, priority)

    def _send(
        self,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        context: object | None = None,
    ) -> bool:
        """Deliver a message in the general way, with the context of its trace."""
        # Here and not in send(): a wrong type is no 0, and so comes to this way.
        if type(priority) is not Priority:
            check_priority(priority)
        receiver = self.resolve(to)
        if get_ident() != self.loop_thread:
            return self._send_from_thread(sender, to, message, priority, receiver, context)
        if receiver is None:
            return self._add_dead_letter(sender, to, message)
        if receiver.is_remote:
            peer = cast(RemoteReceiver, receiver)
            if context is not None:
                return peer.send_traced(sender, to, message, priority, context)
            return peer.send(sender, to, message, priority)
        envelope = (
            (MESSAGE, sender, to, message)  # without the call: most messages to names come here
            if context is None
            else _envelope(sender, to, message, context)
        )
        return self.post(receiver, to, LANES[priority], envelope)

    def sweep(self, pid: PID, lane: deque[Envelope]) -> None:
        """Turn messages into dead letters, and fail calls, that threads appended to a mailbox while
        its owner ended.
        """
        while lane:
            _, sender, ref, message = lane.popleft()
            if isinstance(ref, Caller):
                ref.fail_queued(NoProcess())
            else:
                self._add_dead_letter(sender, pid, message)

    def record_undelivered(
        self, sender: PID | Alias, to: Target, message: object, receiver: Receiver | None
    ) -> bool:
        """Record a message that had no receiver when it was sent, or a receiver that accepts no
        more. Callable from any thread; always False.

        The loop does not resolve the address again: the sender has already got False, and may have
        sent more messages since. A second look could deliver these out of order.
        """
        if get_ident() != self.loop_thread:
            self.bridge.post(self.record_undelivered, sender, to, message, receiver)
        elif receiver is None:
            self._add_dead_letter(sender, to, message)
        else:
            self.discard((MESSAGE, sender, None, message), to, Why.STOPPING, receiver)
        return False

    def _add_dead_letter(self, sender: PID | Alias, to: Target, message: object) -> bool:
        if self.stopped:
            raise NodeStoppedError(self.node)
        why = Why.NO_PROCESS if isinstance(self.missing(to), NoProcess) else Why.NO_NODE
        self.dead_letters.add(sender, to, message, why)
        return False

    def post(self, receiver: Receiver, to: object, lane: Lane, envelope: Envelope) -> bool:
        """Put a user's envelope into a mailbox, subject to the bound and the overflow rule."""
        if receiver.takes_direct and lane is MAIN_LANE:
            receiver.mailbox.push(MAIN_LANE, envelope)
            receiver.wake_from_any_thread()
            return True
        if not receiver.accepting:
            self.discard(envelope, to, Why.STOPPING, receiver)
            return False
        verdict, displaced = receiver.mailbox.admit(lane, envelope)
        if verdict is _ACCEPTED:
            receiver.wake()
            return True
        if verdict is Verdict.DISPLACED:
            if displaced is not None:
                self.discard(displaced, receiver.id, Why.DISPLACED, receiver)
            receiver.wake()
            return True
        if verdict is Verdict.DIVERTED:
            return self._divert(receiver, to, lane, envelope)
        if verdict is Verdict.PASSED:
            return True
        self.discard(envelope, to, Why.FULL, receiver)
        if verdict is Verdict.REFUSED and _is_message(envelope):
            raise MailboxFullError(to, envelope[3], receiver.mailbox.limit)
        return False

    def _divert(self, receiver: Receiver, to: object, lane: Lane, envelope: Envelope) -> bool:
        _, sender, ref, payload = envelope
        rule = receiver.mailbox.overflow
        receiver.mailbox.count_dropped()
        other = self.registry.names.get(rule.to) if isinstance(rule, Divert) else None
        wrapped = (
            CALL if isinstance(ref, Caller) else MESSAGE,
            sender,
            ref if isinstance(ref, Caller) else None,
            Diverted(receiver.id, rule.tag if isinstance(rule, Divert) else "", payload, sender),
        )
        # An envelope that was diverted once and finds no room again becomes a dead letter:
        # diverting it further could go in circles.
        if (
            type(payload) is Diverted
            or other is None
            or not other.accepting
            or not other.mailbox.has_room(lane)
        ):
            self.discard(envelope, to, Why.FULL, receiver)
            return False
        if isinstance(ref, Caller):
            ring = self.ring_closed(waiting_process(ref, self.processes), other)
            if ring:
                ref.settle(None, self.deadlock(ref.to, ref.request, ring))
                return False
            ref.assign(other)
        return self.post(other, to, lane, wrapped)

    def ring_closed(self, start: object, callee: Callee | None) -> list[PID | Alias]:
        """The ring that would arise if the process ``start`` waited for ``callee``. Empty also if a
        process in the ring waits for its thread alone: the callback that holds the thread waits,
        too, so the thread runs the process meanwhile.
        """
        ring = ring_of(start, callee)
        for each in ring[1:-1]:
            process = self.processes.get(cast(PID, each))
            if process is not None and process.borrows_thread():
                return []
        return ring

    def deadlock(self, to: object, request: object, ring: list[Any], *texts: str) -> DeadlockError:
        """The error of a call, or of another wait with its own texts, that would close a ring of
        waiting processes. The ring is kept for inspection: the numbers and names of the processes,
        and the type of the request.
        """
        names = [getattr(self.processes.get(each), "name", None) or str(each) for each in ring]
        self.deadlocks.append((time.time(), tuple(ring), tuple(names), type(request).__qualname__))
        return DeadlockError(to, request, ring, *texts)

    def note(self, sender: PID | Alias, to: Target | EventName, message: object) -> object:
        """Show the hooks a message, a request or a publication. Returns the object that its
        receiver gets.
        """
        for hook in self.hooks:
            message = hook.sending(self, sender, to, message)
        return message

    def note_answer(self, to: Target, answer: object) -> object:
        """Show the hooks the answer to a call. Returns the object that the caller gets."""
        for hook in self.hooks:
            answer = hook.answering(self, to, answer)
        return answer

    def context_of(self, sender: PID | Alias, is_outside: bool) -> object | None:
        """The context of the trace that a message of this sender belongs to; None without one."""
        for hook in self.hooks:
            context = hook.context_of(sender, is_outside)
            if context is not None:
                return context
        return None

    def discard(self, envelope: Envelope, to: object, why: Why, receiver: Receiver) -> None:
        """Dispose of a user's envelope that is not delivered: fail a call, turn a message into a
        dead letter.
        """
        kind, sender, ref, payload = envelope
        if isinstance(ref, Caller):
            if why in (Why.FULL, Why.DISPLACED):
                ref.settle(None, MailboxFullError(ref.to, ref.request, receiver.mailbox.limit))
            else:
                ref.fail_queued(receiver.reason or NoProcess())
        elif kind <= EVENT:
            self.dead_letters.add(sender, to, payload, why)

    def signal(self, receiver: Receiver, lane: Lane, envelope: Envelope) -> None:
        """Deliver a signal of the kernel. It is never refused and never dropped."""
        box = receiver.mailbox
        (box.push_signal if lane is MAIN_LANE else box.push)(lane, envelope)
        receiver.wake()

    def notify_of_end(
        self, receiver: Receiver, lane: Lane, signal: Envelope, reason: Reason
    ) -> None:
        """Deliver the signal that a process has ended. A failure is reported before the waiting
        messages; a normal end after the messages that the process sent.
        """
        if is_failure(reason) or not receiver.accepting:
            # A process that is ending itself serves neither, and its main lane may be handed on.
            self.signal(receiver, lane, signal)
        else:
            receiver.mailbox.push_end_notice(signal)
            receiver.wake()

    async def send_wait(
        self,
        process: Asker | None,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        timeout: float | None,
    ) -> bool:
        """Like :meth:`send`, but wait for room if the receiver's overflow rule is WAIT
        (backpressure). ``process`` is the process whose callback waits, if there is one.

        Raises:
            MailboxFullError: there was no room within ``timeout`` seconds.
            DeadlockError: the receiver waits, directly or through other processes, for ``process``.
        """
        receiver = self.resolve(to)
        lane = LANES[priority]
        if receiver is not None and receiver.is_remote:
            peer, message = cast(RemoteReceiver, receiver), self.note(sender, to, message)
            return await peer.send_wait(sender, to, message, priority, timeout)
        if (
            receiver is None
            or receiver.mailbox.overflow is not Overflow.WAIT
            or not receiver.accepting
            or receiver.mailbox.has_room(lane)
        ):
            sent = self.send(sender, to, message, priority)
            await self.pause()
            return sent
        envelope = (MESSAGE, sender, to, self.note(sender, to, message))
        return await self._wait_for_room(process, receiver, lane, envelope, timeout)

    async def _wait_for_room(
        self,
        process: Asker | None,
        receiver: Receiver,
        lane: Lane,
        envelope: Envelope,
        timeout: float | None,
    ) -> bool:
        _, _, to, message = envelope
        waiter = TaskWaiter(current_task())
        with self.while_waiting(process, receiver, to, message):
            self.enter(receiver, lane, envelope, waiter)
            try:
                if waiter.admitted is None:
                    with trio.move_on_after(inf if timeout is None else timeout):
                        await park_as(waiter.task, waiter)
            finally:
                # Cancelled, or the time is over: the envelope leaves the queue. If it was admitted
                # in the same turn, it stays in the mailbox.
                if waiter.admitted is None:
                    receiver.mailbox.stop_waiting(lane, waiter)
        if waiter.admitted is None:
            receiver.mailbox.count_dropped()
            self.discard(envelope, to, Why.FULL, receiver)
            raise MailboxFullError(to, message, receiver.mailbox.limit)
        if not waiter.admitted:
            self.discard(envelope, to, Why.STOPPING, receiver)
        return waiter.admitted

    @contextmanager
    def while_waiting(
        self, process: Asker | None, receiver: Callee, to: object, message: object
    ) -> Iterator[None]:
        """Note that a callback of ``process`` waits until ``receiver`` has room. If they share a
        thread, the thread runs the callbacks of the receiver meanwhile, as during a call.

        Raises:
            DeadlockError: the receiver waits, directly or through other processes, for ``process``.
        """
        task = current_task()
        if process is None or not (task is process.callback_task or process.waits_for_task(task)):
            yield
            return
        self.refuse_ring(process, receiver, to, message)
        process.begin_wait_beside(receiver)
        try:
            yield
        finally:
            process.end_wait_beside(receiver)

    def refuse_ring(self, process: object, receiver: Callee, to: object, message: object) -> None:
        """Raise DeadlockError if ``receiver`` waits for ``process``, which is to wait for room."""
        ring = self.ring_closed(process, receiver)
        if ring:
            raise self.deadlock(to, message, ring, _LATER, "send_wait")

    def enter(self, receiver: Receiver, lane: Lane, envelope: Envelope, waiter: Waiter) -> None:
        """Put a message into a mailbox, now or when there is room. The waiter is told."""
        if not receiver.accepting:
            waiter.settle(False)
            return
        # Check and reserve under the lock, since threads reserve places, too.
        with self.bridge.lock:
            fits = receiver.mailbox.promise(lane)
        if fits:
            self.arrive_promised(receiver, lane, envelope)
            waiter.settle(True)
        else:
            receiver.mailbox.wait_for_room(lane, envelope, waiter)

    async def pause(self) -> None:
        """Checkpoint that lets other tasks run only now and then: a real checkpoint on each call
        would cost more than the call's work.
        """
        if self.pause_is_due():
            await self.turn()

    def pause_is_due(self) -> bool:
        """Whether :meth:`turn` has to be awaited now. For hot paths, where awaiting :meth:`pause`
        would cost more than the work.
        """
        self.free = free = self.free - 1
        return free <= 0 or (not free & 7 and sources.slice_clock() >= self.slice_end)

    async def turn(self) -> None:
        """Let other tasks run, and begin a new time slice."""
        # Before the yield: else each task that awaits meanwhile would find the budget used up, and
        # yield, too.
        self.free = _SHORT_CUTS
        await yield_turn(current_task())
        self.slice_end = sources.slice_clock() + SLICE

    # -- threads -----------------------------------------------------------------------------------

    def _send_from_thread(
        self,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        receiver: Receiver | None,
        context: object | None,
    ) -> bool:
        # Reading the tables from a thread is safe: a dict lookup is atomic. The message goes to the
        # receiver found here and is not resolved again on the loop. Otherwise a name that moves to
        # another process meanwhile would deliver this message after those sent later.
        self.bridge.check_open()
        if receiver is None or not receiver.accepting:
            return self.record_undelivered(sender, to, message, receiver)
        if receiver.takes_direct and not priority:
            # Append directly, as a send to its PID does. Otherwise the messages of a thread that
            # uses both addresses could overtake each other. Not by `post`, which looks again: if
            # the receiver has ended meanwhile, this thread would count a dead letter while the loop
            # counts another, and one count would be lost. The loop disposes of the message then.
            receiver.mailbox.push(MAIN_LANE, _envelope(sender, to, message, context))
            receiver.wake_from_any_thread()
            return True
        if receiver.is_remote:
            message = cast(RemoteReceiver, receiver).pack(to, message)
        envelope = (MESSAGE, sender, to, message)
        box, lane = receiver.mailbox, LANES[priority]
        if not box.limit or box.overflow not in (Overflow.RAISE, Overflow.WAIT):
            self.bridge.post(self.arrive, receiver, lane, envelope)
            return True
        with self.bridge.lock:
            box = receiver.mailbox  # under the lock: an upgrade may have replaced it
            is_in = receiver.takes_bounded and lane is MAIN_LANE and box.take_in(envelope)
            fits = is_in or box.promise(lane)
        if is_in:
            receiver.wake_from_any_thread()
            return True
        if fits:
            self.bridge.post(self.arrive_promised, receiver, lane, envelope)
            return True
        if box.overflow is Overflow.WAIT:
            job, callback = job_here(self.bridge), callback_here(self.bridge)
            process = None if job is None else job.owner
            if callback is not None:
                # Its thread may have to run the receiver meanwhile.
                return callback.run(self._wait_for_room(process, receiver, lane, envelope, None))
            return self._wait_in_thread(ThreadWaiter(self, receiver, lane, envelope, process))
        # The counters of a process and of dead letters change on the loop only: two threads that
        # count at once lose a count.
        self.bridge.post(self._refused_in_thread, receiver, sender, to, message)
        raise MailboxFullError(to, message, box.limit)

    def arrive(self, receiver: Receiver, lane: Lane, envelope: Envelope) -> None:
        """Deliver a message that a thread has sent."""
        _, sender, to, message = envelope
        if lane is not MAIN_LANE or not receiver.serves_in_passing(message, sender):
            self.post(receiver, to, lane, envelope)

    def arrive_promised(self, receiver: Receiver, lane: Lane, envelope: Envelope) -> None:
        """Deliver a message for which a place in the mailbox is reserved."""
        accepted = receiver.accepting
        with self.bridge.lock:
            # Release the reservation after the push: as soon as there is none left, threads append
            # directly, and must not overtake this message.
            if accepted:
                receiver.mailbox.push(lane, envelope)
            receiver.mailbox.redeem(lane)
        if accepted:
            receiver.wake()
        else:
            self.discard(envelope, envelope[2], Why.STOPPING, receiver)

    def _wait_in_thread(self, waiter: ThreadWaiter) -> bool:
        try:
            # Inside: an interrupt may come when the wait has begun, before this returns.
            self.bridge.post(waiter.begin)
            waiter.parker.wait(None)
        except BaseException:
            self.bridge.undo(waiter.give_up)
            raise
        if waiter.error is not None:
            raise waiter.error
        return bool(waiter.parker.value)

    def _refused_in_thread(
        self, receiver: Receiver, sender: PID | Alias, to: Target, message: object
    ) -> None:
        receiver.mailbox.count_dropped()
        self.dead_letters.add(sender, to, message, Why.FULL)
