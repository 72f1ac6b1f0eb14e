"""The sockets of a program: those of the operating system, unless a world replaces them."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from .messages import Address

__all__ = ["SocketSource", "connect", "listen", "replace_sockets"]

Open = Callable[[], Awaitable[socket.socket]]
"""Opens a socket of the operating system."""


class SocketSource(Protocol):
    """Opens sockets."""

    async def listen(self, address: Address, kind: int, open_socket: Open, /) -> socket.socket:
        """Open a socket of a kind that is bound to an address.

        Raises:
            OSError: the address cannot be used.
        """
        ...

    async def connect(self, address: Address, kind: int, open_socket: Open, /) -> socket.socket:
        """Open a socket of a kind that is connected to an address.

        Raises:
            OSError: there is no connection.
        """
        ...


class _SystemSockets:
    """The sockets of the operating system."""

    async def listen(self, _address: Address, _kind: int, open_socket: Open) -> socket.socket:
        return await open_socket()

    async def connect(self, _address: Address, _kind: int, open_socket: Open) -> socket.socket:
        return await open_socket()


_source: SocketSource = _SystemSockets()


async def listen(address: Address, kind: int, open_socket: Open) -> socket.socket:
    """Open a socket of a kind that is bound to an address. All servers come here.

    Raises:
        OSError: the address cannot be used.
    """
    return await _source.listen(address, kind, open_socket)


async def connect(address: Address, kind: int, open_socket: Open) -> socket.socket:
    """Open a socket of a kind that is connected to an address. All clients come here.

    Raises:
        OSError: there is no connection.
    """
    return await _source.connect(address, kind, open_socket)


@contextmanager
def replace_sockets(source: SocketSource) -> Iterator[None]:
    """Open other sockets inside the block, in the whole program."""
    global _source  # noqa: PLW0603 - as the sources of the kernel
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
