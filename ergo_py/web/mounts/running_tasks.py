"""`RunningTasks`: the tasks of a mounted application, which end with its server."""

from typing import Final, Protocol

import trio

__all__ = ["PATIENCE", "RunningTasks"]

PATIENCE: Final = 1.0
"""Seconds that tasks may still run after the connections of the server have ended, and after they
are cancelled.
"""


class Cancellable(Protocol):
    """A cancel scope, or a task."""

    def cancel(self) -> None:
        """Cancel it."""
        ...


class RunningTasks:
    """Notes which tasks run, and cancels them at the end."""

    def __init__(self) -> None:
        self._scopes: set[Cancellable] = set()
        self._none: trio.Event | None = None

    def __len__(self) -> int:
        return len(self._scopes)

    def begin(self) -> trio.CancelScope:
        """A scope for the current task, which must call :meth:`leave` at its end."""
        scope = trio.CancelScope()
        self.enter(scope)
        return scope

    def enter(self, task: Cancellable) -> None:
        """Note that a task works, which must call :meth:`leave` after it."""
        self._scopes.add(task)

    def leave(self, scope: Cancellable) -> None:
        """The work of this scope or task has ended."""
        self._scopes.discard(scope)
        if not self._scopes and self._none is not None:
            self._none.set()

    async def end(self) -> int:
        """Let the tasks end, and cancel the tasks that do not. Returns how many run even so."""
        await self._wait()
        for scope in tuple(self._scopes):
            scope.cancel()
        await self._wait()
        return len(self._scopes)

    async def _wait(self) -> None:
        if self._scopes:
            self._none = trio.Event()
            with trio.move_on_after(PATIENCE):
                await self._none.wait()
