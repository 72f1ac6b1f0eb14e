"""Envelopes: a message in a mailbox with its kind, sender and reference; the lanes, priorities and
overflow rules of mailboxes.

An envelope is a plain tuple ``(kind, sender, ref, payload)``: a slotted class costs four times as
much to create and to read.
"""

from enum import Enum, IntEnum
from typing import Any, Final

from .errors import BadInputError
from .late_methods import dataclass
from .public_names import show_public_names
from .states import IdentityEnum

__all__ = [
    "BATCH",
    "CALL",
    "CHILD_EXIT",
    "CONTROL",
    "DOWN",
    "ENDS",
    "END_NOTICE",
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
    "TRACED",
    "TRACED_CALL",
    "URGENT_LANE",
    "Divert",
    "Envelope",
    "Lane",
    "Overflow",
    "Priority",
    "kind_name",
]

Envelope = tuple[int, Any, Any, Any]

# Kinds of envelopes. The kinds up to EVENT are user messages, which count against the mailbox
# limit; all later kinds are signals, which do not.
MESSAGE: Final = 0
CALL: Final = 1
TRACED: Final = 2
"""A message, a call or an event of a sampled trace, in a traced node only. The reference is its
`Mark`; of a call it is the caller, as ever.
"""
TRACED_CALL: Final = 3
"""A call of a sampled trace, while its callee serves it."""
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
"""Marks that all earlier envelopes of its lane have been handled."""
LOOK: Final = 17
"""From an inspection: the payload is a function to run as the process, in its turn."""
NOTICE: Final = 18
"""From the node to the producer of an event: the first subscriber came, or the last left."""
END_NOTICE: Final = 19
"""The normal end of another process, in MAIN, behind the messages of that process. The payload is
the envelope of the signal: EXIT, DOWN or CHILD_EXIT.
"""
BATCH: Final = 20
"""Messages that a process handles at once; never in a mailbox. The reference is the deque of their
envelopes, and the payload is the first message.
"""

ENDS: Final = (STOP, KILL, FAILED)
"""The signals that end a process at once. The payload is the reason."""
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
    "handle_message",
    "handle_batch",
)


def kind_name(kind: int) -> str:
    """The callback that serves envelopes of this kind."""
    return _KIND_NAMES[kind]


class Priority(IntEnum):
    """The priority of a message. It selects the lane of the receiver's mailbox."""

    NORMAL = 0
    """The MAIN lane."""
    HIGH = 1
    """The SYSTEM lane, served before MAIN."""
    MAX = 2
    """The URGENT lane, served before all others."""


class Lane(IdentityEnum):
    """The four queues of a mailbox, in the order of service."""

    URGENT = "urgent"
    SYSTEM = "system"
    MAIN = "main"
    LOG = "log"


URGENT_LANE: Final = Lane.URGENT
SYSTEM_LANE: Final = Lane.SYSTEM
MAIN_LANE: Final = Lane.MAIN
LOG_LANE: Final = Lane.LOG


class Overflow(Enum):
    """The rule for a message to a full mailbox; see also :class:`Divert`."""

    RAISE = "raise"
    """``send`` raises ``MailboxFullError``, which carries the message."""
    DROP_NEWEST = "drop newest"
    """The new message becomes a dead letter."""
    DROP_OLDEST = "drop oldest"
    """The oldest message becomes a dead letter, and the new message takes its place."""
    WAIT = "wait"
    """Backpressure: ``await send_wait(...)`` and reader threads wait for room. A plain ``send``
    raises ``MailboxFullError``.
    """


@dataclass(frozen=True, slots=True)
class Divert:
    """Overflow rule: send a message that finds no room to the process registered as ``to``, wrapped
    in ``Diverted``.
    """

    to: str
    """The registered name of the process that gets the messages."""
    tag: str = ""
    """Copied to ``Diverted.tag``."""

    def __post_init__(self) -> None:
        if not isinstance(self.to, str) or not self.to:
            raise BadInputError("Divert(to)", self.to, "the registered name of a process")


show_public_names(__name__)
