"""What many tests need: a quiet node with a time limit, and actors that do what a test tells them."""

import inspect
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from ergo_py import Actor, Caller, Node, NodeInfo, Reason, open_node
from ergo_py._core.kernel import Kernel
from ergo_py._core.messaging.router import Router
from ergo_py._core.metas.meta import Meta
from ergo_py._core.processes.process import Process
from ergo_py.testing.leaks import _descriptors

__all__ = [
    "THOROUGH",
    "Failed",
    "Puppet",
    "Recorder",
    "Shielded",
    "Stubborn",
    "Witness",
    "block_until_reported",
    "kernel_of",
    "meta_of",
    "needs_proc",
    "open_descriptors",
    "process_of",
    "refused",
    "router_of",
    "running_node",
    "short_directory",
]

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether a test may take its time: ``make test-deep``. How often something is tried depends on it,
and never what.
"""


class Failed(Exception):
    """What a test's own actor raises on purpose."""


@asynccontextmanager
async def running_node(
    name: str = "test@localhost", *, limit: float = 60.0, **options: Any
) -> AsyncIterator[Node]:
    """A node without watchdog and without log lines, for at most ``limit`` seconds."""
    settings: dict[str, Any] = {"watchdog": None, "log_output": "none", **options}
    with trio.fail_after(limit):
        async with open_node(name, **settings) as node:
            yield node


class Recorder(Actor):
    """Keeps what it is told, in order, in a list that the test holds. Only plain callbacks."""

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return list(self.heard)


class Puppet(Actor):
    """Does what it is told: a function it is sent or asked runs inside its callback, with the
    puppet as argument.

    What is no function is kept in ``heard``. So a test can say ``await node.call(pid, lambda me:
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
    """Never ends by itself, whatever is done to it: it swallows every exception, cancellation too."""

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


def block_until_reported(node: Node, pid: Any) -> NodeInfo | None:
    """Block the loop, in a callback of this process, until the watchdog has said so; what the node
    knows then.

    None if it did not. It speaks once for each turn of the loop, and may have spoken of a busy
    machine in this one: try again.
    """
    deadline = time.monotonic() + 5
    while (last := node._last_blocked) is None or last.process != pid:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    return node.info()


async def _result(function: Callable[[Any], Any], puppet: Puppet) -> Any:
    result = function(puppet)
    return await result if inspect.iscoroutine(result) else result


def refused(error: type[Exception], verb: Any, match: str | None = None) -> Callable[[Any], Any]:
    """Something for a puppet to do: try the verb, and see it refused."""

    async def attempt(me: Any) -> str:
        with pytest.raises(error, match=match) as caught:
            result = verb(me)
            if result is not None and hasattr(result, "__await__"):
                await result
        return str(caught.value)

    return attempt


needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="there is no /proc here"
)
"""For a test that looks at threads or programs as the operating system sees them."""

_ROOM: Final = 40
"""Bytes that the path of a directory may have if sockets are to have their place in it; the systems
allow 104 or 108.
"""


@contextmanager
def short_directory() -> Iterator[Path]:
    """A new directory for sockets, whose paths must be short however long TMPDIR is."""
    places = [
        place
        for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")
        if len(os.fsencode(place)) <= _ROOM
    ]
    path = Path(tempfile.mkdtemp(prefix="ergo", dir=places[0]))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def open_descriptors() -> set[tuple[int, str]]:
    """The descriptors of this program, each with what it is.

    To see that nothing was left open ask for ``open_descriptors() <= before``. Their number says
    nothing: what an earlier test forgot is closed whenever Python finds it.
    """
    # A thread that has just begun tells the system its name through a file, and closes that at
    # once.
    return {one for one in _descriptors() if not one[1].endswith("/comm")}


# -- private parts ---------------------------------------------------------------------------------
# A test that has to look behind the public verbs does it through these functions, so that a private
# attribute that moves or gets another name is changed here and in no test.


def kernel_of(node: Any) -> Kernel:
    """The kernel of a node."""
    kernel: Kernel = node._kernel
    return kernel


def router_of(node: Any) -> Router:
    """The router of a node or a service."""
    router: Router = node._router
    return router


def process_of(node: Any, target: Any) -> Process:
    """The process at this address."""
    process: Process = node._find(target)
    return process


def meta_of(behaviour: Any) -> Meta:
    """The kernel's side of a meta-process, from its behaviour."""
    meta: Meta = behaviour._meta
    return meta
