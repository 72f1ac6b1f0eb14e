"""Links and monitors, indexed from both ends, so that either end can leave without a search."""

from collections.abc import Iterator
from enum import Enum

from ..vocabulary.errors import RelationExistsError, RelationUnknownError
from ..vocabulary.ids import PID, Address, EventName, NodeName

__all__ = ["Kind", "Relation", "Relations", "Watched"]

Watched = Address | EventName | NodeName


class Kind(Enum):
    """What a watcher gets when the target ends: an exit, or a down."""

    LINK = "link"
    MONITOR = "monitor"


class Relation:
    """One watcher's interest in one target. It lives until it was delivered, removed, or its
    watcher ended.
    """

    __slots__ = ("alive", "kind", "target", "watcher")

    def __init__(self, watcher: PID, target: Watched, kind: Kind) -> None:
        self.watcher = watcher
        self.target = target
        self.kind = kind
        self.alive = True

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.watcher} → {self.target}>"


class Relations:
    """The table of all relations of a node."""

    __slots__ = ("_by_target", "_by_watcher")

    def __init__(self) -> None:
        self._by_watcher: dict[PID, dict[tuple[Kind, Watched], Relation]] = {}
        self._by_target: dict[Watched, dict[Relation, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_watcher.values()))

    def __bool__(self) -> bool:
        # Every process that ends asks, and on many nodes there are none.
        return bool(self._by_watcher or self._by_target)

    def add(self, watcher: PID, target: Watched, kind: Kind) -> Relation:
        """Make a relation.

        Raises:
            RelationExistsError: the watcher has the same one already.
        """
        mine = self._by_watcher.setdefault(watcher, {})
        if (kind, target) in mine:
            raise RelationExistsError(kind.value, target)
        relation = mine[kind, target] = Relation(watcher, target, kind)
        self._by_target.setdefault(target, {})[relation] = None
        return relation

    def remove(self, watcher: PID, target: Watched, kind: Kind) -> None:
        """End a relation at once; if its signal is queued already, the signal is void.

        Raises:
            RelationUnknownError: there is none.
        """
        relation = self._by_watcher.get(watcher, {}).get((kind, target))
        if relation is None:
            raise RelationUnknownError(kind.value, target)
        relation.alive = False
        self._drop_from_watcher(relation)
        self._drop_from_target(relation)

    def fire(self, target: Watched) -> tuple[Relation, ...]:
        """Take all relations to a target that ended. Each stays with its watcher until it is
        delivered or removed.
        """
        return tuple(self._by_target.pop(target, ()))

    def deliver(self, relation: Relation) -> bool:
        """Close a fired relation when its signal comes up; False if it was removed in the meantime."""
        if not relation.alive:
            return False
        relation.alive = False
        self._drop_from_watcher(relation)
        return True

    def forget(self, watcher: PID) -> Iterator[Watched]:
        """Remove everything a watcher had, since it ended, one after the other. Says what it
        watched, once for each relation.
        """
        mine = self._by_watcher.pop(watcher, None)
        if mine is None:
            return
        for relation in mine.values():
            relation.alive = False
            self._drop_from_target(relation)
            yield relation.target

    def watchers(self, target: Watched) -> int:
        """How many relations there are to a target."""
        return len(self._by_target.get(target, ()))

    def has(self, watcher: PID, target: Watched, kind: Kind) -> bool:
        """Say whether a watcher has this relation."""
        return (kind, target) in self._by_watcher.get(watcher, ())

    def of_watcher(self, watcher: PID, kind: Kind) -> tuple[Watched, ...]:
        """The targets that a watcher has relations to."""
        return tuple(target for k, target in self._by_watcher.get(watcher, ()) if k is kind)

    def of_target(self, target: Watched, kind: Kind) -> tuple[PID, ...]:
        """The watchers of a target."""
        return tuple(
            relation.watcher
            for relation in self._by_target.get(target, ())
            if relation.kind is kind
        )

    def _drop_from_watcher(self, relation: Relation) -> None:
        mine = self._by_watcher.get(relation.watcher)
        if (
            mine is not None
            and mine.pop((relation.kind, relation.target), None) is not None
            and not mine
        ):
            del self._by_watcher[relation.watcher]

    def _drop_from_target(self, relation: Relation) -> None:
        watchers = self._by_target.get(relation.target)
        if watchers is not None:
            watchers.pop(relation, None)
            if not watchers:
                del self._by_target[relation.target]
