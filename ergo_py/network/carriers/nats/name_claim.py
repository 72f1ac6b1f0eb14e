"""`NameClaim`: the claim of a node to its name, and which of two nodes with the same name keeps
it.
"""

import json
from typing import Final

import trio

__all__ = ["LATE", "LEFT", "MEMBER", "OPENS", "RETURNS", "NameClaim"]

# How well a node is entitled to its name, the best first. A program that was stopped or cut off
# does not take its name back from a successor that has served meanwhile.
MEMBER: Final = 0
RETURNS: Final = 1
"""It was a member until its connection broke. Of two such nodes, the younger has served last."""
LATE: Final = 2
"""The same, and it was away for longer than the patience."""
OPENS: Final = 3
LEFT: Final = 4
"""It has left the network before, and tries to join it again."""


class NameClaim:
    """The claim of a node to its name."""

    __slots__ = (
        "_creation",
        "_lot",
        "_name",
        "alone",
        "claimed_at",
        "decided",
        "lost",
        "taken",
        "title",
    )

    def __init__(self, name: str, creation: int, lot: int) -> None:
        self._name = name
        self._creation = creation
        self._lot = lot
        """Decides between two nodes that were started in the same moment."""
        self.title: int = OPENS
        """How well this node is entitled to its name."""
        self.claimed_at: float = 0.0
        """When this node, or a younger node that will leave, last claimed the name."""
        self.taken: str = ""
        """Why this node has left the network."""
        self.begin()

    def begin(self) -> None:
        """Nothing is decided: the node is about to take part in the network, perhaps again."""
        self.alone: trio.Event = trio.Event()
        """The server says that no other node listens under this name."""
        self.decided: trio.Event = trio.Event()
        """This node is alone under its name, or has lost it."""
        self.lost: trio.Event = trio.Event()
        """Another node has the name."""

    def is_entitled(self, title: int) -> None:
        """Note how well this node is entitled to its name from now on."""
        self.title = title

    def joined(self) -> None:
        """The node is a member again: it has not left the network any more."""
        self.taken = ""

    def renew(self) -> None:
        """This node claims the name now."""
        self.claimed_at = trio.current_time()

    def rank(self) -> list[int]:
        """Of two nodes with the same name, the node with the lower rank keeps it."""
        age = -self._creation if self.title in (RETURNS, LATE) else self._creation
        return [self.title, age, self._lot]

    def meet(self, data: bytes) -> bool | None:
        """Compare with the claim of another node. True if this node keeps its name, False if the
        other node has it; None if the data is no claim.
        """
        try:
            other = json.loads(data)
        except (ValueError, RecursionError):
            return None
        # Exact types: any client may publish here, and a bool or a float would be compared as a
        # number.
        if type(other) is not list or [type(value) for value in other] != [int, int, int]:
            return None
        if other < self.rank():
            self.taken = f"another node has the name {self._name!r}; give each node its own name"
            self.lost.set()
            self.decided.set()
            return False
        self.renew()
        return True

    def note_alone(self, waits: bool) -> None:
        """The server says that no other node listens under the name. A node that ``waits`` is no
        member yet: others may still be connecting to the server again.
        """
        # The node is open from this moment on: a claim that follows in the same turn of the reader
        # must find it so.
        if self.title != LEFT and not waits:
            self.title = MEMBER

    def decide_alone(self) -> None:
        """The name is this node's own."""
        self.alone.set()
        self.decided.set()
