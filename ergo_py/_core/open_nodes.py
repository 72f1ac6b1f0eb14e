"""`open_nodes`: the nodes of this program that are open, and the advice if two of them have the
same name.

Such nodes are no mistake by themselves: a test may open two, each for itself. Their addresses look
alike, though, and a process at an address of the other node is not found.
"""

import sys
import time
from typing import Final

from .runtime.bridge import Lock
from .sources import seeded_creation
from .vocabulary.ids import PID, Alias

__all__ = ["OpenNodes", "opened_at", "open_nodes"]

_BETWEEN: Final = frozenset({"ergo_py", "trio", "outcome", "contextlib"})
"""Packages whose frames are between `open_node` and the program that calls it."""
_SHOWN: Final = 3
"""Nodes of a name whose places the advice names."""


def opened_at() -> str:
    """The file and the line of the program that opens a node; in a thread of ours, its name."""
    frame = sys._getframe()
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class OpenNodes:
    """Numbers the nodes that start in this program, and knows the open ones. All numbers differ,
    even if the clock is set back.
    """

    def __init__(self) -> None:
        self._last = 0
        self._lock = Lock()
        self._places: dict[tuple[str, int], str] = {}
        """Where each node was opened, by its name and number. Without the nodes that a seed
        numbers: a simulation may end without an end of its nodes.
        """

    def add(self, name: str, place: str) -> int:
        """Return the number of a node: the time; or the last number plus 1, if the clock stands
        still or was set back.
        """
        seeded = seeded_creation()
        if seeded is not None:
            return seeded
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            self._places[name, self._last] = place
            return self._last

    def remove(self, name: str, creation: int) -> None:
        """Forget a node that has stopped."""
        self._places.pop((name, creation), None)

    def places(self, name: str) -> str:
        """Where the open nodes of a name were opened, as a text about the first of them."""
        found = [place for key, place in tuple(self._places.items()) if key[0] == name]
        if len(found) > _SHOWN:
            found[_SHOWN:] = [f"{len(found) - _SHOWN} more"]
        return " and ".join(found)

    def advice(self, address: object, name: str, creation: int) -> str:
        """What to write if ``address`` is of another open node with the name of this one; empty if
        it is not.
        """
        if not isinstance(address, PID | Alias) or address.creation == creation:
            return ""
        if address.node != name or (name, address.creation) not in self._places:
            return ""
        return (
            f"{address!r} is of another node of this program with the same name: give each node a "
            f"name of its own, as in open_node('shop-2@localhost'); they were opened at "
            f"{self.places(name)}"
        )


open_nodes: Final = OpenNodes()
