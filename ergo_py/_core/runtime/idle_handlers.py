"""`IdleHandlers`: idle timeout for the handler tasks of meta-processes."""

from typing import Final, Protocol

import trio

__all__ = ["IdleHandlers"]

# Not measured: a handler that has work twice a second keeps its task, and an idle meta-process
# holds a task for a second at most.
_ROUND: Final = 0.5
"""Seconds between two rounds. A handler is retired in the second round after it became idle."""


class Idle(Protocol):
    """A meta-process with an idle handler."""

    def retire(self) -> None: ...


class IdleHandlers:
    """Retires handlers that were idle for up to a second. They are kept that long because starting
    a task for each burst of messages costs as much as serving the burst.
    """

    __slots__ = ("_idle", "_nursery", "_round", "_scope")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._idle: dict[Idle, int] = {}
        self._round = 0
        self._scope: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._idle)

    def add(self, handler: Idle) -> None:
        """Add a handler that has become idle."""
        self._idle[handler] = self._round
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._retire_idle, self._scope, name="idle handlers")

    def discard(self, handler: Idle) -> None:
        """Remove a handler that was woken."""
        self._idle.pop(handler, None)

    def stop(self) -> None:
        """End the rounds."""
        if self._scope is not None:
            self._scope.cancel()

    async def _retire_idle(self, scope: trio.CancelScope) -> None:
        with scope:
            while self._idle:
                await trio.sleep(_ROUND)
                self._round += 1
                for handler, since in list(self._idle.items()):
                    if since < self._round - 1:
                        handler.retire()
        self._scope = None
