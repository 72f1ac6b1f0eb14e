"""The messages of the framework to an entity: `Deliver`, `Done`, `Forget`, `Ask`, `Inquire`, `Run`,
`Look` and `Leave`.
"""

from typing import Final, NamedTuple

from ...entity_handles import Address
from ..record import Origin

__all__ = [
    "INTERNAL",
    "Ask",
    "Deliver",
    "Delivery",
    "Done",
    "Forget",
    "Inquire",
    "Leave",
    "Look",
    "Run",
]


class Deliver(NamedTuple):
    """A message of an entity, for another."""

    origin: Origin
    number: int
    after: int
    """The number of the message before it, which must have taken effect; 0 if it is the first."""
    token: int
    """The token of the receiver's shard when it was sent. A copy that was held up, by a cut link or
    at a host without the shard, must not take effect when the shard has moved and come back:
    another copy may have taken effect elsewhere, and be forgotten.
    """
    message: bytes


class Done(NamedTuple):
    """The answer: the message has taken effect, and that is stored."""

    origin: Origin
    """The sender of the message: one that was deleted and made again counts from the beginning."""
    number: int


class Forget(NamedTuple):
    """The sender has stored that it owes this message no longer, and will never repeat it."""

    origin: Origin
    number: int


class Ask(NamedTuple):
    """The sender has parked a message, and asks which of its messages have taken effect. The
    receiver answers with `Inquire`.
    """

    origin: Origin
    question: str
    """The answer has the same."""


class Inquire(NamedTuple):
    """The receiver wakes up with a mark, or was asked for it: messages up to this number have taken
    effect. The sender answers with `Forget`.
    """

    origin: Origin
    number: int
    receiver: Address
    question: str = ""


class Run(NamedTuple):
    """A message that an entity owes to itself is due."""

    birth: int
    """Of the entity: one that was deleted and made again counts from the beginning. It may wait
    while the entity is deleted, and ends.
    """
    number: int


class Look(NamedTuple):
    """Look for messages that are due."""


class Leave(NamedTuple):
    """End between two callbacks: the shard of the entity moves to another node."""


Delivery = Deliver | Done | Forget | Ask | Inquire | Run | Look | Leave

INTERNAL: Final = frozenset({Deliver, Done, Forget, Ask, Inquire, Run, Look, Leave})
"""The classes of these messages."""
