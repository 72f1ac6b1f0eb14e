"""`Executor`: carries out the operations of another node in the kernel of this node."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..._core.messaging.hooked import HookedRouter
from ..._core.messaging.router import LANES
from ..._core.messaging.traces import Mark
from ..._core.runtime.parking import PARKED
from ..._core.tables.pending_calls import Callee, Caller
from ..._core.vocabulary.envelopes import CALL, MAIN_LANE, MESSAGE, Lane, Overflow, Priority
from ..._core.vocabulary.errors import MailboxFullError, TargetDownError
from ..._core.vocabulary.ids import PID, Alias, ServiceName
from ..._core.vocabulary.messages import Why
from ..._core.vocabulary.reasons import Shutdown
from ..access.limits import TOO_MANY_CALLS, Budget
from ..errors import NotPermittedError, UnreadableError
from ..messages.listed_class import UnreadableValueError
from ..messages.signals import SIGNALS, not_a_message
from ..node_requests.answers import Answers
from ..outgoing.peer import Peer
from ..protocol.lost_messages import Unreadable, lost_messages
from ..protocol.operations import (
    Call,
    ConfirmedSend,
    Exit,
    NodeRequest,
    Send,
    Unwatch,
    Watch,
    Withdraw,
    sender_of,
)
from ..refusals import Refusals
from ..services.service_receiver import Confirmed
from .routes import IncomingRoutes, SenderError, ViolationError
from .watched import WatchedTargets

__all__ = ["Executor"]

# Measured: 22 ns for each, so at most 2 % of the time of the loop.
_LOOKS: Final = 1_000_000
"""Open calls that another node may have this node look through in a second."""


class RemoteCaller(Caller):
    """A call that a process of another node has made. Its answer travels back."""

    __slots__ = ("_executor",)

    def __init__(
        self, executor: "Executor", pid: PID | Alias, number: int, to: object, request: object
    ) -> None:
        # The base class is inlined: every call of another node pays for it.
        self.pid = pid
        self.number = number
        self.to = to
        self.request = request
        self.callee: Callee | None = None
        self.settled: bool = False
        self._deferred = False
        self.value: object = None
        self.error: BaseException | None = None
        self._executor = executor

    def awaken(self) -> None:
        executor = self._executor
        # Not after the loss of the node: `forget` has emptied the table, and the number may be that
        # of another call in the next session.
        if self in executor._calls:
            del executor._calls[self]
            executor._send_answer(self.number, self.value, self.error, self.pid)


class _Confirmation(Confirmed):
    """A message of another node that waits for room in a mailbox here."""

    __slots__ = ("_envelope", "_executor", "_lane", "_receiver", "number")

    def __init__(
        self, executor: "Executor", number: int, envelope: Any, lane: Lane, receiver: Any
    ) -> None:
        self._executor = executor
        self.number: int = number
        self._envelope = envelope
        self._lane = lane
        self._receiver = receiver

    @property
    def sender(self) -> PID | Alias:
        """The process that waits."""
        sender: PID | Alias = self._envelope[1]
        return sender

    def settle(self, admitted: bool, /) -> None:
        if not admitted:
            self._discard(Why.STOPPING)
        self._executor.confirm(self, admitted)

    def withdraw(self) -> None:
        """Wait no longer: the node of the sender is lost."""
        if self._receiver.mailbox.stop_waiting(self._lane, self):
            self._discard(Why.UNCONFIRMED)

    def _discard(self, why: Why) -> None:
        self._executor.router.discard(self._envelope, self._envelope[2], why, self._receiver)

    def confirm(self, is_taken: bool, error: BaseException | None, /) -> None:
        self._executor.confirm(self, is_taken, error)


class Executor:
    """The operations of a single other node."""

    def __init__(self, peer: Peer, refusals: Refusals) -> None:
        self._peer = peer
        """The other node, which gets the answers."""
        self._refusals = refusals
        """Counts the operations that are not carried out."""
        self._kernel = peer.network.kernel
        """The kernel of this node."""
        self.router: Final = peer.router
        """The router of this node."""
        self._processes: Mapping[Any, Any] = peer.router.processes
        """The processes of this node, by their PIDs."""
        self._is_plain = not peer.router.hooks
        """No hook has to see calls."""
        self._calls: dict[RemoteCaller, None] = {}
        """Calls of that node that are not answered."""
        self._confirmations: dict[_Confirmation, None] = {}
        """Messages of that node that wait for room in a mailbox here."""
        self._decode = peer.network.types.decode
        """Reads messages and requests."""
        self._send_answer = peer.send_answer
        """Sends the answers to calls."""
        self._limits = peer.network.limits
        """How many calls that node may have open."""
        self._looks = Budget(_LOOKS, self._kernel.clock.now)
        """The calls that probes and refused calls of that node may look through."""
        self._routes = IncomingRoutes(peer, refusals)
        """Reads the routes of operations."""
        self._known_routes = self._routes.known
        """Routes that were read before."""
        self.watched: WatchedTargets = WatchedTargets(peer, refusals, self._routes)
        """The targets here that the other node watches."""
        self._answers = Answers(peer, refusals)
        """Answers the requests to this node itself."""
        self.handlers: dict[type, Callable[[Any], None]] = {
            Unwatch: self.watched.remove,
            Exit: self._exit,
            Withdraw: self._withdraw,
            NodeRequest: self._answers.answer,
        }
        """The function that carries out each kind of operation."""
        self.read_permits()

    def read_permits(self) -> None:
        """Take the acts that this node permits the other node now. Calls under way are answered,
        and watches stay.
        """
        permits = self._peer.network.permits.of(self._peer.node)
        self.permits: frozenset[str] = permits
        """The acts that this node permits the other node."""
        self._routes.permit(forwarding="forward" in permits)
        self._answers.permit(permits)
        # Permits rarely change. So an operation that is permitted costs no test.
        may = permits.__contains__
        # In place: the connection looks into the same table.
        self.handlers |= {
            Send: self._send if may("send") else self._refuse_message,
            Call: self._call if may("call") else self._refuse_call,
            ConfirmedSend: self._send_confirmed if may("send") else self._refuse_message,
            Watch: self.watched.add if may("watch") else self.watched.refuse,
        }
        if self._kernel.draining:
            self.refuse_calls()

    def refuse_calls(self) -> None:
        """Refuse each further call: this node drains."""
        self.handlers[Call] = self._refuse_new_call

    # -- permits -----------------------------------------------------------------------------------

    def _refusal(self, permit: str) -> NotPermittedError:
        """Count an operation that is not permitted, and return the error that says so."""
        return self._refusals.refuse_act(permit)

    def _refuse_message(
        self, op: Send | ConfirmedSend, refusal: NotPermittedError | None = None
    ) -> None:
        error = refusal or self._refusal("send")
        route, sender = self._routes.read(op.route)
        self._reject_unread(sender, self._routes.address(route.to), op.body, Why.NOT_PERMITTED)
        if isinstance(op, ConfirmedSend):
            self._peer.send_answer(op.number, None, error, sender)

    def _refuse_call(self, op: Call, refusal: NotPermittedError | None = None) -> None:
        _, sender = self._routes.read(op.route)
        self._peer.send_answer(op.number, None, refusal or self._refusal("call"), sender)

    # -- limits ------------------------------------------------------------------------------------

    def _refuse_further(self, op: Call | ConfirmedSend, sender: PID | Alias) -> None:
        """Refuse a call, or a message that would wait: too many are open."""
        self._refusals.refuse_excess(TOO_MANY_CALLS)
        here, there = self.router.node, self._peer.node
        error = self._limits.call_error(here, there, here)
        self._peer.send_answer(op.number, None, error, sender)

    def _refuse_new_call(self, op: Call) -> None:
        """Refuse a call as a process does that has ended: the caller looks for another. A process
        that knows the successors of its node takes the call.
        """
        route, sender = self._routes.read(op.route)
        to = self._routes.address(route.to)
        behaviour = getattr(self.router.resolve(to), "behaviour", None)
        if getattr(behaviour, "serves_drained", False):
            self._call(op)
            return
        self._refusals.refuse("draining")
        error = TargetDownError(to, None, Shutdown("its node is draining"), begun=False)
        self._peer.send_answer(op.number, None, error, sender)

    # -- messages and calls ------------------------------------------------------------------------

    def _send(self, op: Send) -> None:
        try:
            to, sender, priority = self._known_routes.get(op.route) or self._routes.find(op.route)
        except SenderError as refused:
            self._refuse_message(op, refused.refusal)
            return
        # Before the decoding: a message that becomes a dead letter keeps its type only, and the
        # other node decides how much time its content would take.
        if to not in self._processes and self._is_missing(to):
            self._reject_unread(sender, to, op.body, Why.NO_PROCESS)
            self._refusals.refuse("undelivered")
            return
        try:
            message = self._decode(op.body)
            if type(message) in SIGNALS:
                raise not_a_message(message)
        except UnreadableValueError as error:
            self._reject(sender, to, self._unreadable(error))
            return
        try:
            if op.headers:
                is_taken = self._send_traced(sender, to, message, priority, op.headers)
            else:
                is_taken = self.router.send(sender, to, message, priority)
            if not is_taken:
                self._refusals.refuse("undelivered")
        except MailboxFullError:  # the message is a dead letter
            self._refusals.refuse("full")

    def _send_traced(
        self, sender: PID | Alias, to: Any, message: object, priority: Priority, headers: Any
    ) -> bool:
        router, context = self.router, self._peer.network.trace_of(headers)
        if context is None or not isinstance(router, HookedRouter):
            return bool(router.send(sender, to, message, priority))
        return router.send_traced(sender, to, message, priority, context)

    def _send_confirmed(self, op: ConfirmedSend) -> None:
        try:
            to, sender, priority = self._routes.find(op.route)
        except SenderError as refused:
            self._refuse_message(op, refused.refusal)
            return
        receiver: Any = self.router.resolve(to)
        if receiver is None:
            self._reject_unread(sender, to, op.body, Why.NO_PROCESS)
            self._refusals.refuse("undelivered")
            self._peer.send_answer(op.number, False, None, sender)
            return
        try:
            message = self._decode(op.body)
            if type(message) in SIGNALS:
                raise not_a_message(message)
        except UnreadableValueError as error:
            self._reject(sender, to, self._unreadable(error))
            self._peer.send_answer(op.number, False, None, sender)
            return
        lane = LANES[priority]
        if (
            receiver.accepting
            and receiver.mailbox.overflow is Overflow.WAIT
            and not receiver.mailbox.has_room(lane)
        ):
            envelope = (MESSAGE, sender, to, message)
            # A message that waits for room counts as an open call: both are kept for the other node
            # until a process here acts.
            if self.calls_in_flight >= self._limits.calls:
                self.router.discard(envelope, to, Why.FULL, receiver)
                self._refuse_further(op, sender)
                return
            waiter = _Confirmation(self, op.number, envelope, lane, receiver)
            self._confirmations[waiter] = None
            receiver.mailbox.wait_for_room(lane, envelope, waiter)
            return
        try:
            taken = self.router.send(sender, to, message, priority)
        except MailboxFullError as error:
            self._refusals.refuse("full")
            self._peer.send_answer(op.number, None, error, sender)
        else:
            if not taken:
                self._refusals.refuse("undelivered")
            self._peer.send_answer(op.number, taken, None, sender)

    def confirm(
        self, waiter: _Confirmation, taken: bool, error: BaseException | None = None
    ) -> None:
        """Tell the other node that a mailbox has taken its message, or why not."""
        if waiter not in self._confirmations:
            return  # the session in which the message came has ended
        del self._confirmations[waiter]
        if not taken:
            self._refusals.refuse("undelivered")
        self._peer.send_answer(waiter.number, taken, error, waiter.sender)

    def _call(self, op: Call) -> None:
        try:
            to, sender, priority = self._known_routes.get(op.route) or self._routes.find(op.route)
        except SenderError as refused:
            self._refuse_call(op, refused.refusal)
            return
        # Before the decoding, too: a flood of refused calls costs a comparison each.
        if len(self._calls) + len(self._confirmations) >= self._limits.calls:
            self._refuse_further(op, sender)
            return
        if to not in self._processes and self._is_missing(to):
            self._refusals.refuse("undelivered")
            error = TargetDownError(to, None, self.router.missing(to), begun=False)
            self._peer.send_answer(op.number, None, error, sender)
            return
        try:
            request = self._decode(op.body)
            if type(request) in SIGNALS:
                raise not_a_message(request)
        except UnreadableValueError as unreadable:
            request = self._unreadable(unreadable)
        caller = RemoteCaller(self, sender, op.number, to, request)
        # Before the request is posted: an unreadable request is answered in this very step, and
        # awaken() sends no answer to a call that is not in the table.
        self._calls[caller] = None
        if op.headers and (context := self._peer.network.trace_of(op.headers)) is not None:
            caller.carry(Mark(MESSAGE, to, context))
        if type(request) is Unreadable:
            text = f"{to!r} cannot read the request: {request.why}"
            self._refusals.refuse("unreadable")
            caller.settle(None, UnreadableError(text, to, None))
            return
        callee: Any = self._processes.get(to) if self._is_plain and not priority else None
        if callee is None or not callee.takes_direct:
            self._begin(caller, priority)
            return
        # Inlined Calls.begin() and Router.post(): most callees take direct appends.
        caller.callee = callee
        callee.mailbox.push(MAIN_LANE, (CALL, sender, caller, request))
        if callee.task.custom_sleep_data is PARKED:
            self.router.turns.wake(callee)
        if callee.waiting is not None:
            # A callee that waits itself may wait for a process of the node of the caller: only a
            # probe can tell.
            self._peer.network.deadlocks.suspect(caller)

    def _begin(self, caller: RemoteCaller, priority: Priority) -> None:
        self._kernel.calls.begin(caller, priority)
        if caller.settled:
            if isinstance(caller.error, TargetDownError):
                self._refusals.refuse("undelivered")
            elif isinstance(caller.error, MailboxFullError):
                self._refusals.refuse("full")
        elif (callee := caller.callee) is not None and callee.waiting is not None:
            self._peer.network.deadlocks.suspect(caller)

    def _withdraw(self, op: Withdraw) -> None:
        caller = self.call_in_flight(op.number)
        if caller is not None:
            # Before abandon(), which forgets the callee, and so the mailbox that holds the request.
            self._peer.network.deadlocks.withdraw(caller)
            self._calls.pop(caller, None)
            caller.abandon()

    def call_in_flight(self, number: int) -> RemoteCaller | None:
        """The call of this number that the other node has made, and that is not answered."""
        if not self._looks.take(len(self._calls)):
            return None  # no honest node asks so often
        return next((caller for caller in self._calls if caller.number == number), None)

    @property
    def calls_in_flight(self) -> int:
        """How many calls of the other node are not answered, and how many messages of it wait for
        room.
        """
        return len(self._calls) + len(self._confirmations)

    def _is_missing(self, to: Any) -> bool:
        return type(to) is not ServiceName and self.router.resolve(to) is None

    def _unreadable(self, error: UnreadableValueError) -> Unreadable:
        """Log that a message is unreadable. Returns its replacement."""
        self._peer.network.log_once(
            f"a message of node {self._peer.node} is unreadable", str(error)
        )
        return Unreadable(str(error))

    def _reject_unread(self, sender: PID | Alias, to: object, body: bytes, why: Why) -> None:
        """Turn a message into a dead letter without decoding it: only its type is kept."""
        kind = self._peer.network.types.type_of(body) or Unreadable
        self.router.dead_letters.add_type(sender, to, kind, why)

    def _reject(self, sender: PID | Alias, to: object, message: Unreadable) -> None:
        self._refusals.refuse("unreadable")
        self.router.dead_letters.add(sender, to, message, Why.UNREADABLE)

    def dead_letters(self, lost: list[bytes], was_up: bool) -> Iterator[None]:
        """Turn messages to the other node that were not confirmed into dead letters, in steps."""
        why = Why.UNCONFIRMED if was_up else Why.NO_NODE
        types = self._peer.network.types
        found = lost_messages(lost, self._peer.node, types.type_of, types.decode)
        for number, letter in enumerate(found, 1):
            if letter is not None:
                self.router.dead_letters.add_type(*letter, why)
            # in_slices() looks at the clock after each step: a step of 64 letters makes these looks
            # cheap.
            if not number % 64:
                yield

    def _exit(self, op: Exit) -> None:
        permit = "kill" if op.is_kill else "exit"
        if permit not in self.permits:
            self._refusal(permit)
            return
        if op.sender.node != self._peer.node:
            # Exit signals are not forwarded, and the signal of a parent has more power.
            raise ViolationError("an exit signal has a sender of another node")
        to = self._routes.address(op.to)
        receiver: Any = self.router.resolve(to)
        if receiver is None:
            self._refusals.refuse("undelivered")
        elif op.is_kill:
            receiver.kill()
        else:
            reason = self._peer.network.types.decode_reason(op.body)
            receiver.ask_to_exit(sender_of(op.sender), reason)

    def forget(self, creation: int) -> None:
        """Forget all calls and watches of the other node: it is lost."""
        # New tables: a service may still hold such a message and confirm it later, perhaps in the
        # next session, and confirm() drops a confirmation that the new table does not know.
        calls, self._calls = self._calls, {}
        for caller in calls:
            caller.abandon()
        waiters, self._confirmations = self._confirmations, {}
        for waiter in waiters:
            waiter.withdraw()
        self._answers.forget()
        self.watched.forget(creation)
