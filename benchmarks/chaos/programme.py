"""Which scenarios there are, and in which order they come."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random

import trio

from .ordeals import ORDEALS
from .parts import MAIN, PARTS, strike
from .rig import Rig

__all__ = ["Scenario", "endless", "whole", "brief"]

GAPS = (0.0, 0.0, 0.003, 0.03, 0.07, 0.2)
"""Seconds between two strikes: at once, while the first part ends, while it waits to come back, and
after that.
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something terrible, with a name for the report."""

    name: str
    ordeal: Callable[[Rig], Awaitable[None]]


def killing(parts: Sequence[str]) -> Scenario:
    """Strike these parts in this order."""

    async def ordeal(rig: Rig) -> None:
        for name in parts:
            await strike(rig, name)
            await trio.sleep(rig.random.choice(GAPS))
        await rig.progress()

    return Scenario(", ".join(parts), ordeal)


def whole() -> Iterator[Scenario]:
    """Each part alone, each pair in both orders, the four main parts in every order, and all other
    ordeals.
    """
    yield from (Scenario(name, ordeal) for name, ordeal in ORDEALS.items())
    for count in (1, 2):
        yield from map(killing, permutations(PARTS, count))
    yield from map(killing, permutations(MAIN))


def endless(random: Random) -> Iterator[Scenario]:
    """All parts in orders that chance decides, each perhaps more than once."""
    while True:
        yield killing(random.choices(list(PARTS), k=random.randint(3, 12)))


def brief(random: Random) -> Iterator[Scenario]:
    """A few seconds of it: every part once, in an order that chance decides, and the other quick
    ordeals.
    """
    parts = list(PARTS)
    random.shuffle(parts)
    yield killing(parts)
    for name in (
        "no room in the database",
        "no descriptors",
        "a clock that jumps",
        "a stuck thread",
        "a busy loop",
        "a stop in the middle",
    ):
        yield Scenario(name, ORDEALS[name])
