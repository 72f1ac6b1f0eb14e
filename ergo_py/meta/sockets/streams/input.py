"""`StreamInput`: the input of a connection. It turns the bytes of each read into messages."""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final

from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary.text import shown
from ..messages import Cause, TCPData, TCPProtocolError
from ..options import StreamOptions
from .parser import StreamParser
from .shutdown import Shutdown
from .tls_layer import TLSLayer
from .writer import Writer

__all__ = ["Input", "StreamInput"]

_LEAST: Final = 4 * 1024
"""Bytes of the smallest read: each read allocates its whole size. A reader that fills a read
enlarges the next.
"""
_MOST: Final = 256 * 1024
"""Limits of the size of a read. It grows only while much data comes, so that thousands of idle
readers do not hold large buffers.
"""
_KEPT: Final = 8 * 1024 * 1024
"""Half of the memory that the C library may keep: the messages that may be queued for a receiver
before its readers wait, and the buffers of some dozens of readers.
"""


class Input(Enum):
    """The state of the reading half."""

    OPEN = "open"
    ENDED = "ended"
    """The peer has closed its half."""
    SAID_GOODBYE = "said goodbye"
    """The same, with TLS's ``close_notify``."""
    DONE = "done"
    """The same, and the reader saw that before the connection was told to end."""


