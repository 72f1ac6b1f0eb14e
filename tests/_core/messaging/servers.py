"""Servers that do as they are asked, and ways to call them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    Node,
)
from tests.actors import Failed

__all__ = [
    "AsyncServer",
    "Doing",
    "PlainServer",
    "Way",
    "asleep",
    "crash",
    "echo",
    "forward_to",
    "keep",
    "kept_by",
    "way",
]


Doing = Callable[[Any, Caller], Any]


class PlainServer(Actor):
    """A request is a function of the server and the caller; its return value is the answer."""

    def __init__(self, log: list[Any] | None = None) -> None:
        self.kept: list[Caller] = []
        self.log_: list[Any] = [] if log is None else log

    def handle_message(self, message: Any, sender: Any) -> None:
        if inspect.isfunction(message):
            message(self)
        else:
            self.log_.append(message)

    def handle_call(self, request: Doing, caller: Caller) -> object:
        return request(self, caller)


class AsyncServer(PlainServer):
    """The same with a handler that may wait."""

    async def handle_call(self, request: Doing, caller: Caller) -> object:
        result = request(self, caller)
        return await result if inspect.iscoroutine(result) else result


@dataclass(frozen=True)
class Way:
    """How calls are served in a run of a test."""

    inline_calls: bool
    server: type[PlainServer]


@pytest.fixture(
    params=[
        Way(True, PlainServer),
        Way(False, PlainServer),
        Way(True, AsyncServer),
        Way(False, AsyncServer),
    ],
    ids=["plain-short-cut", "plain-mailbox", "async-short-cut", "async-mailbox"],
)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


async def asleep(node: Node, server: Any, *args: Any, **options: Any) -> PID:
    """Spawn a server, and return when it sleeps in its mailbox, where the short cut finds it."""
    pid: PID = await node.spawn(server, *args, **options)
    await wait_all_tasks_blocked()
    return pid


def echo(value: object) -> Doing:
    return lambda me, caller: value


def keep(me: PlainServer, caller: Caller) -> object:
    me.kept.append(caller)
    return NO_REPLY


def crash(me: Any, caller: Caller) -> object:
    raise Failed("on purpose")


def kept_by(node: Node, server: PID) -> Callable[[], Any]:
    """The calls that the server has kept, found through its own callback."""

    async def ask() -> list[Caller]:
        found: list[Caller] = await node.call(server, lambda me, caller: list(me.kept))
        return found

    return ask


def forward_to(target: Any, request: Doing) -> Doing:
    return lambda me, caller: me.forward(target, request, caller)
