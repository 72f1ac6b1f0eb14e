"""`ThreadParent`: lets `trio.from_thread` work in the threads of ergo_py.

trio records in each thread of ``trio.to_thread`` the task that waits for it: ``trio.from_thread``
reads there which loop to ask, and whether that task was cancelled. trio has no public way to make
such a record, so this module writes it for other threads, and no other module touches it. `unmet`
compares the installed trio with the trio that the module was written for. With any other trio the
threads have no record, and ``trio.from_thread`` asks for a token in them.
"""

from collections.abc import Callable, Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from types import CodeType
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeVar

import outcome
import trio
from trio import _threads
from trio.lowlevel import Abort, Task, wait_task_rescheduled

from ..vocabulary.errors import NodeStoppedError
from .abandonable import Abandonable
from .bridge import Bridge, Parker
from .detached_task import DetachedTask

__all__ = [
    "HostTask",
    "RaiseCancel",
    "ThreadHost",
    "ThreadParent",
    "capture_cancellation",
    "is_thread_of",
    "task_waiting_for_thread",
    "unmet",
]

T = TypeVar("T")
RaiseCancel = Callable[[], NoReturn]

_NO_TASK: Final[list[Task | None]] = [None]
_record: Final[Any] = getattr(_threads, "PARENT_TASK_DATA", None)
_Run: Final[Any] = getattr(_threads, "Run", None)


class ThreadHost(Protocol):
    """The owner of the code that runs in a thread."""

    is_callback: ClassVar[bool]
    """Whether the code is a callback of a process, which waits as the process in `run`."""

    @property
    def raise_cancel(self) -> RaiseCancel | None:
        """Raises `trio.Cancelled`, once the code in the thread is to end; None until then."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the loop, and block this thread until it is done."""
        ...


class ThreadParent:
    """trio's record of a thread. trio takes it for the token of its loop, and for the list that
    says whether the task was cancelled.
    """

    __slots__ = ("_bridge", "_host")

    def __init__(self, bridge: Bridge, host: ThreadHost | None = None) -> None:
        self._bridge = bridge
        self._host = host

    def enter(self) -> None:
        """Make this the record of the current thread, which belongs to ergo_py until its end."""
        if not _differences:
            _record.__dict__.update(self._entries(_NO_TASK))

    def serve(self, host: ThreadHost | None) -> None:
        """The thread runs code of another owner from now on."""
        self._host = host

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function with this record, in a thread of trio."""
        if _differences:
            return function(*args)
        entries = _record.__dict__
        before = dict(entries)
        entries.update(self._entries(before.get("task_register", _NO_TASK)))
        try:
            return function(*args)
        finally:
            # trio itself removes its entries when the thread is done.
            entries.clear()
            entries.update(before)

    def _entries(self, task_register: list[Task | None]) -> dict[str, Any]:
        return {
            "token": self,
            "abandon_on_cancel": False,
            "cancel_register": self,
            "task_register": task_register,
        }

    # -- called by trio ----------------------------------------------------------------------------

    def __getitem__(self, _index: int) -> RaiseCancel | None:
        return None if self._host is None else self._host.raise_cancel

    def run_sync_soon(self, job: object) -> None:
        """Take the function that this thread has passed to ``trio.from_thread``, on its way to the
        loop. trio waits next for its outcome.
        """
        message = _message_of(job)
        if isinstance(message, _Run):
            assert self._host is not None
            message.queue.put_nowait(outcome.capture(self._host.run, _await(message)))
            return
        try:
            # Through the bridge: all that this thread has sent before arrives before.
            self._bridge.post(message.run_sync)
        except NodeStoppedError as error:
            raise trio.RunFinishedError(str(error)) from None


class HostTask:
    """The owner of a thread that no task waits for: each coroutine has a task of its own."""

    __slots__ = ("_bridge", "_kernel", "_name", "_task", "raise_cancel")

    is_callback: ClassVar[bool] = False

    def __init__(self, kernel: "HostKernel", name: str) -> None:
        self._kernel = kernel
        self._bridge = kernel.router.bridge
        self._name = name
        self._task: DetachedTask | None = None
        """The last coroutine of the thread; a thread waits for a single coroutine at a time."""
        self.raise_cancel: RaiseCancel | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine in a task of the node. In the thread.

        Raises:
            RunFinishedError: the node has stopped.
        """
        parker: Parker[outcome.Outcome[T]] = Parker()
        try:
            self._bridge.post(self._begin, coroutine, parker)
        except NodeStoppedError as error:
            coroutine.close()
            raise trio.RunFinishedError(str(error)) from None
        parker.wait(None)
        assert parker.value is not None
        return parker.value.unwrap()

    def cancel(self) -> None:
        """Cancel the coroutine that the thread waits for, and have ``check_cancelled`` raise from
        now on.
        """
        # Before the task is cancelled: the thread may ask for its next coroutine at once, and that
        # is cancelled by `_begin`.
        self.raise_cancel = self._kernel.raise_cancel
        if self._task is not None:
            self._task.cancel()

    async def cut_off(self) -> None:
        """Abandon a coroutine that does not end when it is cancelled."""
        self.cancel()
        if self._task is not None:
            await self._task.cut_off()

    def _begin(self, coroutine: Coroutine[Any, Any, T], parker: Parker[outcome.Outcome[T]]) -> None:
        def ended() -> None:
            self._task = None
            if getcoroutinestate(coroutine) == CORO_CREATED:
                coroutine.close()
            # Has an effect only without a result: the coroutine was cut off, or never began.
            parker.settle(outcome.Error(trio.RunFinishedError("its node has stopped")))

        async def settle() -> None:
            try:
                result: outcome.Outcome[T] = outcome.Value(await coroutine)
            except GeneratorExit:
                raise
            except BaseException as error:
                result = outcome.Error(error)
            parker.settle(result)

        self._task = task = DetachedTask(ended)
        try:
            task.start(self._kernel, settle, self._name)
        except RuntimeError:  # the nursery is closed
            ended()
        # Cancelled between the post and this step: cancel() found no task.
        if self.raise_cancel is not None:
            task.cancel()


