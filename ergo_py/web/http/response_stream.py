"""`ResponseStream`: a streamed response under way. `BodyWriter`: its frames."""

from collections.abc import Callable
from typing import Final

import trio

from ..._core.tables.pending_calls import Caller
from ...meta.sockets.messages import Cause
from ...meta.sockets.streams.writer import Writer
from .exchange import Exchange

__all__ = ["BodyWriter", "ResponseStream", "WrongLengthError"]

_ROOM: Final = 64 * 1024
"""Bytes that may wait for the peer before an application waits."""


class WrongLengthError(Exception):
    """A streamed response is longer or shorter than its length."""


class BodyWriter:
    """Frames a streamed response: in chunks, by its length, or until the connection closes."""

    __slots__ = ("_chunked", "_left")

    def __init__(self, length: int | None, chunked: bool) -> None:
        self._left = length
        self._chunked = chunked

    def frame(self, data: bytes) -> bytes:
        """The bytes to write for a piece.

        Raises:
            WrongLengthError: the response is longer than its length.
        """
        if self._left is not None:
            if len(data) > self._left:
                raise WrongLengthError(f"{len(data)} bytes, and {self._left} are left")
            self._left -= len(data)
        # An empty chunk would be the end.
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else bytes(data)

    def end(self) -> bytes:
        """The bytes after the last piece.

        Raises:
            WrongLengthError: the response is shorter than its length.
        """
        if self._left:
            raise WrongLengthError(f"{self._left} bytes are missing")
        return b"0\r\n\r\n" if self._chunked else b""


class ResponseStream:
    """A streamed response, from its head to its end. Everything here happens on the loop."""

    __slots__ = (
        *("_cut", "_frames", "_guard", "_room", "_writer"),
        *("is_events", "is_open", "sent", "status"),
    )

    def __init__(
        self,
        writer: Writer,
        cut: Callable[[Cause, str], None],
        exchange: Exchange,
        frames: BodyWriter,
        status: int,
        *,
        is_events: bool,
    ) -> None:
        self._writer = writer
        self._cut = cut
        """Ends the connection at once, so that the peer does not take a part for the whole."""
        self._frames = frames
        self._room: trio.Event | None = None
        """Wakes applications that wait for a slow peer."""
        self._guard: _StreamGuard | None = None
        self.status: int = status
        """The status of the response."""
        self.is_events: bool = is_events
        """Whether these are server-sent events."""
        self.is_open: bool = True
        self.sent: int = 0
        """Bytes of the body."""
        callee = exchange.callee
        if callee is not None:
            # If its actor ends before the response does, the peer must not take a part for the
            # whole.
            self._guard = guard = _StreamGuard(exchange, self._lost_actor)
            guard.assign(callee)
            guard.defer(callee)

    def _lost_actor(self) -> None:
        self._guard = None
        self._cut(
            Cause.FAILED, "the actor of a streamed response has ended before its Response.End"
        )

    def write(self, data: bytes, caller: Caller | None = None) -> bool:
        """Write a piece. True if the operating system has taken it.

        Raises:
            WrongLengthError: it is longer than its length; the connection is cut.
        """
        try:
            framed = self._frames.frame(data)
        except WrongLengthError as error:
            self._cut(Cause.FAILED, f"a response is longer than its length: {error}")
            raise
        self.sent += len(data)
        return not framed or self._writer.put(framed, caller, in_turn=True)

    @property
    def has_waiting(self) -> bool:
        """Whether bytes wait for the peer."""
        return bool(self._writer.pending)

    async def write_and_wait(self, data: bytes) -> None:
        """Write a piece for an application, and wait while the peer is slow."""
        self.write(data)
        while self.is_open and self._writer.pending > _ROOM:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def written(self) -> None:
        """Some of the waiting bytes are out."""
        if self._room is not None and self._writer.pending <= _ROOM:
            self._free()

    def end(self) -> None:
        """Write the end.

        Raises:
            WrongLengthError: it is shorter than its length; the connection is cut.
        """
        try:
            last = self._frames.end()
        except WrongLengthError as error:
            self._cut(Cause.FAILED, f"a response is shorter than its length: {error}")
            raise
        if last:
            self._writer.put(last, in_turn=True)

    def close(self) -> None:
        """Note that the exchange has ended."""
        self.is_open = False
        if self._guard is not None:
            self._guard.abandon()
            self._guard = None
        if self._room is not None:
            self._free()

    def _free(self) -> None:
        assert self._room is not None
        self._room.set()
        self._room = None


class _StreamGuard(Caller):
    """Hears of the end of the actor that streams a response."""

    __slots__ = ("_ended",)

    def __init__(self, exchange: Exchange, ended: Callable[[], None]) -> None:
        super().__init__(exchange.pid, exchange.number, exchange.to, None)
        self._ended = ended

    def awaken(self) -> None:
        """The actor has ended."""
        self._ended()
