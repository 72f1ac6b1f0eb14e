"""One client of a control socket: its lines in and out, bounded, and never waited for."""

import selectors
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .commands import Client
from .protocol import MAX_ANSWER, MAX_REQUEST

__all__ = ["Connection"]


class Connection:
    """The buffers of one client. Everything here happens in the thread of the server."""

    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        node: Any,
        wrote: Callable[["Connection", str], None],
    ) -> None:
        self.sock = sock
        self._selector = selector
        self.client = Client(node, lambda text: wrote(self, text))
        self._received = bytearray()
        self._to_send = bytearray()
        self.pending: Any = None
        """What is being answered."""
        self.active = perf_counter()
        """When it last asked something, or came."""
        self.not_before = self.active
        """When it may ask again."""
        self.line_began: float | None = None
        self.write_began: float | None = None
        """Since when nothing of what is to be said was taken."""
        self.leaving = False
        """To be closed as soon as its last answer is out."""
        self.gone = False
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self)

    @property
    def has_line(self) -> bool:
        """A whole line waits."""
        return b"\n" in self._received

    @property
    def says_too_much(self) -> bool:
        """What waits is longer than a line may be, and has no end."""
        return len(self._received) > MAX_REQUEST and not self.has_line

    @property
    def is_full(self) -> bool:
        """So much is to be said that nothing should be added which could be left out."""
        return len(self._to_send) >= MAX_ANSWER

    @property
    def is_listening(self) -> bool:
        """All that was said has been taken."""
        return not self._to_send

    def receive(self) -> bool:
        """Take what there is. False if nobody is at the other end any more."""
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
            self._mind()
        return True

    def first_line(self) -> bytes:
        """The line that waits, or what there is of it."""
        return bytes(self._received.partition(b"\n")[0])

    def take_line(self) -> bytes:
        """The same, taken away."""
        line, _, self._received = self._received.partition(b"\n")
        self.line_began = perf_counter() if self._received else None
        self._mind()
        return bytes(line)

    def say(self, line: bytes) -> bool:
        """Send as much as is taken at once, and the rest later. False if nobody is there any more."""
        self._to_send += line
        # Somebody who does not read is not given more time by being told more.
        self.write_began = self.write_began or perf_counter()
        return self.flush()

    def flush(self) -> bool:
        """Send more. False if nobody is there any more, or all is said to somebody who is to leave."""
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
        self._mind()
        return True

    def _mind(self) -> None:
        """Listen to as much as fits; what a client says beyond that waits in its own buffers."""
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
        """Hang up."""
        self.gone = True
        if self.sock in self._selector.get_map():
            self._selector.unregister(self.sock)
        self.sock.close()
