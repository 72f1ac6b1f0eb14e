"""`Peer`: another node, as a receiver of messages and calls.

The kernel sends and calls through a peer as through any other receiver. A peer turns messages,
calls and answers into operations of the session; `NodeConnection` takes the operations that come
back.
"""

from typing import Any, Final

import trio

from ..._core.messaging.router import LANES, Router
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import MESSAGE, Lane, Priority
from ..._core.vocabulary.errors import TargetDownError
from ..._core.vocabulary.ids import PID, Alias, Target
from ..._core.vocabulary.messages import Why
from ..._core.vocabulary.reasons import Reason
from ..._core.vocabulary.text import utf8
from ..access.limits import LARGEST, too_large
from ..context import NetworkContext
from ..errors import MessageError
from ..messages.listed_class import RefusedValueError
from ..protocol.failures import failure_of
from ..protocol.operations import Call, Failure, Operation, encode_operation
from ..protocol.session import Session, State
from .batch import CALLS, MESSAGES, Batch, Schedule
from .mailbox import Packed, PeerMailbox
from .notices import Notices
from .open_calls import OpenCalls
from .routes import Routes

__all__ = ["Peer"]

_SEND, _CALL, _ANSWER, _FAILED = 0, 2, 3, 4
"""The tags of `Send`, `Call`, `Answer` and `Failed`: a tuple is made faster than an operation."""


