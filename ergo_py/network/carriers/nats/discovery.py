"""`Discovery`: a node looks for the other nodes of its cluster, and answers those that do so."""

from collections.abc import Callable
from typing import Final

import trio

__all__ = ["Discovery"]

_SECONDS: Final = 1.0
"""Seconds in which a node answers a single search of another node. A search repeats its question
after a little more, so that an answer that was lost comes with the next.
"""
_SEARCHERS: Final = 1000
"""How many nodes a node answers in that time, so that a flood of invented names costs a bounded
number of answers. Not measured: it is the number of nodes that `sizing` simulates.
"""


class Discovery:
    """The searches of a node, and its answers to the searches of others."""

    __slots__ = ("_answered", "found", "searches")

    def __init__(self) -> None:
        self.searches: int = 0
        """How many searches for other nodes are under way."""
        self.found: dict[str, float] = {}
        """The nodes that have answered a search, and when."""
        self._answered: dict[str, float] = {}
        """The nodes whose searches this node has answered within `_SECONDS`, the first first."""

    async def search(self, seconds: float, ask: Callable[[], None]) -> list[str]:
        """Ask all nodes for their names, and wait for the answers."""
        since = trio.current_time() - _SECONDS
        # A node that has answered within this time does not answer now.
        self.found = {node: at for node, at in self.found.items() if at > since}
        self.searches += 1
        try:
            with trio.move_on_after(seconds):
                while True:
                    ask()
                    await trio.sleep(1.1 * _SECONDS)
        finally:
            self.searches -= 1
        return sorted(node for node, at in self.found.items() if at > since)

    def note_present(self, node: str) -> None:
        """A node has answered."""
        if self.searches:
            self.found[node] = trio.current_time()

    def may_answer(self, node: str) -> bool:
        """Whether to answer the search of a node: once in `_SECONDS`."""
        now, answered = trio.current_time(), self._answered
        # In the order of time: an answered node is never put back, so the first is the oldest.
        while answered and next(iter(answered.values())) <= now - _SECONDS:
            del answered[next(iter(answered))]
        if node in answered or len(answered) >= _SEARCHERS:
            return False
        answered[node] = now
        return True
