"""anyio on top of asyncio: memory object streams, portals, its sockets."""

from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ..clocks import Stopwatch, percentiles
from ..harness import Figures, Variant
from ..load import Load
from ..workloads.publish import ROUNDS
from ..workloads.readers import _portal, _portal_drip
from ..workloads.tcp import load_tcp
from ..workloads.udp import BYTES, Meter

__all__ = ["ADDS"]


def _in_anyio(work: Callable[..., Coroutine[Any, Any, Figures]], *args: object) -> Variant:
    return lambda size: anyio.run(partial(work, *args, size), backend="asyncio")


async def _tell(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    start = anyio.Event()

    async def sink(receiver: MemoryObjectReceiveStream[object]) -> None:
        async with receiver:
            for _ in range(count):
                await receiver.receive()

    async def source(sender: MemoryObjectSendStream[object]) -> None:
        async with sender:
            await start.wait()
            for _ in range(count):
                sender.send_nowait("go")

    watch = Stopwatch()
    async with anyio.create_task_group() as group:
        for _ in range(pairs):
            sender, receiver = anyio.create_memory_object_stream[object](float("inf"))
            group.start_soon(sink, receiver)
            group.start_soon(source, sender)
        await anyio.wait_all_tasks_blocked()
        watch.start()
        start.set()
    watch.stop()
    return watch.each(count * pairs)


async def _call(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    start = anyio.Event()
    times: list[float] = []

    async def callee(
        requests: MemoryObjectReceiveStream[object], replies: MemoryObjectSendStream[object]
    ) -> None:
        async with requests, replies:
            async for request in requests:
                replies.send_nowait(request)

    async def asker(
        requests: MemoryObjectSendStream[object], replies: MemoryObjectReceiveStream[object]
    ) -> None:
        async with requests, replies:
            await start.wait()
            before = perf_counter()
            for _ in range(count):
                requests.send_nowait("go")
                await replies.receive()
                now = perf_counter()
                times.append(now - before)
                before = now

    watch = Stopwatch()
    async with anyio.create_task_group() as group:
        for _ in range(pairs):
            to_callee, requests = anyio.create_memory_object_stream[object](float("inf"))
            to_asker, replies = anyio.create_memory_object_stream[object](float("inf"))
            group.start_soon(callee, requests, to_asker)
            group.start_soon(asker, to_callee, replies)
        await anyio.wait_all_tasks_blocked()
        watch.start()
        start.set()
    watch.stop()
    return watch.each(count * pairs) | percentiles(times)


async def _live(size: int) -> Figures:
    size = max(1, size // 4)
    starting, stopping = Stopwatch(), Stopwatch()
    async with anyio.create_task_group() as group:
        with starting:
            for _ in range(size):
                group.start_soon(anyio.sleep_forever)
            await anyio.lowlevel.checkpoint()
        stopping.start()
        group.cancel_scope.cancel()
    stopping.stop()
    return starting.each(size, "spawn ") | stopping.each(size, "stop ")


async def _publish(size: int) -> Figures:
    async def subscriber(receiver: MemoryObjectReceiveStream[str]) -> None:
        async with receiver:
            for _ in range(ROUNDS):
                await receiver.receive()

    watch = Stopwatch()
    senders: list[MemoryObjectSendStream[str]] = []
    async with anyio.create_task_group() as group:
        for _ in range(size):
            sender, receiver = anyio.create_memory_object_stream[str](ROUNDS)
            senders.append(sender)
            group.start_soon(subscriber, receiver)
        await anyio.wait_all_tasks_blocked()
        watch.start()
        for _ in range(ROUNDS):
            for sender in senders:
                sender.send_nowait("publish")
    watch.stop()
    for sender in senders:
        sender.close()
    return watch.each(size * ROUNDS)


async def _tcp(size: int, count: int) -> Figures:
    async def echo(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=128)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    figures: Figures = {}
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, echo)
        figures = await anyio.to_thread.run_sync(load_tcp, port, size, count)
        group.cancel_scope.cancel()
    return figures


async def _udp(count: int) -> Figures:
    meter = Meter(count, lambda: None)
    async with await anyio.create_udp_socket(local_host="127.0.0.1") as sock:
        with Load("udp", sock.extra(anyio.abc.SocketAttribute.local_port), BYTES):
            while meter.left > 0:
                await sock.receive()
                meter.take()
    return meter.each()


ADDS: dict[str, dict[str, Variant]] = {
    "tell, 1 to 1": {"anyio": _in_anyio(_tell, 1)},
    "tell, 100 to 100": {"anyio": _in_anyio(_tell, 100)},
    "call, 1 pair": {"anyio": _in_anyio(_call, 1)},
    "call, 100 pairs": {"anyio": _in_anyio(_call, 100)},
    "spawn and stop": {"anyio": _in_anyio(_live)},
    "thread to process, flood": {"anyio": _portal},
    "thread to process, idle": {"anyio": _portal_drip},
    "publish to 10,000 subscribers": {"anyio": _in_anyio(_publish)},
    "TCP echo, 64 bytes": {"anyio": _in_anyio(_tcp, 64)},
    "TCP echo, 64 KiB": {"anyio": _in_anyio(_tcp, 65_536)},
    "UDP flood, 64 bytes": {"anyio": _in_anyio(_udp)},
}
