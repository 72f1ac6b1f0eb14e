"""The beginning of connections: the cost of a short connection, and how long newcomers wait at a
server that is busy.
"""

import asyncio
import socketserver
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import TCPData, TCPSend
from ergo_py.meta.sockets.tcp import TCPServer

from ..clocks import Stopwatch
from ..harness import Case, Figures, Goal, Line, Variant, on_loop
from ..load import Load
from .tcp import by_hand_in_threads

_BUSY = 100
_REQUESTS = 4
"""How many requests a busy connection has under way."""

Measure = Callable[[int, int], Figures]
"""Blocks while the load runs against the port."""


def _short(port: int, count: int) -> Figures:
    watch = Stopwatch()
    with Load("short", port, count) as load:
        load.wait("go")
        with watch:
            load.wait("done")
    return watch.each(count)


def _newcomers(port: int, count: int) -> Figures:
    watch = Stopwatch()
    with Load("newcomers", port, _BUSY, _REQUESTS, count) as load:
        load.wait("go")
        with watch:
            seconds = load.wait("done")
    return {"wall": seconds * 1e3, "cpu": watch.cpu * 1e3}


class Session(Actor):
    """Answers a single connection, or all of them."""

    def handle_message(self, message: object, sender: object) -> None:
        if type(message) is TCPData:
            self.send(message.connection, TCPSend(message.data))


class AsyncSession(Actor):
    """The same; it could wait."""

    async def handle_message(self, message: object, sender: object) -> None:
        if type(message) is TCPData:
            self.send(message.connection, TCPSend(message.data))


class Door(Session):
    """Has the server, and is the receiver of its connections unless each has an actor of its
    own.
    """

    def __init__(self, server: TCPServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)


async def _ergo(
    measure: Measure, reader: ReaderKind, receiver: type[Actor] | None, count: int
) -> Figures:
    server = TCPServer(reader=reader, receiver=receiver)
    taken: list[Figures] = []
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await node.spawn(Door, server)
        taken.append(await trio.to_thread.run_sync(measure, server.local.port, count))
    return taken[0]


async def _trio(measure: Measure, count: int) -> Figures:
    async def answer(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # the load has ended
            async for data in stream:
                await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
        )
        figures = await trio.to_thread.run_sync(
            measure, listeners[0].socket.getsockname()[1], count
        )
        nursery.cancel_scope.cancel()
    return figures


async def _asyncio(measure: Measure, count: int) -> Figures:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the load has ended
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    figures = await asyncio.to_thread(measure, server.sockets[0].getsockname()[1], count)
    server.close()
    return figures


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(ConnectionError):  # the load has ended
            while data := self.request.recv(65536):
                self.request.sendall(data)


class _ThreadingServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024


def _socketserver(measure: Measure, count: int) -> Figures:
    """A thread for each connection, too."""
    with _ThreadingServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            return measure(server.server_address[1], count)
        finally:
            server.shutdown()
            serving.join()


def _on_asyncio(work: Callable[[Measure, int], Awaitable[Figures]], measure: Measure) -> Variant:
    async def run(count: int) -> Figures:
        return await work(measure, count)

    return lambda count: asyncio.run(run(count))


def _variants(measure: Measure) -> dict[str, Variant]:
    kinds: dict[str, tuple[ReaderKind, Any]] = {
        "task": ("task", Session),
        "task, async": ("task", AsyncSession),
        "task, shared": ("task", None),
        "thread": ("thread", Session),
        "thread, async": ("thread", AsyncSession),
        "thread, shared": ("thread", None),
    }
    ours = {f"ergo {name}": on_loop(_ergo, measure, *kind) for name, kind in kinds.items()}
    return {
        **ours,
        "trio": on_loop(_trio, measure),
        "asyncio streams": _on_asyncio(_asyncio, measure),
        "socketserver": partial(_socketserver, measure),
        "floor, threads": on_loop(by_hand_in_threads, measure, False),
        "floor, threads and loop": on_loop(by_hand_in_threads, measure, True),
    }


def _lines(figure: str, of: str) -> list[Line]:
    goal = (Goal("reach", 2.0, of),)
    in_threads = (Goal("reach", 2.0, "asyncio streams"),)
    return [
        Line("reader task, an actor each", "ergo task", figure=figure, goals=goal),
        Line("reader task, an async actor each", "ergo task, async", figure=figure, goals=goal),
        Line("reader task, one actor for all", "ergo task, shared", figure=figure, goals=goal),
        Line("reader thread, an actor each", "ergo thread", figure=figure, goals=in_threads),
        Line("reader thread, an async actor each", "ergo thread, async", figure=figure),
        Line("reader thread, one actor for all", "ergo thread, shared", figure=figure),
        Line("by hand, a thread for each that answers", "floor, threads", figure=figure),
        Line("by hand, a thread for each and the loop", "floor, threads and loop", figure=figure),
    ]


CASES = [
    Case(
        name="short connections",
        about=(
            "connect, ask, close, one after another: "
            "CPU time of the server for each; trio: serve_tcp"
        ),
        unit="µs",
        size=1_000,
        least=50,
        variants=_variants(_short),
        lines=_lines("cpu", "trio"),
        rounds=3,
    ),
    Case(
        name="newcomers under load",
        about=(
            f"{_BUSY} connections ask without pause; "
            "until the last of so many more has its first answer; trio: serve_tcp"
        ),
        unit="ms",
        size=100,
        least=10,
        variants=_variants(_newcomers),
        lines=_lines("wall", "asyncio streams"),
        rounds=3,
    ),
]
