"""`CancelScopes`: the cancel scopes and nurseries that a task has open. It closes those that a
callback leaked. `Killing` tells the processes of a tree that someone kills all of them.

trio expects the code that opened a scope to close it, in order. If a callback enters a scope and
returns, the kernel's next steps in this task run inside the scope. trio notices only when the task
ends, and raises the error in the nursery that holds the task: the nursery of the whole node.
"""

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from trio import CancelScope, Nursery
from trio.lowlevel import Task, current_task, in_trio_task

from ..vocabulary.errors import CallbackError

if TYPE_CHECKING:
    from trio._core._run import CancelStatus

__all__ = ["ADVICE", "CancelScopes", "Killing", "close_coroutine", "is_being_closed", "left_open"]

ADVICE: Final = (
    "leave it before the callback returns, with `async with` or `with`;"
    " for work that continues between callbacks write `self.start_task(function, *args)`"
)


class CancelScopes:
    """A snapshot of the cancel scopes and nurseries that a task has open.

    The methods refer to the scopes opened since the snapshot.
    """

    __slots__ = ("_depth", "_status", "_task")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._status = task._cancel_status
        self._depth = len(task._child_nurseries)

    @classmethod
    def since(cls, task: Task, status: "CancelStatus") -> "CancelScopes":
        """The snapshot as of the time when the task had this cancel status."""
        scopes = cls(task)
        scopes._status = status
        # A nursery that was open already encloses that status.
        scopes._depth = sum(
            nursery._cancel_status.encloses(status) for nursery in task._child_nurseries
        )
        return scopes

    @classmethod
    def all_of(cls, task: Task) -> "CancelScopes":
        """The snapshot as of the start of the task: all its scopes were opened since."""
        scopes = cls(task)
        nursery = task.parent_nursery
        assert nursery is not None
        scopes._status, scopes._depth = nursery._cancel_status, 0
        return scopes

    def force(self, task: Task) -> None:
        """Cancel all scopes opened since, shielded or not. ``task`` is this task, or a task below
        it.
        """
        status: CancelStatus | None = task._cancel_status
        while status is not None and status is not self._status:
            status._scope.shield = False
            status._scope.cancel()
            status = status.parent

    def are_left(self) -> bool:
        """Say whether the open scopes differ from the snapshot: some were leaked, or closed too
        often.
        """
        return (
            self._task._cancel_status is not self._status
            or len(self._task._child_nurseries) != self._depth
        )

    def nurseries(self) -> list[Nursery]:
        """The nurseries opened since, the outermost first."""
        return self._task.child_nurseries[self._depth :]

    async def close(self) -> None:
        """Close the scopes and nurseries opened since. Call it only in the task itself. It cancels
        the tasks in the nurseries, and waits for them.
        """
        for nursery in reversed(self.nurseries()):
            nursery.cancel_scope.cancel()
            # trio's own code for the end of `async with`: it waits for the tasks. The callback has
            # returned, so their exceptions have no receiver: drop them.
            await nursery._nested_child_finished(None)
        self.close_plain()

    def close_plain(self) -> None:
        """Close the cancel scopes opened since. No nursery may be open."""
        task, status = self._task, self._status
        while (inner := task._cancel_status) is not status:
            if not status.encloses(inner):
                # An outer scope was closed before an inner scope: trio has cut the inner scope
                # off from all others, so closing it would not lead back to `status`.
                task._activate_cancel_status(status)
                return
            inner._scope._close(None)


def left_open(behaviour: str, callback: str, nurseries: list[Any]) -> CallbackError:
    """The error of a callback that returned inside a nursery or a cancel scope."""
    scope = "a nursery" if nurseries else "a cancel scope"
    return CallbackError(f"{behaviour}.{callback} has left {scope} open; {ADVICE}")


_closing: list[Any] = []
"""The coroutines that `close_coroutine` is closing now, the innermost last."""


def close_coroutine(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine. It may await something, and so refuse, or raise any exception."""
    _closing.append(coroutine)
    try:
        coroutine.close()
    except BaseException:
        # The coroutine was abandoned, so its exception has no receiver: drop it.
        pass
    finally:
        _closing.pop()


def is_being_closed(task: object) -> bool:
    """Say whether a ``GeneratorExit`` means that this task is being closed. User code may raise
    ``GeneratorExit``, too.
    """
    return bool(_closing) or not in_trio_task() or current_task() is not task


class Killing:
    """A kill of a whole tree, as far as those below need to know."""

    __slots__ = ("_scopes", "is_over")

    def __init__(self) -> None:
        self.is_over: bool = False
        """Whether nobody kills any more."""
        self._scopes: dict[CancelScope, None] = {}

    @contextmanager
    def while_it_lasts(self) -> Iterator[None]:
        """Cancel the block when nobody kills any more, perhaps without success."""
        with CancelScope() as scope:
            if self.is_over:
                scope.cancel()
            self._scopes[scope] = None
            try:
                yield
            finally:
                del self._scopes[scope]

    def end(self) -> None:
        """Nobody kills any more."""
        self.is_over = True
        for scope in tuple(self._scopes):
            scope.cancel()