class StreamInput:
    """The bytes that a connection reads. Only the reader changes the counters here."""

    __slots__ = (
        "_connection",
        "_hears_mistakes",
        "_now",
        "_parser",
        "_shutdown",
        "_tls",
        "_weight",
        "_writer",
        "received",
        "frame_since",
        "has_more",
        "last",
        "messages",
        "size",
        "state",
    )

    _now: Callable[[], float]
    _parser: StreamParser | None
    last: float
    """When bytes last came from the peer."""

    def __init__(
        self,
        connection: MetaProcess,
        tls: TLSLayer,
        writer: Writer,
        shutdown: Shutdown,
        options: StreamOptions,
    ) -> None:
        self._connection = connection
        self._tls = tls
        self._writer = writer
        self._shutdown = shutdown
        self._hears_mistakes = options.last_word
        """The receiver hears of a protocol error, and may answer it."""
        self._weight = 0
        self.state: Input = Input.OPEN
        self.size: int = _LEAST
        """Bytes to read at once."""
        self.received: int = 0
        """Bytes that came from the peer."""
        self.messages: int = 0
        """Messages that were made of them; a message with several frames counts as several."""
        self.has_more: bool = False
        """There may be more messages than :meth:`take` has returned."""
        self.frame_since: float | None = None
        """When the incomplete frame was begun, if there is any."""

    def use(
        self, parser: StreamParser | None, now: Callable[[], float], since: float | None = None
    ) -> None:
        """Let ``parser`` make the messages. Without a parser, the stream is raw. ``now`` tells the
        time; ``since`` is the present time, if the caller knows it.
        """
        self._parser = parser
        self._now = now
        self.last = now() if since is None else since
        self.has_more = parser is not None and parser.has_more

    def restart_clock(self) -> None:
        """The connection is ready: its peer is silent from now on."""
        self.last = self._now()

    @property
    def is_paused(self) -> bool:
        """Whether the parser takes nothing for now."""
        return self._parser is not None and self._parser.paused

    @property
    def unfinished(self) -> int:
        """Bytes of a message that is not complete."""
        return 0 if self._parser is None else self._parser.unfinished

    def rest(self) -> bytes | None:
        """The bytes of an incomplete frame; None if the parser keeps more than bytes."""
        return b"" if self._parser is None else self._parser.rest()

    def take(self, data: bytes) -> Sequence[Any]:
        """Turn the bytes of a read into messages. A protocol error ends the connection; messages
        before it are delivered.

        There may be more messages than are returned: then ``has_more`` is true, and the reader
        calls again without data.
        """
        size = len(data)
        self.received += size
        parser, is_unfinished = self._parser, False
        if self._shutdown.mistake is not None:
            return ()
        if parser is None and 0 < size < _LEAST == self.size and self._tls.session is None:
            # Most reads: the same as below, with fewer checks.
            self.last = self._now()
            self.frame_since = None
            self.messages += 1
            if self._weight:
                self._weigh(size)
            return (TCPData(self._connection._meta.id, data),)
        if data:
            if self.size != _LEAST or len(data) == _LEAST:
                self._resize(len(data))
            session = self._tls.session
            if session is not None:
                data = self._decrypt(data)
                is_unfinished = session.unfinished
            if data or not is_unfinished:
                # Bytes of an incomplete TLS record do not count as activity: a peer could send them
                # singly, for hours.
                self.last = self._now()
        elif not self.has_more:
            return ()
        if parser is not None:
            return self._parse(parser, data, is_unfinished)
        if not is_unfinished:
            self.frame_since = None
        elif data or self.frame_since is None:
            self.frame_since = self._now()
        if not data:
            return ()
        self.messages += 1
        if len(data) >> 12 != self._weight:
            self._weigh(len(data))
        return (TCPData(self._connection._meta.id, data),)

    def _parse(self, parser: StreamParser, data: bytes, is_unfinished: bool) -> Sequence[Any]:
        """The same with a parser. ``is_unfinished`` says that TLS keeps bytes that may belong to a
        further message.
        """
        size = parser.unfinished + len(data)
        try:
            messages = parser.feed(data)
        except Exception as error:
            # It ends as a crash, which is logged. The peer sees a reset, so that it does not take
            # this for a regular end.
            self._shutdown.abort(Cause.FAILED, f"the framing raised {shown(error)}")
            raise
        self.has_more = parser.has_more
        if self.has_more:
            self.size = max(_LEAST, self.size // 4)
        if not (is_unfinished or parser.unfinished):
            self.frame_since = None
        elif messages or self.frame_since is None:
            self.frame_since = self._now()
        if messages:
            self.messages += parser.count
            size = max(size - parser.unfinished, parser.produced) // len(messages)
            if size >> 12 != self._weight:
                self._weigh(size)
        if parser.error is None:
            return messages
        if self._hears_mistakes:
            self._shutdown.note_mistake(parser.error)
            return (*messages, TCPProtocolError(self._connection._meta.id, parser.error))
        self._shutdown.end(Cause.PROTOCOL_ERROR, parser.error)
        return messages

    def _decrypt(self, data: bytes) -> bytes:
        session = self._tls.session
        assert session is not None
        clear, said_goodbye, wrong = session.decrypt(data)
        if wrong is not None:
            self._shutdown.end_after(wrong)
        if said_goodbye:
            self._end(Input.SAID_GOODBYE)
        if session.has_output:
            self._connection._meta.router.bridge.post(self._write_tls)
        return clear

    def _write_tls(self) -> None:
        if not self._connection._meta.ending.over:
            self._writer.write_tls()

    def _weigh(self, size: int) -> None:
        self._weight = size >> 12
        self._connection._meta.outbox.weigh(size)

    def grow(self) -> None:
        """A read was as large as it could be."""
        self._resize(self.size)

    def _resize(self, read: int) -> None:
        if read == self.size:
            _keep_memory()
            self.size = min(2 * read, _MOST)
        elif read * 4 <= self.size:
            self.size = max(_LEAST, self.size // 2)

    # -- the end of the stream ---------------------------------------------------------------------

    def end(self) -> None:
        """The peer has closed its half."""
        self._end(Input.ENDED)

    def _end(self, state: Input) -> None:
        self.state = state
        if self._parser is not None:
            self._parser.end()
            self.has_more = self._parser.has_more

    def note_last(self) -> None:
        """Note that everything before the peer's end was read, and why the connection ends."""
        said_goodbye = self._tls.session is None or self.state is Input.SAID_GOODBYE
        self.state = Input.DONE
        # From now on, `linger` counts the time in which the peer takes nothing.
        self.last = self._now()
        shutdown = self._shutdown
        if self._writer.is_closing:
            shutdown.set_cause(Cause.ASKED)
        elif unfinished := self.unfinished:
            shutdown.set_cause(
                Cause.TRUNCATED, f"in the middle of a frame, after {unfinished} bytes of it"
            )
        elif not said_goodbye:
            shutdown.set_cause(Cause.TRUNCATED, "without the goodbye of TLS")
        else:
            shutdown.set_cause(Cause.EOF)


@cache
def _keep_memory() -> None:
    """Let the C library keep the memory of large messages for the next messages.

    By default, glibc gets each block of 128 KiB and more from the operating system, and returns at
    once any more than that at the end of its heap. A server of large messages would get their pages
    again and again: a quarter of its work. Having seen a large block allocated and freed, glibc
    keeps up to twice as much. Other C libraries have their own rules; a block that is never written
    to costs next to nothing.
    """
    bytes(_KEPT)
