"""One of the outputs of a program: reads it, and makes messages of it."""

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import trio

from .._core.ids import Alias
from .framing import Framing, FramingError
from .lines import Text

__all__ = ["Outlet"]

_CHUNK: Final = 65_536


class Outlet:
    """What a program writes to, seen from the other side."""

    def __init__(
        self,
        stream: Any,
        mode: Text | Framing,
        line: Callable[[Alias, str, bool], object],
        frame: Callable[[Alias, bytes], object],
    ) -> None:
        self._stream = stream
        self._cutter = mode.cutter() if isinstance(mode, Text) else None
        self._decoder = mode.decoder() if isinstance(mode, Framing) else None
        self._make_line, self._make_frame = line, frame
        self._scope: trio.CancelScope | None = None
        self._left: int | None = None
        self.count = 0

    async def receive(self) -> bytes:
        """What comes next; nothing at the end."""
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
        except BlockingIOError:  # empty: somebody else holds the other end, but the program has written its last
            return b""
        except (OSError, trio.BrokenResourceError):  # how a terminal says that nobody is at the other end
            return b""
        self.count += len(data)
        return data

    def drain(self) -> None:
        """The program is gone, so all it has written is in the pipe: read that, and do not wait for more.

        No more than a pipe holds: one that it left behind, in a group of its own, may go on writing.
        """
        self._left = 1 << 20
        if self._stream is not None and hasattr(fcntl, "F_GETPIPE_SZ"):
            try:
                self._left = fcntl.fcntl(self._stream.fileno(), fcntl.F_GETPIPE_SZ)
            except OSError:  # a terminal
                pass
        if self._scope is not None:
            self._scope.cancel()

    def messages(self, port: Alias, data: bytes) -> Iterator[object]:
        """The messages that these bytes complete.

        Raises:
            FramingError: the bytes cannot be cut as they should, after what came before that.
            UnicodeDecodeError: they are no text.
        """
        if self._cutter is not None:
            for text, is_whole in self._cutter.feed(data):
                yield self._make_line(port, text, is_whole)
        elif self._decoder is not None:
            try:
                frames = self._decoder.feed(data)
            except FramingError as error:
                for frame in error.frames:
                    yield self._make_frame(port, frame)
                raise
            for frame in frames:
                yield self._make_frame(port, frame)

    def last_messages(self, port: Alias) -> Iterator[object]:
        """What is left when nothing follows: a line without an end. Half a frame is nothing."""
        if self._cutter is not None:
            for text, is_whole in self._cutter.end():
                yield self._make_line(port, text, is_whole)
