"""`Links`: links, monitors and subscriptions of processes, and the signals at their ends."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import Final

from ..tables.events import Event
from ..tables.pending_calls import Deadline
from ..tables.relations import Kind, Relation, Relations, Watched
from ..vocabulary.envelopes import DOWN, EXIT, NOTICE, SYSTEM_LANE, URGENT_LANE
from ..vocabulary.errors import TargetTypeError
from ..vocabulary.ids import PID, Alias, EventName, Key, Name, NodeName, Target
from ..vocabulary.messages import GroupJoined, GroupLeft
from ..vocabulary.reasons import NoProcess, Reason
from .clock import Clock
from .publisher import Publisher
from .receiver import Asker
from .router import Router

__all__ = ["Links"]

# Not measured: an event that its producer registers again after a restart is back within the
# shortest delay, and a node that never registers it costs a request every five seconds.
_SHORTEST: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds between two subscriptions to an event of another node that is absent. The delay doubles
from the shortest to the longest.
"""


class Links:
    """The relations of a node. Their signals travel through its router."""

    __slots__ = ("_node", "_publisher", "_relations", "_router", "away")

    def __init__(
        self, router: Router, publisher: Publisher, relations: Relations, node: PID
    ) -> None:
        self._router = router
        self._publisher = publisher
        self._relations = relations
        self._node = node
        self.away: dict[EventName, _Away] = {}
        """The followed events of other nodes that have ended at least once."""

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

    def relate(
        self,
        watcher: Asker,
        target: Target | EventName | NodeName,
        kind: Kind,
        *,
        follow: bool = False,
    ) -> None:
        """Create a link or a monitor. If the target has already ended, the watcher is notified at
        once; or, with ``follow``, never: it subscribes to the next event of that name.
        """
        watched = self.watched(target)
        # Before the target is looked at: a target that is gone fires this relation, and its signal
        # is the answer.
        relation = self._relations.add(watcher.id, watched, kind, follow)
        if self._router.remote is not None and watched.node != self._node.node:
            try:
                self._router.remote.watch(watched, watcher.id)
            except BaseException:
                # The network has refused the watch, and the verb raises: no relation may be left of
                # it.
                self._relations.remove(watcher.id, watched, kind)
                raise
            if isinstance(watched, EventName) and watched in self.away:
                # All others begin with the publications that the event keeps, too: the watch brings
                # further publications to them from now on.
                self.away[watched].hurry()
            return
        if isinstance(watched, NodeName):
            if watched.node != self._node.node:
                self._relations.fire(watched)
                self.tell(relation, self._router.missing(Name("", watched.node)))
            return
        if isinstance(watched, EventName):
            if not self._publisher.subscribe(watched, watcher.id):
                # Also for the followers of the name: they go on waiting.
                self.tell_all(watched, NoProcess())
            return
        receiver = self._router.resolve(watched)
        if receiver is None:
            self._relations.fire(watched)
            self.tell(relation, self._router.missing(watched))

    def unrelate(self, watcher: Asker, target: "Target | EventName | NodeName", kind: Kind) -> None:
        """Remove a link or a monitor.

        Raises:
            RelationError: of kind ``"unknown"``; there is no such relation.
        """
        watched = self.watched(target)
        self._relations.remove(watcher.id, watched, kind)
        self._forget_target(watcher.id, watched)

    def _forget_target(self, watcher: PID, watched: Watched) -> None:
        """Undo the rest of a relation that is removed."""
        if self._router.remote is not None and watched.node != self._node.node:
            is_left = not self._relations.has_watchers(watched)
            if is_left:
                self._router.remote.unwatch(watched)
            if isinstance(watched, EventName) and watched in self.away:
                # A follower that ends must not be subscribed again by the deadline of the others.
                self.away[watched].leave(watcher)
                if is_left:
                    del self.away[watched]
        elif isinstance(watched, EventName):
            self._publisher.unsubscribe(watched, watcher)

    def forget_watcher(self, watcher: PID) -> Iterator[None]:
        """Remove all links, monitors and subscriptions of a process that has ended."""
        for number, target in enumerate(self._relations.forget(watcher), 1):
            self._forget_target(watcher, target)
            # A process may watch very many targets: its end goes through them in steps, between
            # which the time slice is looked at.
            if not number % 256:
                yield

    def register_event(self, event: Event) -> None:
        """Add an event. Its followers have subscribed before its first publication.

        Raises:
            EventError: of kind ``"taken"``; the name is in use; nothing is changed.
        """
        self._publisher.events.register(event)
        for watcher in self._relations.of_target(event.name, Kind.MONITOR):
            self._publisher.subscribe(event.name, watcher)

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
        """Send a watcher the exit or down signal of a relation that has fired. A relation that
        follows the name of an event is kept instead.
        """
        if relation.follows:
            self._keep(relation)
            return
        watcher = self._router.processes.get(relation.watcher)
        if watcher is None:
            if self._router.remote is not None and relation.watcher.node != self._node.node:
                # The watcher is another node, which takes no signal out of a mailbox here: the
                # relation is closed now.
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

    def _keep(self, relation: Relation) -> None:
        name = relation.target
        assert isinstance(name, EventName)
        self._relations.keep(relation)
        if self._router.remote is not None and name.node != self._node.node:
            # Another node does not tell when a name is registered, so it is asked again and again.
            if name not in self.away:
                self.away[name] = _Away(partial(self._watch_again, name))
            self.away[name].wait(relation.watcher, self._router.clock)

    def _watch_again(self, name: EventName, watchers: Iterable[PID]) -> None:
        """Subscribe followers of an event of another node again."""
        remote = self._router.remote
        assert remote is not None
        for watcher in watchers:
            try:
                remote.watch(name, watcher)
            except Exception:
                # The network refuses now, such as at its bound of connections. Nobody waits for
                # this try, and the clock must go on: the follower tries again later.
                self.away[name].wait(watcher, self._router.clock)

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


class _Away:
    """An event of another node that its followers wait for."""

    __slots__ = ("_again", "_is_due", "_since", "_tries", "_waiting")

    def __init__(self, again: Callable[[Iterable[PID]], None]) -> None:
        self._again = again
        self._waiting: dict[PID, None] = {}
        """The followers that are to subscribe again. Not others, which would get the publications
        that the event keeps a second time.
        """
        self._is_due = False
        """Whether the clock has a deadline for them."""
        self._tries = 0
        self._since = -inf
        """The last deadline."""

    def wait(self, watcher: PID, clock: Clock) -> None:
        """Let a follower subscribe again, after a delay. An event that has lasted longer than the
        longest delay begins with the shortest.
        """
        self._waiting[watcher] = None
        if self._is_due:
            return
        self._is_due = True
        if clock.now() - self._since > _LONGEST:
            self._tries = 0
        delay = min(_LONGEST, _SHORTEST * 2**self._tries)
        self._tries += 1
        self._since = clock.now() + delay
        clock.arm_call(Deadline(self._expire), delay)

    def _expire(self) -> None:
        self._is_due = False
        self.hurry()

    def hurry(self) -> None:
        """Let all followers that wait subscribe now."""
        # Emptied first: a follower that the network refuses waits again, in the new table.
        waiting, self._waiting = self._waiting, {}
        self._again(waiting)

    def leave(self, watcher: PID) -> None:
        """The process follows the event no longer."""
        self._waiting.pop(watcher, None)
