"""`Task`: the handle of a running task. `Completion`: the result that its process and its handle
share.
"""

from collections.abc import Callable, Coroutine, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import trio

from .._core.vocabulary.errors import (
    BadInputError,
    NodeStoppedError,
    NotAllowedError,
    TaskEndedError,
)
from .._core.vocabulary.ids import PID
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.messages import MayBeLate
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import is_a

__all__ = ["Completion", "Task", "TaskResult", "first_of"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskResult(MayBeLate, Generic[R]):
    """The message of a task that was started with ``reply_to``: its result or its failure."""

    pid: PID
    """The process of the task, as in :attr:`Task.pid`."""
    name: str
    value: R | None
    error: BaseException | None
    """The exception that the function raised, or the ``TaskError`` that says why there is no
    result; None after a success.
    """

    def result(self) -> R:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(R, self.value)


class Completion(Generic[R]):
    """The result of a task. Its process settles it exactly once; its handle reads it.

    The process does not know the handle, so that a dropped handle can be noticed.
    """

    __slots__ = (
        *("_events", "_frames", "_on_failure", "_on_settled", "_taken", "_value"),
        *("cancel", "error", "has_handle", "is_done", "name", "pid", "wait_gone"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid: PID
        self.cancel: Callable[[], None]
        """Asks the process to end. From any thread."""
        self.wait_gone: Callable[[], Coroutine[Any, Any, None]]
        """Waits until the process has ended."""
        self.is_done: bool = False
        self.error: BaseException | None = None
        self.has_handle: bool = True
        self._value: Any = None
        self._events: list[trio.Event] = []
        self._frames: list[tuple[BaseException, TracebackType | None]] = []
        self._taken = False
        self._on_settled: list[Callable[[Any, BaseException | None], None]] = []
        self._on_failure: Callable[[BaseException], None] = _ignore

    def belong_to(
        self,
        pid: PID,
        cancel: Callable[[], None],
        wait_gone: Callable[[], Coroutine[Any, Any, None]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Take the process of the task. ``on_failure`` is called with a failure that no code
        takes.
        """
        self.pid, self.cancel, self.wait_gone = pid, cancel, wait_gone
        self._on_failure = on_failure

    def deliver_to(self, deliver: Callable[[Any, BaseException | None], None]) -> None:
        """Call ``deliver`` with the result, which counts as taken then."""
        self.when_settled(deliver)
        self._taken = True

    def when_settled(self, deliver: Callable[[Any, BaseException | None], None]) -> None:
        """Call ``deliver`` on the loop with value and error, once they are there."""
        if self.is_done:
            deliver(self._value, self.error)
        else:
            self._on_settled.append(deliver)

    def settle(self, value: R | None, error: BaseException | None) -> bool:
        """Set the result, and wake the tasks that wait for it. False if it was set before."""
        if self.is_done:
            return False
        self.is_done = True
        self._value, self.error = value, error
        if error is not None:
            # The reason of the process removes the frames from the error.
            self._frames = [(each, each.__traceback__) for each in _chain(error)]
        events, self._events = self._events, []
        for event in events:
            event.set()
        receivers, self._on_settled = self._on_settled, []
        for deliver in receivers:
            deliver(value, error)
        if not self.has_handle:
            self.report()
        return True

    def result(self) -> R:
        """Return the value, or raise the error."""
        self._taken = True
        if self.error is None:
            return self._value  # type: ignore[no-any-return]
        for each, traceback in self._frames:
            each.with_traceback(traceback)
        raise self.error

    async def wait(self, *others: "Completion[Any]") -> None:
        """Wait until this task, or one of the others, is done."""
        everything = (self, *others)
        if not any(one.is_done for one in everything):
            event = trio.Event()
            for one in everything:
                one._events.append(event)
            try:
                await event.wait()
            finally:
                for one in everything:
                    if event in one._events:
                        one._events.remove(event)
        else:
            await trio.lowlevel.checkpoint()

    def be_dropped(self) -> None:
        """Note that no handle is left, so that no code can take the result any more."""
        self.has_handle = False
        if self.is_done:
            self.report()

    def take(self) -> None:
        """Count the result as taken."""
        self._taken = True

    def report(self) -> None:
        """Report a failure that no code has taken, once. A task that was ended has not failed."""
        if not self._taken and self.error is not None and not is_a(self.error, TaskEndedError):
            self._taken = True
            self._on_failure(self.error)


class Task(Generic[R]):
    """A function that runs in a process of its own: the handle that ``run_task`` returns.

    ``await task`` waits for the result of the function, or raises the exception that it raised.
    Any number of tasks may wait, and wait again. ``with trio.move_on_after(1): await task`` gives
    up waiting, and leaves the task running. If nobody ever asks for the result, and the function
    raises, the failure is logged as a crash when the handle is dropped.
    """

    __slots__ = ("__weakref__", "_completion")

    def __init__(self, completion: Completion[R]) -> None:
        self._completion = completion

    def __del__(self) -> None:
        try:
            self._completion.be_dropped()
        except NodeStoppedError:  # the log has ended with the node
            return

    def __repr__(self) -> str:
        completion = self._completion
        state = "running"
        if completion.is_done:
            state = "done" if completion.error is None else f"failed: {completion.error!r}"
        return f"<Task {completion.name} {completion.pid} {state}>"

    @property
    def pid(self) -> PID:
        """The process in which the function runs: for ``monitor``, ``link``, ``wait_ended``."""
        return self._completion.pid

    @property
    def name(self) -> str:
        """The name of the task in the log and in the tree."""
        return self._completion.name

    @property
    def done(self) -> bool:
        """Whether the result or the failure is there."""
        return self._completion.is_done

    @property
    def failure(self) -> BaseException | None:
        """The exception that ``result`` raises; None while the task runs, and after a success."""
        self._completion.take()
        return self._completion.error

    def result(self) -> R:
        """Return the result of a task that is done, or raise its failure.

        Raises:
            NotAllowedError: the task still runs; ``await`` it.
        """
        if not self._completion.is_done:
            raise NotAllowedError(f"{self!r} has no result yet: write `await task`")
        return self._completion.result()

    def cancel(self) -> None:
        """Cancel the task, from any thread. Its function gets ``trio.Cancelled`` at its next
        checkpoint; a plain function in a thread runs to its end, and its result is dropped. Has no
        effect if the task is done.
        """
        if not self._completion.is_done:
            self._completion.take()
            self._completion.cancel()

    async def wait(self) -> R:
        """Wait for the result: what ``await task`` does, as a coroutine for ``wait_for``."""
        self._completion.take()
        await self._completion.wait()
        return self._completion.result()

    def __await__(self) -> Generator[Any, None, R]:
        return self.wait().__await__()


async def first_of(*tasks: Task[R]) -> Task[R]:
    """Wait until the first of several tasks is done, and return it. The others keep running.

    If several are done already, the first in the order of the arguments is returned.

    Raises:
        BadInputError: there are no tasks, or an argument is no task.
    """
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        raise BadInputError(
            "first_of(*tasks)", tasks, "one or more tasks: `await first_of(self.run_task(…), …)`"
        )
    first, *others = (task._completion for task in tasks)
    await first.wait(*others)
    return next(task for task in tasks if task.done)


def _ignore(_error: BaseException) -> None:
    """Default of `on_failure`: do nothing, since the task has no process yet."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and all exceptions that it refers to."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += (current.__cause__, current.__context__)
        if is_a(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)


show_public_names(__name__)
