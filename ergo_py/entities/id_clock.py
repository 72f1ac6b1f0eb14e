"""`IdClock`: the clock by which ids of commands grow old."""

from collections.abc import Callable
from typing import Final

import trio

__all__ = ["IdClock"]

_DRIFT: Final = 1.0
"""Seconds by which the wall clock may be ahead without having been set."""


class IdClock:
    """The wall clock, except that this one goes on as before for a while after the wall clock was
    set forward: an id is forgotten only when its caller has had the whole time to repeat the
    command. No id that was noted before the program began has this protection.
    """

    __slots__ = ("_ahead", "_ahead_since", "_now", "_offset", "_patience")

    def __init__(self, now: Callable[[], float], patience: float) -> None:
        self._now = now
        self._patience = patience
        """Seconds after which this clock follows."""
        self._offset = now() - trio.current_time()
        """This clock is ahead of trio's by so much."""
        self._ahead = 0.0
        """The wall clock is ahead of this one by so much, and was so first at a moment of trio's
        clock.
        """
        self._ahead_since = 0.0

    def change(self, now: Callable[[], float], patience: float) -> None:
        """Go on with the settings of another keeper of the program."""
        self._now, self._patience = now, patience

    def now(self) -> float:
        """The time: as good as never later than that of the wall clock."""
        wall, moment = self._now(), trio.current_time()
        ahead = wall - moment - self._offset
        if ahead > self._ahead + _DRIFT:
            self._ahead, self._ahead_since = ahead, moment
        elif ahead <= _DRIFT or moment - self._ahead_since > self._patience:
            self._ahead, self._offset = 0.0, wall - moment
        return moment + self._offset

    def lag(self) -> float:
        """By how many seconds this clock is behind the wall clock."""
        return max(0.0, self._now() - self.now())
