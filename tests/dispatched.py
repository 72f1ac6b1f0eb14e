"""Parts of the tests of dispatchers: where callbacks may run, and actors that run a test's
functions in them.
"""

import inspect
import threading
from typing import Any

import pytest
import trio

from ergo_py import LOOP, PID, Actor, Caller, Node, Reason, Threads
from ergo_py.info import Dispatcher

__all__ = [
    "EVERYWHERE",
    "AsyncDoer",
    "Doer",
    "Gate",
    "everywhere",
    "heard",
    "in_threads",
    "waiting",
]

EVERYWHERE: list[Dispatcher] = [LOOP, Threads(), Threads("workers", 2), Threads("pod")]
everywhere = pytest.mark.parametrize("where", EVERYWHERE, ids=str)
in_threads = pytest.mark.parametrize("where", EVERYWHERE[1:], ids=str)


class Doer(Actor):
    """Runs functions in plain callbacks, and keeps all other messages.

    A function may return something to be awaited, such as ``me.call(...)``: it is waited for there,
    too.
    """

    def __init__(self, log: list[Any] | None = None) -> None:
        self.heard: list[Any] = []
        self.log_of_test: list[Any] = [] if log is None else log

    def init(self) -> None:
        self.log_of_test.append(("init", threading.get_ident()))

    def handle_message(self, message: Any, sender: Any) -> Any:
        if callable(message):
            self._do(message)
        else:
            self.heard.append(message)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return self._do(request) if callable(request) else list(self.heard)

    def _do(self, function: Any) -> Any:
        result = function(self)
        return self.wait_for(result) if inspect.iscoroutine(result) else result

    def handle_event(self, event: Any) -> None:
        self.heard.append(event.message)

    def handle_child_exit(self, child: Any, reason: Reason) -> None:
        self.heard.append(("child exit", child, reason))

    def handle_inspect(self, *items: str) -> Any:
        return {"heard": str(len(self.heard)), "thread": str(threading.get_ident())}

    def terminate(self, reason: Reason) -> None:
        self.log_of_test.append((reason, threading.get_ident()))


class AsyncDoer(Doer):
    """The same for the loop, where a callback that waits is async."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        if callable(message):
            await self._do_here(message)
        else:
            self.heard.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        return await self._do_here(request) if callable(request) else list(self.heard)

    async def _do_here(self, function: Any) -> Any:
        result = function(self)
        return await result if inspect.iscoroutine(result) else result


def waiting(where: Dispatcher) -> type[Doer]:
    """The actor with callbacks that can wait there."""
    return AsyncDoer if where == LOOP else Doer


class Gate:
    """Where a callback blocks until a test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _actor: Any = None) -> str:
        self.reached.set()
        assert self.opened.wait(20)
        return "through"

    async def wait_reached(self) -> None:
        assert await trio.to_thread.run_sync(self.reached.wait, 20)


async def heard(node: Node, pid: PID | str) -> Any:
    """The messages that a doer has kept, after everything that it was sent before."""
    return await node.call(pid, "all")