class HostKernel(Protocol):
    """The parts of the kernel that `HostTask` uses."""

    @property
    def router(self) -> Any:
        """The router, which has the bridge."""

    @property
    def raise_cancel(self) -> RaiseCancel | None:
        """Raises `trio.Cancelled`, in any thread."""

    def start(self, function: Callable[..., Any], *args: object, name: str) -> None: ...


async def capture_cancellation() -> RaiseCancel:
    """A function that raises `trio.Cancelled` in any thread. trio passes it to a task that is
    cancelled, and makes no other.
    """
    captured: list[RaiseCancel] = []

    def abort(raise_cancel: RaiseCancel) -> Abort:
        captured.append(raise_cancel)
        return Abort.SUCCEEDED

    with trio.CancelScope() as scope:
        scope.cancel()
        await wait_task_rescheduled(abort)
    return captured[0]


def is_thread_of(bridge: Bridge) -> bool:
    """Whether a task of the node of this bridge waits for this thread."""
    token = getattr(_record, "token", None)
    return isinstance(token, ThreadParent) and token._bridge is bridge


def task_waiting_for_thread() -> Task | None:
    """The task that waits for this thread in ``trio.to_thread.run_sync``; None if none does."""
    register: list[Task | None] = getattr(_record, "task_register", _NO_TASK)
    return register[0]


async def _await(message: Any) -> Any:
    """Await the function of a message with the context variables of the thread that sent it."""
    results: list[Any] = []

    async def work() -> None:
        results.append(await message.unprotected_afn())

    await Abandonable().run_part(work(), message.context)
    return results[0]


def _message_of(job: Any) -> Any:
    """The message inside the function with which trio would wake the waiting task."""
    return job.__closure__[job.__code__.co_freevars.index("self")].cell_contents


def unmet(threads: object = _threads) -> list[str]:
    """The parts of trio that differ from the trio that this module was written for."""
    entries = getattr(type(getattr(threads, "PARENT_TASK_DATA", None)), "__annotations__", {})
    differences = (
        []
        if set(entries) == {"token", "abandon_on_cancel", "cancel_register", "task_register"}
        else [f"the record of a thread has {', '.join(entries) or 'no entries'}"]
    )
    for name, method in (("Run", "unprotected_afn"), ("RunSync", "run_sync")):
        kind = getattr(threads, name, None)
        fields = getattr(kind, "__annotations__", {})
        if not hasattr(kind, method) or not {"context", "queue"} <= set(fields):
            differences.append(f"{name} has no {method}, context or queue")
        code = getattr(getattr(kind, "run_in_host_task", None), "__code__", None)
        inner = [part for part in getattr(code, "co_consts", ()) if isinstance(part, CodeType)]
        if not any("self" in part.co_freevars for part in inner):
            differences.append(f"{name}.run_in_host_task keeps its message elsewhere")
    return differences


_differences: Final = unmet()
