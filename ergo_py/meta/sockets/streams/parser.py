"""`StreamParser`: turns the bytes of a stream into messages for the receiver. `FrameParser` makes a
message of each frame.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ...._core.vocabulary.ids import Alias
from ...parsing import framing
from ...parsing.decoder import Decoder, FramingError
from ..messages import TCPData, TCPFrames

__all__ = ["FrameParser", "NewParser", "StreamParser"]

_TURN: Final = 512
"""Frames to cut in one step. The rest waits as bytes, so that many small frames cost neither memory
nor a long turn of the loop.
"""


class StreamParser(Protocol):
    """Turns the bytes of a stream into messages. A connection has a parser of its own, unless its
    stream is raw.
    """

    unfinished: int
    """Bytes that are kept, because a message is not complete, or was not returned yet."""
    count: int
    """How many frames the messages of the last :meth:`feed` hold."""
    produced: int
    """Bytes of the messages of the last :meth:`feed`, if they may be more than were read; else 0.
    """
    paused: bool
    """Nothing may be read for now, and ``has_more`` is true. For connections that read in a task;
    ring the reader when it ends.
    """
    error: str | None
    """The protocol error of the peer. The stream cannot be read any further."""

    @property
    def has_more(self) -> bool:
        """Whether there may be more messages than the last :meth:`feed` has returned: call
        ``feed(b"")``.
        """
        ...

    def feed(self, data: bytes) -> Sequence[Any]:
        """Take the bytes of a read, and return messages that are complete now.

        An exception is a fault of the parser itself: the connection crashes.
        """
        ...

    def end(self) -> None:
        """The peer has closed its half: no bytes follow. While ``has_more`` is true after this, the
        reader handles the end later.
        """
        ...

    def rest(self) -> bytes | None:
        """The bytes of an incomplete message, which lead another parser to the same state; None if
        the parser keeps more than bytes.
        """
        ...


NewParser = Callable[[Alias], StreamParser]
"""Makes the parser of a connection, which puts the alias of the connection into its messages."""


class FrameParser:
    """A ``TCP.Data`` for each frame, or all frames of a read as one ``TCP.Frames``."""

    __slots__ = (
        *("_alias", "_batch", "_decoder"),
        *("count", "error", "has_more", "paused", "produced", "unfinished"),
    )

    def __init__(self, alias: Alias, decoder: Decoder, batch: bool) -> None:
        self._alias = alias
        self._decoder = decoder
        self._batch = batch
        self.has_more: bool = False
        self.paused: bool = False
        self.unfinished: int = 0
        self.count: int = 0
        self.produced: int = 0
        self.error: str | None = None

    def end(self) -> None:
        """All whole frames are cut already, or ``has_more`` is true."""

    def rest(self) -> bytes | None:
        """The bytes of an incomplete frame. None for a decoder of the user's, which may keep more
        than bytes.
        """
        return self._decoder.rest() if type(self._decoder).__module__ == framing.__name__ else None

    def feed(self, data: bytes) -> Sequence[TCPData | TCPFrames]:
        """The messages of the frames that these bytes complete, as far as one step goes."""
        decoder, alias = self._decoder, self._alias
        try:
            frames = decoder.feed(data, _TURN)
        except FramingError as error:
            self.error = str(error)
            frames = error.frames
        self.has_more = decoder.has_more
        self.unfinished = decoder.unfinished
        self.count = len(frames)
        if not frames:
            return ()
        if self._batch:
            return (TCPFrames(alias, frames),)
        return [TCPData(alias, frame) for frame in frames]
