"""`Links`: links, monitors and subscriptions of processes, and the signals at their ends."""

from collections.abc import Iterator

from ..tables.relations import Kind, Relation, Relations, Watched
from ..vocabulary.envelopes import DOWN, EXIT, NOTICE, SYSTEM_LANE, URGENT_LANE
from ..vocabulary.errors import TargetTypeError
from ..vocabulary.ids import PID, Alias, EventName, Key, Name, NodeName, Target
from ..vocabulary.messages import GroupJoined, GroupLeft
from ..vocabulary.reasons import NoProcess, Reason
from .publisher import Publisher
from .receiver import Asker
from .router import Router

__all__ = ["Links"]


class Links:
    """The relations of a node. Their signals travel through its router."""

    __slots__ = ("_node", "_publisher", "_relations", "_router")

    def __init__(
        self, router: Router, publisher: Publisher, relations: Relations, node: PID
    ) -> None:
        self._router = router
        self._publisher = publisher
        self._relations = relations
        self._node = node

    def watched(self, target: Target | EventName | NodeName) -> Watched:
        """The key of a target in the table of relations."""
        match target:
            case NodeName() | PID() | Alias():
                return target
            case EventName():
                return self._publisher.name(target)
            case str():
                return Name(target, self._node.node)
            case Name():
                return Name(target.name, target.node or self._node.node)
            case Key():
                return Key(target.registry, target.key, target.node or self._node.node)
        raise TargetTypeError(target)

    def relate(self, watcher: Asker, target: Target | EventName | NodeName, kind: Kind) -> None:
        """Create a link or a monitor. If the target has already ended, the watcher is notified at
        once.
        """
        watched = self.watched(target)
        relation = self._relations.add(watcher.id, watched, kind)
        if self._router.remote is not None and watched.node != self._node.node:
            try:
                self._router.remote.watch(watched, watcher.id)
            except BaseException:
                self._relations.remove(watcher.id, watched, kind)
                raise
            return
        if isinstance(watched, NodeName):
            if watched.node != self._node.node:
                self._relations.fire(watched)
                self.tell(relation, self._router.missing(Name("", watched.node)))
            return
        if isinstance(watched, EventName):
            if not self._publisher.subscribe(watched, watcher.id):
                self._relations.fire(watched)
                self.tell(relation, NoProcess())
            return
        receiver = self._router.resolve(watched)
        if receiver is None:
            self._relations.fire(watched)
            self.tell(relation, self._router.missing(watched))

    def unrelate(self, watcher: Asker, target: "Target | EventName | NodeName", kind: Kind) -> None:
        """Remove a link or a monitor.

        Raises:
            RelationUnknownError: there is no such relation.
        """
        watched = self.watched(target)
        self._relations.remove(watcher.id, watched, kind)
        self._forget_target(watcher.id, watched)

    def _forget_target(self, watcher: PID, watched: Watched) -> None:
        """Undo the rest of a relation that is removed."""
        if self._router.remote is not None and watched.node != self._node.node:
            if not self._relations.has_watchers(watched):
                self._router.remote.unwatch(watched)
        elif isinstance(watched, EventName):
            self._publisher.unsubscribe(watched, watcher)

    def forget_watcher(self, watcher: PID) -> Iterator[None]:
        """Remove all links, monitors and subscriptions of a process that has ended."""
        for number, target in enumerate(self._relations.forget(watcher), 1):
            self._forget_target(watcher, target)
            if not number % 256:
                yield

    def end_event(self, name: EventName, reason: Reason) -> None:
        """Remove an event and notify its subscribers."""
        self._publisher.events.remove(name)
        self.tell_all(name, reason)

    def relate_both(self, parent: Asker, child: Asker) -> None:
        """Link parent and child to each other, unless ``init`` has already done so."""
        for watcher, target in ((parent, child), (child, parent)):
            if not self._relations.has(watcher.id, target.id, Kind.LINK):
                self.relate(watcher, target.id, Kind.LINK)

    def tell(self, relation: Relation, reason: Reason) -> None:
        """Send a watcher the exit or down signal of a relation that has fired."""
        watcher = self._router.processes.get(relation.watcher)
        if watcher is None:
            if self._router.remote is not None and relation.watcher.node != self._node.node:
                self._relations.deliver(relation)
                self._router.remote.tell(relation.watcher, relation.target, reason)
            return
        if relation.kind is Kind.MONITOR:
            signal = (DOWN, relation.target, relation, reason)
            self._router.notify_of_end(watcher, SYSTEM_LANE, signal, reason)
            return
        signal = (EXIT, relation.target, relation, reason)
        if watcher.trap_exit:
            self._router.notify_of_end(watcher, URGENT_LANE, signal, reason)
        else:
            # The watcher ends, or ignores the signal: it gets no message that has to be in order.
            self._router.signal(watcher, URGENT_LANE, signal)

    def tell_group(self, group: object, notice: GroupJoined | GroupLeft) -> None:
        """Notify all processes that monitor a group."""
        watchers = map(
            self._router.processes.get, tuple(self._router.directory.watchers.get(group, ()))
        )
        for watcher in filter(None, watchers):
            self._router.signal(watcher, SYSTEM_LANE, (NOTICE, self._node, None, notice))

    def tell_all(self, target: Watched, reason: Reason) -> None:
        """Notify all watchers of ``target`` that it has ended."""
        for relation in self._relations.fire(target):
            self.tell(relation, reason)
