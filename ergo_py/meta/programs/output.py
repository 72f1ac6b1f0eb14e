"""`ProgramOutput`: reads an output of a program, stdout or stderr."""

import fcntl
import os
from typing import Any, Final

import trio

from ..parsing.cutter import MessageCutter

__all__ = ["ProgramOutput"]

_CHUNK: Final = 65_536


class ProgramOutput:
    """Reads the output of a program, while the program runs and after."""

    def __init__(self, stream: Any, cutter: MessageCutter) -> None:
        self._stream = stream
        self._scope: trio.CancelScope | None = None
        self._left: int | None = None
        self.cutter = cutter
        self.count: int = 0

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        if self._stream is None:
            return b""
        data = b""
        try:
            if self._left is None:
                with trio.CancelScope() as self._scope:
                    data = await self._stream.receive_some(_CHUNK)
                self._scope = None
            if self._left is not None and not data and self._left > 0:
                data = os.read(self._stream.fileno(), _CHUNK)
                self._left -= len(data)
        except (
            BlockingIOError
        ):  # empty: another process holds the other end, but the program has ended
            return b""
        except (
            OSError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
        ):  # a terminal reports like this that its program is gone
            return b""
        self.count += len(data)
        return data

    def drain(self) -> None:
        """The program has ended, so its whole output is in the pipe: read that, and do not wait for
        more.

        Read no more than a pipe holds: a process that the program left behind, in a process group
        of its own, may keep writing.
        """
        self._left = 1 << 20
        if self._stream is not None and hasattr(fcntl, "F_GETPIPE_SZ"):
            try:
                self._left = fcntl.fcntl(self._stream.fileno(), fcntl.F_GETPIPE_SZ)
            except OSError:  # a terminal
                pass
        if self._scope is not None:
            self._scope.cancel()
