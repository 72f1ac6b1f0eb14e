"""`Wanted`: the entities that are to wake up, in order."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

from ...entity_handles import Address

__all__ = ["Wanted"]

_TURNS: Final = 4
"""One of so many that wake up has work to do, if others wait for more."""


class Wanted:
    """The entities that are to wake up. Those that others call or send to come in turns with those
    that have work to do: a million due timers do not stop a new call.

    Each method looks at a batch at most.
    """

    __slots__ = ("_aside", "_called", "_doubtful", "_due", "_stirred", "_turn")

    def __init__(self) -> None:
        self._called: OrderedDict[Address, None] = OrderedDict()
        """Those that others wait for."""
        self._due: OrderedDict[Address, None] = OrderedDict()
        """Those that have work to do."""
        self._aside: OrderedDict[Address, bool] = OrderedDict()
        """Those that cannot wake yet, with whether they were called: a version is being stored."""
        self._stirred = 0
        """How many of those aside are to be looked at again."""
        self._doubtful: OrderedDict[Address, None] | None = None
        """Those of the called of which it is not known yet whether an entity that is awake waits
        for them; None if nobody asks.
        """
        self._turn = 0
        """The turn of the last that was taken; those that have work to do begin in turn 0."""

    def __len__(self) -> int:
        return len(self._called) + len(self._due) + len(self._aside)

    def __contains__(self, address: Address) -> bool:
        return address in self._called or address in self._due or address in self._aside

    @property
    def is_ready(self) -> bool:
        """Whether an entity waits that may be able to wake."""
        return bool(self._called or self._due)

    @property
    def due(self) -> int:
        """How many have work to do."""
        return len(self._due)

    def add(self, address: Address, *, is_called: bool) -> None:
        """Wake an entity, behind the others."""
        self._aside.pop(address, None)
        if is_called:
            self._due.pop(address, None)
            self._called[address] = None
            if self._doubtful is not None:
                self._doubtful[address] = None
        elif address not in self._called:
            self._due[address] = None

    def discard(self, address: Address) -> None:
        """Do not wake an entity."""
        self._remove(address)
        self._aside.pop(address, None)

    def _remove(self, address: Address) -> None:
        self._called.pop(address, None)
        self._due.pop(address, None)
        if self._doubtful is not None:
            self._doubtful.pop(address, None)

    def take(self, address: Address) -> None:
        """Wake an entity now."""
        self.discard(address)
        self._turn = (self._turn + 1) % _TURNS

    def first(self, most: int) -> list[Address]:
        """The next, at most so many, in turns: also if a single one can be taken at a time, those
        that have work to do get their part.
        """
        called, due = iter(self._called), iter(self._due)
        found: list[Address] = []
        for turn in range(self._turn + 1, self._turn + 1 + most):
            one, other = (called, due) if turn % _TURNS else (due, called)
            address = next(one, None) or next(other, None)
            if address is None:
                break
            found.append(address)
        return found

    def put_aside(self, address: Address) -> None:
        """Keep an entity that cannot wake yet, until `stir`."""
        self._aside[address] = address in self._called
        self._remove(address)

    def stir(self) -> None:
        """Look again at those that could not wake: some may by now."""
        self._stirred = len(self._aside)

    def look_again(self, most: int) -> bool:
        """Take back some of those that could not wake. True if others are left to look at."""
        for _ in range(min(most, self._stirred, len(self._aside))):
            address, is_called = self._aside.popitem(last=False)
            self.add(address, is_called=is_called)
            self._stirred -= 1
        self._stirred = min(self._stirred, len(self._aside))
        return self._stirred > 0

    def awaited(self, most: int, is_awaited: Callable[[Address], bool]) -> list[Address] | None:
        """Those of the called that an entity which is awake waits for. Looks at a part of them; the
        next call looks at the next part. None if the end is reached.
        """
        if self._doubtful is None:
            self._doubtful = self._called.copy()
        part = list(islice(self._doubtful, most))
        for each in part:
            del self._doubtful[each]
        found = [each for each in part if is_awaited(each)]
        if self._doubtful:
            return found
        self._doubtful = None
        return found or None
