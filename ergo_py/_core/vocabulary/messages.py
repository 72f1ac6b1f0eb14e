"""What the kernel itself sends to user code: exits, downs, diverted messages, dead letters, log
records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from .ids import PID, Address, Alias, EventName, NodeName, Ref
from .reasons import Reason

__all__ = [
    "DeadLetter",
    "Diverted",
    "Down",
    "EventStarted",
    "EventStopped",
    "Exit",
    "LogRecord",
    "MayBeLate",
    "NO_REPLY",
    "NoReply",
    "Published",
    "Request",
    "Response",
    "Why",
]

R = TypeVar("R")


class Request(Generic[R]):
    """Base class of requests whose answer has a known type: ``class Total(Request[int])`` makes a
    call an ``int``.
    """

    __slots__ = ()


class MayBeLate:
    """Base of messages that often cross with the end of their receiver, and whose senders need not
    be told of that.

    What a connection is told to send when its peer has just gone is such a message, and that a
    connection has ended is one to a receiver that ended before. They are counted as late then, and
    are no dead letters.
    """

    __slots__ = ()


class NoReply(Enum):
    """The type of :data:`NO_REPLY`."""

    NO_REPLY = "NO_REPLY"


NO_REPLY: Final = NoReply.NO_REPLY
"""Returned by ``handle_call`` when the answer comes later, through ``reply`` or ``reply_error``."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A process or target one is linked to ended, or somebody asked for an exit; seen only with
    ``trap_exit``.
    """

    source: Address | EventName | NodeName
    reason: Reason


@dataclass(frozen=True, slots=True)
class Down:
    """A monitored target ended."""

    target: Address | EventName | NodeName
    reason: Reason


@dataclass(frozen=True, slots=True)
class Diverted:
    """A message that found its receiver's mailbox full and was sent on, as the receiver's overflow
    rule says.
    """

    origin: PID | Alias
    tag: str
    message: Any
    sender: PID | Alias


@dataclass(frozen=True, slots=True)
class Published:
    """One publication of an event, as ``handle_event`` gets it. All subscribers get the same
    object.
    """

    event: EventName
    message: Any
    at: float


@dataclass(frozen=True, slots=True)
class EventStarted:
    """To the producer of an event registered with ``notify``: somebody has subscribed, and nobody
    had before.
    """

    event: EventName


@dataclass(frozen=True, slots=True)
class EventStopped:
    """To the producer of an event registered with ``notify``: the last subscriber has gone."""

    event: EventName


class Why(Enum):
    """Why a message became a dead letter."""

    NO_PROCESS = "there is no process at this address"
    NO_NODE = "the node in the address is not connected"
    STOPPING = "the receiver is past its stopping point"
    FULL = "the receiver's mailbox was full"
    DISPLACED = "a newer message took its place in a full mailbox"
    UNHANDLED_AT_EXIT = "the receiver ended before it came to it"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that had nowhere to go. The message itself is not kept, only its type: it may hold
    secrets.
    """

    sender: PID | Alias
    target: object
    message_type: str
    why: Why
    at: float


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of the log, as a logger process receives it."""

    level: str
    event: str
    at: float
    node: str
    source: PID | Alias
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a meta-process's ``request``, as its ``handle_response`` gets it."""

    ref: Ref
    value: Any
    error: BaseException | None

    def result(self) -> Any:
        """The answer; raises if there was none."""
        if self.error is not None:
            raise self.error
        return self.value
