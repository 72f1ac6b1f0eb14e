"""`StandardInput`: lines that a person types, or that a shell pipes in."""

import os
import sys
from dataclasses import dataclass
from errno import EBADF, EIO
from typing import Final, TypeAlias

from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Alias, Target
from ..._core.vocabulary.messages import MayBeLate
from ..._core.vocabulary.public_names import show_members, show_public_names
from ..parsing.lines import Text
from ..receivers import check_receiver

__all__ = ["StandardInput", "StdinEnded", "StdinLine"]

_CHUNK: Final = 65_536
_TEXT: Final = Text()


@dataclass(frozen=True, slots=True)
class StdinLine:
    """A line, without the line end. ``is_whole`` is False for a part of a very long line; the rest
    follows.
    """

    source: Alias
    line: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class StdinEnded(MayBeLate):
    """No more lines follow: Ctrl-D was typed, or the other end of the pipe was closed."""

    source: Alias


class StandardInput(MetaProcess):
    """Reads the program's standard input in a thread of its own, line by line, and ends with it.

    The descriptor is neither changed nor closed, since a shell and other programs may share it.

    Args:
        text: how the bytes become lines.
        fd: another descriptor than 0.
        receiver: the address that gets the lines; None for the owner.
    """

    Ended: TypeAlias = StdinEnded
    Line: TypeAlias = StdinLine

    kind = "stdin"

    def __init__(self, *, text: Text = _TEXT, fd: int = 0, receiver: Target | None = None) -> None:
        if not isinstance(fd, int) or fd < 0:
            raise BadInputError("fd", fd, "the number of a descriptor")
        if not isinstance(text, Text):
            raise BadInputError("text", text, "Text(...)")
        self._text = text
        self._fd = fd
        self._receiver = check_receiver(receiver)
        self._lines = 0

    async def init(self) -> None:
        """Check that the descriptor is open."""
        if self._fd == 0 and sys.__stdin__ is None:
            # Descriptor 0 was free, and the system has given it to another file, perhaps to the
            # event loop.
            raise OSError(
                EBADF,
                "standard input was closed when this program started, so it cannot be read",
            )
        os.fstat(self._fd)

    def start(self) -> None:
        """Read until the end of the input, or the stop."""
        to = self.parent if self._receiver is None else self._receiver
        cutter = self._text.cutter()
        # Read only after the descriptor is readable: a stop never finds this thread in a blocked
        # read, which it could not end.
        while self.wait_readable(self._fd):
            data = self._read()
            for line, is_whole in cutter.feed(data) if data else cutter.end():
                self._lines += 1
                self.send(to, StdinLine(self.id, line, is_whole))
            if not data:
                self.send(to, StdinEnded(self.id))
                return

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _CHUNK)
        except OSError as error:
            if error.errno == EIO:  # a terminal reports like this that its other end is closed
                return b""
            raise

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of lines, and their source."""
        return {
            "fd": str(self._fd),
            "terminal": str(os.isatty(self._fd)),
            "lines": str(self._lines),
        }


show_public_names(__name__)
show_members(StandardInput)
