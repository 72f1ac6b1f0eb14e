"""`ServiceReceiver`: takes messages and calls of other nodes to the service of a child here."""

from itertools import islice
from typing import Any, Final

from ..._core.kernel import Kernel
from ..._core.messaging.router import LANES
from ..._core.tables.child_slot import ChildSlot
from ..._core.tables.mailbox import Mailbox, Verdict, Waiter
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import Envelope, Lane, Overflow, Priority
from ..._core.vocabulary.errors import ChildUnknownError, TargetDownError
from ..._core.vocabulary.ids import PID, Alias, ServiceName
from ..._core.vocabulary.messages import Why
from ..._core.vocabulary.reasons import Reason
from ...service import Service

__all__ = ["Confirmed", "ServiceReceiver"]

_KNOWN: Final = 11
"""Names of children in an error, whose text shows ten of them. A node may have very many, and a
short request of another node must not make a long answer.
"""
_PRIORITIES: Final = {lane: Priority(number) for number, lane in enumerate(LANES)}


class Confirmed(Waiter):
    """A message of another node whose sender waits until a mailbox has taken it."""

    def confirm(self, is_taken: bool, error: BaseException | None, /) -> None:
        """Note whether a mailbox has taken the message, or the error."""
        raise NotImplementedError


class ServiceReceiver:
    """A receiver that passes everything on to the child, now or after its restart. The queue of the
    service is on this node, so the order of a sender holds across the restart.
    """

    is_remote: Final = False
    accepting: Final = True
    inline: Final = False
    takes_direct: Final = False
    takes_bounded: Final = False
    waiting: Any = None
    deferred: dict[Caller, None] | None = None
    reason: Reason | None = None

    def __init__(self, kernel: Kernel, address: ServiceName) -> None:
        self._kernel = kernel
        self._address = address
        self._slot: ChildSlot | None = None
        """The child that was found last. It says why it is gone."""
        self.id: PID = kernel.pid
        self.mailbox: _Queue = _Queue(self)

    def wake(self) -> None:
        """Do nothing: the service wakes the child."""

    wake_from_any_thread = wake

    def serves_in_passing(self, _message: object, _sender: PID | Alias) -> bool:
        """Always False: every message goes through the service."""
        return False

    def take(self, lane: Lane, envelope: Envelope, waiter: Waiter | None) -> None:
        """Pass a message or a call on."""
        _, sender, to, message = envelope
        # The last slot stays known: a child that was removed is told as gone, with its reason, and
        # not as a name that never was.
        slot = self._slot = self._kernel.services.get(self._address.name, self._slot)
        if slot is None:
            self._refuse(sender, to, message, waiter)
            return
        service, priority = Service(self._kernel, slot, None, sender), _PRIORITIES[lane]
        if isinstance(to, Caller):
            self.ask(service, to, priority)
        elif isinstance(waiter, Confirmed):
            service.deliver_confirmed(message, priority, waiter.confirm)
        else:
            service.deliver(message, priority)

    def _refuse(
        self, sender: PID | Alias, to: object, message: object, waiter: Waiter | None
    ) -> None:
        """Refuse a message or a call: no child ever had the name."""
        known = tuple(islice(self._kernel.services, _KNOWN))
        error = ChildUnknownError(self._address.name, known)
        if isinstance(to, Caller):
            to.settle(None, error)
            return
        self._kernel.router.dead_letters.add(sender, self._address.name, message, Why.NO_PROCESS)
        if isinstance(waiter, Confirmed):
            waiter.confirm(False, error)

    def ask(self, service: Service, caller: Caller, priority: Priority) -> None:
        """Let the child answer a call; its successor, if the child ends before and the request may
        be repeated.
        """
        if self._address.is_repeatable:
            service.serve(_RepeatedCaller(self, service, caller, priority), priority)
        else:
            service.serve(caller, priority)


class _Queue(Mailbox):
    """The mailbox of a receiver. It holds nothing: the service has the queue."""

    __slots__ = ("_receiver",)

    def __init__(self, receiver: ServiceReceiver) -> None:
        # A bound, WAIT, and no room ever: so calls and confirmed messages come to wait_for_room(),
        # which passes them on.
        super().__init__(1, Overflow.WAIT)
        self._receiver = receiver

    def has_room(self, lane: Lane) -> bool:
        """Always False: the service decides whether a sender waits."""
        return False

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Pass a message on."""
        self._receiver.take(lane, envelope, None)
        return Verdict.PASSED, None

    def wait_for_room(
        self, lane: Lane, envelope: Envelope | None, waiter: Waiter, depth: int = 0
    ) -> None:
        """Pass a call on, or a message whose sender waits."""
        assert envelope is not None
        self._receiver.take(lane, envelope, waiter)


class _RepeatedCaller(Caller):
    """A call that the successor gets again, if the child ends while it has the request."""

    __slots__ = ("_receiver", "_origin", "_priority", "_service")

    def __init__(
        self, receiver: ServiceReceiver, service: Service, origin: Caller, priority: Priority
    ) -> None:
        super().__init__(origin.pid, origin.number, origin.to, origin.request)
        self._receiver = receiver
        self._service = service
        self._origin = origin
        self._priority = priority

    def awaken(self) -> None:
        error, origin = self.error, self._origin
        if origin.settled:
            return
        # Only the end of the child itself: its answer may be a TargetDownError about another
        # process.
        if (
            isinstance(error, TargetDownError)
            and error.request is origin.request
            and isinstance(error.target, PID)
        ):
            self._receiver.ask(self._service, origin, self._priority)
        else:
            origin.settle(self.value, error)
