"""Datagrams of 64 bytes, as many as come: the cost of receiving a datagram, up to the callback of
an actor.
"""

import asyncio
import socket
import socketserver
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.datagrams import UDPData
from ergo_py.meta.sockets.udp import UDPServer

from ..clocks import Stopwatch
from ..floor import FloorActor
from ..harness import Case, Figures, Goal, Line, Variant, on_loop
from ..load import Load

try:
    uvloop: Any = import_module("uvloop")
except ImportError:  # it is not available everywhere
    uvloop = None

BYTES = 64
_WARM_UP = 100


class Meter:
    """Counts its datagrams, and measures from the hundredth on."""

    def __init__(self, count: int, done: Callable[[], object]) -> None:
        self.left = count + _WARM_UP
        self.first = count
        self.done = done
        self.watch = Stopwatch()

    def take(self) -> None:
        self.left -= 1
        if self.left == self.first:
            self.watch.start()
        elif self.left == 0:
            self.watch.stop()
            self.done()

    def each(self) -> Figures:
        return self.watch.each(self.first)


class Sink(Actor):
    """Takes datagrams."""

    def __init__(self, server: UDPServer, meter: Meter) -> None:
        self.server = server
        self.take = meter.take

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_message(self, message: object, sender: object) -> None:
        if type(message) is UDPData:
            self.take()


async def _ergo(reader: ReaderKind, count: int) -> Figures:
    done = trio.Event()
    meter = Meter(count, done.set)
    server = UDPServer(reader=reader)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await node.spawn(Sink, server, meter)
        with Load("udp", server.local.port, BYTES):
            await done.wait()
    return meter.each()


async def _by_hand(count: int) -> Figures:
    """A plain socket, read until it is empty, into a mailbox."""
    done = trio.Event()
    meter = Meter(count, done.set)
    actor = FloorActor(lambda _message: meter.take())
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))

        async def read() -> None:
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    for _ in range(64):
                        actor.put(sock.recvfrom(65535))
                except BlockingIOError:
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.run)
            nursery.start_soon(read)
            with Load("udp", sock.getsockname()[1], BYTES):
                await done.wait()
            nursery.cancel_scope.cancel()
    return meter.each()


def _blocking(count: int) -> Figures:
    """A loop around ``recvfrom``, and nothing else."""
    meter = Meter(count, lambda: None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        with Load("udp", sock.getsockname()[1], BYTES):
            while meter.left > 0:
                sock.recvfrom(65535)
                meter.take()
    return meter.each()


async def _trio(count: int) -> Figures:
    meter = Meter(count, lambda: None)
    with trio.socket.socket(type=socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))
        with Load("udp", sock.getsockname()[1], BYTES):
            while meter.left > 0:
                await sock.recvfrom(65535)
                meter.take()
    return meter.each()


class Protocol(asyncio.DatagramProtocol):
    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.meter.take()


async def _protocol(count: int) -> Figures:
    done = asyncio.Event()
    meter = Meter(count, done.set)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        partial(Protocol, meter), local_addr=("127.0.0.1", 0)
    )
    with Load("udp", transport.get_extra_info("sockname")[1], BYTES):
        await done.wait()
    transport.close()
    return meter.each()


def _asyncio(count: int) -> Figures:
    return asyncio.run(_protocol(count))


def _uvloop(count: int) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_protocol(count))


def _socketserver(count: int) -> Figures:
    meter = Meter(count, lambda: None)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            meter.take()

    with (
        socketserver.UDPServer(("127.0.0.1", 0), Handler) as server,
        Load("udp", server.server_address[1], BYTES),
    ):
        while meter.left > 0:
            server.handle_request()
    return meter.each()


_VARIANTS: dict[str, Variant] = {
    "ergo thread": on_loop(_ergo, "thread"),
    "ergo task": on_loop(_ergo, "task"),
    "floor": on_loop(_by_hand),
    "trio": on_loop(_trio),
    "asyncio": _asyncio,
    "socketserver": _socketserver,
    "recvfrom": _blocking,
}
if uvloop is not None:
    _VARIANTS["uvloop"] = _uvloop

_IN_TASK = () if uvloop is None else (Goal("speed", 1.0, "uvloop"),)
_REACH = (Goal("reach", 1 / 3, "trio"), Goal("reach", 1 / 3, "asyncio"))

CASES = [
    Case(
        name="UDP flood, 64 bytes",
        about="each datagram received; trio: recvfrom of its sockets",
        unit="µs",
        size=40_000,
        least=100,
        variants=_VARIANTS,
        lines=[
            Line("reader task", "ergo task", goals=(*_IN_TASK, *_REACH)),
            Line("reader thread", "ergo thread", goals=(Goal("speed", 1.3, "recvfrom"), *_REACH)),
            Line("reader task, wall", "ergo task", figure="wall"),
            Line("reader thread, wall", "ergo thread", figure="wall"),
        ],
        rounds=3,
    )
]
