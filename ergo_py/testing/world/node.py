"""`WorldNode`: a node of a world, with its starts, crashes and pauses."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
from trio.lowlevel import current_task

from ..._core.vocabulary.errors import NodeStoppedError
from ...node import Node, open_node
from .history import History
from .tasks import TaskOwners

__all__ = ["WorldNode"]

Start = Callable[[Node], Awaitable[object]]


class Surroundings(Protocol):
    """The world of a node."""

    history: History
    owners: TaskOwners

    def is_paused(self, node: str, /) -> bool:
        """Whether the program of a node is stopped."""
        ...


class WorldNode:
    """A node of a world. It may crash and start again; ``node`` is its present start."""

    def __init__(
        self, world: Surroundings, name: str, start: Start | None, options: dict[str, Any]
    ) -> None:
        self.name = name
        self._world = world
        self._start = start
        self._options = options
        self._node: Node | None = None
        self._up = trio.Event()
        self._stop = trio.Event()
        self._down = trio.Event()
        self._resumed = trio.Event()
        self._calls: dict[trio.CancelScope, None] = {}
        """The calls of clients that wait at this node."""

    def __repr__(self) -> str:
        return f"<WorldNode {self.name}{'' if self.is_up else ', down'}>"

    @property
    def node(self) -> Node:
        """The running node.

        Raises:
            NodeStoppedError: it has crashed, or has not started yet.
        """
        if self._node is None:
            raise NodeStoppedError(self.name, "it is down in this world")
        return self._node

    @property
    def is_up(self) -> bool:
        """Whether the node runs, and its ``start`` has returned."""
        return self._up.is_set()

    async def wait_up(self) -> Node:
        """Wait until the node runs, and its program is not stopped."""
        while not self.is_up or self._world.is_paused(self.name):
            await (self._resumed if self.is_up else self._up).wait()
        return self.node

    async def call(self, to: Any, request: Any, *, timeout: float = 5.0) -> Any:
        """Call a process of any node, as a client on this node. The history of the world has the
        call and its answer, for its checkers.

        Raises:
            NodeStoppedError: this node is down, or crashes before the answer.
            CallError: as ``node.call``.
        """
        node = await self.wait_up()
        history = self._world.history
        operation = history.begin(self.name, to, request)
        error: BaseException = NodeStoppedError(self.name, "it crashed in this world")
        with trio.CancelScope() as scope:
            self._calls[scope] = None
            try:
                answer = await node.call(to, request, timeout=timeout)
                history.finish(operation, answer, None)
                return answer
            except Exception as failure:
                error = failure
            finally:
                del self._calls[scope]
        history.finish(operation, None, error)
        raise error

    async def live(self) -> None:
        """Run the node until :meth:`close`."""
        self._world.owners.add_task(current_task(), self.name)
        async with open_node(self.name, **self._options) as node:
            self._node = node
            node._kernel.watch_lifetimes(self._world.history.note_lifetime)
            try:
                if self._start is not None:
                    await self._start(node)
                self._up.set()
                await self._stop.wait()
            finally:
                self._node = None
                self._up = trio.Event()
        self._down.set()

    async def close(self) -> None:
        """Stop the node, as a program does that ends."""
        self._stop.set()
        if self._node is not None:
            await self._down.wait()

    def note_resumed(self) -> None:
        """Let the calls of clients continue."""
        self._resumed.set()
        self._resumed = trio.Event()
