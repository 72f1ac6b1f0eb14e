"""`Totals`: the operations of all sessions with another node; a base class of the session."""

__all__ = ["Totals"]


class Totals:
    """Always ``sent`` is the sum of ``confirmed``, ``unconfirmed``, ``unsent``, and the operations
    that are on the way or wait now.
    """

    def __init__(self) -> None:
        self.sessions = 0
        """How many sessions began."""
        self.sent = 0
        """Operations that were given to the session."""
        self.confirmed = 0
        """Operations that the peer has got."""
        self.unconfirmed = 0
        """Operations that were on the way when a session ended, and that the peer has not got, or
        has not told since.
        """
        self.unsent = 0
        """Operations that waited when a session ended, or that no session began for."""
        self.resent = 0
        """How often an operation was sent again."""
        self.received = 0
        """Operations of the peer that were carried out."""
