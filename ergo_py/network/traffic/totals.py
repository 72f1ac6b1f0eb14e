"""`Totals`: the operations of all sessions with another node."""

from typing import Final

__all__ = ["Totals"]

# Not measured: after more sessions in a row that end before they could tell, the rest stays
# unconfirmed, and only the accounts differ.
_ENDED: Final = 8
"""How many ended sessions are remembered, until the peer has told how many operations arrived."""


class Totals:
    """The operations that are neither on the way nor waiting: they are confirmed, unconfirmed or
    unsent.
    """

    def __init__(self) -> None:
        self.sessions: int = 0
        """How many sessions began."""
        self.confirmed: int = 0
        """Operations that the peer has got."""
        self.unconfirmed: int = 0
        """Operations that were on the way when a session ended, and that the peer has not got, or
        has not told since.
        """
        self.unsent: int = 0
        """Operations that waited when a session ended, or that no session began for."""
        self.resent: int = 0
        """How often an operation was sent again."""
        self.received: int = 0
        """Operations of the peer that were carried out."""
        self._open_ends: dict[tuple[int, int], tuple[int, int]] = {}
        """Operations confirmed and sent in ended sessions, by their numbers, ours first."""
        self._arrived: dict[tuple[int, int], int] = {}
        """The operations that arrived in ended sessions, by their numbers, ours first."""

    @property
    def ended(self) -> int:
        """Operations that are neither on the way nor waiting."""
        return self.confirmed + self.unconfirmed + self.unsent

    def count_session(self) -> None:
        """Count a session that begins."""
        self.sessions += 1

    def count_confirmed(self, count: int) -> None:
        """Count operations that the peer has got."""
        self.confirmed += count

    def count_received(self, count: int) -> None:
        """Count operations of the peer that were carried out."""
        self.received += count

    def count_resent(self, count: int) -> None:
        """Count operations that are sent again."""
        self.resent += count

    def count_lost(self, unconfirmed: int, unsent: int) -> None:
        """Count the operations that a session leaves when it ends."""
        self.unconfirmed += unconfirmed
        self.unsent += unsent

    def remember_end(self, mine: int, yours: int, received: int, confirmed: int, sent: int) -> None:
        """Remember how far a session came, until the next session compares it with the peer."""
        self._arrived[mine, yours] = received
        if confirmed < sent:
            self._open_ends[mine, yours] = confirmed, sent
        for ended in (self._arrived, self._open_ends):
            if len(ended) > _ENDED:
                del ended[next(iter(ended))]

    def arrived(self) -> list[tuple[int, int, int]]:
        """How many operations arrived in the last sessions that ended, for the peer: its number of
        the session, ours, and the operations.
        """
        return [(yours, mine, count) for (mine, yours), count in self._arrived.items()]

    def confirm(self, mine: int, yours: int, count: int) -> None:
        """Note what the peer tells of an ended session: ``count`` operations had arrived."""
        ended = self._open_ends.pop((mine, yours), None)
        if ended is not None:
            confirmed, sent = ended
            # The other node tells the number: it must not make more operations confirmed than were
            # sent, nor take back those that it has confirmed.
            late = min(max(count, confirmed), sent) - confirmed
            self.unconfirmed -= late
            self.confirmed += late

    def begin_again(self) -> None:
        """Count from now on: the session is the first with another start of the peer's node."""
        self.sessions = 1
        self.confirmed = self.unconfirmed = self.unsent = self.resent = self.received = 0
        self._open_ends.clear()
        self._arrived.clear()
