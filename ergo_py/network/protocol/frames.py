"""The frames of a session between two nodes, and their encoding as MessagePack."""

from collections.abc import Callable
from typing import Any, Final

from ..messages.codec import msgspec

__all__ = [
    "NOT_A_FRAME",
    "VERSION",
    "Ack",
    "Bye",
    "Data",
    "Deflated",
    "Frame",
    "Hello",
    "encode_frame",
    "read_frame",
]

VERSION: Final = 1
"""The version of the protocol. A node refuses an invitation of another version."""


class Hello(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """An invitation to a session (``yours`` is 0), or the answer to an invitation."""

    version: int
    creation: int
    """Identifies the start of the node."""
    mine: int
    yours: int
    window: int
    """How many bytes the peer may send before they are acknowledged."""
    # A new field comes last and has a default: a node of an earlier version sends none, and skips
    # fields that it does not know.
    inflates: int = 0
    """The sender takes `Deflated` frames of at most so many bytes, inflated; 0 if it takes none."""


class Data(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Operations. ``seq`` is the number of operations before the first."""

    mine: int
    yours: int
    seq: int
    ack: int
    ops: list[bytes]


class Ack(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """An acknowledgement of ``ack`` operations; also the heartbeat of a session."""

    mine: int
    yours: int
    ack: int
    last: int
    """The number of operations that its sender has sent."""
    resend: bool
    """Whether the peer has to send again all operations after ``ack``."""
    window: int = 0
    """How many bytes the peer may send from now on; 0 if that has not changed."""
    at: float = 0.0
    """When this frame was sent, on the clock of its sender."""
    echo: float = 0.0
    """The ``at`` of the last acknowledgement of the peer, plus the time since it arrived here; 0
    before the first.
    """


class Bye(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The end of a session."""

    mine: int
    yours: int
    reason: str
    is_orderly: bool = False
    """The node goes down in order; else the session failed."""


class Deflated(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """A `Data` whose operations are compressed. Its numbers are not, so that a frame of no session
    is refused before it is inflated.
    """

    mine: int
    yours: int
    seq: int
    ack: int
    size: int
    """Bytes of the operations before they were compressed."""
    data: bytes


Frame = Hello | Data | Ack | Bye | Deflated

read_frame: Final[Callable[[Any], Frame]] = msgspec.msgpack.Decoder(Frame).decode
"""The frame with these bytes. Raises one of `NOT_A_FRAME`."""
# msgspec raises UnicodeDecodeError, which is no MsgspecError, for a text that is not UTF-8: with
# MsgspecError alone, six bytes of any program that may speak to a node ended that node. Values that
# are nested too deeply raise RecursionError.
NOT_A_FRAME: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

encode_frame: Final[Callable[[Frame], bytes]] = msgspec.msgpack.Encoder().encode
"""The bytes of a frame."""
