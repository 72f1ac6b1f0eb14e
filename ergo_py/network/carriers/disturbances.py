"""`Disturbance`: losses, duplicates and delays of the frames of a `Memory`."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from ..._core.vocabulary.errors import BadInputError

__all__ = ["Disturbance", "Fate"]


class Fate(NamedTuple):
    """The choice of a disturbance for a frame."""

    is_lost: bool
    is_doubled: bool


class Disturbance:
    """A fault of the way from some nodes to others: ``Memory.disturb`` returns it."""

    def __init__(
        self,
        sender: str | None,
        to: str | None,
        lose: float,
        double: float,
        delay: tuple[float, float],
        seed: int,
        on_end: Callable[["Disturbance"], None],
    ) -> None:
        for name, share in (("lose", lose), ("double", double)):
            if not 0.0 <= share <= 1.0:
                raise BadInputError(name, share, "a share from 0.0 to 1.0")
        least, most = delay
        if not 0.0 <= least <= most:
            raise BadInputError("delay", delay, "the shortest and the longest delay, in seconds")
        self._sender = sender
        self._to = to
        self._lose = lose
        self._double = double
        self._delay = delay
        self._random = Random(seed)
        self._on_end = on_end

    def end(self) -> None:
        """Disturb no more frames. May be called twice."""
        self._on_end(self)

    def concerns(self, sender: str, to: str) -> bool:
        """Whether it concerns frames from a node to another."""
        return self._sender in (None, sender) and self._to in (None, to)

    def draw(self) -> Fate:
        """Choose for the next frame."""
        # Two draws for each frame, so that a lost frame does not change the fate of the others.
        first, second = self._random.random(), self._random.random()
        return Fate(first < self._lose, second < self._double)

    def draw_delay(self) -> float:
        """Choose the delay of the next frame, or of its copy."""
        least, most = self._delay
        return self._random.uniform(least, most) if most else 0.0
