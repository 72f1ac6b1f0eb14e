"""Connections to servers that break while a client logs in."""

import os
import socket
import ssl
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from ergo_py.network.carriers.nats.connection import Connection, RefusedError
from ergo_py.network.carriers.nats.login import ServerAddress
from ergo_py.network.carriers.nats.wire import Pong
from tests.network.pairs import until

CERTIFICATES = Path(__file__).parents[2] / "meta" / "certificates"
GREETING = b'INFO {"headers": true, "tls_required": true}\r\n'


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


async def open_connection(port: int) -> Connection:
    address = ServerAddress.parse(f"tls://localhost:{port}")
    context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    return await Connection.open(address, context, False, None, "a@test", [("ergo.x", 1)])


@pytest.mark.parametrize(
    "injected",
    [b"", b"MSG ergo.x 1 3\r\nc[]\r\n", b"MSG ergo.x 1 3\r\nc[", b"P", b"PING\r\n", GREETING],
    ids=["nothing", "a message", "a part of a message", "a byte", "a ping", "a greeting"],
)
async def test_plain_text_behind_the_greeting_is_refused_before_tls_begins(injected: bytes) -> None:
    """A program between node and server can add it: it must not count as encrypted."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")

    async def serve() -> None:
        async with await listener.accept() as clear:
            await clear.send_all(GREETING + injected)
            stream = trio.SSLStream(clear, context, server_side=True)
            with suppress(trio.BrokenResourceError):  # the client has closed the connection
                await stream.do_handshake()
                for _ in range(2):  # the login, and the subscriptions
                    data = b""
                    while not data.endswith(b"PING\r\n"):
                        data += await stream.receive_some()
                    await stream.send_all(b"PONG\r\n")
                await stream.send_all(b"PONG\r\n")
                await stream.receive_some()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            port = listener.socket.getsockname()[1]
            if injected:
                with pytest.raises(RefusedError, match="plain text behind its greeting"):
                    await open_connection(port)
            else:
                connection = await open_connection(port)
                assert await connection.receive(True) == [Pong()]
                await connection.close()
    await listener.aclose()


@contextmanager
def forked_child() -> Iterator[None]:
    """A child with copies of all descriptors, which runs meanwhile."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a program with threads
        child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_forked_child_has_no_connection_of_its_parent(is_tls: bool) -> None:
    """The server would take a killed program for connected as long as its child runs."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")

    async def serve() -> None:
        async with await listener.accept() as clear:
            await clear.send_all(GREETING if is_tls else b'INFO {"headers": true}\r\n')
            stream = trio.SSLStream(clear, context, server_side=True) if is_tls else clear
            with suppress(trio.BrokenResourceError):  # an end without the farewell of TLS
                while data := await stream.receive_some():
                    await stream.send_all(b"PONG\r\n" * data.count(b"PING"))

    port = listener.socket.getsockname()[1]
    address = ServerAddress.parse(f"nats://127.0.0.1:{port}")
    with trio.fail_after(30):
        async with trio.open_nursery() as server, trio.open_nursery() as client:
            server.start_soon(serve)
            connection = (
                await open_connection(port)
                if is_tls
                else await Connection.open(address, None, False, None, "a@test", [("ergo.x", 1)])
            )
            client.start_soon(connection.write)
            for _ in range(2):
                with forked_child():
                    connection.send(b"PING\r\n")
                    assert await connection.receive(True) == [Pong()], "the parent goes on"
            with forked_child(), trio.CancelScope(shield=True):
                client.cancel_scope.cancel()
                await connection.close()
                with trio.fail_after(30):
                    await until(lambda: not server.child_tasks)
    await listener.aclose()
