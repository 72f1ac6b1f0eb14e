"""`ThreadedStore`: a store of a library that blocks. A thread of its own does all reading and
writing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ..._core.vocabulary.errors import CallError, InitError, NodeStoppedError
from ...actor import Actor
from ...entity_handles import Address
from ...meta.blocking_calls import BlockingCalls
from ..errors import EntityStoreError
from .store import Due, Row, Write

__all__ = ["BlockingStore", "ThreadedStore"]

R = TypeVar("R")


class BlockingStore(Protocol):
    """The operations of a store, in its thread."""

    def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens from now on."""

    def load(self, addresses: Sequence[Address]) -> Sequence[Row | None]:
        """The rows at these addresses."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Write rows."""

    def due(self, before: float, limit: int) -> Sequence[Due]:
        """The entities with work to do before a moment."""
        ...

    def keys(self, kind: str, start: str, limit: int) -> Sequence[str]:
        """The keys of a kind."""
        ...

    def close(self) -> None:
        """Close it; called in its thread, too."""


class ThreadedStore:
    """A store in a thread. It closes with the process that has opened it."""

    def __init__(self, factory: Callable[[bool], BlockingStore]) -> None:
        self._factory = factory
        self._calls: BlockingCalls | None = None

    async def open(self, owner: "Actor", *, shared: bool = False) -> None:
        """Open it, in a thread that belongs to ``owner``.

        Raises:
            EntityStoreError: it cannot be opened, or another program has it open.
        """
        self._calls = None
        calls = BlockingCalls(factory=lambda: self._factory(shared))
        try:
            await owner.spawn_meta(calls)
        except InitError as error:
            if isinstance(error.__cause__, EntityStoreError):
                raise error.__cause__ from None
            raise
        self._calls = calls

    async def close(self) -> None:
        """Do nothing: it closes with the process that has opened it."""

    async def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens from now on."""
        await self.run(lambda store: store.claim(shard, token))

    async def load(self, addresses: Sequence[Address]) -> Sequence[Row | None]:
        """The rows at these addresses."""
        return await self.run(lambda store: store.load(addresses))

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write rows in a transaction."""
        await self.run(lambda store: store.commit(writes))

    async def due(self, before: float, limit: int) -> Sequence[Due]:
        """The entities with work to do before a moment."""
        return await self.run(lambda store: store.due(before, limit))

    async def keys(self, kind: str, start: str, limit: int) -> Sequence[str]:
        """The keys of a kind."""
        return await self.run(lambda store: store.keys(kind, start, limit))

    async def run(self, operation: Callable[[BlockingStore], R]) -> R:
        """Run an operation in the thread."""
        if self._calls is None:
            raise EntityStoreError(f"{self!r} is not open")
        try:
            return await self._calls.run(operation)
        except (CallError, NodeStoppedError) as error:
            raise EntityStoreError(f"the thread of {self!r} has ended: {error}") from error
