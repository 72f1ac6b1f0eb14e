"""Small calls to another program beside messages of 16 MiB to it; by hand, two programs of trio on
a Unix socket.

The version by hand sends a large message in parts, with the small requests in between, or whole. It
has no node, process, session, acknowledgement or timeout; only the messages are encoded and
decoded.
"""

import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter

import msgspec
import trio

from ergo_py import open_node

from ..clocks import percentiles
from ..harness import Case, Figures, Goal, Line, Variant
from ..nodes.ours import BYTES, Echo, Length, network

_LARGE = 16 * 1024 * 1024 - 8192
"""Bytes of a large message: with its head, it is below the limit of a node."""
_PART = 256 * 1024
_HEAD = struct.Struct(">IBB")
"""The length of a frame, whether its message is a large one, and whether it is the last part."""

Ask = Callable[[object], Awaitable[object]]

_encode = msgspec.msgpack.Encoder().encode
_small, _large = Echo(b"x" * BYTES), Length(b"x" * _LARGE)


async def _measure(ask: Ask, count: int) -> Figures:
    """Ask small questions, each after the answer to the one before, beside ``count`` large
    messages in a row.
    """
    took: list[float] = []
    await ask(_small)
    began = perf_counter()
    async with trio.open_nursery() as nursery:

        async def ask_small() -> None:
            while True:
                asked = perf_counter()
                await ask(_small)
                took.append(perf_counter() - asked)

        nursery.start_soon(ask_small)
        for _ in range(count):
            assert await ask(_large) == _LARGE
        nursery.cancel_scope.cancel()
    large = (perf_counter() - began) / count * 1e3
    return {**percentiles(took, 1e3), "large": large}


def _with_server(module: str, client: Callable[[str, int], Awaitable[Figures]]) -> Variant:
    def run(count: int) -> Figures:
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", module, "serve", directory]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                try:
                    server.stdout.readline()
                    return trio.run(client, directory, count)
                finally:
                    server.kill()

    return run


async def _ergo(directory: str, count: int) -> Figures:
    async with open_node(
        "a@bench", network=network(directory), log_output="none", watchdog=None
    ) as node:
        there = node.at("b@bench")
        await there.wait_up(timeout=30)
        # Two receivers: a small message does not overtake a large one to the same process.
        large, small = await there.whereis("server"), await there.whereis("other server")
        assert large is not None
        assert small is not None
        receivers = {False: small, True: large}
        return await _measure(
            lambda message: node.call(receivers[message is _large], message, timeout=60), count
        )
    raise AssertionError("the node does not hide exceptions")


# -- by hand ---------------------------------------------------------------------------------------


class _Connection:
    """A socket, with frames of at most ``part`` bytes of all messages that are to be sent."""

    def __init__(self, sock: socket.socket, part: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._part = part
        self._turn = trio.Lock()

    async def send(self, is_large: bool, message: object) -> None:
        body = memoryview(_encode(message))
        for start in range(0, len(body), self._part):
            piece = body[start : start + self._part]
            head = _HEAD.pack(len(piece), is_large, start + len(piece) == len(body))
            async with self._turn:
                await self._write(memoryview(head + piece))

    async def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)

    async def messages(self) -> AsyncIterator[tuple[bool, bytes]]:
        """Each message, and whether it is a large one. No two large ones are on the way at once."""
        parts: dict[bool, list[bytearray]] = {False: [], True: []}
        while True:
            length, is_large, is_last = _HEAD.unpack(await self._read(_HEAD.size))
            parts[is_large].append(await self._read(length))
            if is_last:
                yield is_large, b"".join(parts[is_large])
                parts[is_large].clear()

    async def _read(self, size: int) -> bytearray:
        data, got = bytearray(size), 0
        view = memoryview(data)
        while got < size:
            try:
                read = self._sock.recv_into(view[got:])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            if not read:
                raise EOFError
            got += read
        return data


async def _serve_by_hand(directory: str) -> None:
    decode = msgspec.msgpack.Decoder(Length).decode  # an Echo has the same field
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(directory, "by-hand")))
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sock, _ = await trio.to_thread.run_sync(listener.accept)
    with sock, suppress(EOFError):
        connection = _Connection(sock, _PART)
        async for is_large, body in connection.messages():
            data = decode(body).data
            await connection.send(is_large, len(data) if is_large else data)


async def _by_hand(part: int, directory: str, count: int) -> Figures:
    figures: dict[str, float] = {}
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(Path(directory, "by-hand")))
        connection = _Connection(sock, part)
        # A question of each kind at a time.
        answers = {kind: trio.open_memory_channel[object](1) for kind in (False, True)}

        async def ask(message: object) -> object:
            is_large = message is _large
            await connection.send(is_large, message)
            return await answers[is_large][1].receive()

        async def read() -> None:
            async for is_large, body in connection.messages():
                answers[is_large][0].send_nowait(msgspec.msgpack.decode(body))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            figures |= await _measure(ask, count)
            nursery.cancel_scope.cancel()
    return figures


CASES = [
    Case(
        name="small calls beside 16 MiB",
        about="calls to another program beside messages of 16 MiB in a row, wall time; by hand: "
        "two programs of trio, large messages in parts, or whole",
        unit="ms",
        size=20,
        least=1,
        variants={
            "ergo": _with_server("benchmarks.nodes.ours", _ergo),
            "by hand": _with_server(__name__, partial(_by_hand, _PART)),
            "by hand, whole": _with_server(__name__, partial(_by_hand, 2 * _LARGE)),
        },
        lines=[
            Line(
                "a small call, p50",
                "ergo",
                figure="p50",
                goals=[Goal("whole", 1.0, of="by hand, whole")],
            ),
            Line("a small call, p99", "ergo", figure="p99"),
            Line(
                "a large message",
                "ergo",
                figure="large",
                goals=[Goal("by hand", 2.0, of="by hand")],
            ),
            Line("a small call by hand, p50", "by hand", figure="p50"),
            Line("a large message by hand", "by hand", figure="large"),
            Line("a small call by hand beside whole messages, p50", "by hand, whole", figure="p50"),
            Line("a whole message by hand", "by hand, whole", figure="large"),
        ],
        rounds=3,
        reference="by hand",
    )
]

if __name__ == "__main__":
    trio.run(_serve_by_hand, sys.argv[2])
