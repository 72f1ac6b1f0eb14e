"""`TLSLayer`: the TLS of a connection, from its beginning, from the middle of the stream, or none
at all.
"""

import socket
from enum import Enum
from typing import Final

import trio
from trio.lowlevel import wait_readable, wait_writable

from ...._core.tables.pending_calls import Caller
from ..messages import TLSFacts
from ..tls import TLSSession

__all__ = ["NO_TLS", "TLSLayer", "TLSPhase"]

_MOST = 256 * 1024
"""Bytes to read at once during the handshake."""

EarlyData = tuple[bytes, Caller | None]


class TLSPhase(Enum):
    """How far TLS has come."""

    CLEAR = "clear"
    """The stream is in clear, and stays so."""
    POSSIBLE = "possible"
    """The stream is in clear, and TLS may begin (STARTTLS): the reader hands over the next message
    only when the receiver is done with the last.
    """
    OFFERED = "offered"
    """The same, and the receiver is at work on a message after which TLS may begin."""
    HANDSHAKE = "handshake"
    """The handshake is under way, and data has to wait for its end."""
    SECURE = "secure"


_SECURE = TLSPhase.SECURE


class TLSLayer:
    """The TLS of a connection.

    The reader does the handshake, and so it is the reader that enters OFFERED and SECURE; the other
    phases begin on the loop.
    """

    __slots__ = ("_early", "_has_said_goodbye", "facts", "handshake_since", "phase", "session")

    def __init__(self, start_tls: bool) -> None:
        self.phase = TLSPhase.POSSIBLE if start_tls else TLSPhase.CLEAR
        self.session: TLSSession | None = None
        self.facts: TLSFacts | None = None
        """The facts of the handshake, once it is done."""
        self.handshake_since: float = 0.0
        self._early: list[EarlyData] = []
        """Data that was sent before the handshake was done, or while TLS had to read first."""
        self._has_said_goodbye = False

    # -- from clear to secure ----------------------------------------------------------------------

    def offer(self) -> None:
        """The receiver gets a message after which TLS may begin."""
        self.phase = TLSPhase.OFFERED

    def withdraw(self) -> None:
        """The receiver is done with that message. On the loop."""
        if self.phase is TLSPhase.OFFERED:
            self.phase = TLSPhase.POSSIBLE

    def begin(self, session: TLSSession) -> None:
        """Begin the handshake: data waits from now on. On the loop."""
        self.session = session
        self.phase = TLSPhase.HANDSHAKE

    def start_clock(self, now: float) -> None:
        """Count the time of the handshake from now on."""
        self.handshake_since = now

    def secure(self) -> None:
        """The handshake is done."""
        assert self.session is not None
        self.facts = self.session.facts()
        self.phase = TLSPhase.SECURE

    def shake_hands_in_thread(self, sock: socket.socket) -> bool:
        """Do the handshake in the reader's thread. False if the peer closed in the middle of it.

        Raises:
            OSError: the handshake failed; an error of TLS is an ``ssl.SSLError``, a subclass.
        """
        session = self.session
        assert session is not None
        data = b""
        while True:
            try:
                done = session.handshake(data)
            finally:
                # Also after a failure: the output is an alert that tells the peer why.
                sock.sendall(session.take())
            if done:
                return True
            data = sock.recv(_MOST)
            if not data:
                return False

    async def shake_hands(self, sock: socket.socket) -> bool:
        """The same on the loop."""
        session = self.session
        assert session is not None
        data = b""
        while True:
            try:
                done = session.handshake(data)
            finally:
                await _send_all(sock, session.take())
            if done:
                return True
            while True:
                try:
                    data = sock.recv(_MOST, socket.MSG_DONTWAIT)
                    break
                except BlockingIOError:
                    await wait_readable(sock)
            if not data:
                return False

    # -- data --------------------------------------------------------------------------------------

    @property
    def holds_data(self) -> bool:
        """Whether data waits for the handshake, or would have to."""
        return self.phase is TLSPhase.HANDSHAKE or bool(self._early)

    @property
    def has_early_data(self) -> bool:
        """Whether data waits for TLS."""
        return bool(self._early)

    def encrypt(self, data: bytes, caller: Caller | None) -> bytes | None:
        """The records to write. None if the data has to wait: :meth:`take_early` has it later.

        Raises:
            ssl.SSLError: the connection is broken.
        """
        session = self.session
        assert session is not None
        if self.phase is not _SECURE or self._early or not session.encrypt(data):
            self._early.append((bytes(data), caller))
            return None
        return session.take()

    def take_early(self) -> list[EarlyData]:
        """The data that has waited, with the callers that wait for it; returned only once."""
        early, self._early = self._early, []
        return early

    def goodbye(self) -> bytes:
        """The record of TLS's ``close_notify``, the notice that no more data follows. Empty if
        there is none to write, and the second time.
        """
        session = self.session
        if session is None or self.phase is TLSPhase.HANDSHAKE or self._has_said_goodbye:
            return b""
        self._has_said_goodbye = True
        session.say_goodbye()
        return session.take()


async def _send_all(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            await wait_writable(sock)
    await trio.lowlevel.checkpoint()


NO_TLS: Final = TLSLayer(start_tls=False)
"""The layer of all connections without TLS: it never changes."""
