"""`TrioTask`: a coroutine of trio that a task of asyncio waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import outcome
import trio

from .._core.kernel import Kernel
from .._core.vocabulary.errors import NodeStoppedError

__all__ = ["TrioTask"]

T = TypeVar("T")


class TrioTask(Generic[T]):
    """Runs an async function in a task of the node, with the context variables of the task of
    asyncio. Its outcome settles a future of asyncio, once; to cancel the future cancels the task.
    """

    __slots__ = ("_function", "_future", "_kernel", "_loop", "_scope")

    def __init__(self, kernel: Kernel, function: Callable[[], Awaitable[T]]) -> None:
        self._kernel = kernel
        self._function = function
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[outcome.Outcome[T]] = self._loop.create_future()
        self._scope = trio.CancelScope()

    async def result(self) -> T:
        """Start the task, and wait for its result.

        Raises:
            NodeStoppedError: the node has stopped.
        """
        bridge, context = self._kernel.router.bridge, copy_context()
        bridge.post(context.run, self._start)
        try:
            result = await self._future
        except asyncio.CancelledError:
            try:
                bridge.post(self._scope.cancel)
            except NodeStoppedError:  # the task has ended with its node
                pass
            raise
        return result.unwrap()

    # -- on trio's loop ----------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            self._kernel.start(self._run, name="for asyncio")
        except RuntimeError:  # the nursery is closed
            self._tell_stopped()

    async def _run(self) -> None:
        try:
            with self._scope:
                try:
                    self._tell(outcome.Value(await self._function()))
                except (trio.Cancelled, GeneratorExit):
                    raise
                except BaseException as error:
                    self._tell(outcome.Error(error))
        finally:
            # Has an effect only without a result: the node has ended, or no task waits any more.
            self._tell_stopped()

    def _tell_stopped(self) -> None:
        self._tell(outcome.Error(NodeStoppedError(self._kernel.pid.node)))

    def _tell(self, result: outcome.Outcome[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, result)
        except RuntimeError:  # asyncio's loop is closed
            return

    # -- on asyncio's loop -------------------------------------------------------------------------

    def _settle(self, result: outcome.Outcome[T]) -> None:
        if not self._future.done():
            self._future.set_result(result)
