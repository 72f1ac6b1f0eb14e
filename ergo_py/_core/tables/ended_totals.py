"""`EndedTotals`: the sums of all processes and meta-processes that have ended, by behaviour.

A counter of a behaviour is the sum of its living processes and of its ended ones, so that it never
falls. A process adds its sums once, when it leaves the tables of the node.
"""

from collections.abc import Callable, MutableMapping
from time import sleep
from typing import Any, Final, NamedTuple, TypeVar

__all__ = ["MOST_LABELS", "OTHER", "BehaviourTotals", "EndedTotals", "Ledger"]

T = TypeVar("T")

MOST_LABELS: Final = 200
"""How many behaviours, children or servers have sums of their own. A program may make any number of
classes at run time.
"""
OTHER: Final = "other"
"""The label of all others together."""
_TRIES: Final = 200
_PAUSE: Final = 0.0005
"""A reader looks again so many times, with pauses of so many seconds: a tenth of a second, far more
than the loop takes between the two steps. A loop that stands still there lets no reader wait on.
"""


class BehaviourTotals(NamedTuple):
    """The sums of the ended processes of a behaviour, at a moment."""

    ended: int = 0
    handled: int = 0
    """Messages that they handled."""
    sent: int = 0
    """Messages that they sent."""
    busy: float = 0.0
    """Seconds that they spent in callbacks."""
    crashed: int = 0
    """Crashes, also those after which the process continued."""
    is_meta: bool = False
    """Whether they are meta-processes."""


class Ledger(NamedTuple):
    """A copy of the sums, which belongs to a list of living processes: each process is either in
    the list or in the sums.
    """

    behaviours: dict[str, BehaviourTotals]
    restarts: dict[str, int]
    """Restarts by the name of the child's specification."""
    traffic: dict[str, tuple[int, int]]
    """Bytes received and sent, by the class of the server or connection."""


class _Sums:
    __slots__ = ("busy", "crashed", "ended", "handled", "is_meta", "sent")

    def __init__(self) -> None:
        self.is_meta = False
        self.ended = self.handled = self.sent = self.crashed = 0
        self.busy = 0.0

    def copy(self) -> BehaviourTotals:
        return BehaviourTotals(
            self.ended, self.handled, self.sent, self.busy, self.crashed, self.is_meta
        )


class EndedTotals:
    """The sums of ended processes. The loop changes it; any thread may read it."""

    __slots__ = ("_behaviours", "_left", "_leaving", "_restarts", "_traffic")

    def __init__(self) -> None:
        self._behaviours: dict[str, _Sums] = {}
        self._restarts: dict[str, int] = {}
        self._traffic: dict[str, tuple[int, int]] = {}
        self._leaving = 0
        """How many processes have begun to leave the tables of the node."""
        self._left = 0
        """How many of these are in the sums."""

    # -- on the loop -------------------------------------------------------------------------------

    def take(
        self,
        table: MutableMapping[Any, Any],
        key: object,
        behaviour: str,
        handled: int,
        sent: int,
        busy: float = 0.0,
        is_meta: bool = False,
        traffic: tuple[str, int, int] | None = None,
    ) -> None:
        """Take a process or meta-process out of a table of the node, if it is still there, and add
        its sums. ``traffic`` of a meta-process has the class of its server, and the bytes received
        and sent. A single method, since every end pays for it.
        """
        self._leaving += 1
        if table.pop(key, None) is not None:
            sums = self._behaviours.get(behaviour)
            if sums is None:
                sums = self._behaviours[_label(self._behaviours, behaviour, _Sums)]
            sums.ended += 1
            sums.handled += handled
            sums.sent += sent
            sums.busy += busy
            if is_meta:
                sums.is_meta = True
            if traffic is not None:
                label = traffic[0]
                if label not in self._traffic:
                    label = self.server_label(label)
                before = self._traffic[label]
                self._traffic[label] = before[0] + traffic[1], before[1] + traffic[2]
        self._left += 1

    def rename(
        self,
        change: Callable[[], None],
        before: str,
        after: str,
        handled: int,
        sent: int,
        busy: float,
    ) -> None:
        """Have ``change`` give a living process another behaviour. What the process has done so far
        stays with the behaviour before, so that no counter falls.
        """
        self._leaving += 1
        change()
        for behaviour, sign in ((before, 1), (after, -1)):
            sums = self._behaviours[_label(self._behaviours, behaviour, _Sums)]
            sums.ended += sign
            sums.handled += sign * handled
            sums.sent += sign * sent
            sums.busy += sign * busy
        self._left += 1

    def count_crash(self, behaviour: str) -> None:
        """Count a crash, after which the process ends or continues."""
        sums = self._behaviours.get(behaviour)
        if sums is None:
            sums = self._behaviours[_label(self._behaviours, behaviour, _Sums)]
        sums.crashed += 1

    def count_restart(self, child: str) -> None:
        """Count the restart of a child, by the name in its specification."""
        restarts = self._restarts
        if child not in restarts:
            child = child if len(restarts) < MOST_LABELS else OTHER
            restarts.setdefault(child, 0)
        restarts[child] += 1

    # -- from any thread ---------------------------------------------------------------------------

    def label(self, behaviour: str) -> str:
        """The label of a behaviour: its name, or `OTHER` if there are too many. It never
        changes.
        """
        return _label(self._behaviours, behaviour, _Sums)

    def server_label(self, server: str) -> str:
        """The label of a server, likewise."""
        return _label(self._traffic, server, _no_traffic)

    def read(self, living: Callable[[], T]) -> tuple[T, Ledger]:
        """Copy the sums together with the list of living processes that ``living`` returns, at a
        moment at which no process is on its way from one to the other.
        """
        tries = _TRIES
        while True:
            left, leaving = self._left, self._leaving
            found, ledger = living(), self._copy()
            tries -= 1
            if left == leaving == self._leaving or not tries:
                return found, ledger
            # The loop was interrupted between the two steps, and needs a moment.
            sleep(_PAUSE)

    def _copy(self) -> Ledger:
        # list(...) first: no other thread can interrupt it, while the loop adds a behaviour.
        return Ledger(
            {name: sums.copy() for name, sums in list(self._behaviours.items())},
            dict(self._restarts),
            dict(self._traffic),
        )


def _no_traffic() -> tuple[int, int]:
    return 0, 0


def _label(table: dict[str, T], name: str, new: Callable[[], T]) -> str:
    """Find the label of a name in a table, and give it an entry."""
    if name not in table:
        if len(table) >= MOST_LABELS:
            name = OTHER
        table.setdefault(name, new())
    return name
