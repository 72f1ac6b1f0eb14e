"""The limit: two programs of trio that exchange the same bytes over a Unix socket, by hand. There
is no node, process, session, acknowledgement or timeout; only the messages are encoded and decoded.
"""

import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

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


def framed(bodies: Iterable[bytes]) -> bytes:
    return b"".join(_HEADER.pack(len(body)) + body for body in bodies)


async def frames(connection: socket.socket) -> AsyncIterator[list[bytes]]:
    """The frames of each read."""
    rest = b""
    while True:
        await wait_readable(connection)
        data = connection.recv(_CHUNK)
        if not data:
            return
        data, start, found = rest + data, 0, []
        while start + _HEADER.size <= len(data):
            (length,) = _HEADER.unpack_from(data, start)
            end = start + _HEADER.size + length
            if end > len(data):
                break
            found.append(data[start + _HEADER.size : end])
            start = end
        rest = data[start:]
        yield found


async def serve(directory: str) -> None:
    """Answer requests, and take messages, which end with None."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(directory, "by-hand")))
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        connection, _ = await trio.to_thread.run_sync(listener.accept)
    with connection:
        connection.setblocking(False)
        is_answering = True
        async for found in frames(connection):
            answers = []
            for body in found:
                request = _decode(body)
                if request is None:
                    is_answering = not is_answering
                    answers.append(_encode(process_time()))
                elif is_answering:
                    answers.append(_encode(request.data))
            if answers:
                connection.send(framed(answers))


class Client:
    """Sends, and reads answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = frames(connection)

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
        data = memoryview(framed(map(_encode, messages)))
        while data:
            try:
                data = data[self._connection.send(data) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._connection)


async def ask(directory: str, size: int) -> None:
    """Measure, and print the figures."""
    request = Echo(b"x" * BYTES)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(directory, "by-hand")))
        connection.setblocking(False)
        client = Client(connection)
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
