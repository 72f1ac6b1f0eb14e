"""`Connection`: a client of a control socket, with bounded buffers and non-blocking I/O.
`Limits`: the limits on all clients.
"""

import selectors
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .protocol import MAX_ANSWER, MAX_REQUEST
from .request import Client

__all__ = ["Connection", "Limits"]


class Limits:
    """The limits on clients. Tests override them."""

    clients = 32
    line: float = 5.0
    """Seconds from the first byte of a line to its last."""
    writing: float = 5.0
    """Seconds within which a client must read some of its answer."""
    idle: float = 12 * 3600.0
    """Idle timeout in seconds, without a request."""
    accepts = 100
    """Number of connections after which the server accepts none for a second."""
    pace: float = 0.005
    """Minimum seconds between two requests of a client."""
    pace_of_all: float = 0.002
    """Minimum seconds between two requests of all clients together."""
    patience: float = 1.5
    """Seconds without a heartbeat after which the loop counts as blocked."""
    glance: float = 0.3
    """The same for requests that the server thread can answer without the loop."""


class Connection:
    """The buffers of a client. Used only in the server thread."""

    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        node: object,
        wrote: Callable[["Connection", str], None],
    ) -> None:
        self.sock = sock
        self._selector = selector
        self.client: Client = Client(node, lambda text: wrote(self, text))
        self._received = bytearray()
        self._to_send = bytearray()
        self.pending: Any = None
        """The request in progress."""
        self.active: float = perf_counter()
        """When the client last sent a request, or connected."""
        self.not_before: float = self.active
        """The earliest time of its next request (rate limit)."""
        self.line_began: float | None = None
        self.write_began: float | None = None
        """Since when the client has read nothing of the pending output."""
        self.leaving: bool = False
        """Close the connection as soon as its last answer is out."""
        self.gone: bool = False
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self)

    @property
    def has_line(self) -> bool:
        """A complete line is in the buffer."""
        return b"\n" in self._received

    @property
    def is_oversized(self) -> bool:
        """The buffer exceeds the maximum line length without a line end."""
        return len(self._received) > MAX_REQUEST and not self.has_line

    @property
    def is_full(self) -> bool:
        """The output buffer is full: drop output that is optional."""
        return len(self._to_send) >= MAX_ANSWER

    @property
    def has_sent_all(self) -> bool:
        """The client has read everything."""
        return not self._to_send

    def receive(self) -> bool:
        """Read the available bytes. False if the client has disconnected."""
        try:
            data = self.sock.recv(MAX_REQUEST)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        if not self.leaving:
            self.line_began = self.line_began or perf_counter()
            self._received += data
            self._update_events()
        return True

    def first_line(self) -> bytes:
        """The next line, or its beginning, without removing it."""
        return bytes(self._received.partition(b"\n")[0])

    def take_request(self, now: float, not_before: float) -> bytes:
        """Remove and return the next line: a request, which no other follows before
        ``not_before``.
        """
        self.active = now
        self.not_before = not_before
        return self.take_line()

    def take_line(self) -> bytes:
        """Remove and return the next line."""
        line, _, self._received = self._received.partition(b"\n")
        self.line_began = perf_counter() if self._received else None
        self._update_events()
        return bytes(line)

    def begin(self, pending: object) -> None:
        """Note the request in progress."""
        self.pending = pending

    def end_request(self) -> Any:
        """Return the request that was in progress, if any: it is answered or cancelled."""
        pending, self.pending = self.pending, None
        return pending

    def leave(self) -> None:
        """Close the connection as soon as its last answer is out, and read no more requests."""
        self.leaving = True

    def say(self, line: bytes) -> bool:
        """Send as much as the socket takes now, and the rest later. False if the client is gone."""
        self._to_send += line
        # More output does not extend the deadline of a client that does not read.
        self.write_began = self.write_began or perf_counter()
        return self.flush()

    def flush(self) -> bool:
        """Send more. False if the client is gone, or if the last answer is out and the connection
        is to close.
        """
        try:
            sent = self.sock.send(self._to_send)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent:
            del self._to_send[:sent]
            self.write_began = perf_counter()
        if not self._to_send:
            self.write_began = None
            if self.leaving:
                return False
        self._update_events()
        return True

    def _update_events(self) -> None:
        """Stop reading when the buffer is full: backpressure leaves further bytes in the client's
        socket.
        """
        events = selectors.EVENT_WRITE if self._to_send else 0
        if len(self._received) <= MAX_REQUEST:
            events |= selectors.EVENT_READ
        known = self.sock in self._selector.get_map()
        if events and known:
            self._selector.modify(self.sock, events, self)
        elif events:
            self._selector.register(self.sock, events, self)
        elif known:
            self._selector.unregister(self.sock)

    def close(self) -> None:
        """Close the connection."""
        self.gone = True
        if self.sock in self._selector.get_map():
            self._selector.unregister(self.sock)
        self.sock.close()
