"""What somebody would write by hand on trio, without any framework, where the workloads have no floor of their own."""

import socket
from functools import partial

import trio

from ..clocks import Stopwatch
from ..floor import FloorActor
from ..harness import Figures, Variant, on_loop
from ..load import Load
from ..workloads.publish import ROUNDS
from ..workloads.tcp import load_tcp
from ..workloads.udp import BYTES, Meter

__all__ = ["ADDS"]


def _fail(message: object) -> None:
    raise ValueError(message)


async def _restart(size: int) -> Figures:
    """A mailbox, its task, and a loop around it that makes the next one."""
    with Stopwatch() as watch:
        for _ in range(size):
            actor = FloorActor(_fail)
            actor.put("fail")
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(actor.run)
            except* ValueError:
                pass
    return watch.each(size)


async def _publish(size: int) -> Figures:
    """A mailbox for each."""
    left = size * ROUNDS
    done = trio.Event()

    def take(_message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    actors = [FloorActor(take) for _ in range(size)]
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        await trio.testing.wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for _ in range(ROUNDS):
                for actor in actors:
                    actor.put("publish")
            await done.wait()
        nursery.cancel_scope.cancel()
    return watch.each(size * ROUNDS)


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
            while data:
                try:
                    data = data[sock.send(data) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)


async def _tcp(size: int, count: int) -> Figures:
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
            figures = await trio.to_thread.run_sync(partial(load_tcp, listener.getsockname()[1], size, count))
            nursery.cancel_scope.cancel()
    return figures


async def _udp(count: int) -> Figures:
    """A plain socket, read until there is no more, into a mailbox."""
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


ADDS: dict[str, dict[str, Variant]] = {
    "restart": {"floor": on_loop(_restart)},
    "publish to 10,000 subscribers": {"floor": on_loop(_publish)},
    "TCP echo, 64 bytes": {"floor": on_loop(_tcp, 64)},
    "TCP echo, 64 KiB": {"floor": on_loop(_tcp, 65_536)},
    "UDP flood, 64 bytes": {"floor": on_loop(_udp)},
}
