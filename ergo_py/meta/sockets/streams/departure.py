"""`Departure`: how a connection leaves for the next program, with its unread and unsent bytes."""

import os
import socket
from typing import Protocol

from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary import reasons
from ...poller import SocketPoller
from ...readers import has_served
from .input import Input, StreamInput
from .reader import StreamReader
from .shutdown import Shutdown
from .tls_layer import TLSLayer, TLSPhase
from .writer import Output, Writer

__all__ = ["Departure", "Leaver"]


class Leaver(Protocol):
    """The connection that leaves."""

    def end_stream(self, is_ending: bool) -> bool:
        """Write the last bytes of the protocol, if the connection ends. Returns whether it does."""
        ...

    def leave(self) -> None:
        """End without a word to the peer or to the receiver."""
        ...


class Departure:
    """The steps of a connection that leaves, on the loop: pause, serve what was read, collect, and
    then leave or go on. The socket is not touched between :meth:`collect` and the next step, so
    that either program may go on with it. A connection that has left takes messages to the peer
    until :meth:`end`; the next program writes them.
    """

    def __init__(
        self,
        connection: MetaProcess,
        poller: SocketPoller,
        tls: TLSLayer,
        writer: Writer,
        shutdown: Shutdown,
        incoming: StreamInput,
        reader: StreamReader,
    ) -> None:
        self._connection = connection
        self._poller = poller
        self._tls = tls
        self._writer = writer
        self._shutdown = shutdown
        self._input = incoming
        self._reader = reader
        self._descriptor = -1
        """The paused descriptor. A connection that ends meanwhile closes it."""
        self._has_told = False
        """The next program knows that the connection is closed."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket."""
        return self._writer.sock.fileno()

    def pause(self) -> None:
        """Read nothing from now on."""
        self._descriptor = self.descriptor
        self._poller.pause(self._descriptor)

    def is_paused(self) -> bool:
        """Whether all messages of the last read are sent."""
        return self._poller.is_paused(self._descriptor) and self._is_open()

    def _is_open(self) -> bool:
        incoming, shutdown = self._input, self._shutdown
        return (
            self._tls.phase is TLSPhase.CLEAR
            and self._writer.state is Output.OPEN
            and not self._writer.has_callers
            and shutdown.cause is None
            and shutdown.mistake is None
            and incoming.state is Input.OPEN
            and not incoming.has_more
            and self._reader.is_between_reads
            and not len(self._connection._meta.outbox)
        )

    def collect(self) -> tuple[bytes, bytes] | None:
        """The bytes that are read and belong to an incomplete frame, and those that wait for the
        peer. None if messages wait on their way: the connection has to go on.
        """
        if not self._is_open() or not self.has_served():
            return None
        # Last: the rest of a message may be large, and is copied.
        rest = self._input.rest()
        return None if rest is None else (rest, self._writer.freeze())

    def go_on(self) -> None:
        """The connection stays."""
        self._writer.thaw()
        self._poller.resume(self._descriptor)

    def leave(self, leaver: Leaver, dead_end: socket.socket) -> None:
        """Let go of the socket, which the next program holds. The connection has a copy of
        ``dead_end`` from now on, so that a shutdown does not reach the peer.
        """
        self._writer.let_go()
        self._poller.drop(self._writer.sock)
        self._poller.resume(self._descriptor)
        leaver.leave()
        if self.descriptor >= 0:  # else the connection has ended meanwhile
            os.dup2(dead_end.fileno(), self.descriptor, inheritable=False)

    def take_late(self, leaver: Leaver) -> tuple[bytes, bool]:
        """The bytes that processes have sent since :meth:`collect`, or since the last call, and
        whether the connection ends: a process has closed it, or has ended its session before it
        left.
        """
        if self._has_told:
            return b"", False
        shutdown = self._shutdown
        is_cut_off = self._connection.stopping and not shutdown.is_silent
        ends = self._has_told = leaver.end_stream(shutdown.is_requested or is_cut_off)
        return self._writer.take_late(), ends

    def has_served(self) -> bool:
        """Whether no message to the peer waits for the handler."""
        return has_served(self._connection._meta)

    def end(self, leaver: Leaver) -> tuple[bytes, bool]:
        """Do as :meth:`take_late`, and take no further messages."""
        late = self.take_late(leaver)
        self._connection._meta.finish_without_blame(reasons.Shutdown())
        return late
