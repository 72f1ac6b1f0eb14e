"""`Relations`: links and monitors, indexed by watcher and by target, so that either can leave
without a search.
"""

from collections.abc import Iterator
from enum import Enum

from ..vocabulary.errors import RelationExistsError, RelationUnknownError
from ..vocabulary.ids import PID, Address, EventName, NodeName

__all__ = ["Kind", "Relation", "Relations", "Watched"]

Watched = Address | EventName | NodeName


class Kind(Enum):
    """The signal that a watcher gets when the target ends: an exit (link) or a down (monitor)."""

    LINK = "link"
    MONITOR = "monitor"


class Relation:
    """A link or monitor from a watcher to a target. It lives until its signal is delivered, it is
    removed, or its watcher ends.
    """

    __slots__ = ("alive", "follows", "kind", "target", "watcher")

    def __init__(self, watcher: PID, target: Watched, kind: Kind, follows: bool = False) -> None:
        self.watcher: PID = watcher
        self.target: Watched = target
        self.kind: Kind = kind
        self.alive: bool = True
        self.follows: bool = follows
        """Whether it outlives the end of its target, an event, and waits for the next of its name.
        """

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.watcher} → {self.target}>"


class Relations:
    """The table of all relations of a node."""

    __slots__ = ("by_target", "by_watcher")

    def __init__(self) -> None:
        # Public, since each process that ends checks whether both are empty, as on many nodes. Only
        # the methods of this class change them.
        self.by_watcher: dict[PID, dict[tuple[Kind, Watched], Relation]] = {}
        self.by_target: dict[Watched, dict[Relation, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_watcher.values()))

    def __bool__(self) -> bool:
        return bool(self.by_watcher or self.by_target)

    def add(self, watcher: PID, target: Watched, kind: Kind, follows: bool = False) -> Relation:
        """Add a relation.

        Raises:
            RelationError: of kind ``"exists"``; the watcher has the same relation already.
        """
        mine = self.by_watcher.setdefault(watcher, {})
        if (kind, target) in mine:
            raise RelationExistsError(kind.value, target)
        relation = mine[kind, target] = Relation(watcher, target, kind, follows)
        self.by_target.setdefault(target, {})[relation] = None
        return relation

    def remove(self, watcher: PID, target: Watched, kind: Kind) -> None:
        """Remove a relation at once. If its signal is queued already, the signal is void.

        Raises:
            RelationError: of kind ``"unknown"``; the watcher has no such relation.
        """
        relation = self.by_watcher.get(watcher, {}).get((kind, target))
        if relation is None:
            raise RelationUnknownError(kind.value, target)
        relation.alive = False
        self._drop_from_watcher(relation)
        self._drop_from_target(relation)

    def fire(self, target: Watched) -> tuple[Relation, ...]:
        """Take all relations to a target that ended. Each stays with its watcher until its signal
        is delivered or the relation removed.
        """
        return tuple(self.by_target.pop(target, ()))

    def keep(self, relation: Relation) -> None:
        """Take back a fired relation that follows the next target of its name."""
        if relation.alive:
            self.by_target.setdefault(relation.target, {})[relation] = None

    def deliver(self, relation: Relation) -> bool:
        """Close a fired relation when the watcher handles its signal. False if the relation was
        removed in the meantime.
        """
        if not relation.alive:
            return False
        relation.alive = False
        self._drop_from_watcher(relation)
        return True

    def forget(self, watcher: PID) -> Iterator[Watched]:
        """Remove the relations of a watcher that ended, step by step. Yield the target of each."""
        mine = self.by_watcher.pop(watcher, None)
        if mine is None:
            return
        for relation in mine.values():
            relation.alive = False
            self._drop_from_target(relation)
            yield relation.target

    def count(self, process: PID) -> int:
        """The number of relations to a process and of its own relations."""
        return len(self.by_target.get(process, ())) + len(self.by_watcher.get(process, ()))

    def has_watchers(self, target: Watched) -> bool:
        """Say whether any relation to a target is left."""
        return target in self.by_target

    def has(self, watcher: PID, target: Watched, kind: Kind) -> bool:
        """Say whether a watcher has this relation."""
        return (kind, target) in self.by_watcher.get(watcher, ())

    def of_watcher(self, watcher: PID, kind: Kind) -> tuple[Watched, ...]:
        """The targets of a watcher's relations of this kind."""
        return tuple(target for k, target in self.by_watcher.get(watcher, ()) if k is kind)

    def of_target(self, target: Watched, kind: Kind) -> tuple[PID, ...]:
        """The watchers of a target with relations of this kind."""
        return tuple(
            relation.watcher for relation in self.by_target.get(target, ()) if relation.kind is kind
        )

    def _drop_from_watcher(self, relation: Relation) -> None:
        mine = self.by_watcher.get(relation.watcher)
        if (
            mine is not None
            and mine.pop((relation.kind, relation.target), None) is not None
            and not mine
        ):
            del self.by_watcher[relation.watcher]

    def _drop_from_target(self, relation: Relation) -> None:
        watchers = self.by_target.get(relation.target)
        if watchers is not None:
            watchers.pop(relation, None)
            if not watchers:
                del self.by_target[relation.target]
