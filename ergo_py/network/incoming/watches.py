"""`Watches`: the targets on another node that processes here watch, and their events."""

from collections.abc import Callable
from itertools import chain
from typing import Any

from ..._core.messaging.traces import Mark
from ..._core.tables.relations import Kind
from ..._core.vocabulary.envelopes import EVENT, TRACED, Lane
from ..._core.vocabulary.ids import PID, Alias, EventName, NodeName
from ..._core.vocabulary.messages import Published
from ..._core.vocabulary.reasons import Custom, Reason
from ..access.limits import Limits
from ..messages.listed_class import UnreadableValueError
from ..outgoing.peer import Peer
from ..protocol.operations import Ended, Event, Subscribed, Unwatch, Watch, sender_of

__all__ = ["Watches"]


class Watches:
    """The watches of a single other node. Each has a number, so that a late notice of a watch that
    was undone has no effect.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._numbers: dict[Any, int] = {}
        self._targets: dict[int, Any] = {}
        self._joining: set[tuple[int, int]] = set()
        """Subscriptions, by the number of the watch and of the process, that wait for the
        publications that their event keeps.
        """

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, target: Any, watcher: PID) -> None:
        """Have that node tell when the target ends. It sends a new subscriber of an event the
        publications that the event keeps; until then the subscriber gets no others.
        """
        # Before a table changes: an address that cannot travel raises here, and must leave no watch
        # behind.
        place = None if isinstance(target, NodeName) else self._peer.routes.place(target)
        number = self._numbers.get(target)
        is_known = number is not None
        if number is None:
            limits = self._peer.network.limits
            if len(self._numbers) >= limits.watches:
                self._refuse(target, limits)
                return
            number = next(self._peer.router.references)
            self._numbers[target] = number
            self._targets[number] = target
        if place is None:
            self._peer.connect()
        elif isinstance(target, EventName):
            self._joining.add((number, watcher.number))
            self._peer.push(Watch(number, place, watcher.number))
        elif not is_known:
            self._peer.push(Watch(number, place, 0))

    def _refuse(self, target: Any, limits: Limits) -> None:
        """Tell the watchers of a target that this node watches too many already."""
        peer, here = self._peer, self._peer.router.node
        peer.mailbox.count_dropped()
        peer.network.kernel.links.tell_all(target, Custom(limits.watch_text(here, here, peer.node)))

    def remove(self, target: object) -> None:
        """End the watch of a target."""
        number = self._numbers.pop(target, None)
        if number is None:
            return
        del self._targets[number]
        # A watch that waits for a session to begin has to be undone, too.
        if not isinstance(target, NodeName) and not self._peer.session.is_idle:
            self._peer.push(Unwatch(number))

    def end(self, op: Ended) -> None:
        """Tell the processes here that a target has ended."""
        target = self._targets.pop(op.number, None)
        if target is None:
            return  # the watch was undone meanwhile
        del self._numbers[target]
        network = self._peer.network
        network.kernel.links.tell_all(target, network.types.decode_reason(op.body))

    def end_all(self, reason: Reason) -> None:
        """Tell the processes here that the node of all targets is lost."""
        # The tables are those of the session that has ended. They are emptied before a watcher is
        # told, so that no step of a watcher finds them.
        targets = list(self._numbers)
        self._numbers.clear()
        self._targets.clear()
        self._joining.clear()
        for target in targets:
            self._peer.network.kernel.links.tell_all(target, reason)

    def publish(self, op: Event) -> None:
        """Give a publication of a watched event to its subscribers here."""
        name = self._targets.get(op.number)
        if name is None:
            return
        network = self._peer.network
        try:
            message = network.types.decode(op.body)
        except UnreadableValueError as error:
            network.log_once(f"publications of {name} are unreadable", str(error))
            return
        number, only, joining = op.number, op.subscriber, self._joining

        def gets(pid: PID) -> bool:
            return pid.number == only if only else (number, pid.number) not in joining

        publication = Published(name, message, op.at)
        self._hand_out(name, sender_of(op.producer), publication, gets, op.headers)

    def _hand_out(
        self,
        name: EventName,
        producer: PID | Alias,
        publication: Published,
        gets: Callable[[PID], bool],
        headers: dict[str, str] | None,
    ) -> None:
        network = self._peer.network
        context = network.trace_of(headers)
        envelope: Any = (
            (EVENT, producer, None, publication)
            if context is None
            else (TRACED, producer, Mark(EVENT, name, context), publication)
        )
        relations, router = network.kernel.relations, network.kernel.router
        watchers = chain(
            relations.of_target(name, Kind.LINK), relations.of_target(name, Kind.MONITOR)
        )
        # A process that links to the event and monitors it gets a publication once. Not a set: its
        # order differs between programs, and a seed has to repeat the order of deliveries.
        for pid in dict.fromkeys(watchers):
            process = router.processes.get(pid)
            if process is not None and gets(pid):
                router.post(process, pid, Lane.MAIN, envelope)

    def note_subscribed(self, op: Subscribed) -> None:
        """Note that a subscriber has got all publications that the event keeps."""
        self._joining.discard((op.number, op.subscriber))
