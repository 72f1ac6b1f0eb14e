"""`WatchedTargets`: the processes, names and events here that another node watches."""

from typing import Any

from ..._core.tables.relations import Kind
from ..._core.vocabulary.errors import RelationExistsError
from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name
from ..._core.vocabulary.reasons import Custom, Reason
from ..access.limits import TOO_MANY_WATCHES
from ..outgoing.peer import Peer
from ..protocol.operations import Unwatch, Watch
from ..refusals import Refusals
from .routes import IncomingRoutes, ViolationError

__all__ = ["WatchedTargets"]

Target = PID | Alias | Name | Key | EventName


class _Watcher:
    """Another node, as the watcher of a process here."""

    __slots__ = ("id",)

    def __init__(self, pid: PID) -> None:
        self.id = pid


class WatchedTargets:
    """The watches of a single other node, which has given each a number."""

    def __init__(self, peer: Peer, refusals: Refusals, routes: IncomingRoutes) -> None:
        self._peer = peer
        self._kernel = peer.network.kernel
        self._refusals = refusals
        self._routes = routes
        self._targets: dict[int, Target] = {}
        """The targets by the number of the watch."""
        self._numbers: dict[Target, int] = {}
        """The same by target."""

    @property
    def count(self) -> int:
        """How many targets here the other node watches."""
        return len(self._targets)

    def add(self, op: Watch) -> None:
        """Watch a target for the other node. A watched event also sends its publications."""
        number, target = op.number, self._routes.target(op.to)
        is_known = target in self._numbers
        if self._targets.get(number, target) != target:  # no honest node uses a number twice
            raise ViolationError(f"the watch {number} has a target already")
        if not is_known:
            limits = self._peer.network.limits
            if len(self._numbers) >= limits.watches:
                self._refusals.refuse_excess(TOO_MANY_WATCHES)
                here, there = self._peer.router.node, self._peer.node
                self._refuse(op, limits.watch_text(here, there, here))
                return
        if isinstance(target, EventName):
            self._send_recent(number, target, op.subscriber)
        if is_known:
            # The other node may have forgotten the old number: it repeated the watch before it
            # learned that the target had ended, and a new target of that name began meanwhile.
            del self._targets[self._numbers[target]]
        self._targets[number] = target
        self._numbers[target] = number
        if is_known:
            return
        try:
            self._kernel.links.relate(self._watcher(), target, Kind.MONITOR)
        except RelationExistsError:
            # A watch that was withdrawn a moment ago: its relation still stands, and tells the end
            # of the target as a new one would.
            pass

    def refuse(self, op: Watch) -> None:
        """Refuse a watch that is not permitted."""
        self._refuse(op, str(self._refusals.refuse_act("watch")))

    def _refuse(self, op: Watch, why: str) -> None:
        if op.subscriber:
            self._peer.send_subscribed(op.number, op.subscriber)
        self._peer.send_ended(op.number, Custom(why))

    def _send_recent(self, number: int, name: EventName, subscriber: int) -> None:
        event = self._kernel.publisher.events.find(name)
        if event is not None:
            for publication in event.recent:
                self._peer.send_publication(number, subscriber, event.producer, publication)
        self._peer.send_subscribed(number, subscriber)

    def remove(self, op: Unwatch) -> None:
        """End a watch."""
        target = self._targets.pop(op.number, None)
        if target is not None:
            del self._numbers[target]
            self._kernel.links.unrelate(self._watcher(), target, Kind.MONITOR)

    def tell(self, target: Any, reason: Reason) -> None:
        """Tell the other node that a target of its watches has ended."""
        number = self._numbers.pop(target, None)
        if number is not None:
            del self._targets[number]
            self._peer.send_ended(number, reason)

    def number_of(self, target: Target) -> int | None:
        """The number of the other node's watch of a target."""
        return self._numbers.get(target)

    def _watcher(self) -> Any:
        return _Watcher(PID(self._peer.node, self._peer.creation, 0))

    def forget(self, creation: int) -> None:
        """Forget all watches of the other node: it is lost."""
        self._targets.clear()
        self._numbers.clear()
        for _ in self._kernel.links.forget_watcher(PID(self._peer.node, creation, 0)):
            pass
