"""The verbs by which processes know of one another: names, aliases, links, monitors and events."""

from ..processes.process import Process
from ..tables.events import Event
from ..tables.relations import Kind
from ..vocabulary.errors import EventUnknownError, NameUnknownError, NotAllowedError
from ..vocabulary.ids import Alias, EventName, NodeName, Ref, Target
from ..vocabulary.messages import Published
from ..vocabulary.options import check_name, check_number
from ..vocabulary.reasons import Unregistered
from ..vocabulary.states import Operation
from .common import release_name

__all__ = ["LinksAndEvents"]


class LinksAndEvents:
    """That half of a behaviour's verbs."""

    _process: Process

    # -- names and relations -----------------------------------------------------------------------

    def register(self, name: str) -> None:
        """Take a name. A process has at most one.

        Raises:
            NameTakenError: somebody has it; nothing is changed.
            NotAllowedError: this process has another name already.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        check_name(name)
        if process.name is not None and process.name != name:
            raise NotAllowedError(
                f"{process} has the name {process.name!r}; unregister() first, a process has one "
                "name at a time"
            )
        process.take_name(name)

    def unregister(self) -> None:
        """Give the name up. Whoever watches it is told.

        Raises:
            NameUnknownError: this process has none.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        release_name(process)

    def create_alias(self) -> Alias:
        """Make a further address of this process; it lasts until deleted or until the process ends."""
        self._process.allow(Operation.REGISTER)
        return self._process.make_alias()

    def delete_alias(self, alias: Alias) -> None:
        """Give up an alias. Whoever watches it is told.

        Raises:
            NameUnknownError: it is no alias of this process.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        if process.aliases is None or alias not in process.aliases:
            raise NameUnknownError(alias)
        del process.aliases[alias]
        process.router.registry.drop_alias(alias)
        process.kernel.tell_all(alias, Unregistered())

    def link(self, target: Target | EventName | NodeName) -> None:
        """Have this process end, or get an ``Exit`` if it traps, when ``target`` ends. If it has
        ended already, at once.

        Raises:
            RelationExistsError: there is such a link.
            NotAllowedError: the target is this process itself.
        """
        self._relate(target, Kind.LINK)

    def unlink(self, target: Target | EventName | NodeName) -> None:
        """Remove a link. Nothing of it is delivered afterwards.

        Raises:
            RelationUnknownError: there is none.
        """
        self._unrelate(target, Kind.LINK)

    def monitor(self, target: Target | EventName | NodeName) -> None:
        """Get a ``Down`` message when ``target`` ends. If it has ended already, at once.

        Raises:
            RelationExistsError: it is monitored already.
            NotAllowedError: the target is this process itself.
        """
        self._relate(target, Kind.MONITOR)

    def demonitor(self, target: Target | EventName | NodeName) -> None:
        """Stop monitoring. No ``Down`` is delivered afterwards, not even one that is queued.

        Raises:
            RelationUnknownError: it was not monitored.
        """
        self._unrelate(target, Kind.MONITOR)

    # -- events ------------------------------------------------------------------------------------

    def register_event(
        self, name: str, *, buffer: int = 0, notify: bool = False, open: bool = False
    ) -> Ref:
        """Make an event that others can subscribe to, and return the token that lets others publish
        it.

        Args:
            name: the event's name on this node.
            buffer: how many of the last publications a new subscriber is handed.
            notify: send this process ``EventStarted`` with the first subscriber and
                ``EventStopped`` after the last.
            open: let anybody publish, without the token.

        Raises:
            EventTakenError: the name is in use; nothing is changed.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        check_number("buffer", buffer, least=0, whole=True)
        kernel = process.kernel
        full = kernel.publisher.name(check_name(name))
        token = Ref(full.node, process.router.creation, next(process.router.references))
        kernel.publisher.events.register(Event(full, process.id, token, buffer, notify, open))
        if process.events is None:
            process.events = []
        process.events.append(full)
        return token

    def unregister_event(self, name: str) -> None:
        """Give an event up. Its subscribers are told.

        Raises:
            EventUnknownError: this process has no such event.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        full = process.kernel.publisher.name(check_name(name))
        if process.events is None or full not in process.events:
            raise EventUnknownError(name)
        process.events.remove(full)
        process.kernel.end_event(full, Unregistered())

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        """Give a message to every subscriber of an event; each gets it in ``handle_event``. Returns
        how many have taken it.

        Raises:
            EventUnknownError: there is no such event.
            NotAllowedError: the event belongs to another process, is not open, and ``token`` is not
                its token.
        """
        publishing = self._process.kernel.publisher
        return publishing.publish(self._process.id, publishing.name(event), message, token)

    def subscribe(self, event: str | EventName, *, link: bool = False) -> tuple[Published, ...]:
        """Have publications of an event come to ``handle_event``, and return the last few, as its
        producer keeps them.

        When the event ends, a ``Down`` comes; with ``link``, an exit. ``monitor(EventName(...))``
        and ``link`` do the same.

        Raises:
            EventUnknownError: there is no such event.
            RelationExistsError: this process has subscribed already.
        """
        process = self._process
        publishing = process.kernel.publisher
        name = publishing.name(event)
        found = publishing.events.get(name)
        self._relate(name, Kind.LINK if link else Kind.MONITOR)
        return found.recent

    def unsubscribe(self, event: str | EventName) -> None:
        """Stop receiving an event.

        Raises:
            RelationUnknownError: this process had not subscribed.
        """
        process = self._process
        name = process.kernel.publisher.name(event)
        linked = name in process.kernel.relations.of_watcher(process.id, Kind.LINK)
        self._unrelate(name, Kind.LINK if linked else Kind.MONITOR)

    def _relate(self, target: Target | EventName | NodeName, kind: Kind) -> None:
        process = self._process
        process.allow(Operation.RELATE)
        if (
            not isinstance(target, NodeName | EventName)
            and process.router.resolve(target) is process
        ):
            raise NotAllowedError(
                f"{process} cannot {kind.value} itself; its own end is told to terminate(reason)"
            )
        process.kernel.relate(process, target, kind)

    def _unrelate(self, target: Target | EventName | NodeName, kind: Kind) -> None:
        process = self._process
        process.allow(Operation.RELATE)
        process.kernel.unrelate(process, target, kind)
