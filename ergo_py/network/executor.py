"""`Executor`: carries out the operations of another node in the kernel of this node."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from .._core.messaging.remote import NetworkRouter
from .._core.messaging.router import LANES
from .._core.messaging.traces import Mark
from .._core.runtime.parking import PARKED
from .._core.tables.pending_calls import Caller
from .._core.tables.relations import Kind
from .._core.vocabulary.envelopes import ADDRESSED, CALL, MESSAGE, Lane, Overflow, Priority
from .._core.vocabulary.errors import MailboxFullError, RelationExistsError, TargetDownError
from .._core.vocabulary.ids import PID, Alias, EventName, Key, Name
from .._core.vocabulary.messages import Why
from .._core.vocabulary.reasons import Custom, Reason, Shutdown
from .accounts.limits import TOO_MANY_CALLS, TOO_MANY_WATCHES, Budget
from .errors import NotPermittedError, UnreadableError
from .messages.message_types import UnreadableValueError
from .operations import (
    Ask,
    Call,
    Exit,
    Part,
    Place,
    Question,
    Send,
    Unwatch,
    Watch,
    Withdraw,
    address_of,
    decode_operation,
    decode_route,
    receiver_of,
    sender_of,
    target_of,
)
from .questions.answers import Answers
from .services.service_desk import Confirmed

if TYPE_CHECKING:
    from .peer import Peer

__all__ = ["ROUTES", "Executor"]

ROUTES: Final = 1024
"""How many routes each end of a session remembers."""

_PRIORITIES: Final = frozenset(Priority)
_LOOKS: Final = 1_000_000
"""Open calls that another node may have this node look through in a second."""


class _ForwardedError(Exception):
    """The sender is of a third node, and the other node may not forward."""


class Unreadable:
    """Stands for a message that this node cannot read, in the list of dead letters."""

    def __init__(self, why: str) -> None:
        self.why = why


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
            executor._calls.remove(self)
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
        self._is_plain = type(peer.router) is NetworkRouter
        """No observer has to be told of calls."""
        self._calls: set[RemoteCaller] = set()
        """Calls of that node that are not answered."""
        self._confirmations: set[_Confirmation] = set()
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
            Ask: self._ask if may("send") else self._refuse_message,
            Watch: self._watch if may("watch") else self._refuse_watch,
            Unwatch: self._unwatch,
            Exit: self._exit,
            Withdraw: self._withdraw,
            Question: self._answers.answer,
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
            route = decode_route(data)
            if route.sender.node != self._peer.node and "forward" not in self.permits:
                raise _ForwardedError
            found = self._receiver(route.to), sender_of(route.sender), _priority(route.priority)
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[data] = found
        return found

    def _receiver(self, place: Place) -> Any:
        try:
            return receiver_of(place, self.router.node, self._peer.network.types.decode)
        except UnreadableValueError:  # a key that no process here can have
            return Name("", self.router.node)

    def _address(self, place: Place) -> PID | Alias | Name | Key:
        try:
            return address_of(place, self.router.node, self._peer.network.types.decode)
        except UnreadableValueError:
            return Name("", self.router.node)

    def _target(self, place: Place) -> PID | Alias | Name | Key | EventName:
        try:
            return target_of(place, self.router.node, self._peer.network.types.decode)
        except UnreadableValueError:
            return Name("", self.router.node)

    # -- permits -----------------------------------------------------------------------------------

    def _refusal(self, permit: str) -> NotPermittedError:
        """Count an operation that is not permitted, and return the error that says so."""
        return self._peer.ledger.refuse_act(permit)

    def _refuse_message(self, op: Send | Ask, permit: str = "send") -> None:
        error = self._refusal(permit)
        route = decode_route(op.route)
        self.router.dead_letters.add(
            sender_of(route.sender), self._address(route.to), self.read(op.body), Why.NOT_PERMITTED
        )
        if isinstance(op, Ask):
            self._peer.send_answer(op.number, None, error)

    def _refuse_call(self, op: Call, permit: str = "call") -> None:
        self._peer.send_answer(op.number, None, self._refusal(permit))

    def _refuse_watch(self, op: Watch) -> None:
        self._end_watch(op, str(self._refusal("watch")))

    def _end_watch(self, op: Watch, why: str) -> None:
        if op.subscriber:
            self._peer.send_subscribed(op.number, op.subscriber)
        self._peer.send_ended(op.number, Custom(why))

    # -- limits ------------------------------------------------------------------------------------

    def _count_excess(self, cause: str) -> None:
        self._peer.ledger.refuse(cause)
        self._peer.network.log_once(
            f"the node {self._peer.node} asks for {cause}",
            "max_calls= and max_watches= of this network limit them",
        )

    def _refuse_further(self, op: Call | Ask) -> None:
        """Refuse a call, or a message that would wait: too many are open."""
        self._count_excess(TOO_MANY_CALLS)
        here, there = self.router.node, self._peer.node
        self._peer.send_answer(op.number, None, self._limits.call_error(here, there, here))

    def _refuse_new_call(self, op: Call) -> None:
        """Refuse a call as a process does that has ended: the caller looks for another."""
        to = self._address(decode_route(op.route).to)
        self._peer.ledger.refuse("draining")
        self._peer.send_answer(
            op.number, None, TargetDownError(to, None, Shutdown("its node is draining"))
        )

    # -- messages and calls ------------------------------------------------------------------------

    def _send(self, op: Send) -> None:
        try:
            to, sender, priority = self._routes.get(op.route) or self._route(op.route)
        except _ForwardedError:
            self._refuse_message(op, "forward")
            return
        try:
            message = self._decode(op.body)
        except UnreadableValueError:
            self._bury(sender, to, self.read(op.body))
            return
        try:
            if op.headers:
                is_taken = self._send_traced(sender, to, message, priority, op.headers)
            else:
                is_taken = self.router.send(sender, to, message, priority)
            if not is_taken:
                self._peer.ledger.refuse("undelivered")
        except MailboxFullError:  # the message is a dead letter
            self._peer.ledger.refuse("full")

    def _send_traced(
        self, sender: PID | Alias, to: Any, message: object, priority: Priority, headers: Any
    ) -> bool:
        router: Any = self.router
        context = self._peer.network.context_of(headers)
        if context is None:
            return bool(router.send(sender, to, message, priority))
        return bool(router.send_marked(sender, to, message, priority, context))

    def _ask(self, op: Ask) -> None:
        try:
            to, sender, priority = self._route(op.route)
        except _ForwardedError:
            self._refuse_message(op, "forward")
            return
        message = self.read(op.body)
        if isinstance(message, Unreadable):
            self._bury(sender, to, message)
            self._peer.send_answer(op.number, False, None)
            return
        receiver: Any = self.router.resolve(to)
        lane = LANES[priority]
        if (
            receiver is not None
            and receiver.accepting
            and receiver.mailbox.overflow is Overflow.WAIT
            and not receiver.mailbox.has_room(lane)
        ):
            kind = ADDRESSED if receiver.has_split_handlers and type(to) is not PID else MESSAGE
            envelope = (kind, sender, to, message)
            if self.calls_in_flight >= self._limits.calls:
                self.router.discard(envelope, to, Why.FULL, receiver)
                self._refuse_further(op)
                return
            waiter = _Confirmation(self, op.number, envelope, lane, receiver)
            self._confirmations.add(waiter)
            receiver.mailbox.wait_for_room(lane, envelope, waiter)
            return
        try:
            taken = self.router.send(sender, to, message, priority)
        except MailboxFullError as error:
            self._peer.ledger.refuse("full")
            self._peer.send_answer(op.number, None, error)
        else:
            if not taken:
                self._peer.ledger.refuse("undelivered")
            self._peer.send_answer(op.number, taken, None)

    def confirm(
        self, waiter: _Confirmation, taken: bool, error: BaseException | None = None
    ) -> None:
        """Tell the other node that a mailbox has taken its message, or why not."""
        if waiter not in self._confirmations:
            return  # the session in which the message came has ended
        self._confirmations.remove(waiter)
        if not taken:
            self._peer.ledger.refuse("undelivered")
        self._peer.send_answer(waiter.number, taken, error)

    def _call(self, op: Call) -> None:
        try:
            to, sender, priority = self._routes.get(op.route) or self._route(op.route)
        except _ForwardedError:
            self._refuse_call(op, "forward")
            return
        if len(self._calls) + len(self._confirmations) >= self._limits.calls:
            self._refuse_further(op)
            return
        try:
            request = self._decode(op.body)
        except UnreadableValueError:
            request = self.read(op.body)
        caller = RemoteCaller(self, sender, op.number, to, request)
        self._calls.add(caller)
        if op.headers and (context := self._peer.network.context_of(op.headers)) is not None:
            caller.carry(Mark(MESSAGE, to, context))
        if type(request) is Unreadable:
            text = f"{to!r} cannot read the request: {request.why}"
            self._peer.ledger.refuse("unreadable")
            caller.settle(None, UnreadableError(text, to, None))
            return
        callee: Any = self._processes.get(to) if self._is_plain and not priority else None
        if callee is None or not callee.takes_direct or callee.has_split_handlers:
            self._begin(caller, priority)
            return
        # Inlined Calls.begin() and Router.post(): most callees take direct appends.
        caller.callee = callee
        callee.mailbox.main.append((CALL, sender, caller, request))
        if callee.task.custom_sleep_data is PARKED:
            self.router.turns.wake(callee)
        if callee.waiting is not None:
            self._peer.network.rings.suspect(caller)

    def _begin(self, caller: RemoteCaller, priority: Priority) -> None:
        self._kernel.calls.begin(caller, priority)
        if caller.settled:
            if isinstance(caller.error, TargetDownError):
                self._peer.ledger.refuse("undelivered")
            elif isinstance(caller.error, MailboxFullError):
                self._peer.ledger.refuse("full")
        elif (callee := caller.callee) is not None and callee.waiting is not None:
            self._peer.network.rings.suspect(caller)

    def _withdraw(self, op: Withdraw) -> None:
        caller = self.call_in_flight(op.number)
        if caller is not None:
            self._peer.network.rings.withdraw(caller)
            self._calls.discard(caller)
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

    def read(self, body: bytes) -> Any:
        """The value with these bytes, or an `Unreadable` in its place."""
        try:
            return self._peer.network.types.decode(body)
        except UnreadableValueError as error:
            self._peer.network.log_once(
                f"a message of node {self._peer.node} is unreadable", str(error)
            )
            return Unreadable(str(error))

    def _bury(self, sender: PID | Alias, to: Any, message: Unreadable) -> None:
        self._peer.ledger.refuse("unreadable")
        self.router.dead_letters.add(sender, to, message, Why.UNREADABLE)

    def dead_letters(self, lost: list[bytes], was_up: bool) -> Iterator[None]:
        """Turn messages to the other node that were not confirmed into dead letters, in steps."""
        why = Why.UNCONFIRMED if was_up else Why.NO_NODE
        for number, (op, message) in enumerate(self._lost_messages(lost), 1):
            if op is not None:
                route = decode_route(op)
                to = receiver_of(route.to, self._peer.node, self._peer.network.types.decode)
                self.router.dead_letters.add(sender_of(route.sender), to, message, why)
            if not number % 64:
                yield

    def _lost_messages(self, lost: list[bytes]) -> Iterator[tuple[bytes | None, object]]:
        """The route and the message of each lost operation that is one, and None for others."""
        parts: list[bytes] = []
        for data in lost:
            op = decode_operation(data)
            if isinstance(op, Part):
                parts.append(op.data)
                if not op.is_last:
                    yield None, None
                    continue
                whole, has_first = b"".join(parts), op.number + 1 == len(parts)
                parts.clear()
                if not has_first:
                    text = "the other node has got the beginning of this message"
                    yield op.route or None, Unreadable(text)
                    continue
                op = decode_operation(whole)
            if isinstance(op, Send | Ask):
                yield op.route, self.read(op.body)
            else:
                yield None, None

    def _exit(self, op: Exit) -> None:
        permit = "kill" if op.is_kill else "exit"
        if permit not in self.permits:
            self._refusal(permit)
            return
        if op.sender.node != self._peer.node:
            # Exit signals are not forwarded, and the signal of a parent has more power.
            self._peer.session.close("an exit signal has a sender of another node", False)
            return
        to = self._address(op.to)
        receiver: Any = self.router.resolve(to)
        if receiver is None:
            self._peer.ledger.refuse("undelivered")
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
                self._peer.session.close(f"the watch {number} has a target already", False)
                return
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
        calls, self._calls = self._calls, set()
        for caller in calls:
            caller.abandon()
        waiters, self._confirmations = self._confirmations, set()
        for waiter in waiters:
            waiter.withdraw()
        self._answers.forget()
        self._watches.clear()
        self._numbers.clear()
        for _ in self._kernel.forget_watcher(PID(self._peer.node, creation, 0)):
            pass


def _priority(given: int) -> Priority:
    return Priority(given) if given in _PRIORITIES else Priority.NORMAL
