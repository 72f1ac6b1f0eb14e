"""The load on the gateway while it suffers: datagrams from a thread that never waits, and devices
that reconnect.
"""

import socket
import threading

from examples.gateway.load import reading

__all__ = ["FOUNTAIN", "Fountain"]

FOUNTAIN = 9
"""The source of the datagrams."""
_BURST = 4
_PAUSE = 0.01


class Fountain:
    """Sends numbered datagrams at a steady pace, wherever the gateway was last known to listen.
    Nothing slows it down.
    """

    def __init__(self) -> None:
        self.sent = 0
        """How many there were; they have the numbers below."""
        self._address: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fountain", daemon=True)
        self._thread.start()

    def aim(self, address: tuple[str, int]) -> int:
        """Send to this address from now on. Returns how many went elsewhere."""
        with self._lock:
            self._address = address
            return self.sent

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            while not self._done.wait(_PAUSE):
                for _ in range(_BURST):
                    with self._lock:
                        self._send(sock)

    def _send(self, sock: socket.socket) -> None:
        if self._address is None:
            return
        # Counted first: a reader of both counters must not find a datagram that was never sent.
        self.sent += 1
        try:
            sock.sendto(reading(FOUNTAIN, self.sent - 1), self._address)
        except OSError:  # no socket listened when the previous datagram came; it counts as sent
            pass
