"""Waiting: messages in a mailbox, callers for an answer, senders for room, connections for the next
request.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import NO_REPLY, PID, Actor, Caller, Overflow, TargetDownError, open_node
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.tcp import TCPServer

from ..clocks import Latch, Stopwatch
from ..growth import growing, timed
from ..harness import Figures
from ..load import Load
from ..workloads.tcp import Echo


class Held(Actor):
    """Is held up at its first message until the gate opens."""

    def __init__(self, gate: trio.Event, latch: Latch) -> None:
        self.gate = gate
        self.latch = latch

    async def handle_message(self, message: object, sender: PID) -> None:
        await self.gate.wait()
        self.latch.report()


async def _depth(size: int) -> Figures:
    watches = {name: Stopwatch() for name in ("put", "drain", "lost")}
    gate, latch = trio.Event(), Latch(size)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        held = await node.spawn(Held, gate, latch)
        with watches["put"]:
            for _ in range(size):
                node.send(held, "message")
        await wait_all_tasks_blocked()
        with watches["drain"]:
            gate.set()
            await latch.wait()
        doomed = await node.spawn(Held, trio.Event(), latch)
        for _ in range(size):
            node.send(doomed, "message")
        await wait_all_tasks_blocked()
        with watches["lost"]:
            node.kill(doomed)
            await node.wait_ended(doomed)
    return timed(watches, size)


class Later(Actor):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    def handle_call(self, request: object, caller: Caller) -> object:
        self.callers.append(caller)
        return NO_REPLY

    def handle_message(self, message: object, sender: PID) -> None:
        for caller in reversed(self.callers):
            self.reply(caller, message)


async def _callers(size: int) -> Figures:
    watches = {name: Stopwatch() for name in ("ask", "answer", "down", "cancel")}

    async def asking(to: PID) -> None:
        try:
            await node.call(to, "request", timeout=600)
        except TargetDownError:
            pass

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        callee, mortal, slow = (
            await node.spawn(Later),
            await node.spawn(Later),
            await node.spawn(Later),
        )
        async with trio.open_nursery() as nursery:
            with watches["ask"]:
                for _ in range(size):
                    nursery.start_soon(asking, callee)
                await wait_all_tasks_blocked(0)
            watches["answer"].start()
            node.send(callee, "answer")
        watches["answer"].stop()
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(asking, mortal)
            await wait_all_tasks_blocked()
            watches["down"].start()
            node.kill(mortal)
        watches["down"].stop()
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(asking, slow)
            await wait_all_tasks_blocked()
            watches["cancel"].start()
            nursery.cancel_scope.cancel()
        watches["cancel"].stop()
    return timed(watches, size)


async def _senders(size: int) -> Figures:
    """All want to send to a process with room for eight messages in its mailbox."""
    watches = {name: Stopwatch() for name in ("served", "cancel")}
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:

        async def spawn(gate: trio.Event, latch: Latch) -> PID:
            return await node.spawn(Held, gate, latch, mailbox_size=8, overflow=Overflow.WAIT)

        def send(to: PID) -> Awaitable[Any]:
            return node.send_wait(to, "message")

        gate, latch = trio.Event(), Latch(size)
        to = await spawn(gate, latch)
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(send, to)
            await wait_all_tasks_blocked()
            watches["served"].start()
            gate.set()
            await latch.wait()
        watches["served"].stop()
        to = await spawn(trio.Event(), latch)
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(send, to)
            await wait_all_tasks_blocked()
            watches["cancel"].start()
            nursery.cancel_scope.cancel()
        watches["cancel"].stop()
        node.kill(to)
    return timed(watches, size)


_ROUNDTRIPS = 2_000


async def _connections(reader: ReaderKind, size: int) -> Figures:
    server = TCPServer(reader=reader)
    turn, close = Stopwatch(), Stopwatch()
    roundtrips = max(size, _ROUNDTRIPS)

    def work(port: int) -> None:
        with Load("tcp", port, size, 64, roundtrips) as load:
            load.wait("go")
            with turn:
                load.wait("done")
            # Before the other side is gone: a few connections are closed by the time of the check.
            close.start()

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await node.spawn(Echo, server)
        await trio.to_thread.run_sync(work, server.local.port)
        while len(node.metas()) > 1:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.001)
        close.stop()
    return {**timed({"turn": turn}, roundtrips), **timed({"close": close}, size)}


CASES = [
    growing(
        "messages in a mailbox",
        "each of 1,000 and more",
        _depth,
        1_000,
        {"put": "put", "drain": "drain", "lost with it": "lost"},
    ),
    growing(
        "callers of a process",
        "each of 50 and more",
        _callers,
        50,
        {"ask": "ask", "answer": "answer", "notified of its end": "down", "give up": "cancel"},
    ),
    growing(
        "senders that wait for room",
        "each of 50 and more, before a mailbox of 8",
        _senders,
        50,
        {"served": "served", "give up": "cancel"},
    ),
    growing(
        "connections, reader task",
        "each round trip, and the end of each, of 4 connections and more",
        partial(_connections, "task"),
        4,
        {"round trip": "turn", "close": "close"},
    ),
    growing(
        "connections, reader thread",
        "each round trip, and the end of each, of 4 connections and more",
        partial(_connections, "thread"),
        4,
        {"round trip": "turn", "close": "close"},
    ),
]
