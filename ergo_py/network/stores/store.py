"""`Store`: a small table that all nodes of a network share, for leases of names.

An entry changes only by compare-and-set: a write names the revision that it replaces. A store has
no clock, and no entry expires by itself: nodes compare revisions, each on its own clock.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from ..errors import StoreError

__all__ = ["TIMEOUT", "ConflictError", "Entry", "Store", "StoreError"]

TIMEOUT: Final = 2.0
"""Seconds after which a store that does not answer counts as unreachable."""


class ConflictError(Exception):
    """The entry has another revision than the write expects. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, and the revision that a write has to name to replace it. A store never uses a
    revision twice for a key.
    """

    value: bytes
    revision: int


class Store(Protocol):
    """The table, as a node sees it."""

    async def get(self, key: str) -> Entry | None:
        """The entry of a key; None if there is none. An entry without a value marks a key whose
        entry was removed.

        Raises:
            StoreError: the store cannot be reached.
        """
        ...

    async def put(self, key: str, value: bytes, revision: int) -> int:
        """Replace the value of a key that has this revision; 0 for a key without an entry. Returns
        the new revision. The value is not empty.

        Raises:
            ConflictError: the key has another revision.
            StoreError: the store cannot be reached; the value may have been written.
        """
        ...

    async def delete(self, key: str, revision: int) -> None:
        """Remove the entry of a key that has this revision.

        Raises:
            ConflictError, StoreError: as for :meth:`put`.
        """

    async def age(self) -> float:
        """Seconds since the store was made. A missing entry of a younger store may be an entry that
        was lost together with an earlier store.

        Raises:
            StoreError: the store cannot be reached.
        """
        ...

    def is_gone(self, node: str, creation: int, /) -> bool:
        """Whether the program of that start of a node has certainly ended. False if the store does
        not know.
        """
        ...
