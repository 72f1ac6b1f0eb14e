"""`SeenRevisions`: the revisions of a store that a node has seen.

A store whose answer shows an older revision has lost confirmed writes. The node compares an answer
with the revisions that it knew *before* it asked, since answers may overtake each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from .store import LARGEST, Entry, StoreError

__all__ = ["Expectation", "SeenRevisions"]

_KEYS: Final = 10_000
"""The most keys that are remembered. The oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The revisions that a node knows when it asks."""

    last: int
    """The last revision of the whole store."""
    of_key: int
    """The last revision of the key of the question."""


class SeenRevisions:
    """Remembers the revisions and numbers that a node has seen. The revisions of all keys together
    grow with each write.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last = 0
        self._largest = 0
        self._keys: dict[str, int] = {}
        self.lost_at: float = -inf
        """When this node last noticed a loss, on the clock of its program."""

    def next_number(self) -> int:
        """A number for a new entry: the clock, and larger than all numbers that this node has seen,
        since clocks are set back, and differ.

        Raises:
            StoreError: an entry has the largest number that there is, which no clock gives.
        """
        if self._largest >= LARGEST:
            raise StoreError(
                f"an entry of the store has the number {self._largest}, and no number is larger: "
                "whoever may write to the store has made it up; remove the entry, and find out who "
                "has written it"
            )
        return max(self._clock(), self._largest + 1)

    def expect(self, key: str = "") -> Expectation:
        """The revisions that an answer must not fall below."""
        return Expectation(self._last, self._keys.get(key, 0))

    def shows_loss(self, key: str, found: Entry | None, expected: Expectation) -> bool:
        """Take the answer to a question for an entry, and tell whether the entry is older than it
        was.
        """
        revision = 0 if found is None else found.revision
        # Another task may have noticed the same loss meanwhile, and has forgotten the key.
        if revision < min(expected.of_key, self._keys.get(key, 0)):
            return True
        if found is not None:
            self._note(key, found)
        return False

    def shows_lost_writes(self, key: str, written: Entry, expected: Expectation) -> bool:
        """Take the confirmation of a write, and tell whether the store has given the revision out
        before.
        """
        # The smaller of both: another task may have noticed a loss since the question, and then the
        # revisions of before count no more.
        is_old = written.revision <= min(expected.last, self._last)
        if not is_old:
            self._note(key, written)
        return is_old

    def shows_less(self, last: int, expected: Expectation) -> bool:
        """Take the last revision of the whole store, and tell whether it was larger before."""
        is_less = last < min(expected.last, self._last)
        if not is_less:
            self._last = max(self._last, last)
        return is_less

    def _note(self, key: str, entry: Entry) -> None:
        self._last = max(self._last, entry.revision)
        self._largest = max(self._largest, entry.number)
        # Put back at the end: the keys that were not seen for the longest time are forgotten first.
        self._keys.pop(key, None)
        # The marker of a removed entry disappears after a while.
        if entry.value:
            self._keys[key] = entry.revision
            if len(self._keys) > _KEYS:
                del self._keys[next(iter(self._keys))]

    def note_loss(self, now: float) -> None:
        """Note that the store has lost writes, and learn its revisions again."""
        self.lost_at = now
        self.forget()

    def forget(self) -> None:
        """Begin with a store that has other revisions. Numbers still grow."""
        self._last = 0
        self._keys.clear()
