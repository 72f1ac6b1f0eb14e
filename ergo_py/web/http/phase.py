"""`Phase`: how far an HTTP connection is with its request."""

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """What the protocol waits for."""

    HEAD = "head"
    BODY = "body"
    UNDER_WAY = "under way"
    """An answer, or the rest of a streamed response."""
    SKIPS = "skips"
    """The rest of a body that was not read."""
    UPGRADING = "upgrading"
    """The decision about a WebSocket."""
    CLOSED = "closed"
