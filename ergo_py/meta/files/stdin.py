"""Lines that a person types, or that a shell pipes in."""

import os
import sys
from dataclasses import dataclass
from errno import EBADF, EIO
from typing import Final

from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Alias, Target
from ..._core.vocabulary.messages import MayBeLate
from ..parsing.lines import Text
from ..receivers import check_receiver

__all__ = ["StandardInput", "StdinEnded", "StdinLine"]

_CHUNK: Final = 65_536
_TEXT: Final = Text()


@dataclass(frozen=True, slots=True)
class StdinLine:
    """A line, without its end. ``is_whole`` is False for a part of a very long one; the rest
    follows.
    """

    source: Alias
    line: str
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class StdinEnded(MayBeLate):
    """Nothing follows: Ctrl-D was typed, or the other end of the pipe was closed."""

    source: Alias


class StandardInput(MetaProcess):
    """Reads the program's standard input in a thread of its own, line by line, and ends with it.

    The descriptor is not changed in any way, since a shell and other programs may share it; nor is
    it closed.

    Args:
        text: how its bytes are read as lines.
        fd: another descriptor than 0.
        receiver: who gets the lines; the owner if not given.
    """

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
        """See that there is something to read from."""
        if self._fd == 0 and sys.__stdin__ is None:
            # The number was free, and has been given to something else: a file, or what the event
            # loop waits at.
            raise OSError(
                EBADF,
                "standard input was closed when this program started, so there is nothing to read "
                "from",
            )
        os.fstat(self._fd)

    def start(self) -> None:
        """Read until the end, or the stop."""
        to = self.parent if self._receiver is None else self._receiver
        cutter = self._text.cutter()
        # Only what does not block is read, so the stop never finds this thread in a read that
        # nobody ends.
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
            if error.errno == EIO:  # how a terminal says that nobody is at the other end
                return b""
            raise

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """How much came."""
        return {
            "fd": str(self._fd),
            "terminal": str(os.isatty(self._fd)),
            "lines": str(self._lines),
        }
