"""TCP echo through an actor, with fifty connections: 64 bytes and 64 KiB, against the usual
alternatives.
"""

import asyncio
import os
import select
import socket
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import TCPData, TCPSend
from ergo_py.meta.sockets.tcp import TCPServer

from ..clocks import Stopwatch
from ..floor import FloorActor
from ..harness import Case, Figures, Goal, Line, Variant, by_build, on_loop
from ..load import Load

try:
    uvloop: Any = import_module("uvloop")
except ImportError:  # it is not available everywhere
    uvloop = None

_CONNECTIONS = 50


class Echo(Actor):
    """Sends everything back."""

    def __init__(self, server: TCPServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_message(self, message: object, sender: object) -> None:
        if type(message) is TCPData:
            self.send(message.connection, TCPSend(message.data))


class Session(Actor):
    """Sends everything back to its own connection."""

    def handle_message(self, message: object, sender: object) -> None:
        if type(message) is TCPData:
            self.send(message.connection, TCPSend(message.data))


class Door(Actor):
    """Owns the server, which spawns a session for each connection."""

    def __init__(self, server: TCPServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)


def load_tcp(port: int, size: int, count: int) -> Figures:
    watch = Stopwatch()
    with Load("tcp", port, _CONNECTIONS, size, count) as load:
        load.wait("go")
        with watch:
            load.wait("done")
    return watch.each(max(_CONNECTIONS, count))


async def _ergo(reader: ReaderKind, owner: type[Echo | Door], size: int, count: int) -> Figures:
    server = TCPServer(reader=reader, receiver=Session if owner is Door else None)
    taken: list[Figures] = []
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await node.spawn(owner, server)
        taken.append(await trio.to_thread.run_sync(load_tcp, server.local.port, size, count))
    return taken[0]


async def _send(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


async def _echo(sock: socket.socket) -> None:
    with sock:
        while True:
            try:
                data = sock.recv(65536)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(sock)
                continue
            if not data:
                return
            await _send(sock, data)


async def _by_hand(size: int, count: int) -> Figures:
    """Plain sockets and wait_readable: none of trio's stream classes."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)

    async def serve(nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            sock, _ = listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nursery.start_soon(_echo, sock)

    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, nursery)
            figures = await trio.to_thread.run_sync(
                load_tcp, listener.getsockname()[1], size, count
            )
            nursery.cancel_scope.cancel()
    return figures


async def _by_hand_polled(has_actors: bool, size: int, count: int) -> Figures:
    """The least that trio and Python can do: a single task waits for an epoll of all connections,
    reads each that is ready, and calls a function that writes the answer. With ``has_actors`` it
    puts the bytes into the queue of a task for each connection, which does that.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    take: dict[int, Callable[[bytes], object]] = {}
    socks: dict[int, socket.socket] = {}

    def answer(sock: socket.socket, data: bytes) -> None:
        while data:
            try:
                data = data[sock.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                select.select([], [sock], [])

    async def accept(poll: select.epoll, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            sock, _ = listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handle = partial(answer, sock)
            fd = sock.fileno()
            socks[fd], take[fd] = sock, handle
            if has_actors:
                actor = FloorActor(handle)
                take[fd] = actor.put
                nursery.start_soon(actor.run)
            poll.register(fd, select.EPOLLIN)

    async def serve(poll: select.epoll) -> None:
        while True:
            await trio.lowlevel.wait_readable(poll)
            for fd, _ in poll.poll(0, 64):
                data = socks[fd].recv(65536)
                if data:
                    take[fd](data)
                else:
                    poll.unregister(fd)

    with listener, select.epoll() as poll:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, poll, nursery)
            nursery.start_soon(serve, poll)
            figures = await trio.to_thread.run_sync(
                load_tcp, listener.getsockname()[1], size, count
            )
            nursery.cancel_scope.cancel()
    for sock in socks.values():
        sock.close()
    return figures


async def by_hand_in_threads(
    measure: Callable[[int, int], Figures], hops: bool, count: int
) -> Figures:
    """A thread for each connection, blocked in ``recv``. If it ``hops``, its data goes into a
    queue, and the loop writes it back; if not, the thread does. ``measure`` gets the port.
    """
    queue: deque[tuple[socket.socket, bytes]] = deque()
    armed = False
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    bell, ring = socket.socketpair()
    bell.setblocking(False)

    def read(sock: socket.socket) -> None:
        nonlocal armed
        with sock, suppress(ConnectionError):  # the load has ended
            while data := sock.recv(65536):
                if not hops:
                    sock.sendall(data)
                    continue
                queue.append((sock, data))
                if not armed:
                    armed = True
                    ring.send(b"!")

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # that was all
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=read, args=(sock,), daemon=True).start()

    async def write() -> None:
        nonlocal armed
        while True:
            await trio.lowlevel.wait_readable(bell)
            bell.recv(4096)
            armed = False
            while queue:
                sock, data = queue.popleft()
                with suppress(OSError):  # the load has ended
                    await _send(sock, data)

    accepting = threading.Thread(target=accept)
    with bell, ring, listener:
        accepting.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            figures = await trio.to_thread.run_sync(measure, listener.getsockname()[1], count)
            nursery.cancel_scope.cancel()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
    return figures


async def _trio(size: int, count: int) -> Figures:
    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, echo, 0, host="127.0.0.1")
        )
        figures = await trio.to_thread.run_sync(
            load_tcp, listeners[0].socket.getsockname()[1], size, count
        )
        nursery.cancel_scope.cancel()
    return figures


