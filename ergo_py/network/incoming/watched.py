"""`WatchedTargets`: the processes, names and events here that another node watches."""

from typing import Any, Final

from ..._core.tables.relations import Kind
from ..._core.vocabulary.errors import RelationExistsError
from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name
from ..._core.vocabulary.reasons import Custom, Reason
from ..access.limits import TOO_MANY_WATCHES, Budget
from ..outgoing.peer import Peer
from ..protocol.operations import Unwatch, Watch
from ..refusals import Refusals
from .routes import IncomingRoutes, ViolationError

__all__ = ["WatchedTargets"]

Target = PID | Alias | Name | Key | EventName

_KEPT: Final = 20_000
"""Publications that events keep and that another node may have sent again in a second. So many take
0.1 s, in a single step: a subscription has 20 bytes, and its answer the whole buffer of the event.
"""


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
        self._kept = Budget(_KEPT, self._kernel.clock.now)
        """The publications of the past that the other node may still ask for."""

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
        if isinstance(target, EventName) and not self._send_recent(op, target):
            return
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

    def _send_recent(self, op: Watch, name: EventName) -> bool:
        """Send the publications that an event keeps to a new subscriber. False if the other node
        asks for too many; then its watch of the event ends.
        """
        event = self._kernel.publisher.events.find(name)
        if event is not None and event.recent:
            # An event that keeps more than that takes the budget of a whole second: it can be
            # subscribed to, but not twice in a second.
            if not self._kept.take(min(len(event.recent), _KEPT)):
                self._refusals.refuse("too many kept publications")
                here, there = self._peer.router.node, self._peer.node
                self.remove(Unwatch(self._numbers.get(name, op.number)))
                self._refuse(
                    op,
                    f"{there!r} has asked for more than {_KEPT} publications that events of "
                    f"{here!r} keep, within a second; subscribe fewer processes at once, or give "
                    "the events a smaller buffer=",
                )
                return False
            for publication in event.recent:
                self._peer.send_publication(op.number, op.subscriber, event.producer, publication)
        self._peer.send_subscribed(op.number, op.subscriber)
        return True

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
        # With the start of the node, so that its relations are never those of an earlier start.
        return _Watcher(PID(self._peer.node, self._peer.creation, 0))

    def forget(self, creation: int) -> None:
        """Forget all watches of the other node: it is lost."""
        self._targets.clear()
        self._numbers.clear()
        # All steps of the generator in a single turn: the loss of a node is told, and forgotten,
        # without another task in between.
        for _ in self._kernel.links.forget_watcher(PID(self._peer.node, creation, 0)):
            pass
