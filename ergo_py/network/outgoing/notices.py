"""`Notices`: exit signals, ends of watched processes and publications to another node. A base class
of its peer.
"""

from ..._core.vocabulary.envelopes import Lane
from ..._core.vocabulary.ids import PID, Address
from ..._core.vocabulary.messages import Published
from ..._core.vocabulary.reasons import Killed, Reason
from ..access.limits import LARGEST, too_large
from ..context import NetworkContext
from ..messages.listed_class import RefusedValueError
from ..protocol.operations import (
    Ended,
    Event,
    Exit,
    Operation,
    Subscribed,
    sender_place,
)
from .mailbox import PeerMailbox
from .routes import Routes

__all__ = ["Notices"]


class Notices:
    """Another node that gets notices."""

    network: NetworkContext
    node: str
    mailbox: PeerMailbox
    routes: Routes

    def push(
        self, op: Operation, sender: object = None, to: object = None, route: bytes = b""
    ) -> None:
        """Queue an operation, and send it soon."""
        raise NotImplementedError

    def send_exit(self, sender: PID, to: Address, reason: Reason) -> None:
        """Ask a process there to end."""
        # Without sender and receiver, so that nothing overtakes an exit signal behind a long
        # message, and it overtakes nothing itself.
        self.push(
            Exit(
                self.routes.place(to),
                sender_place(sender),
                False,
                self.network.types.encode_reason(reason),
            )
        )

    def send_kill(self, to: Address) -> None:
        """Kill a process there."""
        sender = sender_place(self.network.kernel.pid)
        self.push(
            Exit(self.routes.place(to), sender, True, self.network.types.encode_reason(Killed()))
        )

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
        context: object = None,
    ) -> bool:
        """Send a publication to that node. False if it cannot travel, or too many bytes wait."""
        # Before the encoding, and without an error: a publisher is not refused. A node that is
        # behind loses the publication at the cost of a comparison.
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
        place, headers = sender_place(producer), self.network.headers_of(context)
        self.push(Event(number, subscriber, place, publication.at, body, headers))
        return True
