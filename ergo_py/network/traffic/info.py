"""`NetworkInfo` and `PeerInfo`: snapshots of the network of a node, and of each other node."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..._core.vocabulary.public_names import show_public_names

__all__ = ["NetworkInfo", "PeerInfo"]


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Snapshot of the traffic with another node, since both nodes have started. If the other node
    starts again, its accounts begin again.

    An operation is a message, a call, an answer, a watch, a publication or a request to the node.
    Always ``sent`` is the sum of ``confirmed``, ``on_the_way``, ``waiting``, ``unconfirmed`` and
    ``unsent``. When nothing is on the way, ``confirmed`` here equals ``received`` on the other
    node, and ``refused_there`` here equals ``refused`` on the other node, at the latest a heartbeat
    later.
    """

    node: str
    state: str
    """``up``, ``opening`` or ``idle``."""
    sessions: int
    """How many sessions began."""
    sent: int
    """Operations to that node."""
    confirmed: int
    """Operations that have arrived there."""
    on_the_way: int
    """Operations that were sent, and that are not confirmed yet."""
    waiting: int
    """Operations that wait for room in the window of that node."""
    unconfirmed: int
    """Operations that were on the way when a session ended. They may have arrived; then the next
    session tells, and they count as confirmed.
    """
    unsent: int
    """Operations that were never sent, because a session ended or none began."""
    resent: int
    """How often an operation was sent again, after a loss."""
    received: int
    """Operations of that node that have arrived here."""
    refused: Mapping[str, int]
    """Those of them that were not carried out, by cause: ``undelivered`` (no process took it),
    ``full``, ``unreadable``, ``too many calls``, ``too many watches``, ``not permitted: look`` and
    so on.
    """
    refused_there: Mapping[str, int]
    """Operations of this node that were not carried out there, as that node told."""
    dropped: int
    """Messages that were refused here, because too many bytes wait for that node, and calls and
    watches, because there are too many. They were never sent.
    """
    waiting_bytes: int
    on_the_way_bytes: int
    bytes_out: int
    """Bytes of all frames that were given to the carrier, also of frames that were lost."""
    bytes_in: int
    """Bytes of all frames that have arrived."""
    frames_out: int
    frames_in: int
    window: int
    """Bytes that the other node may have on the way to this node."""
    round_trip: float | None
    """Seconds that a frame took there and back, the last time; None if it is not known yet."""
    calls: int
    """Calls of processes and requests to that node that wait for an answer."""
    calls_in: int
    """Calls of that node that are not answered yet, and messages of it whose senders wait for room
    in a mailbox here.
    """
    watches: int
    """Processes, names and events there that processes here watch."""
    watches_in: int
    """Processes, names and events here that the other node watches."""

    @property
    def taken(self) -> int:
        """Operations of that node that were carried out here."""
        return self.received - sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    """Snapshot of the network of a node."""

    node: str
    """The name of the node itself."""
    peers: Mapping[str, PeerInfo]
    """The other nodes that this node knows, by name."""
    left: str = ""
    """Why this node has left its network; empty while it is a member. A node leaves if another node
    has its name, and tries to join again.
    """


show_public_names(__name__)
