"""`Asleep`: what a keeper knows of entities that are asleep."""

from collections.abc import Callable

from ..entity_handles import Address

__all__ = ["Asleep"]


class Asleep:
    """What the keeper knows of entities that are asleep."""

    __slots__ = ("failures", "moments", "parked")

    def __init__(self) -> None:
        self.parked: dict[Address, int] = {}
        """How many parked messages they have, as far as it is known: of those that were awake, and
        of all after a search.
        """
        self.failures: dict[Address, int] = {}
        """How often the process of an entity has failed in a row."""
        self.moments: dict[Address, dict[int, float]] = {}
        """The moments of the next attempts of those that owe messages: to wake them does not count
        as an attempt.
        """

    def __len__(self) -> int:
        return len(self.parked) + len(self.failures) + len(self.moments)

    def forget(self, is_gone: Callable[[Address], bool]) -> None:
        """Forget entities that belong to another node."""
        for table in (self.parked, self.failures, self.moments):
            for address in [each for each in table if is_gone(each)]:
                del table[address]

    def wake(self, address: Address) -> dict[int, float] | None:
        """Note that an entity wakes up. Returns the moments of its next attempts."""
        self.parked.pop(address, None)
        return self.moments.pop(address, None)

    def count_failure(self, address: Address) -> int:
        """Count a failure. Returns the number of those before."""
        before = self.failures.get(address, 0)
        self.failures[address] = before + 1
        return before
