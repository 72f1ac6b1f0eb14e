"""`AsyncioNode`: a node's methods for asyncio code. Each runs on the node's loop, in another
thread, while a task of asyncio waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, overload

import trio

from .._core.vocabulary.ids import EventName
from ..facades.facade import Asyncio
from ..facades.handles import asyncio_entity
from ..facades.node import NodeVerbs, ask, run
from ..facades.rows import Function, Row, as_async, as_method, awaited
from ..facades.streams import AsyncioEvents, asyncio_map, asyncio_stream
from ..facades.verb_call import VerbCall
from ..node import Node
from ..tasks.handle import Task

__all__ = ["AsyncioNode"]

P = ParamSpec("P")
R = TypeVar("R")


class _CallRow(Row):
    """A call: its answer settles a future, which costs less than a task of the node."""

    def _asyncio(self, find: Function, wrap: Function) -> Function:
        def verb(self: "AsyncioNode", /, *args: Any, **keywords: Any) -> object:
            async def begin() -> object:
                self._check_loop()
                return await asyncio.wrap_future(ask(self._subject, *args, **keywords))

            return VerbCall(self._variable, verb.__qualname__, begin)

        return as_async(verb)


class _TaskRow(Row):
    """A task: a future of asyncio, which begins at once and cancels the task of the node."""

    def _asyncio(self, find: Function, wrap: Function) -> Function:
        def verb(self: "AsyncioNode", /, *args: object, **keywords: object) -> object:
            self._check_loop()
            start = partial(find(self._subject), *args, **keywords)
            return asyncio.ensure_future(self._wait(partial(_finish, start)))

        return verb


async def _finish(start: Callable[[], Task[R]]) -> R:
    task = start()
    try:
        return await task
    except trio.Cancelled:
        task.cancel()
        raise


def _call(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    return as_method(_CallRow(function))


def _task(
    function: Callable[Concatenate[Any, P], Task[R]],
) -> Callable[Concatenate[Any, P], "asyncio.Task[R]"]:
    return as_method(_TaskRow(function))


@overload
async def events(node: Node) -> dict[str, int]: ...
@overload
async def events(
    node: Node, event: str | EventName, *, max_waiting: int = 1000, follow: bool = False
) -> AsyncioEvents: ...
async def events(
    node: Node,
    event: str | EventName | None = None,
    *,
    max_waiting: int = 1000,
    follow: bool = False,
) -> Any:
    """Subscribe to an event, and iterate over its publications: ``async for event in await
    node.events("prices")``; without an argument, return all events of this node, each with the
    number of its subscribers. Raises as ``Node.events``.
    """
    if event is None:
        return node.events()
    return AsyncioEvents(node.events(event, max_waiting=max_waiting, follow=follow), node._kernel)


class AsyncioNode(NodeVerbs, Asyncio):
    """A node's methods, awaited on asyncio's loop. Errors are raised in the waiting task; to cancel
    that task cancels the method. Not awaited are ``send``, ``reply`` and ``reply_error``, which
    never wait, and ``run_task``, ``call_stream``, ``map_stream`` and ``at``, whose results are
    awaited, iterated or used. :meth:`run` reaches everything else.
    """

    call: Final = _call(Node.call)
    call_stream: Final = asyncio_stream(Node.call_stream)
    entity: Final = asyncio_entity(Node.entity)
    events: Final = awaited(events)
    run_task: Final = _task(Node.run_task)
    map_stream: Final = asyncio_map(Node.map_stream)
    run: Final = awaited(run)
