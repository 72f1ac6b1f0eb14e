"""The cancel scopes and nurseries that a task has open, and how to close those that a callback
left.

trio expects the code that opened one to close it, in order. If a callback enters one and returns,
all that the kernel does next in this task happens inside it. trio notices when the task ends, and
raises the error in the nursery that holds the task: that is the nursery of the whole node.
"""

from typing import Any, Final

from trio.lowlevel import current_task, in_trio_task

from ..vocabulary.errors import CallbackError

__all__ = ["ADVICE", "CancelScopes", "close_coroutine", "is_being_closed", "left_open"]

ADVICE: Final = (
    "leave it before the callback returns, with `async with` or `with`;"
    " for work that goes on between callbacks write `self.start_task(function, *args)`"
)


class CancelScopes:
    """What a task has open at the moment this is made."""

    __slots__ = ("_depth", "_status", "_task")

    def __init__(self, task: Any) -> None:
        self._task = task
        self._status = task._cancel_status
        self._depth = len(task._child_nurseries)

    @classmethod
    def since(cls, task: Any, status: Any) -> "CancelScopes":
        """As if it was made when the task had this cancel status."""
        scopes = cls(task)
        scopes._status = status
        # Those that were open already enclose it.
        scopes._depth = sum(
            nursery._cancel_status.encloses(status) for nursery in task._child_nurseries
        )
        return scopes

    @classmethod
    def all_of(cls, task: Any) -> "CancelScopes":
        """As if it was made at the beginning of the task: all that it has open was opened since."""
        scopes = cls(task)
        scopes._status, scopes._depth = task._parent_nursery._cancel_status, 0
        return scopes

    def force(self, task: Any) -> None:
        """Cancel all that this task, or one below it, has open since, shielded or not."""
        status = task._cancel_status
        while status is not None and status is not self._status:
            status._scope.shield = False
            status._scope.cancel()
            status = status.parent

    def are_left(self) -> bool:
        """Say whether the task has more open, or less, than then."""
        return (
            self._task._cancel_status is not self._status
            or len(self._task._child_nurseries) != self._depth
        )

    def nurseries(self) -> list[Any]:
        """The nurseries that it has opened since, the outermost first."""
        return self._task.child_nurseries[self._depth :]  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close what was opened since. Only in the task itself. Tasks in a nursery are cancelled,
        and waited for.
        """
        for nursery in reversed(self.nurseries()):
            nursery.cancel_scope.cancel()
            # Its own way out: it waits for its tasks. What they raise concerns nobody any more.
            await nursery._nested_child_finished(None)
        self.close_plain()

    def close_plain(self) -> None:
        """Close the cancel scopes that were opened since, as far as no nursery is open."""
        task, status = self._task, self._status
        while (inner := task._cancel_status) is not status:
            if not status.encloses(inner):
                # One was closed before one inside of it: trio has cut the inner one off from all
                # others.
                task._activate_cancel_status(status)
                return
            inner._scope._close(None)


def left_open(behaviour: str, callback: str, nurseries: list[Any]) -> CallbackError:
    """The error of a callback that has returned from the middle of a nursery or a cancel scope."""
    what = "a nursery" if nurseries else "a cancel scope"
    return CallbackError(f"{behaviour}.{callback} has left {what} open; {ADVICE}")


_closing: list[Any] = []


def close_coroutine(coroutine: Any) -> None:
    """Close a coroutine, whatever it does about that."""
    _closing.append(coroutine)
    try:
        coroutine.close()
    except BaseException:
        # What one that was given up has to say concerns nobody any more.
        pass
    finally:
        _closing.pop()


def is_being_closed(task: object) -> bool:
    """Say whether a ``GeneratorExit`` means that this task is being closed: user code may raise
    one, too.
    """
    return bool(_closing) or not in_trio_task() or current_task() is not task
