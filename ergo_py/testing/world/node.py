"""`WorldNode`: a node of a world, with its starts, crashes and pauses."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import trio
from trio.lowlevel import Task, current_task

from ..._core.vocabulary.errors import NodeStoppedError
from ...node import Node, open_node
from .crash import crash_tasks
from .disk import WorldDisk
from .history import History
from .tasks import TaskOwners, WorldOrder

__all__ = ["WorldNode"]

T = TypeVar("T")
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
        self,
        world: Surroundings,
        name: str,
        start: Start | None,
        options: dict[str, Any],
        disk: WorldDisk,
    ) -> None:
        self.name = name
        self._world = world
        self._start = start
        self._options = options
        self._node: Node | None = None
        self._is_up = False
        self._changed = trio.Event()
        """Set, and replaced, when the node is up, and when its program continues."""
        self._stop = trio.Event()
        self._opening = trio.CancelScope()
        """Around the present call of ``start``."""
        self._down = trio.Event()
        self._task: Task | None = None
        """The task that has opened the node."""
        self._context: Any = None
        self.disk = disk
        """The disk of the node, which survives its crashes."""
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
        return self._is_up

    async def wait_up(self) -> Node:
        """Wait until the node runs, and its program is not stopped."""
        while not self.is_up or self._world.is_paused(self.name):
            await self._changed.wait()
        return self.node

    async def call(self, to: Any, request: Any, *, timeout: float = 5.0) -> Any:
        """Call a process of any node, as a client on this node. The history of the world has the
        call and its answer, for its checkers.

        Raises:
            NodeStoppedError: this node is down, or crashes before the answer.
            CallError: as ``node.call``.
        """
        await self.wait_up()
        history = self._world.history
        operation = history.begin(self.name, to, request)
        try:
            answer = await self.run(lambda node: node.call(to, request, timeout=timeout))
        except Exception as error:
            history.finish(operation, None, error)
            raise
        history.finish(operation, answer, None)
        return answer

    async def run(self, function: Callable[[Node], Awaitable[T]]) -> T:
        """Run a function as a client on this node: it has the clock of the node, stops with its
        program, and ends with its crash.

        Raises:
            NodeStoppedError: the node crashed before the function had returned.
        """
        node = await self.wait_up()
        with trio.CancelScope() as scope:
            self._calls[scope] = None
            try:
                with self._world.owners.acting_as(self.name):
                    return await function(node)
            finally:
                del self._calls[scope]
        raise NodeStoppedError(self.name, "it crashed in this world")

    async def live(self) -> None:
        """Run the node until :meth:`close`."""
        self._task = current_task()
        self._world.owners.add_task(self._task, self.name)
        self._context = open_node(self.name, **self._options)
        async with self._context as node:
            self._node = node
            node._kernel.lifetimes.watch_lifetimes(self._world.history.note_lifetime)
            try:
                with trio.CancelScope() as self._opening:
                    if self._start is not None and not self._stop.is_set():
                        await self._start(node)
                if not self._stop.is_set():
                    self._is_up = True
                    self.note_change()
                await self._stop.wait()
            finally:
                self._node, self._is_up = None, False
        self._down.set()

    def crash(self, order: WorldOrder) -> list[Task]:
        """End the node without any cleanup, and lose, keep or tear the writes of its disk that were
        not synced. Returns its tasks, which must be kept until the world is over. Empty if the node
        is down, or is just opening.
        """
        node, task = self._node, self._task
        if node is None or task is None:
            return []
        self._world.history.note_crash(self.name)
        self._node, self._task, self._is_up = None, None, False
        remains = crash_tasks(task, self.name, self._world.owners, order)
        kernel = node._kernel
        kernel.begin_stop()
        kernel.thread_fairness.stop()
        kernel.router.bridge.close("it crashed in this world")
        self._context._interrupts.release()
        self.disk.crash()
        for scope in list(self._calls):
            scope.cancel()
        return remains

    async def close(self) -> None:
        """Stop the node, as a program does that ends. A ``start`` that still runs is cancelled: it
        may wait for a node that is closed before.
        """
        self._stop.set()
        self._opening.cancel()
        if self._node is not None:
            await self._down.wait()

    def note_change(self) -> None:
        """Let the tasks in :meth:`wait_up` look again."""
        self._changed.set()
        self._changed = trio.Event()
