"""Actors that many tests direct: each does one thing, and keeps what it hears for the test."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import trio

from ergo_py import NO_REPLY, Actor, Caller, LogRecord, Reason

__all__ = [
    "Deferring",
    "Failed",
    "FailsToStart",
    "Fragile",
    "Frozen",
    "LogKeeper",
    "Puppet",
    "Recorder",
    "Shielded",
    "SlowEnd",
    "SlowStart",
    "Stubborn",
    "Witness",
]


class Failed(Exception):
    """The error that a test's own actor raises on purpose."""


@dataclass(frozen=True)
class Frozen(Exception):
    """An error that refuses all assignments, those of ``__traceback__`` and notes as well."""

    code: int = 7


class Recorder(Actor):
    """Keeps its messages, in order, in a list that the test holds. Only plain callbacks."""

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return list(self.heard)


class Puppet(Actor):
    """Follows orders: a function it is sent or asked runs inside its callback, with the puppet as
    argument.

    Other messages are kept in ``heard``. So a test can say ``await node.call(pid, lambda me:
    me.link(other))``.
    """

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard

    async def handle_message(self, message: Any, sender: Any) -> None:
        if inspect.isfunction(message):
            await _result(message, self)
        else:
            self.heard.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if not inspect.isfunction(request):
            return list(self.heard)
        return await _result(request, self)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"heard": str(len(self.heard)), **dict.fromkeys(items, "asked")}


class Witness(Puppet):
    """A puppet that notes its end in a list that the test holds."""

    def __init__(self, ends: list[Any], label: object = None) -> None:
        super().__init__()
        self.ends = ends
        self.label = label

    def terminate(self, reason: Reason) -> None:
        self.ends.append(reason if self.label is None else self.label)


class Stubborn(Actor):
    """Never ends by itself: it swallows every exception, cancellation too."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        while True:
            try:
                await trio.sleep(1)
            except BaseException:
                pass


class Shielded(Actor):
    """Waits where no cancellation reaches it."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()


async def _result(function: Callable[[Any], Any], puppet: Puppet) -> Any:
    result = function(puppet)
    return await result if inspect.iscoroutine(result) else result


class SlowStart(Actor):
    """Takes its time to start; by default it never does."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds

    async def init(self) -> None:
        await trio.sleep(self.seconds)


class SlowEnd(Puppet):
    """A puppet that takes its time to end; by default it never does."""

    def __init__(self, seconds: float = inf) -> None:
        super().__init__()
        self.seconds = seconds

    async def terminate(self, reason: Reason) -> None:
        await trio.sleep(self.seconds)


class FailsToStart(Actor):
    """Its start fails."""

    async def init(self) -> None:
        raise Failed("in init")


class Fragile(Actor):
    """Crashes at its first message."""

    def handle_message(self, message: Any, sender: Any) -> None:
        raise Failed(message)


class Deferring(Actor):
    """Answers no call, and keeps its callers in a list that the test may hold."""

    def __init__(self, callers: list[Caller] | None = None) -> None:
        self.callers: list[Caller] = [] if callers is None else callers

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.callers.append(caller)
        return NO_REPLY


class LogKeeper(Recorder):
    """Keeps log records in a list that the test holds."""

    def handle_log(self, record: LogRecord) -> None:
        self.heard.append(record)
