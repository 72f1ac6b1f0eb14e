"""`Store`: a small table that all nodes of a network share, for leases of names.

An entry changes only by compare-and-set: a write names the revision that it replaces. No entry of a
holder expires by itself: nodes compare revisions, each on its own clock.

A store may be lost, and may be replaced by an older copy of itself: a backup, or a disk that had
confirmed writes only in memory. `SeenRevisions` notices the copy, and the numbers of entries come
from the clock, so they grow nevertheless.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from ..errors import StoreError

__all__ = ["LARGEST", "TIMEOUT", "Age", "ConflictError", "Entry", "Store", "StoreError"]

LARGEST: Final = (1 << 63) - 1
"""The largest number of an entry: databases keep it as a signed integer of 64 bits."""

# Not measured: a lease of 30 s, the usual length, leaves time for several attempts to renew it.
TIMEOUT: Final = 2.0
"""Seconds after which a store that does not answer counts as unreachable."""


class ConflictError(Exception):
    """The entry has another revision than the write expects. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, and the revision that a write has to name to replace it. The revisions of a key grow
    as long as the store loses nothing.
    """

    value: bytes
    revision: int
    number: int
    """A number that is larger for each later entry of a key, also after the store was lost or was
    replaced by an older copy, if the clocks of the nodes are right. At most `LARGEST`.
    """


@dataclass(frozen=True, slots=True)
class Age:
    """How long the content of a store can be trusted, in seconds."""

    made: float
    """Since the store was made. A missing entry of a younger store may be an entry that was lost
    together with an earlier store.
    """
    whole: float
    """Since a node has noticed that the store had lost confirmed writes. Until a lease has passed,
    each entry may be older than the last entry of its key.
    """


class Store(Protocol):
    """The table, as a node sees it."""

    async def get(self, key: str) -> Entry | None:
        """The entry of a key; None if there is none. An entry without a value marks a key whose
        entry was removed.

        Raises:
            StoreError: the store cannot be reached.
        """
        ...

    async def put(self, key: str, value: bytes, revision: int) -> Entry:
        """Replace the value of a key that has this revision; 0 for a key without an entry. Returns
        the new entry. The value is not empty.

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

    async def age(self) -> Age:
        """How long the content of the store can be trusted.

        Raises:
            StoreError: the store cannot be reached.
        """
        ...

    def is_gone(self, node: str, creation: int, /) -> bool:
        """Whether the program of that start of a node has certainly ended. False if the store does
        not know.
        """
        ...
