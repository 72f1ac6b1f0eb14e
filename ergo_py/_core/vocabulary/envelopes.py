"""Envelopes: a message in a mailbox with its kind, sender and reference; the lanes, priorities and
overflow rules of mailboxes.

An envelope is a plain tuple ``(kind, sender, ref, payload)``: a slotted class costs four times as
much to create and to read.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final

from .errors import BadInputError

__all__ = [
    "ADDRESSED",
    "ADDRESSED_CALL",
    "CALL",
    "CHILD_EXIT",
    "CONTROL",
    "DOWN",
    "EVENT",
    "EXIT",
    "FAILED",
    "FENCE",
    "INSPECT",
    "KILL",
    "LOG",
    "LOG_LANE",
    "LOOK",
    "MAIN_LANE",
    "MESSAGE",
    "NOTICE",
    "RESPONSE",
    "STARTED",
    "STOP",
    "SYSTEM_LANE",
    "URGENT_LANE",
    "Divert",
    "Envelope",
    "Lane",
    "Overflow",
    "Priority",
    "kind_name",
]

Envelope = tuple[int, Any, Any, Any]

# Kinds of envelopes. What users send comes first: everything up to EVENT counts against a bound,
# nothing after it does.
MESSAGE: Final = 0
CALL: Final = 1
ADDRESSED: Final = 2
ADDRESSED_CALL: Final = 3
EVENT: Final = 4
EXIT: Final = 5
DOWN: Final = 6
CHILD_EXIT: Final = 7
INSPECT: Final = 8
LOG: Final = 9
STOP: Final = 10
KILL: Final = 11
FAILED: Final = 12
RESPONSE: Final = 13
CONTROL: Final = 14
STARTED: Final = 15
FENCE: Final = 16
"""Says that everything before it was dealt with."""
LOOK: Final = 17
"""From somebody who looks inside: the payload is what to do, as the process and in its turn."""
NOTICE: Final = 18
"""From the node to the producer of an event: somebody subscribes now, or nobody any more."""

_KIND_NAMES: Final = (
    "handle_message",
    "handle_call",
    "handle_message",
    "handle_call",
    "handle_event",
    "exit",
    "handle_message",
    "handle_child_exit",
    "handle_inspect",
    "handle_log",
    "stop",
    "kill",
    "crash",
    "handle_response",
    "supervision",
    "post_start",
    "fence",
    "look",
    "handle_message",
)


def kind_name(kind: int) -> str:
    """The callback that serves envelopes of this kind."""
    return _KIND_NAMES[kind]


class Priority(IntEnum):
    """How urgent a sender says its message is: it selects the lane."""

    NORMAL = 0
    HIGH = 1
    MAX = 2


class Lane(Enum):
    """The four queues of a mailbox, in the order in which they are looked at."""

    __hash__ = object.__hash__  # as for State

    URGENT = "urgent"
    SYSTEM = "system"
    MAIN = "main"
    LOG = "log"


URGENT_LANE: Final = Lane.URGENT
SYSTEM_LANE: Final = Lane.SYSTEM
MAIN_LANE: Final = Lane.MAIN
LOG_LANE: Final = Lane.LOG


class Overflow(Enum):
    """What happens to a message for a full mailbox; see also :class:`Divert`."""

    RAISE = "raise"
    DROP_NEWEST = "drop newest"
    DROP_OLDEST = "drop oldest"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Divert:
    """Overflow rule: send what finds no room to the process registered as ``to``, wrapped in
    ``Diverted``.
    """

    to: str
    tag: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.to, str) or not self.to:
            raise BadInputError("Divert(to)", self.to, "the registered name of a process")
