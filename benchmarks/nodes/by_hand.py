"""The limit: two programs of trio that exchange the same bytes over a Unix socket, or over a NATS
server, by hand. There is no node, process, session, acknowledgement or timeout; only the messages
are encoded and decoded.
"""

import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import msgspec
import trio
from trio.lowlevel import wait_readable

from .ours import BYTES, PARALLEL, Echo

_HEADER = struct.Struct(">I")
_CHUNK = 64 * 1024
_TOGETHER = 64
"""Messages of a write."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Echo | None).decode


class Lengths:
    """Each body has its length in front."""

    def framed(self, bodies: Iterable[bytes]) -> bytes:
        return b"".join(_HEADER.pack(len(body)) + body for body in bodies)

    def cut(self, data: bytes) -> tuple[list[bytes], int]:
        """The bodies that are there, and their end."""
        start, found = 0, []
        while start + _HEADER.size <= len(data):
            (length,) = _HEADER.unpack_from(data, start)
            end = start + _HEADER.size + length
            if end > len(data):
                break
            found.append(data[start + _HEADER.size : end])
            start = end
        return found, start


class Publications:
    """Each body is a message of a NATS server to one subject, and from another."""

    def __init__(self, to: bytes) -> None:
        self._to = to

    def framed(self, bodies: Iterable[bytes]) -> bytes:
        return b"".join(b"PUB %b %d\r\n%b\r\n" % (self._to, len(body), body) for body in bodies)

    def cut(self, data: bytes) -> tuple[list[bytes], int]:
        """The bodies that are there, and their end."""
        start, found = 0, []
        while (end := data.find(b"\r\n", start)) >= 0:
            if data.startswith(b"MSG", start):
                length = int(data[data.rfind(b" ", start, end) : end])
                if end + length + 4 > len(data):
                    break
                found.append(data[end + 2 : end + 2 + length])
                start = end + length + 4
            else:  # INFO, PONG; a server asks with PING only after minutes
                start = end + 2
        return found, start


Wire = Lengths | Publications


async def frames(connection: socket.socket, wire: Wire) -> AsyncIterator[list[bytes]]:
    """The frames of each read."""
    rest = b""
    while True:
        await wait_readable(connection)
        data = connection.recv(_CHUNK)
        if not data:
            return
        data = rest + data
        found, start = wire.cut(data)
        rest = data[start:]
        yield found


def subscribed(url: str, subject: bytes) -> socket.socket:
    """A connection to a NATS server that gets the messages of a subject."""
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname or "", place.port or 4222))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    options = b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\n'
    connection.sendall(options + b"SUB %b 1\r\nPING\r\n" % subject)
    heard = b""
    while b"PONG\r\n" not in heard:
        heard += connection.recv(_CHUNK)
    return connection


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def serve(place: str) -> None:
    """Answer requests, and take messages, which end with None."""
    wire: Wire = Lengths()
    if place.startswith("nats://"):
        wire, connection = Publications(b"by-hand.a"), subscribed(place, b"by-hand.b")
        say_ready()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Path(place, "by-hand")))
            listener.listen()
            say_ready()
            connection, _ = await trio.to_thread.run_sync(listener.accept)
    with connection:
        connection.setblocking(False)
        is_answering = True
        async for found in frames(connection, wire):
            answers = []
            for body in found:
                request = _decode(body)
                if request is None:
                    is_answering = not is_answering
                    answers.append(_encode(process_time()))
                elif is_answering:
                    answers.append(_encode(request.data))
            if answers:
                connection.send(wire.framed(answers))


class Client:
    """Sends, and reads answers."""

    def __init__(self, connection: socket.socket, wire: Wire) -> None:
        self._connection = connection
        self._wire = wire
        self._answers = frames(connection, wire)

    async def ask(self, requests: list[object]) -> list[Any]:
        """Send all, and wait for their answers."""
        await self.send(requests)
        found: list[Any] = []
        while len(found) < len(requests):
            async for answers in self._answers:
                found += map(msgspec.msgpack.decode, answers)
                break
        return found

    async def send(self, messages: list[object]) -> None:
        data = memoryview(self._wire.framed(map(_encode, messages)))
        while data:
            try:
                data = data[self._connection.send(data) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._connection)


async def ask(place: str, size: int) -> None:
    """Measure, and print the figures."""
    request = Echo(b"x" * BYTES)
    wire: Wire = Lengths()
    if place.startswith("nats://"):
        wire, connection = Publications(b"by-hand.b"), subscribed(place, b"by-hand.a")
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(Path(place, "by-hand")))
    with connection:
        connection.setblocking(False)
        client = Client(connection, wire)
        took = []
        for _ in range(size // 10):
            began = perf_counter()
            await client.ask([request])
            took.append(perf_counter() - began)
        began = perf_counter()
        for _ in range(size // PARALLEL):
            await client.ask([request] * PARALLEL)
        calls = size // PARALLEL * PARALLEL / (perf_counter() - began)
        (used,) = await client.ask([None])
        used += process_time()
        began = perf_counter()
        for _ in range(size // _TOGETHER):
            await client.send([request] * _TOGETHER)
        (end,) = await client.ask([None])
        count = size // _TOGETHER * _TOGETHER
        json.dump(
            {
                "p50": sorted(took)[len(took) // 2] * 1e3,
                "calls": calls,
                "messages": count / (perf_counter() - began),
                "cpu": (end + process_time() - used) / count * 1e6,
            },
            sys.stdout,
        )


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        trio.run(serve, sys.argv[2])
    else:
        trio.run(ask, sys.argv[2], int(sys.argv[3]))
