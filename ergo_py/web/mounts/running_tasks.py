"""`RunningTasks`: the tasks of a mounted application, which end with its server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

__all__ = ["PATIENCE", "RunningTasks"]

PATIENCE: Final = 1.0
"""Seconds that tasks may still run after the connections of the server have ended, and after they
are cancelled.
"""


class RunningTasks:
    """Notes which tasks run, and cancels them at the end."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._none: trio.Event | None = None

    def __len__(self) -> int:
        return len(self._scopes)

    @contextmanager
    def noted(self) -> Iterator[trio.CancelScope]:
        """Note the current task. Leaving the block early means that it was cancelled."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
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
