"""`AsyncioService` and `AsyncioStream`: handles for asyncio code."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import Request
from ..service import Service
from .trio_task import Wait

__all__ = ["AsyncioService", "AsyncioStream"]

R = TypeVar("R")
T = TypeVar("T")


class AsyncioService:
    """A :class:`Service` whose verbs are awaited on asyncio's loop."""

    def __init__(self, service: Service, wait: Wait) -> None:
        self._service = service
        self._wait = wait

    def __repr__(self) -> str:
        return f"<asyncio {self._service!r}>"

    @property
    def name(self) -> str:
        """The child's name."""
        return self._service.name

    @property
    def pid(self) -> PID | None:
        """The current process; None while the child is down."""
        return self._service.pid

    def send(self, message: object, *, priority: Priority = Priority.NORMAL) -> bool:
        """Send a message, or queue it for the successor. Raises as ``Service.send``."""
        return self._service.send(message, priority=priority)

    async def send_wait(
        self, message: object, *, priority: Priority = Priority.NORMAL, timeout: float | None = 5.0
    ) -> bool:
        """Send a message, and wait for the child's restart or for room in its mailbox. Raises as
        ``Service.send_wait``.
        """
        return await self._wait(
            partial(self._service.send_wait, message, priority=priority, timeout=timeout)
        )

    @overload
    async def call(
        self,
        request: Request[R],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> R: ...
    @overload
    async def call(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any: ...
    async def call(
        self,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any:
        """Call the child and wait for the answer. Raises as ``Service.call``."""
        return await self._wait(
            partial(self._service.call, request, timeout=timeout, priority=priority, retry=retry)
        )


class AsyncioStream(Generic[T]):
    """An async iterator of a node, for ``async for`` on asyncio's loop. ``async with`` closes
    it.
    """

    def __init__(
        self, stream: AsyncIterator[T], wait: Wait, close: Callable[[], Awaitable[object]]
    ) -> None:
        self._stream = stream
        self._wait = wait
        self._close = close

    def __repr__(self) -> str:
        return f"<asyncio {self._stream!r}>"

    def __aiter__(self) -> "AsyncioStream[T]":
        return self

    async def __anext__(self) -> T:
        return await self._wait(self._stream.__anext__)

    async def aclose(self) -> None:
        """End the iteration: unsubscribe, or cancel the producer of the parts."""
        await self._wait(self._close)

    async def __aenter__(self) -> "AsyncioStream[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
