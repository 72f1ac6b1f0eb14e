"""The messages of the framework to an entity: `Deliver`, `Done`, `Forget`, `Run` and `Look`."""

from typing import Final, NamedTuple

from ..record import Origin

__all__ = ["INTERNAL", "Deliver", "Delivery", "Done", "Forget", "Look", "Run"]


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


class Run(NamedTuple):
    """A message that an entity owes to itself is due."""

    number: int


class Look(NamedTuple):
    """Look for messages that are due."""


Delivery = Deliver | Done | Forget | Run | Look

INTERNAL: Final = frozenset({Deliver, Done, Forget, Run, Look})
"""The classes of these messages."""
