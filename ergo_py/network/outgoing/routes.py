"""`Routes`: the encoded routes of messages to another node, which mostly repeat."""

from typing import Any, Final

from ..._core.messaging.router import LANES
from ..._core.vocabulary.envelopes import Lane, Priority
from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name, ServiceName
from ..._core.vocabulary.text import brief
from ..access.limits import ADDRESS
from ..context import NetworkContext
from ..errors import MessageTooLargeError, MessageTypeError
from ..messages.listed_class import RefusedValueError
from ..protocol.operations import (
    ROUTES,
    Place,
    Route,
    encode_route,
    place_of,
    sender_place,
)

__all__ = ["Address", "Routes"]

Address = PID | Alias | Name | Key | EventName | ServiceName
"""An address of a process, an event or a service there."""

_PRIORITIES: Final = {lane: Priority(number) for number, lane in enumerate(LANES)}


class Routes:
    """The routes to the processes of a single other node."""

    __slots__ = ("_known", "_network", "last")

    def __init__(self, network: NetworkContext) -> None:
        self._network = network
        self._known: dict[tuple[Any, PID | Alias, Lane], bytes] = {}
        self.last: tuple[Any, PID | Alias | None, Lane, bytes] = (None, None, Lane.LOG, b"")
        """Receiver, sender and lane of the last message, and their route: mostly the same sender
        sends to the same receiver again.
        """

    def find(self, lane: Lane, sender: PID | Alias, to: Any) -> bytes:
        """The encoded route of a message or a call."""
        last_to, last_sender, last_lane, route = self.last
        if last_to is to and last_sender is sender and last_lane is lane:
            return route
        key = (to, sender, lane)
        known = self._known.get(key)
        if known is not None:
            route = known
        else:
            place = self.place(to)
            # With a new route only, not with each message. This node takes a message back from
            # another node only if its sender here was noted, and refuses others as forged.
            self._network.note_sender(sender)
            route = encode_route(Route(place, sender_place(sender), _PRIORITIES[lane]))
            if len(self._known) >= ROUTES:
                self._known.clear()
            self._known[key] = route
        self.last = (to, sender, lane, route)
        return route

    def place(self, target: Address) -> Place:
        """An address there, as it travels.

        Raises:
            MessageError: of kind ``"type"``; its name or key cannot travel.
            MessageError: of kind ``"too large"``; its name or key is too long.
        """
        try:
            place = place_of(target, self._network.types.encode)
            length = len(place.name.encode()) + len(place.key)
        except (RefusedValueError, UnicodeEncodeError) as error:
            raise MessageTypeError(
                f"the address {target!r} cannot travel: {error}", target, None
            ) from None
        if length > ADDRESS:
            raise MessageTooLargeError(
                f"the name or key of an address has {length} bytes; allowed are {ADDRESS}: "
                f"{brief(target, 100)}",
                target,
                None,
            )
        return place
