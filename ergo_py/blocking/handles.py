"""`BlockingService`, `BlockingStream` and `BlockingSupervisor`: handles for synchronous code."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, overload

from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.ids import PID
from .._core.vocabulary.info import ChildInfo
from .._core.vocabulary.messages import Request
from ..service import Service
from ..supervision.handle import SupervisorHandle
from ..supervision.specs import ChildSpec
from ..supervision.supervisor import ChildCount

__all__ = ["BlockingService", "BlockingStream", "BlockingSupervisor"]

R = TypeVar("R")
T = TypeVar("T")


class Wait(Protocol):
    """Runs a coroutine on the loop, and blocks this thread until it is done."""

    def __call__(self, function: Callable[[], Awaitable[T]], /) -> T: ...


class BlockingService:
    """A :class:`Service` without ``await``, for every thread except the node's own."""

    def __init__(self, service: Service, wait: Wait) -> None:
        self._service = service
        self._wait = wait

    def __repr__(self) -> str:
        return f"<blocking {self._service!r}>"

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

    def send_wait(
        self, message: object, *, priority: Priority = Priority.NORMAL, timeout: float | None = 5.0
    ) -> bool:
        """Send a message, and wait for the child's restart or for room in its mailbox. Raises as
        ``Service.send_wait``.
        """
        return self._wait(
            partial(self._service.send_wait, message, priority=priority, timeout=timeout)
        )

    @overload
    def call(
        self,
        request: Request[R],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> R: ...
    @overload
    def call(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any: ...
    def call(
        self,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
    ) -> Any:
        """Call the child and wait for the answer. Raises as ``Service.call``."""
        return self._wait(
            partial(self._service.call, request, timeout=timeout, priority=priority, retry=retry)
        )


class BlockingStream(Generic[T]):
    """An async iterator of a node, for a plain ``for``: each step blocks this thread. ``with``
    closes it.
    """

    def __init__(self, stream: AsyncIterator[T], wait: Wait, close: Callable[[], object]) -> None:
        self._stream = stream
        self._wait = wait
        self._close = close

    def __repr__(self) -> str:
        return f"<blocking {self._stream!r}>"

    def __iter__(self) -> "BlockingStream[T]":
        return self

    def __next__(self) -> T:
        try:
            return self._wait(self._stream.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """End the iteration: unsubscribe, or cancel the producer of the parts."""
        self._close()

    def __enter__(self) -> "BlockingStream[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingSupervisor:
    """A :class:`SupervisorHandle` without ``await``, for every thread except the node's own. Raises
    the errors of the handle.
    """

    def __init__(self, handle: SupervisorHandle, wait: Wait) -> None:
        self._handle = handle
        self._wait = wait

    def __repr__(self) -> str:
        return f"<blocking {self._handle!r}>"

    @property
    def pid(self) -> PID:
        """The supervisor's process."""
        return self._handle.pid

    def children(self) -> list[ChildInfo]:
        """The children, in order."""
        return self._handle.children()

    def count(self) -> ChildCount:
        """Count the children by state."""
        return self._handle.count()

    def service(self, child: str | PID) -> BlockingService:
        """The restart-proof address of a child."""
        return BlockingService(self._handle.service(child), self._wait)

    def start_child(self, child: str, *args: Any, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.start_child`."""
        return self._wait(partial(self._handle.start_child, child, *args, timeout=timeout))

    def stop_child(self, child: str | PID, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.stop_child`."""
        return self._wait(partial(self._handle.stop_child, child, timeout=timeout))

    def restart_child(self, child: str | PID, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.restart_child`."""
        return self._wait(partial(self._handle.restart_child, child, timeout=timeout))

    def add_child(self, spec: ChildSpec, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.add_child`."""
        return self._wait(partial(self._handle.add_child, spec, timeout=timeout))

    def remove_child(self, child: str | PID, *, timeout: float | None = None) -> PID | None:
        """As :meth:`Supervisor.remove_child`."""
        return self._wait(partial(self._handle.remove_child, child, timeout=timeout))

    def enable_child(self, child: str, *, timeout: float | None = None) -> PID:
        """As :meth:`Supervisor.enable_child`."""
        return self._wait(partial(self._handle.enable_child, child, timeout=timeout))

    def disable_child(self, child: str | PID, *, timeout: float | None = None) -> PID | None:
        """As :meth:`Supervisor.disable_child`."""
        return self._wait(partial(self._handle.disable_child, child, timeout=timeout))
