"""`ZMQ`: a socket of ZeroMQ, with pyzmq."""

import os
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, ClassVar, Final, Unpack

import zmq

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names
from .bridge import Device, DeviceKeywords

__all__ = ["ZMQ"]

_AGAIN: Final = 0.01
_LONGEST: Final = 60.0
"""Seconds between two tries of a write."""


class ZMQ(Device):
    """A socket of ZeroMQ. `Device.Data` has the list of the parts of a message; `Device.Send` takes
    such a list, or bytes. ZeroMQ itself connects again, so only its errors are losses.

    Args:
        socket: the type, such as ``zmq.SUB``.
        setup: called with each new socket, to bind, connect and subscribe it.
        options: those of `Device`.

    Raises:
        BadInputError: ZeroMQ has no such type, or ``setup`` is no function.
    """

    kind = "zmq"
    lost_by: ClassVar[tuple[type[Exception], ...]] = (zmq.ZMQError, OSError)

    def __init__(
        self, socket: int, setup: Callable[[Any], object], **options: Unpack[DeviceKeywords]
    ) -> None:
        super().__init__(**options)
        if socket not in [*zmq.SocketType]:
            raise BadInputError("ZMQ(socket)", socket, "a type of sockets, such as zmq.SUB")
        if not callable(setup):
            example = 'lambda socket: socket.connect("tcp://localhost:5555")'
            raise BadInputError("ZMQ(setup)", setup, f"a function, such as {example}")
        self._type, self._setup = socket, setup

    def open(self) -> None:
        """Open the socket, and set it up."""
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(self._type)
        try:
            self._setup(self._socket)
        except BaseException:
            self._socket.close(0)
            raise
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        self._poller = zmq.Poller()
        self._poller.register(self._bell, zmq.POLLIN)
        self._room = zmq.Poller()
        self._room.register(self._bell, zmq.POLLIN)
        if self._type != zmq.ROUTER:
            self._room.register(self._socket, zmq.POLLOUT)
        if self._type not in (zmq.PUB, zmq.PUSH):
            self._poller.register(self._socket, zmq.POLLIN)

    def read(self) -> object:
        """The parts of the next message; None after ``wake``."""
        # Its descriptor becomes readable once for many messages; `poll` looks into the socket.
        if self._bell in dict(self._poller.poll()):
            os.read(self._bell, 1000)
            return None
        return self._socket.recv_multipart(zmq.NOBLOCK)

    def write(self, data: object) -> None:
        """Send a message."""
        parts = [data] if isinstance(data, bytes) else data
        if not isinstance(parts, list):
            raise BadInputError("Device.Send", data, "bytes, or a list of them")
        limit = float(self._socket.getsockopt(zmq.SNDTIMEO))
        ends = monotonic() + limit / 1000 if limit >= 0 else inf
        # Without NOBLOCK, nothing could end a write to a socket without a peer.
        while True:
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
                return
            except zmq.Again:
                left = ends - monotonic()
                if self.stopping or left <= 0:
                    raise
            # A ROUTER says that it has room when the peer of this message has none.
            wait = _AGAIN if self._type == zmq.ROUTER else min(left, _LONGEST)
            if self._bell in dict(self._room.poll(int(wait * 1000))):
                os.read(self._bell, 1000)

    def wake(self) -> None:
        """Make ``read`` return."""
        os.write(self._ring, b"!")

    def close(self) -> None:
        """Close the socket. Messages that were not sent yet are dropped."""
        self._socket.close(0)
        os.close(self._bell)
        os.close(self._ring)


show_public_names(__name__)
