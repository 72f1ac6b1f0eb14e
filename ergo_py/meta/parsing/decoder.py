"""`Decoder`: cuts the bytes of a stream into frames, and keeps the bytes of an incomplete frame."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from ..._core.vocabulary.errors import BadInputError, ErgoError
from ..._core.vocabulary.public_names import show_public_names

__all__ = ["Decoder", "FramingError", "take"]

_KEEP: Final = 64 * 1024
"""A larger buffer is given back when it is empty: an idle connection must not hold the memory of
its largest message.
"""


class FramingError(ErgoError, ValueError):
    """A stream that cannot be cut any further. ``frames`` holds the frames that were complete
    before the error.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.frames: Sequence[Any] = ()


class Decoder(ABC):
    """Cuts a stream. Subclass it for a protocol of your own, and write :meth:`cut`.

    The decoder keeps the bytes of an incomplete frame, and passes them to ``cut`` again together
    with the next bytes. Each connection has a decoder of its own, so ``cut`` may keep state of the
    stream in ``self``.
    """

    __slots__ = ("_broken", "_buffer", "has_more", "wanted")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._broken: FramingError | None = None
        self.wanted: int = 0
        """For :meth:`cut` to set: the number of bytes of the unfinished frame. ``cut`` is not
        called until they are there.
        """
        self.has_more: bool = False
        """There may be more complete frames than the last :meth:`feed` was asked for; call
        ``feed(b"", most)`` for the next.
        """

    @property
    def unfinished(self) -> int:
        """How many bytes are kept: those of an incomplete frame, and those of frames that were not
        asked for yet.
        """
        return len(self._buffer)

    def rest(self) -> bytes:
        """The bytes that are kept."""
        return bytes(self._buffer)

    def feed(self, data: bytes, most: int = sys.maxsize) -> Sequence[Any]:
        """Take the bytes of a read, and return the frames that are complete now, at most ``most``
        of them.

        Raises:
            FramingError: the stream does not follow the framing; its ``frames`` were complete
                before that.
            BadInputError: ``cut`` has returned an impossible number of bytes.
        """
        if self._broken is not None:
            raise FramingError(str(self._broken))
        buffer = self._buffer
        frames: list[Any] = []
        # Put the kept bytes in front. Mostly there are none, and nothing is copied.
        stream: bytes | bytearray = data
        if buffer:
            buffer += data
            if len(buffer) < self.wanted:
                return frames
            stream = buffer
        self.wanted = 0
        try:
            used = self.cut(stream, frames, most)
        except FramingError as error:
            self._broken = error
            self.has_more = False
            buffer.clear()
            error.frames = frames
            raise
        if not isinstance(used, int) or not bool(frames) <= used <= len(stream):
            # To continue would lose bytes, or deliver the same frames again and again.
            raise BadInputError(
                f"the result of {type(self).__qualname__}.cut, which has appended {len(frames)} "
                "frames",
                used,
                f"how many of the {len(stream)} bytes its frames took"
                + " (at least 1)" * bool(frames),
            )
        self.has_more = len(frames) >= most and used < len(stream)
        if stream is buffer:
            if used:
                del buffer[:used]
                if not buffer and used > _KEEP:
                    # A bytearray that was large once stays large: replace it.
                    self._buffer = bytearray()
        elif used < len(data):
            buffer += memoryview(data)[used:]
        return frames

    @abstractmethod
    def cut(self, stream: bytes | bytearray, frames: list[Any], most: int) -> int:
        """Append the complete frames at the beginning of ``stream`` to ``frames``; return how many
        bytes they took.

        Stop after ``most`` frames, so that a peer with very many small frames does not keep all
        others waiting: the rest comes with the next call. A frame is usually ``bytes``; it may be
        any object that receivers understand, such as a parsed list of arguments.

        Args:
            stream: the bytes to cut. They always begin where a frame begins.
            frames: where to append; empty at first.
            most: how many frames to append at most.

        Raises:
            FramingError: the stream does not follow the protocol. The frames before are delivered,
                then the connection ends.
        """


def take(stream: bytes | bytearray, begin: int, end: int) -> bytes:
    """A part of the stream, as bytes."""
    if type(stream) is bytes:
        return stream[begin:end]
    # A single copy, where bytes(stream[begin:end]) would make two.
    with memoryview(stream) as view:
        return bytes(view[begin:end])


show_public_names(__name__)
