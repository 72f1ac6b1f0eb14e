"""`EndSocket`: a socket of a world, as a program sees it. Its other side belongs to the world."""

import select
import socket
from contextlib import suppress
from typing import Any

from trio.lowlevel import notify_closing

__all__ = ["EndSocket"]


class EndSocket(socket.socket):
    """A socket of a world, with the address that a program sees."""

    def __init__(self, raw: socket.socket, far: socket.socket, node: str, local: Any) -> None:
        super().__init__(fileno=raw.detach())
        far.setblocking(False)
        self.far: socket.socket | None = far
        """The side of the world."""
        self.node = node
        self.local = local

    def getsockname(self) -> Any:
        """The address of this end."""
        return self.local

    def setsockopt(self, *args: Any) -> None:
        """Set an option, if it is an option of all sockets: there is no TCP below."""
        if args[0] == socket.SOL_SOCKET:
            super().setsockopt(*args)

    def close_far(self) -> None:
        """Close the side of the world."""
        far, self.far = self.far, None
        if far is not None:
            with suppress(RuntimeError):  # the loop is over
                notify_closing(far)
            far.close()

    def is_ready(self, event: int) -> bool:
        """Whether a read or a write would not block."""
        if self.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self, event)
        return bool(poll.poll(0))
