"""Functions that run in other threads, and threads that switch often."""

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from ergo_py import (
    PID,
    Actor,
    Node,
)
from tests.support import process_of

__all__ = [
    "Gate",
    "Gated",
    "PATIENCE",
    "T",
    "in_thread",
    "in_threads",
    "spawn_gated",
    "until",
    "waiters_at",
]


T = TypeVar("T")


PATIENCE = 20.0
"""Seconds after which something is lost. Only a failing test takes that long."""


async def in_thread(function: Callable[[], T]) -> T:
    """Run something in a thread. A test that has run out of time does not wait for it."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


async def in_threads(functions: list[Callable[[], object]]) -> None:
    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(in_thread, function)


class Gate:
    """Where a process stops, while its mailbox fills."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.reached = trio.Event()
        self.opened = trio.Event()


class Gated(Actor):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "stop here":
            self.gate.reached.set()
            await self.gate.opened.wait()
        else:
            self.gate.heard.append(message)


async def spawn_gated(node: Node, **options: Any) -> tuple[PID, Gate]:
    """A process that sits in a callback, with an empty mailbox."""
    gate = Gate()
    pid = await node.spawn(Gated, gate, shutdown=0, **options)
    node.send(pid, "stop here")
    await gate.reached.wait()
    return pid, gate


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until something holds that depends on a thread."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.lowlevel.checkpoint()


def waiters_at(node: Node, pid: PID) -> int:
    waiting = process_of(node, pid).mailbox.waiters or {}
    return sum(map(len, waiting.values()))