class Peer(OpenCalls, Notices):
    """Another node. A receiver that is never asleep and has no callbacks."""

    is_remote: Final = True
    accepting: Final = True
    inline: Final = False
    # The kernel must not append to the lanes of this mailbox, which nothing drains: each message
    # goes through `send` or `admit`, and is encoded there.
    takes_direct: Final = False
    takes_bounded: Final = False
    waiting: Any = None

    def __init__(
        self, network: NetworkContext, node: str, session: Session, schedule: Schedule
    ) -> None:
        super().__init__(network.limits.calls)
        self.network = network
        """The parts that all peers share."""
        self.node = node
        """The name of the node."""
        self.router: Router = network.kernel.router
        """The router of this node, for references and dead letters."""
        self.id: PID = PID(node, 0, 0)
        """An address of the node, for texts."""
        self.creation: int = 0
        """The start of the node that the session is with; 0 without a session."""
        self.deferred: dict[Caller, None] | None = None
        """As of each receiver. Another node defers nothing here."""
        self.reason: Reason | None = None
        """Why the node is down; None while there is no attempt, or a session."""
        self.session = session
        """Queues operations, and sends them again after a loss."""
        self.mailbox: PeerMailbox = PeerMailbox(self, network.backlog)
        """The bound of the bytes that wait, and the senders that wait for room."""
        self.batch: Batch = Batch(session, self.mailbox, schedule)
        """Decides when queued operations go out."""
        self.routes: Routes = Routes(network)
        """The encoded addresses of receivers and senders."""
        self._encoders = network.types.encoders
        """The fast encoders of closed classes."""
        self._down = trio.Event()
        """Wakes the tasks that wait for the end of the session."""

    def __repr__(self) -> str:
        return f"<node {self.node} {self.session.state.value}>"

    @property
    def is_up(self) -> bool:
        """Whether there is a session."""
        return self.session.state is State.UP

    def wake(self) -> None:
        """Send queued operations, now or soon."""
        self.batch.wake()

    wake_from_any_thread = wake  # only the loop appends to its mailbox

    def serves_in_passing(self, _message: object, _sender: PID | Alias) -> bool:
        """Always False: every message travels."""
        return False

    # -- messages ----------------------------------------------------------------------------------

    def pack(self, to: Target, message: object) -> Packed:
        """Encode a message, in the turn and in the thread of its sender.

        Raises:
            MessageError: of kind ``"type"``; the message cannot travel.
            MessageError: of kind ``"too large"``; the carrier does not take a message of its size.
        """
        if isinstance(message, Packed):
            return message
        return Packed(message, self.network.encode(to, message))

    def send(self, sender: PID | Alias, to: Target, message: object, priority: Priority) -> bool:
        """Send a message, on the loop. Always True: the message is on its way.

        Raises:
            MessageError: of kind ``"type"``; the message cannot travel.
            NodeBusyError: too many bytes wait.
        """
        lane, mailbox, batch = LANES[priority], self.mailbox, self.batch
        # A message must not overtake those that wait for room, nor those of threads that are on
        # their way (`inbound`): they may have the same sender.
        if mailbox.waiters or mailbox.inbound or self.session.sending.queued_bytes >= mailbox.limit:
            mailbox.admit(lane, (MESSAGE, sender, to, message))
        else:
            encode = self._encoders.get(type(message))
            if encode is None:
                body = message.body if type(message) is Packed else self.network.encode(to, message)
            else:
                try:
                    body = encode(message)
                except Exception:
                    body = self.network.encode(to, message)  # raises the error for the sender
                if len(body) > LARGEST:
                    # The encoder of a closed class does not know the limit: this raises the error
                    # with its text.
                    self.network.encode(to, message)
            # Inlined Routes.find().
            last_to, last_sender, last_lane, route = self.routes.last
            if last_to is not to or last_sender is not sender or last_lane is not lane:
                route = self.routes.find(lane, sender, to)
            self.session.push(encode_operation((_SEND, route, body)), sender, to, route)
        if not batch.is_open:
            batch.wake()
        elif self.session.sending.queued_bytes >= batch.full:
            batch.flush_early(MESSAGES)
        return True

    def push_message(self, lane: Lane, sender: PID | Alias, to: Target, packed: Packed) -> None:
        """Queue a message."""
        route = self.routes.find(lane, sender, to)
        op = (_SEND, route, packed.body)
        data = encode_operation((*op, packed.headers) if packed.headers else op)
        self.session.push(data, sender, to, route)

    def send_traced(
        self, sender: PID | Alias, to: Target, message: object, priority: Priority, context: object
    ) -> bool:
        """Send a message with the context of its trace, as :meth:`send`."""
        plain = self.pack(to, message)
        packed = Packed(plain.message, plain.body, self.network.headers_of(context))
        self.mailbox.admit(LANES[priority], (MESSAGE, sender, to, packed))
        self.batch.wake()
        return True

    def push_waiting(self, lane: Lane, sender: PID | Alias, to: Target, message: object) -> None:
        """Queue a message that has waited for room. Its sender cannot be told of an error now."""
        try:
            self.push_message(lane, sender, to, self.pack(to, message))
        except MessageError as error:
            self.network.kernel.logger.error("a message cannot travel", error=str(error))
            self.router.dead_letters.add(sender, to, message, Why.UNREADABLE)
            return
        self.batch.wake()

    # -- calls and answers -------------------------------------------------------------------------

    def take_call(self, caller: Caller, priority: Priority) -> bool:
        """Send a call, on the loop. False if too many bytes wait."""
        lane, mailbox, session = LANES[priority], self.mailbox, self.session
        if mailbox.waiters or mailbox.inbound or session.sending.queued_bytes >= mailbox.limit:
            return False
        to, number, request, sender = caller.to, caller.number, caller.request, caller.pid
        encode = self._encoders.get(type(request))
        try:
            # As in send().
            if encode is None:
                body = self.network.encode(to, request)
            else:
                try:
                    body = encode(request)
                except Exception:
                    body = self.network.encode(to, request)
                if len(body) > LARGEST:
                    self.network.encode(to, request)
            last_to, last_sender, last_lane, route = self.routes.last
            if last_to is not to or last_sender is not sender or last_lane is not lane:
                route = self.routes.find(lane, sender, to)
        except MessageError as error:
            # True all the same: the call is over. With False, its caller would wait for room for a
            # request that can never be sent.
            caller.settle(None, error)
            return True
        # Inlined remember().
        calls = self._calls
        if len(calls) >= self._sweep_at and not self.admits(caller):
            return True
        if number in calls:
            number = next(self.router.references)
        calls[number] = caller
        session.push(encode_operation((_CALL, number, route, body)), sender, to)
        self._wake_for_call()
        return True

    def _wake_for_call(self) -> None:
        batch = self.batch
        if not batch.is_open:
            batch.wake()
        elif self.session.sending.queued_bytes >= batch.full:
            batch.flush_early(CALLS)

    def push_call(self, lane: Lane, caller: Caller, request: object) -> None:
        """Queue a call. If its request cannot travel, the call fails."""
        try:
            route = self.routes.find(lane, caller.pid, caller.to)
            packed = self.pack(caller.to, request)
        except MessageError as error:
            caller.settle(None, error)
            return
        if self.admits(caller):
            context = None if caller.mark is None else caller.mark.context
            number, headers = self.remember(caller), self.network.headers_of(context)
            self.push(Call(number, route, packed.body, headers), caller.pid, caller.to)

    def send_answer(
        self, number: int, value: object, error: BaseException | None, to: object = None
    ) -> None:
        """Answer a call of that node. ``to`` is the caller, if it is a process."""
        what = "an answer" if error is None else "an error"
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
                raise RefusedValueError(too_large(what, body, self.node))
        except RefusedValueError as refusal:
            # The callee is not told: it has answered, and its answer is an error for the caller
            # only. The log has the line, since the mistake is in the code of this node.
            self.network.kernel.logger.error(
                f"{what} cannot travel to node {self.node}", error=str(refusal)
            )
            kind = Failure.UNSENDABLE
            body = self.network.types.encode(["MessageError", utf8(str(refusal))])
        if not kind:
            op: tuple[object, ...] = (_ANSWER, number, body)
        elif isinstance(error, TargetDownError) and not error.begun:
            # `begun` has the default True: only a request that no callback has seen needs the
            # further field.
            op = (_FAILED, number, kind, body, False)
        else:
            op = (_FAILED, number, kind, body)
        # The sender of an answer may be any process, so it is unknown: the answer overtakes a long
        # operation only if that goes to another process than the caller.
        self.session.push(encode_operation(op), None, to)
        self._wake_for_call()

    def push(
        self, op: Operation, sender: object = None, to: object = None, route: bytes = b""
    ) -> None:
        """Queue an operation, and send it soon. The rest is as in `Session.push`."""
        self.session.push(encode_operation(op), sender, to, route)
        self.batch.wake()

    # -- the session -------------------------------------------------------------------------------

    def connect(self) -> None:
        """Begin a session, unless there is one."""
        self.session.connect()
        self.batch.settle()

    async def wait_down(self) -> Reason:
        """Wait until the session, or the attempt to begin one, has ended."""
        self.connect()
        await self._down.wait()
        assert self.reason is not None
        return self.reason

    def note_up(self, creation: int) -> None:
        """Note the start of the node that a session has begun with."""
        self.creation = creation
        self.reason = None

    def note_lost(self, reason: Reason) -> int:
        """Note that there is no session. Returns the start of the node that it was with."""
        creation, self.creation = self.creation, 0
        self.reason = reason
        return creation

    def tell_lost(self) -> None:
        """Wake the tasks that wait for the end of the session."""
        # Each loss has an event of its own: a task that waits for the next loss must not see this
        # event set.
        self._down.set()
        self._down = trio.Event()
