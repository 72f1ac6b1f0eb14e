"""`Notices`: exit signals, ends of watched processes and publications to another node. A base class
of its peer.
"""

from typing import TYPE_CHECKING, Any

from ..._core.vocabulary.envelopes import Lane
from ..._core.vocabulary.ids import PID
from ..._core.vocabulary.messages import Published
from ..._core.vocabulary.reasons import Killed, Reason
from ..._core.vocabulary.text import brief
from ..errors import MessageTooLargeError, MessageTypeError
from ..messages.message_types import RefusedValueError
from ..protocol.operations import (
    Ended,
    Event,
    Exit,
    Operation,
    Place,
    Subscribed,
    place_of,
    sender_place,
)
from ..traffic.limits import ADDRESS, LARGEST, too_large
from .peer_mailbox import PeerMailbox

if TYPE_CHECKING:
    from ..network import Network

__all__ = ["Notices"]


class Notices:
    """Another node that gets notices."""

    network: "Network"
    node: str
    mailbox: PeerMailbox

    def push(self, op: Operation) -> None:
        """Queue an operation, and send it soon."""
        raise NotImplementedError

    def place(self, target: Any) -> Place:
        """An address there, as it travels."""
        try:
            place = place_of(target, self.network.types.encode)
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

    def headers_of(self, context: Any) -> dict[str, str] | None:
        """The context of a trace, as it travels."""
        kernel = self.network.kernel
        if context is None or kernel.tracing is None:
            return None
        headers: dict[str, str] | None = kernel.tracing.headers_of(context, kernel.logger)
        return headers

    def send_exit(self, sender: PID, to: Any, reason: Reason) -> None:
        """Ask a process there to end."""
        self.push(
            Exit(
                self.place(to),
                sender_place(sender),
                False,
                self.network.types.encode_reason(reason),
            )
        )

    def send_kill(self, to: Any) -> None:
        """Kill a process there."""
        sender = sender_place(self.network.kernel.pid)
        self.push(Exit(self.place(to), sender, True, self.network.types.encode_reason(Killed())))

    def send_ended(self, number: int, reason: Reason) -> None:
        """Tell that node that the target of its watch has ended."""
        self.push(Ended(number, self.network.types.encode_reason(reason)))

    def send_subscribed(self, number: int, subscriber: int) -> None:
        """Tell that node that a subscriber has got the publications that an event keeps."""
        self.push(Subscribed(number, subscriber))

    def send_publication(
        self,
        number: int,
        subscriber: int,
        producer: PID,
        publication: Published,
        context: Any = None,
    ) -> bool:
        """Send a publication to that node. False if it cannot travel, or too many bytes wait."""
        if not self.mailbox.has_room(Lane.MAIN):
            return False
        try:
            body = self.network.types.encode(publication.message)
            if len(body) > LARGEST:
                raise RefusedValueError(too_large("a publication", body, self.node))
        except RefusedValueError as error:
            self.network.log_once(
                f"publications of {publication.event.name!r} cannot travel", str(error)
            )
            return False
        place, headers = sender_place(producer), self.headers_of(context)
        self.push(Event(number, subscriber, place, publication.at, body, headers))
        return True
