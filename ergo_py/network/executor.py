"""`Executor`: carries out the operations of another node in the kernel of this node."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from .._core.messaging.hooked import HookedRouter
from .._core.messaging.router import LANES
from .._core.messaging.traces import Mark
from .._core.runtime.parking import PARKED
from .._core.tables.pending_calls import Caller
from .._core.tables.relations import Kind
from .._core.vocabulary.envelopes import (
    CALL,
    MAIN_LANE,
    MESSAGE,
    Lane,
    Overflow,
    Priority,
)
from .._core.vocabulary.errors import MailboxFullError, RelationExistsError, TargetDownError
from .._core.vocabulary.ids import PID, Alias, EventName, Key, Name, ServiceName
from .._core.vocabulary.messages import Why
from .._core.vocabulary.reasons import Custom, Reason, Shutdown
from .errors import NotPermittedError, UnreadableError
from .messages.message_types import UnreadableValueError
from .messages.signals import SIGNALS, not_a_message
from .node_requests.answers import Answers
from .protocol.lost_messages import Unreadable, lost_messages
from .protocol.operations import (
    Call,
    ConfirmedSend,
    Exit,
    NodeRequest,
    Place,
    Route,
    Send,
    Unwatch,
    Watch,
    Withdraw,
    address_of,
    decode_route,
    receiver_of,
    sender_of,
    target_of,
)
from .services.service_receiver import Confirmed
from .traffic.limits import ADDRESS, TOO_MANY_CALLS, TOO_MANY_WATCHES, Budget

if TYPE_CHECKING:
    from .peer import Peer

__all__ = ["ROUTES", "Executor", "ViolationError"]

ROUTES: Final = 1024
"""How many routes each end of a session remembers."""

_PRIORITIES: Final = frozenset(Priority)
_LOOKS: Final = 1_000_000
"""Open calls that another node may have this node look through in a second."""


_ROUTE: Final = 2 * ADDRESS
"""Most bytes of a route: it holds an address and the name of a node."""


class ViolationError(Exception):
    """The other node breaks the protocol, as no honest node does: its session ends."""


class _SenderError(Exception):
    """The other node may not send in the name of this sender."""

    def __init__(self, refusal: NotPermittedError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class RemoteCaller(Caller):
    """A call that a process of another node has made. Its answer travels back."""

    __slots__ = ("_executor",)

    def __init__(
        self, executor: "Executor", pid: PID | Alias, number: int, to: Any, request: object
    ) -> None:
        # The base class is inlined: every call of another node pays for it.
        self.pid = pid
        self.number = number
        self.to = to
        self.request = request
        self.callee = None
        self.settled = self._deferred = False
        self.value = self.error = None
        self._executor = executor

    def awaken(self) -> None:
        executor = self._executor
        if self in executor._calls:
            del executor._calls[self]
            executor._send_answer(self.number, self.value, self.error)


class _Watcher:
    """Another node, as the watcher of a process here."""

    __slots__ = ("id",)

    def __init__(self, pid: PID) -> None:
        self.id = pid


class _Confirmation(Confirmed):
    """A message of another node that waits for room in a mailbox here."""

    __slots__ = ("_envelope", "_executor", "_lane", "_receiver", "number")

    def __init__(
        self, executor: "Executor", number: int, envelope: Any, lane: Lane, receiver: Any
    ) -> None:
        self._executor = executor
        self.number = number
        self._envelope = envelope
        self._lane = lane
        self._receiver = receiver

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

    def __init__(self, peer: "Peer") -> None:
        self._peer = peer
        self._kernel = peer.network.kernel
        self.router = peer.router
        self._processes: Mapping[Any, Any] = peer.router.processes
        self._is_plain = not peer.router.hooks
        """No hook has to see calls."""
        self._calls: dict[RemoteCaller, None] = {}
        """Calls of that node that are not answered."""
        self._confirmations: dict[_Confirmation, None] = {}
        """Messages of that node that wait for room in a mailbox here."""
        self._decode = peer.network.types.decode
        self._send_answer = peer.send_answer
        self._limits = peer.network.limits
        self._looks = Budget(_LOOKS, self._kernel.clock.now)
        """The calls that probes and refused calls of that node may look through."""
        self._watches: dict[int, Any] = {}
        """The targets here that the other node watches, by the number of the watch."""
        self._numbers: dict[Any, int] = {}
        """The same by target."""
        self._routes: dict[bytes, tuple[Any, PID | Alias, Priority]] = {}
        """Routes of operations, which mostly repeat."""
        self.permits = permits = peer.network.permits.of(peer.node)
        """The acts that this node permits the other node."""
        self._answers = Answers(peer, permits)
        # Permits never change. So an operation that is permitted costs no test.
        may = permits.__contains__
        self.handlers: dict[type, Callable[[Any], None]] = {
            Send: self._send if may("send") else self._refuse_message,
            Call: self._call if may("call") else self._refuse_call,
            ConfirmedSend: self._ask if may("send") else self._refuse_message,
            Watch: self._watch if may("watch") else self._refuse_watch,
            Unwatch: self._unwatch,
            Exit: self._exit,
            Withdraw: self._withdraw,
            NodeRequest: self._answers.answer,
        }
        """The function that carries out each kind of operation."""
        if self._kernel.draining:
            self.refuse_calls()

    def refuse_calls(self) -> None:
        """Refuse each further call: this node drains."""
        self.handlers[Call] = self._refuse_new_call

    def _route(self, data: bytes) -> tuple[Any, PID | Alias, Priority]:
        """Receiver, sender and priority of an operation."""
        found = self._routes.get(data)
        if found is None:
            route, sender = self._read_route(data)
            self._check_sender(sender)
            found = self._receiver(route.to), sender, _priority(route.priority)
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[data] = found
        return found

    def _read_route(self, data: bytes) -> tuple[Route, PID | Alias]:
        if len(data) > _ROUTE:
            raise ViolationError("a route is longer than any that a node sends")
        route = decode_route(data)
        return route, sender_of(route.sender)

    def _check_sender(self, sender: PID | Alias) -> None:
        """Raise `_SenderError` unless the other node may send in the name of this sender."""
        if sender.node == self._peer.node:
            return
        if "forward" not in self.permits:
            raise _SenderError(self._refusal("forward"))
        if sender.node == self.router.node and not self._peer.network.has_sent(sender):
            raise _SenderError(self._peer.refusals.refuse_sender(sender))

    def _receiver(self, place: Place) -> Any:
        _check_place(place)
        try:
            return receiver_of(place, self.router.node, self._peer.network.types.decode)
        except UnreadableValueError:  # a key that no process here can have
            return Name("", self.router.node)

    def _address(self, place: Place) -> PID | Alias | Name | Key:
        _check_place(place)
        try:
            return address_of(place, self.router.node, self._peer.network.types.decode)
        except UnreadableValueError:
            return Name("", self.router.node)

    def _target(self, place: Place) -> PID | Alias | Name | Key | EventName:
        _check_place(place)
        try:
            return target_of(place, self.router.node, self._peer.network.types.decode)
        except UnreadableValueError:
            return Name("", self.router.node)

    # -- permits -----------------------------------------------------------------------------------

    def _refusal(self, permit: str) -> NotPermittedError:
        """Count an operation that is not permitted, and return the error that says so."""
        return self._peer.refusals.refuse_act(permit)

    def _refuse_message(
        self, op: Send | ConfirmedSend, refusal: NotPermittedError | None = None
    ) -> None:
        error = refusal or self._refusal("send")
        route, sender = self._read_route(op.route)
        self._bury_unread(sender, self._address(route.to), op.body, Why.NOT_PERMITTED)
        if isinstance(op, ConfirmedSend):
            self._peer.send_answer(op.number, None, error)

    def _refuse_call(self, op: Call, refusal: NotPermittedError | None = None) -> None:
        self._peer.send_answer(op.number, None, refusal or self._refusal("call"))

    def _refuse_watch(self, op: Watch) -> None:
        self._end_watch(op, str(self._refusal("watch")))

    def _end_watch(self, op: Watch, why: str) -> None:
        if op.subscriber:
            self._peer.send_subscribed(op.number, op.subscriber)
        self._peer.send_ended(op.number, Custom(why))

    # -- limits ------------------------------------------------------------------------------------

    def _count_excess(self, cause: str) -> None:
        self._peer.refusals.refuse(cause)
        self._peer.network.log_once(
            f"the node {self._peer.node} asks for {cause}",
            "max_calls= and max_watches= of this network limit them",
        )

    def _refuse_further(self, op: Call | ConfirmedSend) -> None:
        """Refuse a call, or a message that would wait: too many are open."""
        self._count_excess(TOO_MANY_CALLS)
        here, there = self.router.node, self._peer.node
        self._peer.send_answer(op.number, None, self._limits.call_error(here, there, here))

    def _refuse_new_call(self, op: Call) -> None:
        """Refuse a call as a process does that has ended: the caller looks for another."""
        to = self._address(decode_route(op.route).to)
        self._peer.refusals.refuse("draining")
        self._peer.send_answer(
            op.number, None, TargetDownError(to, None, Shutdown("its node is draining"))
        )

    # -- messages and calls ------------------------------------------------------------------------

    def _send(self, op: Send) -> None:
        try:
            to, sender, priority = self._routes.get(op.route) or self._route(op.route)
        except _SenderError as refused:
            self._refuse_message(op, refused.refusal)
            return
        if to not in self._processes and self._is_missing(to):
            self._bury_unread(sender, to, op.body, Why.NO_PROCESS)
            self._peer.refusals.refuse("undelivered")
            return
        try:
            message = self._decode(op.body)
            if type(message) in SIGNALS:
                raise not_a_message(message)
        except UnreadableValueError as error:
            self._bury(sender, to, self._unreadable(error))
            return
        try:
            if op.headers:
                is_taken = self._send_traced(sender, to, message, priority, op.headers)
            else:
                is_taken = self.router.send(sender, to, message, priority)
            if not is_taken:
                self._peer.refusals.refuse("undelivered")
        except MailboxFullError:  # the message is a dead letter
            self._peer.refusals.refuse("full")

    def _send_traced(
        self, sender: PID | Alias, to: Any, message: object, priority: Priority, headers: Any
    ) -> bool:
        router, context = self.router, self._peer.network.context_of(headers)
        if context is None or not isinstance(router, HookedRouter):
            return bool(router.send(sender, to, message, priority))
        return router.send_traced(sender, to, message, priority, context)

    def _ask(self, op: ConfirmedSend) -> None:
        try:
            to, sender, priority = self._route(op.route)
        except _SenderError as refused:
            self._refuse_message(op, refused.refusal)
            return
        receiver: Any = self.router.resolve(to)
        if receiver is None:
            self._bury_unread(sender, to, op.body, Why.NO_PROCESS)
            self._peer.refusals.refuse("undelivered")
            self._peer.send_answer(op.number, False, None)
            return
        try:
            message = self._decode(op.body)
            if type(message) in SIGNALS:
                raise not_a_message(message)
        except UnreadableValueError as error:
            self._bury(sender, to, self._unreadable(error))
            self._peer.send_answer(op.number, False, None)
            return
        lane = LANES[priority]
        if (
            receiver.accepting
            and receiver.mailbox.overflow is Overflow.WAIT
            and not receiver.mailbox.has_room(lane)
        ):
            envelope = (MESSAGE, sender, to, message)
            if self.calls_in_flight >= self._limits.calls:
                self.router.discard(envelope, to, Why.FULL, receiver)
                self._refuse_further(op)
                return
            waiter = _Confirmation(self, op.number, envelope, lane, receiver)
            self._confirmations[waiter] = None
            receiver.mailbox.wait_for_room(lane, envelope, waiter)
            return
        try:
            taken = self.router.send(sender, to, message, priority)
        except MailboxFullError as error:
            self._peer.refusals.refuse("full")
            self._peer.send_answer(op.number, None, error)
        else:
            if not taken:
                self._peer.refusals.refuse("undelivered")
            self._peer.send_answer(op.number, taken, None)

    def confirm(
        self, waiter: _Confirmation, taken: bool, error: BaseException | None = None
    ) -> None:
        """Tell the other node that a mailbox has taken its message, or why not."""
        if waiter not in self._confirmations:
            return  # the session in which the message came has ended
        del self._confirmations[waiter]
        if not taken:
            self._peer.refusals.refuse("undelivered")
        self._peer.send_answer(waiter.number, taken, error)

    def _call(self, op: Call) -> None:
        try:
            to, sender, priority = self._routes.get(op.route) or self._route(op.route)
        except _SenderError as refused:
            self._refuse_call(op, refused.refusal)
            return
        if len(self._calls) + len(self._confirmations) >= self._limits.calls:
            self._refuse_further(op)
            return
        if to not in self._processes and self._is_missing(to):
            self._peer.refusals.refuse("undelivered")
            error = TargetDownError(to, None, self.router.missing(to))
            self._peer.send_answer(op.number, None, error)
            return
        try:
            request = self._decode(op.body)
            if type(request) in SIGNALS:
                raise not_a_message(request)
        except UnreadableValueError as unreadable:
            request = self._unreadable(unreadable)
        caller = RemoteCaller(self, sender, op.number, to, request)
        self._calls[caller] = None
        if op.headers and (context := self._peer.network.context_of(op.headers)) is not None:
            caller.carry(Mark(MESSAGE, to, context))
        if type(request) is Unreadable:
            text = f"{to!r} cannot read the request: {request.why}"
            self._peer.refusals.refuse("unreadable")
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
            self._peer.network.deadlocks.suspect(caller)

    def _begin(self, caller: RemoteCaller, priority: Priority) -> None:
        self._kernel.calls.begin(caller, priority)
        if caller.settled:
            if isinstance(caller.error, TargetDownError):
                self._peer.refusals.refuse("undelivered")
            elif isinstance(caller.error, MailboxFullError):
                self._peer.refusals.refuse("full")
        elif (callee := caller.callee) is not None and callee.waiting is not None:
            self._peer.network.deadlocks.suspect(caller)

    def _withdraw(self, op: Withdraw) -> None:
        caller = self.call_in_flight(op.number)
        if caller is not None:
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

    @property
    def watches(self) -> int:
        """How many targets here the other node watches."""
        return len(self._watches)

    def _is_missing(self, to: Any) -> bool:
        return type(to) is not ServiceName and self.router.resolve(to) is None

    def _unreadable(self, error: UnreadableValueError) -> Unreadable:
        """Log that a message is unreadable. Returns its replacement."""
        self._peer.network.log_once(
            f"a message of node {self._peer.node} is unreadable", str(error)
        )
        return Unreadable(str(error))

    def _bury_unread(self, sender: PID | Alias, to: Any, body: bytes, why: Why) -> None:
        """Turn a message into a dead letter without decoding it: only its type is kept."""
        kind = self._peer.network.types.type_of(body) or Unreadable
        self.router.dead_letters.add_type(sender, to, kind, why)

    def _bury(self, sender: PID | Alias, to: Any, message: Unreadable) -> None:
        self._peer.refusals.refuse("unreadable")
        self.router.dead_letters.add(sender, to, message, Why.UNREADABLE)

    def dead_letters(self, lost: list[bytes], was_up: bool) -> Iterator[None]:
        """Turn messages to the other node that were not confirmed into dead letters, in steps."""
        why = Why.UNCONFIRMED if was_up else Why.NO_NODE
        types = self._peer.network.types
        found = lost_messages(lost, self._peer.node, types.type_of, types.decode)
        for number, letter in enumerate(found, 1):
            if letter is not None:
                self.router.dead_letters.add_type(*letter, why)
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
        to = self._address(op.to)
        receiver: Any = self.router.resolve(to)
        if receiver is None:
            self._peer.refusals.refuse("undelivered")
        elif op.is_kill:
            receiver.kill()
        else:
            reason = self._peer.network.types.decode_reason(op.body)
            receiver.ask_to_exit(sender_of(op.sender), reason)

    # -- watches -----------------------------------------------------------------------------------

    def _watch(self, op: Watch) -> None:
        number, target, subscriber = op.number, self._target(op.to), op.subscriber
        known = self._numbers.get(target)
        if known is None:
            if number in self._watches:  # no honest node uses a number twice
                raise ViolationError(f"the watch {number} has a target already")
            if len(self._numbers) >= self._limits.watches:
                self._count_excess(TOO_MANY_WATCHES)
                here, there = self.router.node, self._peer.node
                self._end_watch(op, self._limits.watch_text(here, there, here))
                return
        if isinstance(target, EventName):
            self._send_recent(number, target, subscriber)
        if known is not None:
            return
        self._watches[number] = target
        self._numbers[target] = number
        watcher: Any = _Watcher(self._pid())
        try:
            self._kernel.relate(watcher, target, Kind.MONITOR)
        except RelationExistsError:
            pass

    def _send_recent(self, number: int, name: EventName, subscriber: int) -> None:
        event = self._kernel.publisher.events.find(name)
        if event is not None:
            for publication in event.recent:
                self._peer.send_publication(number, subscriber, event.producer, publication)
        self._peer.send_subscribed(number, subscriber)

    def _unwatch(self, op: Unwatch) -> None:
        target = self._watches.pop(op.number, None)
        if target is not None:
            del self._numbers[target]
            watcher: Any = _Watcher(self._pid())
            self._kernel.unrelate(watcher, target, Kind.MONITOR)

    def tell(self, target: Any, reason: Reason) -> None:
        """Tell the other node that a target of its watches has ended."""
        number = self._numbers.pop(target, None)
        if number is not None:
            del self._watches[number]
            self._peer.send_ended(number, reason)

    def number_of(self, target: Any) -> int | None:
        """The number of the other node's watch of a target."""
        return self._numbers.get(target)

    def _pid(self) -> PID:
        return PID(self._peer.node, self._peer.creation, 0)

    def forget(self, creation: int) -> None:
        """Forget all calls and watches of the other node: it is lost."""
        calls, self._calls = self._calls, {}
        for caller in calls:
            caller.abandon()
        waiters, self._confirmations = self._confirmations, {}
        for waiter in waiters:
            waiter.withdraw()
        self._answers.forget()
        self._watches.clear()
        self._numbers.clear()
        for _ in self._kernel.forget_watcher(PID(self._peer.node, creation, 0)):
            pass


def _check_place(place: Place) -> None:
    if len(place.name) + len(place.key) > ADDRESS:
        raise ViolationError("an address is longer than any that a node sends")


def _priority(given: int) -> Priority:
    return Priority(given) if given in _PRIORITIES else Priority.NORMAL
