"""`AsyncioNode`: a node's methods for asyncio code. Each runs on the node's loop, in another
thread, while a task of asyncio waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

from .._core.verbs.behaviour import Behaviour
from .._core.verbs.common import check_priority
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.ids import PID, EventName, Ref, Target
from .._core.vocabulary.info import NodeInfo, ProcessInfo
from .._core.vocabulary.messages import Published, Request
from .._core.vocabulary.options import SpawnKeywords
from .._core.vocabulary.reasons import Reason, Shutdown
from ..blocking.node import BlockingNode
from ..node import Node
from ..streams.parts import PartStream
from .handles import AsyncioService, AsyncioStream
from .trio_task import TrioTask

__all__ = ["AsyncioNode"]

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class AsyncioNode:
    """A node's methods, awaited on asyncio's loop. Errors are raised in the waiting task; to cancel
    that task cancels the method. :meth:`run` reaches every other method of the node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._blocking = BlockingNode(node)

    def __repr__(self) -> str:
        return f"<asyncio {self._node!r}>"

    @property
    def name(self) -> str:
        """The node's name."""
        return self._node.name

    @property
    def pid(self) -> PID:
        """The sender of messages that the node itself sends."""
        return self._node.pid

    @property
    def env(self) -> Mapping[str, object]:
        """The environment that every process inherits."""
        return self._node.env

    @property
    def log(self) -> Any:
        """A structlog logger bound to the node."""
        return self._node.log

    # -- processes ---------------------------------------------------------------------------------

    async def spawn(
        self, behaviour: Callable[[*Ts], Behaviour], *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID:
        """Start a process that belongs to the node, with the context variables of this task. Raises
        as ``Node.spawn``.
        """
        return await self._wait(partial(self._node.spawn, behaviour, *args, **options))

    async def send_exit(self, to: Target, reason: object = Shutdown()) -> bool:
        """Ask a process or meta-process to end. False if there is no such process."""
        return await self.run(lambda node: node.send_exit(to, reason))

    async def kill(self, to: Target) -> bool:
        """Kill a process at its next checkpoint. False if there is no such process."""
        return await self.run(lambda node: node.kill(to))

    async def wait_ended(self, to: Target) -> Reason:
        """Wait until a process has ended; return its reason. Raises as ``Node.wait_ended``."""
        return await self._wait(partial(self._node.wait_ended, to))

    async def service(self, name: str) -> AsyncioService:
        """Return the restart-proof address of a supervised child. Raises as ``Node.service``."""
        return AsyncioService(await self.run(lambda node: node.service(name)), self._wait)

    # -- messages ----------------------------------------------------------------------------------

    def send(self, to: Target, message: object, *, priority: Priority = Priority.NORMAL) -> bool:
        """Send a message, without waiting. False if there is no receiver. Raises as
        ``Node.send``.
        """
        return self._node.send(to, message, priority=priority)

    async def send_wait(
        self,
        to: Target,
        message: object,
        *,
        priority: Priority = Priority.NORMAL,
        timeout: float | None = None,
    ) -> bool:
        """Send a message, and wait for room if the receiver's rule is ``Overflow.WAIT``. Raises as
        ``Node.send_wait``.
        """
        return await self._wait(
            partial(self._node.send_wait, to, message, priority=priority, timeout=timeout)
        )

    @overload
    async def call(
        self,
        to: Target,
        request: Request[R],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> R: ...
    @overload
    async def call(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any: ...
    async def call(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
    ) -> Any:
        """Call a process and wait for the answer. Raises as ``Node.call``. To cancel this task
        abandons the call.
        """
        check_priority(priority)
        self._node._router.bridge.refuse_on_loop(
            "a verb of ergo_py.aio", "`await node.call(...)` of the node itself"
        )
        return await asyncio.wrap_future(
            self._blocking.ask(to, request, timeout=timeout, priority=priority)
        )

    @overload
    def call_stream(
        self,
        to: Target,
        request: Request[PartStream[R]],
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> AsyncioStream[R]: ...
    @overload
    def call_stream(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> AsyncioStream[Any]: ...
    def call_stream(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> AsyncioStream[Any]:
        """Call a process that answers in parts, and iterate over them. Raises as
        ``Node.call_stream``.
        """
        stream = self._node.call_stream(to, request, timeout=timeout, credit=credit)
        return AsyncioStream(stream, self._wait, stream.aclose)

    # -- events ------------------------------------------------------------------------------------

    async def events(
        self, event: str | EventName, *, max_waiting: int = 1000
    ) -> AsyncioStream[Published]:
        """Subscribe to an event, and iterate over its publications: ``async for event in await
        node.events("prices")``. Raises as ``Node.events``.
        """
        stream = await self.run(lambda node: node.events(event, max_waiting=max_waiting))

        async def close() -> None:
            stream.close()

        return AsyncioStream(stream, self._wait, close)

    async def publish(
        self, event: str | EventName, message: object, *, token: Ref | None = None
    ) -> int:
        """Publish a message to every subscriber of an event. Raises as ``Node.publish``."""
        return await self.run(lambda node: node.publish(event, message, token=token))

    # -- names and inspection ----------------------------------------------------------------------

    async def register(self, name: str, to: Target) -> None:
        """Give a process a name. Raises as ``Node.register``."""
        await self.run(lambda node: node.register(name, to))

    async def whereis(self, name: str) -> PID | None:
        """The process with this name; None if the name is free."""
        return await self.run(lambda node: node.whereis(name))

    async def info(self) -> NodeInfo:
        """A snapshot of the node."""
        return await self.run(lambda node: node.info())

    async def process_info(self, to: Target) -> ProcessInfo:
        """A snapshot of a process. Raises as ``Node.process_info``."""
        return await self.run(lambda node: node.process_info(to))

    async def inspect(self, to: Target, *items: str, timeout: float = 5.0) -> dict[str, str]:
        """The diagnostics of a process. Raises as ``Node.inspect``."""
        return await self._wait(partial(self._node.inspect, to, *items, timeout=timeout))

    # -- everything else ---------------------------------------------------------------------------

    @overload
    async def run(self, function: Callable[[Node], Awaitable[T]]) -> T: ...
    @overload
    async def run(self, function: Callable[[Node], T]) -> T: ...
    async def run(self, function: Callable[[Node], Any]) -> Any:
        """Run a plain or async function on the node's loop, with the node whose methods are
        awaited there; return its result: ``await node.run(lambda node: node.supervise(…))``.
        """

        async def call() -> Any:
            result = function(self._node)
            return await result if isinstance(result, Awaitable) else result

        return await self._wait(call)

    async def _wait(self, function: Callable[[], Awaitable[T]]) -> T:
        return await TrioTask(self._node._kernel, function).result()
