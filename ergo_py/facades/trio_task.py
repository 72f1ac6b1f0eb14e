"""`TrioTask`: a coroutine of trio that a task of asyncio waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import outcome
import trio

from .._core.kernel import Kernel
from .._core.runtime.detached_task import is_cut_off
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.hints import explain

__all__ = ["TrioTask"]

T = TypeVar("T")


class TrioTask(Generic[T]):
    """Runs an async function in a task of the node, with the context variables of the task of
    asyncio. Its outcome settles a future of asyncio, once; to cancel the future cancels the task.
    If the function has returned by then, ``undo`` takes the result.
    """

    __slots__ = ("_function", "_future", "_kernel", "_loop", "_results", "_scope", "_undo")

    def __init__(
        self,
        kernel: Kernel,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], object] | None,
    ) -> None:
        self._kernel = kernel
        self._function = function
        self._undo = undo
        self._results: list[T] = []
        """The result of the function, until it is undone."""
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
                bridge.post(self._abandon)
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
                # A verb may return without a checkpoint: a spawn would start a process for a
                # cancelled task.
                await trio.lowlevel.checkpoint_if_cancelled()
                try:
                    result = await self._function()
                    self._results.append(result)
                    self._tell(outcome.Value(result))
                except BaseException as error:
                    if is_cut_off(error):
                        raise
                    explain(error)
                    self._tell(outcome.Error(error))
        finally:
            # Has an effect only without a result: the node has ended, or no task waits any more.
            self._tell_stopped()
            if self._scope.cancel_called:
                self._abandon()

    def _abandon(self) -> None:
        """The task of asyncio waits no longer."""
        self._scope.cancel()
        if self._undo is not None and self._results:
            self._undo(self._results.pop())

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
