"""`Store`: the contract of a store of entities. ``ergo_py.testing.STORE_RULES`` checks it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..._core.vocabulary.public_names import show_public_names
from ...actor import Actor
from ...entity_handles import Address

__all__ = ["Due", "Row", "Store", "Write"]


class Row(NamedTuple):
    """A stored entity."""

    version: int
    record: bytes


class Write(NamedTuple):
    """The new row of an entity."""

    address: Address
    base: int
    """The version that the row must have; 0 if there must be no row."""
    version: int
    """The version that it gets."""
    token: int
    """The fencing token of the writer. A store refuses tokens lower than the highest that was
    claimed for the shard.
    """
    due: float | None
    """The moment at which the entity has work to do; None for none."""
    record: bytes | None
    """None deletes the row."""
    shard: int = 0
    """The part of all entities that this one belongs to: a program claims each shard by itself."""


class Due(NamedTuple):
    """An entity that has work to do at a moment."""

    moment: float
    address: Address


class Store(Protocol):
    """Keeps a row for each entity.

    A commit that has returned is found by every later load, also after a crash. After an
    `EntityStoreError`, and after a commit that was cancelled, a write may have happened, and later
    loads agree; after a `FencedError` none of the batch has. The rows of a batch need not appear
    together, but each is whole.

    Operations may run at the same time: others list keys and read rows during a commit, and the
    keeper of the map of shards writes its row. No entity is loaded while its row is written.

    The rules of ``ergo_py.testing.STORE_RULES`` check a store of your own.
    """

    async def open(self, owner: "Actor", *, shared: bool = False) -> None:
        """Open it for a process, which calls no other operation before: they raise
        `EntityStoreError`, as they do after ``close``.

        Args:
            owner: the process.
            shared: other programs may have it open, too, if all of them share it. Each of them
                claims its shards, and writes to no others.

        Raises:
            EntityStoreError: it cannot be opened, or another program has it open, or it cannot be
                shared.
        """

    async def close(self) -> None:
        """Close it. Nothing is written after that."""

    async def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens from now on, also after a restart. A writer
        that was replaced by another, with a higher token, can write no longer, and a load after the
        claim finds all that the earlier writer has committed.

        Raises:
            FencedError: a higher token was claimed for the shard before.
            EntityStoreError: it cannot write. The claim may have happened.
        """

    async def load(self, addresses: Sequence[Address]) -> Sequence[Row | None]:
        """The rows at these addresses, in this order; None for no row.

        Raises:
            EntityStoreError: it cannot read.
        """
        ...

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write rows, at most a single row for each address, so that they survive a crash.

        Raises:
            FencedError: a row has another version than ``base``, or a token is too low. Nothing
                was written.
            EntityStoreError: it cannot write. Each row may have been written.
        """

    async def due(self, before: float, limit: int) -> Sequence[Due]:
        """The entities with work to do before a moment, the earliest first.

        Raises:
            EntityStoreError: it cannot read.
        """
        ...

    async def keys(self, kind: str, start: str, limit: int) -> Sequence[str]:
        """The keys of a kind from ``start`` on, in the order of their UTF-8.

        Raises:
            EntityStoreError: it cannot read.
        """
        ...


show_public_names(__name__)
