"""`MessageCutter`: turns the bytes of a stream into messages, a message for each line or each
frame.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from ..._core.vocabulary.errors import BadInputError
from .decoder import FramingError
from .framing import Framing
from .lines import Text

__all__ = ["MessageCutter", "check_mode"]

Mode = Text | Framing

_TURN: Final = 512
"""Frames to cut in a step; the bytes of the others wait."""


class MessageCutter:
    """Cuts a stream, and makes a message of each piece for its owner to send."""

    __slots__ = ("_decoder", "_frame", "_line", "_lines", "_mode")

    def __init__(
        self, mode: Mode, line: Callable[[str, bool], Any], frame: Callable[[bytes], Any]
    ) -> None:
        self._mode = mode
        self._line = line
        self._frame = frame
        self.restart()

    def restart(self) -> None:
        """Forget the bytes left over: another stream begins."""
        self._lines = self._mode.cutter() if isinstance(self._mode, Text) else None
        self._decoder = self._mode.decoder() if isinstance(self._mode, Framing) else None

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that these bytes complete.

        Raises:
            FramingError: the bytes do not follow the framing; raised after the messages before the
                error.
            UnicodeDecodeError: the bytes are not text in this encoding.
        """
        if self._lines is not None:
            for text, is_whole in self._lines.feed(data):
                yield self._line(text, is_whole)
        elif self._decoder is not None:
            while True:
                try:
                    frames = self._decoder.feed(data, _TURN)
                except FramingError as error:
                    for frame in error.frames:
                        yield self._frame(frame)
                    raise
                for frame in frames:
                    yield self._frame(frame)
                if not self._decoder.has_more:
                    break
                data = b""

    def end(self) -> Iterator[Any]:
        """The last message of the stream: a line without a line end. An incomplete frame is
        dropped.
        """
        if self._lines is not None:
            for text, is_whole in self._lines.end():
                yield self._line(text, is_whole)


def check_mode(what: str, mode: object) -> None:
    """Refuse a mode that is neither a text nor a framing.

    Raises:
        BadInputError: the mode is neither; the text says which values are allowed.
    """
    if not isinstance(mode, Text | Framing):
        raise BadInputError(what, mode, "Text(...) for lines, or a framing such as Raw()")
