"""Bytes of a stream as messages: one for each line, or one for each frame."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from ..._core.vocabulary.errors import BadInputError
from .framing import Framing, FramingError
from .lines import Text

__all__ = ["MessageCutter", "check_mode"]

Mode = Text | Framing

_TURN: Final = 512
"""How many frames are cut at once; the bytes of the others wait."""


class MessageCutter:
    """Cuts one stream, and makes what its owner sends of each piece."""

    __slots__ = ("_decoder", "_frame", "_line", "_lines", "_mode")

    def __init__(
        self, mode: Mode, line: Callable[[str, bool], Any], frame: Callable[[bytes], Any]
    ) -> None:
        self._mode = mode
        self._line = line
        self._frame = frame
        self.restart()

    def restart(self) -> None:
        """Forget what is left over: another stream begins."""
        self._lines = self._mode.cutter() if isinstance(self._mode, Text) else None
        self._decoder = self._mode.decoder() if isinstance(self._mode, Framing) else None

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that these bytes complete.

        Raises:
            FramingError: the bytes cannot be cut as they should, after what came before that.
            UnicodeDecodeError: they are no text.
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
        """What is left when nothing follows: a line without an end. Half a frame is nothing."""
        if self._lines is not None:
            for text, is_whole in self._lines.end():
                yield self._line(text, is_whole)


def check_mode(what: str, mode: object) -> None:
    """Refuse what does not say how a stream is cut.

    Raises:
        BadInputError: with what is allowed.
    """
    if not isinstance(mode, Text | Framing):
        raise BadInputError(what, mode, "Text(...) for lines, or a framing such as Raw()")