async def _streams(size: int, count: int) -> Figures:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    figures = await asyncio.to_thread(load_tcp, server.sockets[0].getsockname()[1], size, count)
    server.close()
    return figures


class EchoProtocol(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def _protocol(size: int, count: int) -> Figures:
    server = await asyncio.get_running_loop().create_server(EchoProtocol, "127.0.0.1", 0)
    figures = await asyncio.to_thread(load_tcp, server.sockets[0].getsockname()[1], size, count)
    server.close()
    return figures


def _asyncio(
    work: Callable[[int, int], Coroutine[Any, Any, Figures]], size: int, count: int
) -> Figures:
    return asyncio.run(work(size, count))


def _uvloop(
    work: Callable[[int, int], Coroutine[Any, Any, Figures]], size: int, count: int
) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work(size, count))


class EchoHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class ThreadingServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128


def _socketserver(size: int, count: int) -> Figures:
    with ThreadingServer(("127.0.0.1", 0), EchoHandler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            return load_tcp(server.server_address[1], size, count)
        finally:
            server.shutdown()
            serving.join()


def _on_one_processor(work: Variant, count: int) -> Figures:
    """The cost of threads that only take turns if they cannot do anything else."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        return work(count)
    finally:
        os.sched_setaffinity(0, everywhere)


def _variants(size: int) -> dict[str, Variant]:
    threads = on_loop(_ergo, "thread", Echo, size)
    found: dict[str, Variant] = {
        "ergo thread": threads,
        "ergo thread, one": partial(_on_one_processor, threads)
        if hasattr(os, "sched_setaffinity")
        else threads,
        "ergo task": on_loop(_ergo, "task", Echo, size),
        "ergo task, an actor each": on_loop(_ergo, "task", Door, size),
        "floor": on_loop(_by_hand, size),
        "floor, threads": on_loop(
            by_hand_in_threads, lambda port, count: load_tcp(port, size, count), True
        ),
        "trio": on_loop(_trio, size),
        "asyncio streams": partial(_asyncio, _streams, size),
        "asyncio protocol": partial(_asyncio, _protocol, size),
        "socketserver": partial(_socketserver, size),
    }
    if hasattr(select, "epoll"):
        found["floor, poller"] = on_loop(_by_hand_polled, False, size)
        found["floor, poller and tasks"] = on_loop(_by_hand_polled, True, size)
    if uvloop is not None:
        found["uvloop streams"] = partial(_uvloop, _streams, size)
        found["uvloop protocol"] = partial(_uvloop, _protocol, size)
    return found


def _case(name: str, size: int, count: int) -> Case:
    variants = _variants(size)
    # It is named for small messages.
    is_dream = size > 64
    reach = [Goal("reach", 1 / 1.3, of, is_dream) for of in ("trio", "asyncio streams")]
    in_threads = Goal("speed", 1.0, "floor, threads")
    polled: list[Line] = []
    if "floor, poller" in variants:
        polled = [
            Line("by hand, a poller", "floor, poller", figure="wall"),
            Line("by hand, a poller and a task for each", "floor, poller and tasks", figure="wall"),
        ]
    dream: tuple[Goal, ...] = ()
    in_tasks: tuple[Goal, ...] = ()
    if "uvloop streams" in variants:
        dream = (Goal("reach", 1.0, "uvloop streams", is_dream=True),)
        in_tasks = (
            Goal("speed", by_build(1 / 1.5, 1 / 0.8), "uvloop streams"),
            Goal("speed", 1.0, "uvloop protocol", is_dream=True),
        )
    return Case(
        name=f"TCP echo, {name}",
        about=(
            f"each round trip, {_CONNECTIONS} connections, wall time; "
            "floor: plain sockets; trio: serve_tcp"
        ),
        unit="µs",
        size=count,
        least=_CONNECTIONS,
        variants=variants,
        lines=[
            Line("reader thread", "ergo thread", figure="wall", goals=(in_threads, *reach, *dream)),
            Line("reader thread, one processor", "ergo thread, one", figure="wall", goals=reach),
            Line("reader task", "ergo task", figure="wall", goals=(*in_tasks, *reach, *dream)),
            Line(
                "an actor each",
                "ergo task, an actor each",
                figure="wall",
                goals=(*in_tasks, *dream),
            ),
            Line("reader thread, CPU", "ergo thread"),
            Line("reader task, CPU", "ergo task"),
            Line("by hand, a thread for each", "floor, threads", figure="wall"),
            Line("by hand, a task for each", "floor", figure="wall"),
            *polled,
            Line("asyncio streams", "asyncio streams", figure="wall"),
        ],
        rounds=3,
    )


CASES = [_case("64 bytes", 64, 10_000), _case("64 KiB", 65_536, 3_000)]
