"""`SIGNALS`: messages of the runtime, which a process gets from its own node only.

A process that watches another trusts a `Down`: it gives a name away, or starts a replacement. So no
other node sends such a message as a message of its own; inside another message it is a plain value.
"""

from typing import Final

from ..._core.vocabulary.messages import (
    Down,
    EventStarted,
    EventStopped,
    Exit,
    GroupJoined,
    GroupLeft,
)
from .listed_class import UnreadableValueError

__all__ = ["SIGNALS", "not_a_message"]

SIGNALS: Final = frozenset({Down, Exit, GroupJoined, GroupLeft, EventStarted, EventStopped})


def not_a_message(signal: object) -> UnreadableValueError:
    """The error for a signal that another node has sent as a message."""
    return UnreadableValueError(
        f"a {type(signal).__name__} is a message of the runtime, and no other node sends it"
    )
