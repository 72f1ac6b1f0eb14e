"""`IncomingRoutes`: receiver, sender and priority of the operations of another node."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name
from ..access.limits import ADDRESS
from ..errors import NotPermittedError
from ..messages.listed_class import UnreadableValueError
from ..outgoing.peer import Peer
from ..protocol.operations import (
    ROUTES,
    Place,
    Route,
    address_of,
    decode_route,
    receiver_of,
    sender_of,
    target_of,
)
from ..refusals import Refusals

__all__ = ["IncomingRoutes", "SenderError", "ViolationError"]

A = TypeVar("A")

_PRIORITIES: Final = frozenset(Priority)
_LONGEST: Final = 2 * ADDRESS
"""Most bytes of a route: it holds an address and the name of a node."""


class ViolationError(Exception):
    """The other node breaks the protocol, as no honest node does: its session ends."""


class SenderError(Exception):
    """The other node may not send in the name of this sender."""

    def __init__(self, refusal: NotPermittedError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class IncomingRoutes:
    """Reads the routes of a single other node, and checks the senders in them."""

    def __init__(self, peer: Peer, refusals: Refusals) -> None:
        self._peer = peer
        self._refusals = refusals
        self._may_forward = False
        """The other node may send messages of a third node."""
        self._decode = peer.network.types.decode
        self.known: dict[bytes, tuple[Any, PID | Alias, Priority]] = {}
        """Routes that were read, which mostly repeat."""

    def permit(self, *, forwarding: bool) -> None:
        """Permit the other node to send messages of a third node, or no longer."""
        self._may_forward = forwarding
        self.known.clear()  # their senders were checked with the permits of that time

    def find(self, data: bytes) -> tuple[Any, PID | Alias, Priority]:
        """Receiver, sender and priority of an operation.

        Raises:
            SenderError: the other node may not send in the name of the sender.
            ViolationError: no honest node sends such a route.
        """
        found = self.known.get(data)
        if found is None:
            route, sender = self.read(data)
            self._check_sender(sender)
            to: Any = self._read_place(receiver_of, route.to)
            found = to, sender, _priority(route.priority)
            if len(self.known) >= ROUTES:
                self.known.clear()
            self.known[data] = found
        return found

    def read(self, data: bytes) -> tuple[Route, PID | Alias]:
        """A route and its sender, which is not checked."""
        if len(data) > _LONGEST:
            raise ViolationError("a route is longer than any that a node sends")
        route = decode_route(data)
        return route, sender_of(route.sender)

    def address(self, place: Place) -> PID | Alias | Name | Key:
        """The process that a place here stands for."""
        return self._read_place(address_of, place)

    def target(self, place: Place) -> PID | Alias | Name | Key | EventName:
        """The target of a watch."""
        return self._read_place(target_of, place)

    def _read_place(
        self, read: Callable[[Place, str, Callable[[bytes], object]], A], place: Place
    ) -> A | Name:
        if len(place.name) + len(place.key) > ADDRESS:
            raise ViolationError("an address is longer than any that a node sends")
        here = self._peer.router.node
        try:
            return read(place, here, self._decode)
        except UnreadableValueError:  # a key that no process here can have
            return Name("", here)

    def _check_sender(self, sender: PID | Alias) -> None:
        peer = self._peer
        if sender.node == peer.node:
            return
        if not self._may_forward:
            raise SenderError(self._refusals.refuse_act("forward"))
        if sender.node == peer.router.node and not peer.network.has_sent(sender):
            raise SenderError(self._refusals.refuse_sender(sender))


def _priority(given: int) -> Priority:
    # A later version may have further priorities: a message with such a priority is not lost for
    # it.
    return Priority(given) if given in _PRIORITIES else Priority.NORMAL
