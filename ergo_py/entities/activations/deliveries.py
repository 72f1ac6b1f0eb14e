"""The messages of the framework to an entity: `Deliver`, `Done`, `Forget`, `Inquire`, `Run` and
`Look`.
"""

from typing import Final, NamedTuple

from ...entity_handles import Address
from ..record import Origin

__all__ = ["INTERNAL", "Deliver", "Delivery", "Done", "Forget", "Inquire", "Look", "Run"]


class Deliver(NamedTuple):
    """A message of an entity, for another."""

    origin: Origin
    number: int
    after: int
    """The number of the message before it, which must have taken effect; 0 if it is the first."""
    message: bytes


class Done(NamedTuple):
    """The answer: the message has taken effect, and that is stored."""

    number: int


class Forget(NamedTuple):
    """The sender has stored that it owes this message no longer, and will never repeat it."""

    origin: Origin
    number: int


class Inquire(NamedTuple):
    """The receiver wakes up with a mark: messages up to this number have taken effect. The sender
    answers with `Forget`.
    """

    origin: Origin
    number: int
    receiver: Address


class Run(NamedTuple):
    """A message that an entity owes to itself is due."""

    number: int


class Look(NamedTuple):
    """Look for messages that are due."""


Delivery = Deliver | Done | Forget | Inquire | Run | Look

INTERNAL: Final = frozenset({Deliver, Done, Forget, Inquire, Run, Look})
"""The classes of these messages."""
