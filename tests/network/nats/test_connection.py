"""Connections to servers that break while a client logs in."""

import socket
import struct

import pytest
import trio

from ergo_py.network.carriers.nats.connection import Connection, RefusedError
from ergo_py.network.carriers.nats.login import ServerAddress


@pytest.mark.parametrize("greeting", [b"", b'INFO {"headers": true}\r\n'])
async def test_a_server_that_resets_the_connection_is_a_failed_attempt(greeting: bytes) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]

    async def reset() -> None:
        stream = await listener.accept()
        if greeting:
            await stream.send_all(greeting)
            await stream.receive_some(1)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reset)
        address = ServerAddress.parse(f"nats://127.0.0.1:{port}")
        with pytest.raises((OSError, RefusedError)):
            await Connection.open(address, None, False, None, "a@test", [("ergo.x", 1)])
    await listener.aclose()
