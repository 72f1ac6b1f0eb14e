"""`Transport`: the connection, as HTTP and WebSocket use it: write, close, and the time."""

from collections.abc import Callable

from .._core.tables.pending_calls import Caller, Deadline
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.ids import Alias, Target
from ..meta.readers import when_served
from ..meta.sockets.messages import Address, Cause, TCPClose
from ..meta.sockets.streams.input import StreamInput
from ..meta.sockets.streams.reader import StreamReader
from ..meta.sockets.streams.shutdown import Shutdown
from ..meta.sockets.streams.writer import Writer

__all__ = ["Transport"]


class Transport:
    """The parts of a connection that its protocol uses. Everything here happens on the loop."""

    __slots__ = (
        "_drop_if_slow",
        "_input",
        "_meta",
        "_reader",
        "_receiver",
        "_shutdown",
        "_writer",
        "id",
        "peer",
    )

    def __init__(
        self,
        connection: MetaProcess,
        peer: Address,
        parts: tuple[StreamReader, StreamInput, Writer, Shutdown],
        *,
        receiver: Callable[[], Target],
        drop_if_slow: Callable[[], None],
    ) -> None:
        """``receiver`` tells which process gets the messages of the peer."""
        self._meta = connection._meta
        self._reader, self._input, self._writer, self._shutdown = parts
        self._receiver = receiver
        self._drop_if_slow = drop_if_slow
        self.id: Alias = connection._meta.id
        """The alias of the connection."""
        self.peer: Address = peer

    # -- traffic -----------------------------------------------------------------------------------

    @property
    def bytes_in(self) -> int:
        """Bytes that came from the peer."""
        return self._input.received

    @property
    def last_in(self) -> float:
        """When bytes last came from the peer."""
        return self._input.last

    @property
    def last_out(self) -> float:
        """When the operating system last took bytes for the peer."""
        return self._writer.last

    @property
    def pending(self) -> int:
        """Bytes that wait for the peer."""
        return self._writer.pending

    @property
    def is_held_up(self) -> bool:
        """Whether this side does not read, since its receiver is behind, or since the connection is
        on its way to the next program.
        """
        return self._writer.is_frozen or self._reader.is_held_up()

    def now(self) -> float:
        """The time on the node's clock."""
        return self._meta.kernel.clock.now()

    # -- actions -----------------------------------------------------------------------------------

    def put(self, data: bytes, caller: Caller | None = None) -> bool:
        """Write. True if the operating system has taken everything; else the caller is answered
        when it has.
        """
        writer = self._writer
        done = writer.put(data, caller, in_turn=caller is None)
        if not done and writer.is_slow:
            self._drop_if_slow()
        return done

    def hang_up(self) -> None:
        """Close, after everything is written."""
        self._shutdown.close(TCPClose())

    def cut(self, cause: Cause, detail: str) -> None:
        """End at once: the peer sees a reset."""
        self._shutdown.abort(cause, detail)
        self._shutdown.end(cause, detail)

    def blame(self, detail: str) -> None:
        """End because of an error of the peer, after everything is written."""
        self._shutdown.note_mistake(detail)

    def read_on(self) -> None:
        """Wake the reader, which waits because its protocol was paused."""
        self._reader.wake()

    def arm(self, deadline: Deadline, seconds: float) -> None:
        """Let a deadline expire."""
        self._meta.kernel.clock.arm_call(deadline, seconds)

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the receiver has served all messages, and its answers are written."""
        meta = self._meta
        receiver = meta.router.resolve(self._receiver())
        when_served(meta, receiver, lambda: when_served(meta, meta, then))
