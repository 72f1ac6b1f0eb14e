"""`Peer`: another node, as a receiver of messages and calls, with its session."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from .._core import sources
from .._core.messaging.router import LANES
from .._core.runtime.time_slices import in_slices
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import MESSAGE, Lane, Priority
from .._core.vocabulary.errors import (
    TargetDownError,
)
from .._core.vocabulary.ids import PID, Alias, Target
from .._core.vocabulary.messages import Why
from .._core.vocabulary.reasons import NoNode, Reason, Shutdown
from .._core.vocabulary.text import shown, utf8
from .errors import (
    MessageTooLargeError,
    MessageTypeError,
)
from .executor import ROUTES, Executor, ViolationError
from .messages.message_types import RefusedValueError
from .outgoing.notices import Notices
from .outgoing.open_calls import OpenCalls
from .outgoing.peer_mailbox import Packed, PeerMailbox
from .protocol.failures import failure_of
from .protocol.frames import Frame, encode_frame
from .protocol.operations import (
    NOT_AN_OPERATION,
    Answer,
    Call,
    Counts,
    Ended,
    Event,
    Failed,
    Failure,
    Operation,
    Part,
    Probe,
    Route,
    Subscribed,
    encode_operation,
    encode_route,
    read_operation,
    sender_place,
)
from .protocol.session import Session, State
from .traffic.limits import ADDRESS, ANSWERS, LARGEST, too_large
from .traffic.refusals import Refusals
from .watches import Watches

if TYPE_CHECKING:
    from .network import Network

__all__ = ["Peer"]

_PRIORITIES: Final = {lane: Priority(number) for number, lane in enumerate(LANES)}
_SEND, _CALL, _ANSWER, _FAILED = 0, 2, 3, 4
"""The tags of `Send`, `Call`, `Answer` and `Failed`: a tuple is made faster than an operation."""
_WAVE: Final = 6 * 1024
"""Bytes of calls and answers that are kept at most: then a part goes out early, so that both nodes
work at the same time.
"""
_FULL: Final = 16 * 1024
"""The same for messages, whose senders do not wait."""
_PAUSE: Final = 0.00005
"""Seconds after an operation within which further ones are collected."""


class Peer(OpenCalls, Notices):
    """Another node. A receiver that is never asleep and has no callbacks."""

    is_remote: Final = True
    accepting: Final = True
    inline: Final = False
    takes_direct: Final = False
    takes_bounded: Final = False
    waiting: Any = None

    def __init__(self, network: "Network", node: str, fresh: Callable[[], int]) -> None:
        super().__init__(network.limits.calls)
        self.network = network
        self.node = node
        self.router = network.kernel.router
        self.id = PID(node, 0, 0)
        self.creation = 0
        """The start of the node that the session is with; 0 without a session."""
        self.deferred: dict[Caller, None] | None = None
        self.reason: Reason | None = None
        """Why the node is down; None while there is no attempt, or a session."""
        clock = network.kernel.clock
        self.session = Session(
            self,
            self.router.creation,
            network.timing,
            clock.now,
            fresh,
            network.carrier.max_operation,
        )
        self._parts = bytearray()
        """The parts of an operation that has not arrived whole."""
        self.refusals = Refusals(self)
        self.mailbox = PeerMailbox(self, network.backlog)
        self._most_waiting = network.backlog + ANSWERS
        self.executor = Executor(self)
        self.watches = Watches(self)
        self._encode = network.encode
        self._encoders = network.types.encoders
        self.frames_out = self.frames_in = 0
        self.bytes_out = self.bytes_in = 0
        """Frames to and from that node, and their bytes."""
        # The same table: a node that drains replaces an entry of it.
        self._handlers: dict[type, Callable[[Any], None]] = self.executor.handlers
        self._handlers |= {
            Answer: self.take_answer,
            Failed: self.take_failure,
            Ended: self.watches.end,
            Event: self.watches.publish,
            Subscribed: self.watches.note_subscribed,
            Probe: self._take_probe,
            Part: self._take_part,
            Counts: self.refusals.note_counts,
        }
        self._routes: dict[tuple[Any, PID | Alias, Lane], bytes] = {}
        """Encoded routes of messages, which mostly repeat."""
        self._last_route: tuple[Any, PID | Alias | None, Lane, bytes] = (None, None, Lane.LOG, b"")
        self._is_dirty = False
        self._full = _WAVE
        """The queued bytes at which operations that are kept go out early."""
        self._flush_at = 0.0
        """The moment from which on an operation goes out at once."""
        self._sent_all: trio.Event | None = None
        self._down = trio.Event()

    def __repr__(self) -> str:
        return f"<node {self.node} {self.session.state.value}>"

    @property
    def is_up(self) -> bool:
        """Whether there is a session."""
        return self.session.state is State.UP

    @property
    def is_idle(self) -> bool:
        """Whether the peer can be forgotten: no session, no attempt, no watch."""
        return self.session.state is State.IDLE and not self.watches and not self.mailbox.waiters

    # -- receiver ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Send queued operations: the first at once, and those that follow within a short while
        together, when the tasks that run now have run.
        """
        if self._is_dirty:
            return
        now = sources.slice_clock()
        if now >= self._flush_at:
            self._flush_at = now + _PAUSE
            self.session.flush()
            if self.session.state is not State.UP:
                self._after()
        else:
            self._is_dirty = True
            self.network.flush_later(self)

    wake_from_any_thread = wake  # only the loop appends to its mailbox

    def flush(self) -> None:
        """Send the operations that were queued since the first."""
        self._flush_at = sources.slice_clock() + _PAUSE
        self.end_hold()

    def end_hold(self) -> None:
        """Send the operations that came of the frames of a pass."""
        self._is_dirty = False
        self._full = _WAVE
        session = self.session
        session.flush()
        if (
            session.is_due_earlier
            or session.state is not State.UP
            or self.mailbox.waiters
            or self._sent_all is not None
        ):
            self._after()

    def serves_in_passing(self, _message: object, _sender: PID | Alias) -> bool:
        """Always False: every message travels."""
        return False

    # -- outgoing ----------------------------------------------------------------------------------

    def pack(self, to: Target, message: object) -> Packed:
        """Encode a message, in the turn and in the thread of its sender.

        Raises:
            MessageTypeError: the message cannot travel.
            MessageTooLargeError: the carrier does not take a message of its size.
        """
        if isinstance(message, Packed):
            return message
        return Packed(message, self.network.encode(to, message))

    def send(self, sender: PID | Alias, to: Any, message: object, priority: Priority) -> bool:
        """Send a message, on the loop. Always True: the message is on its way.

        Raises:
            MessageTypeError: the message cannot travel.
            NodeBusyError: too many bytes wait.
        """
        lane, mailbox = LANES[priority], self.mailbox
        if mailbox.waiters or mailbox.inbound or self.session.queued_bytes >= mailbox.limit:
            mailbox.admit(lane, (MESSAGE, sender, to, message))
        else:
            encode = self._encoders.get(type(message))
            if encode is None:
                body = message.body if type(message) is Packed else self._encode(to, message)
            else:
                try:
                    body = encode(message)
                except Exception:
                    body = self._encode(to, message)  # raises the error for the sender
                if len(body) > LARGEST:
                    self._encode(to, message)
            # Inlined _route(): mostly the same sender sends to the same receiver again.
            last_to, last_sender, last_lane, route = self._last_route
            if last_to is not to or last_sender is not sender or last_lane is not lane:
                route = self._route(lane, sender, to)
            self.session.push(encode_operation((_SEND, route, body)))
        if not self._is_dirty:
            self.wake()
        elif self.session.queued_bytes >= self._full:
            self._flush_early(_FULL)
        return True

    def _flush_early(self, step: int) -> None:
        """Send the operations that are kept, so that the other node works on them meanwhile."""
        self.session.flush()
        # If the window is full, try again when as much again is queued.
        self._full = self.session.queued_bytes + step

    def push_message(self, lane: Lane, sender: PID | Alias, to: Any, packed: Packed) -> None:
        """Queue a message."""
        op = (_SEND, self._route(lane, sender, to), packed.body)
        self.session.push(encode_operation((*op, packed.headers) if packed.headers else op))

    def send_traced(
        self, sender: PID | Alias, to: Any, message: object, priority: Priority, context: Any
    ) -> bool:
        """Send a message with the context of its trace, as :meth:`send`."""
        plain = self.pack(to, message)
        packed = Packed(plain.message, plain.body, self.headers_of(context))
        self.mailbox.admit(LANES[priority], (MESSAGE, sender, to, packed))
        self.wake()
        return True

    def _route(self, lane: Lane, sender: PID | Alias, to: Any) -> bytes:
        """The encoded route of a message or a call."""
        last_to, last_sender, last_lane, route = self._last_route
        if last_to is to and last_sender is sender and last_lane is lane:
            return route
        key = (to, sender, lane)
        known = self._routes.get(key)
        if known is not None:
            route = known
        else:
            place = self.place(to)
            self.network.note_sender(sender)
            route = encode_route(Route(place, sender_place(sender), _PRIORITIES[lane]))
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[key] = route
        self._last_route = (to, sender, lane, route)
        return route

    def push_waiting(self, lane: Lane, sender: PID | Alias, to: Any, message: object) -> None:
        """Queue a message that has waited for room. Its sender cannot be told of an error now."""
        try:
            self.push_message(lane, sender, to, self.pack(to, message))
        except (MessageTypeError, MessageTooLargeError) as error:
            self.network.kernel.logger.error("a message cannot travel", error=str(error))
            self.router.dead_letters.add(sender, to, message, Why.UNREADABLE)
            return
        self.wake()

    def take_call(self, caller: Caller, priority: Priority) -> bool:
        """Send a call, on the loop. False if too many bytes wait."""
        lane, mailbox, session = LANES[priority], self.mailbox, self.session
        if mailbox.waiters or mailbox.inbound or session.queued_bytes >= mailbox.limit:
            return False
        to, number, request, sender = caller.to, caller.number, caller.request, caller.pid
        encode = self._encoders.get(type(request))
        try:
            # As in send().
            if encode is None:
                body = self._encode(to, request)
            else:
                try:
                    body = encode(request)
                except Exception:
                    body = self._encode(to, request)
                if len(body) > LARGEST:
                    self._encode(to, request)
            last_to, last_sender, last_lane, route = self._last_route
            if last_to is not to or last_sender is not sender or last_lane is not lane:
                route = self._route(lane, sender, to)
        except (MessageTypeError, MessageTooLargeError) as error:
            caller.settle(None, error)
            return True
        # Inlined remember().
        calls = self._calls
        if len(calls) >= self._sweep_at and not self.admits(caller):
            return True
        if number in calls:
            number = next(self.router.references)
        calls[number] = caller
        session.push(encode_operation((_CALL, number, route, body)))
        if not self._is_dirty:
            self.wake()
        elif session.queued_bytes >= self._full:
            self._flush_early(_WAVE)
        return True

    def push_call(self, lane: Lane, caller: Caller, request: object) -> None:
        """Queue a call. If its request cannot travel, the call fails."""
        try:
            route = self._route(lane, caller.pid, caller.to)
            packed = self.pack(caller.to, request)
        except (MessageTypeError, MessageTooLargeError) as error:
            caller.settle(None, error)
            return
        if self.admits(caller):
            context = None if caller.mark is None else caller.mark.context
            number, headers = self.remember(caller), self.headers_of(context)
            self.push(Call(number, route, packed.body, headers))

    def connect(self) -> None:
        """Begin a session, unless there is one."""
        self.session.connect()
        self._after()

    async def wait_down(self) -> Reason:
        """Wait until the session, or the attempt to begin one, has ended."""
        self.connect()
        await self._down.wait()
        assert self.reason is not None
        return self.reason

    def send_answer(self, number: int, value: object, error: BaseException | None) -> None:
        """Answer a call of that node."""
        what = "an answer" if error is None else "an error"
        why = "MessageTypeError"
        try:
            if error is None:
                kind, encode = "", self._encoders.get(type(value))
                try:
                    body = self.network.types.encode(value) if encode is None else encode(value)
                except Exception:
                    body = self.network.types.encode(value)  # raises the refusal
            else:
                kind, body = failure_of(error, self.network.types)
            if len(body) > LARGEST:
                why = "MessageTooLargeError"
                raise RefusedValueError(too_large(what, body, self.node))
        except RefusedValueError as refusal:
            self.network.kernel.logger.error(
                f"{what} cannot travel to node {self.node}", error=str(refusal)
            )
            kind = Failure.UNSENDABLE
            body = self.network.types.encode([why, utf8(str(refusal))])
        op = (_FAILED, number, kind, body) if kind else (_ANSWER, number, body)
        self.session.push(encode_operation(op))
        if not self._is_dirty:
            self.wake()
        elif self.session.queued_bytes >= self._full:
            self._flush_early(_WAVE)

    def push(self, op: Operation) -> None:
        """Queue an operation, and send it soon."""
        self.session.push(encode_operation(op))
        self.wake()

    def _take_probe(self, op: Probe) -> None:
        self.network.deadlocks.take(self, op)

    async def wait_sent(self) -> None:
        """Wait until all operations are given to the carrier, or the session ends."""
        while self.is_up and self.session.queued:
            if self._sent_all is None:
                self._sent_all = trio.Event()
            await self._sent_all.wait()

    # -- incoming ----------------------------------------------------------------------------------

    def receive(self, frame: Frame, size: int, held: "list[Peer] | None") -> None:
        """Take a frame of that node. In a pass, operations are kept until :meth:`end_hold`, and
        ``held`` lists the peers that keep some.
        """
        self.frames_in += 1
        self.bytes_in += size
        if held is not None and not self._is_dirty:
            self._is_dirty = True
            held.append(self)
        self.session.receive(frame)
        if self.session.queued_bytes > self._most_waiting:
            self.session.close("it asks for more than it takes", False)
        if not self._is_dirty:
            self._after()

    def deliver(self, data: bytes, is_whole: bool = False) -> None:
        """Carry out an operation of that node; ``is_whole`` if it came in parts."""
        try:
            op = read_operation(data)
        except NOT_AN_OPERATION as error:
            self.session.close(f"not an operation of this protocol: {error}", False)
            return
        if is_whole and type(op) is Part:  # parts of parts could be nested without end
            self.session.close("a part of an operation is cut into parts", False)
            return
        try:
            self._handlers[type(op)](op)
        except ViolationError as error:
            self.session.close(str(error), False)
        except Exception as error:
            # An operation of another node must not end the tasks of this node.
            self.network.log_once(f"an operation of node {self.node} failed", shown(error))

    def _take_part(self, op: Part) -> None:
        """Take a part of a long operation. The last part completes it."""
        parts = self._parts
        if not op.number:
            parts.clear()
        parts += op.data
        if len(parts) > LARGEST + 2 * ADDRESS:
            self.session.close("an operation is larger than any that a node sends", False)
        elif op.is_last:
            whole = bytes(parts)
            parts.clear()
            self.deliver(whole, is_whole=True)

    # -- session -----------------------------------------------------------------------------------

    def transmit(self, frame: Frame) -> None:
        """Give a frame of the session to the carrier."""
        data = encode_frame(frame)
        self.frames_out += 1
        self.bytes_out += len(data)
        self.network.carrier.send(self.node, data)

    def session_up(self, creation: int) -> None:
        """Note that the node is connected."""
        self.creation = creation
        self.reason = None
        self.refusals.begin(creation)
        self.network.arm(self.session.next_deadline())
        self.network.note_up(self)

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes]) -> None:
        """Note that the node is lost, in one step: no task runs in between."""
        was_up, creation = bool(self.creation), self.creation
        self.creation = 0
        self.reason = reason = NoNode(self.node, why)
        self._parts.clear()
        calls = self.forget_calls()
        self.mailbox.refuse_waiters()
        for caller in calls:
            caller.settle(None, TargetDownError(caller.to, caller.request, reason))
        if lost:
            self.network.kernel.start(self._bury, lost, was_up, name=f"network: lost {self.node}")
        self.watches.end_all(reason)
        self._down.set()
        self._down = trio.Event()
        self.executor.forget(creation)
        if was_up:
            self.network.note_down(self, Shutdown(why) if is_orderly else reason)

    async def _bury(self, lost: list[bytes], was_up: bool) -> None:
        await in_slices(self.executor.dead_letters(lost, was_up))

    def tick(self) -> None:
        """Act on the deadlines of the session that have come."""
        self.session.tick()
        self._after()

    def _after(self) -> None:
        """Let waiting senders in, and arm the next deadline, after any step of the session."""
        if self.mailbox.waiters and self.mailbox.admit_waiters():
            self.session.flush()
        if self._sent_all is not None and not self.session.queued:
            self._sent_all.set()
            self._sent_all = None
        self.session.note_deadline()
        self.network.arm(self.session.next_deadline())
