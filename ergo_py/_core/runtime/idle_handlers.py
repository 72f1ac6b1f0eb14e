"""Handlers of meta-processes that have nothing to do: kept for a moment, in case more comes, and
then let go.
"""

from typing import Final, Protocol

import trio

__all__ = ["IdleHandlers"]

_ROUND: Final = 0.5
"""Seconds between two rounds; a handler goes in the second round after it fell asleep."""


class Idle(Protocol):
    """Somebody whose handler is asleep."""

    def retire(self) -> None: ...


class IdleHandlers:
    """Starting a task for each burst costs as much as serving it, so a handler outlives its burst
    by up to a second.
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
        """Note one that fell asleep."""
        self._idle[handler] = self._round
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._go_round, self._scope, name="lingering handlers")

    def discard(self, handler: Idle) -> None:
        """Note one that was woken."""
        self._idle.pop(handler, None)

    def stop(self) -> None:
        """End the rounds."""
        if self._scope is not None:
            self._scope.cancel()

    async def _go_round(self, scope: trio.CancelScope) -> None:
        with scope:
            while self._idle:
                await trio.sleep(_ROUND)
                self._round += 1
                for handler, since in list(self._idle.items()):
                    if since < self._round - 1:
                        handler.retire()
        self._scope = None
