"""``LinksAndEvents``: the verbs for names, aliases, links, monitors and events."""

from ..processes.process import Process
from ..tables.events import Event
from ..tables.relations import Kind
from ..vocabulary.errors import (
    BadInputError,
    EventUnknownError,
    NameUnknownError,
    NotAllowedError,
)
from ..vocabulary.ids import Alias, EventName, NodeName, Ref, Target
from ..vocabulary.messages import Published
from ..vocabulary.options import check_name, check_number
from ..vocabulary.reasons import Unregistered
from ..vocabulary.states import Operation
from .common import release_name

__all__ = ["LinksAndEvents"]


class LinksAndEvents:
    """The verbs of a behaviour that relate its process to other processes."""

    _process: Process

    # -- names and relations -----------------------------------------------------------------------

    def register(self, name: str) -> None:
        """Register this process under a name. A process has at most one.

        Raises:
            NameTakenError: another process has the name; nothing is changed.
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
        """Release the name. Processes that watch it are notified.

        Raises:
            NameUnknownError: this process has no name.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        release_name(process)

    def create_alias(self) -> Alias:
        """Make a further address of this process. It lasts until it is deleted or the
        process ends.
        """
        self._process.allow(Operation.REGISTER)
        return self._process.make_alias()

    def delete_alias(self, alias: Alias) -> None:
        """Delete an alias. Processes that watch it are notified.

        Raises:
            NameUnknownError: the alias does not belong to this process.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        if process.aliases is None or alias not in process.aliases:
            raise NameUnknownError(alias)
        del process.aliases[alias]
        process.router.registry.drop_alias(alias)
        process.kernel.links.tell_all(alias, Unregistered())

    def link(self, target: Target | EventName | NodeName) -> None:
        """Link to ``target``: when it ends, this process ends too, or gets an ``Exit`` if it traps
        exits. If ``target`` has already ended, that happens at once.

        Raises:
            RelationError: of kind ``"exists"``; this process is linked to ``target`` already.
            NotAllowedError: the target is this process itself.
        """
        self._relate(target, Kind.LINK)

    def unlink(self, target: Target | EventName | NodeName) -> None:
        """Remove a link. No exit of it is delivered afterwards.

        Raises:
            RelationError: of kind ``"unknown"``; there is no such link.
        """
        self._unrelate(target, Kind.LINK)

    def monitor(self, target: Target | EventName | NodeName) -> None:
        """Monitor ``target``: this process gets a ``Down`` message when ``target`` ends. If it has
        already ended, the message comes at once.

        Raises:
            RelationError: of kind ``"exists"``; this process monitors ``target`` already.
            NotAllowedError: the target is this process itself.
        """
        self._relate(target, Kind.MONITOR)

    def demonitor(self, target: Target | EventName | NodeName) -> None:
        """Stop monitoring. No ``Down`` is delivered afterwards, not even a queued ``Down``.

        Raises:
            RelationError: of kind ``"unknown"``; this process does not monitor ``target``.
        """
        self._unrelate(target, Kind.MONITOR)

    # -- events ------------------------------------------------------------------------------------

    def register_event(
        self, name: str, *, buffer: int = 0, notify: bool = False, open: bool = False
    ) -> Ref:
        """Create an event for publish/subscribe. Returns the token that lets other processes
        publish.

        Args:
            name: the event's name on this node.
            buffer: how many of the last publications a new subscriber gets.
            notify: send this process ``EventStarted`` with the first subscriber and
                ``EventStopped`` after the last.
            open: let any process publish, without the token.

        Raises:
            EventError: of kind ``"taken"``; the name is in use; nothing is changed.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        check_number("buffer", buffer, least=0, whole=True)
        kernel = process.kernel
        full = kernel.publisher.name(check_name(name))
        token = Ref(full.node, process.router.creation, next(process.router.references))
        kernel.links.register_event(Event(full, process.id, token, buffer, notify, open))
        process.add_event(full)
        return token

    def unregister_event(self, name: str) -> None:
        """Delete an event. Its subscribers are notified.

        Raises:
            EventError: of kind ``"unknown"``; this process has no such event.
        """
        process = self._process
        process.allow(Operation.REGISTER)
        full = process.kernel.publisher.name(check_name(name))
        if process.events is None or full not in process.events:
            raise EventUnknownError(name)
        process.events.remove(full)
        process.kernel.links.end_event(full, Unregistered())

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        """Publish a message to every subscriber of an event, which gets it in ``handle_event``.
        Returns how many subscribers have accepted it.

        Raises:
            EventError: of kind ``"unknown"``; there is no such event.
            NotAllowedError: the event belongs to another process, is not open, and ``token`` is not
                its token.
        """
        process = self._process
        publishing = process.kernel.publisher
        receivers = publishing.publish(process.id, publishing.name(event), message, token)
        process.turn.count_published(receivers)
        return receivers

    def subscribe(
        self, event: str | EventName, *, link: bool = False, follow: bool = False
    ) -> tuple[Published, ...]:
        """Subscribe to an event: its publications arrive in ``handle_event``. Returns the last
        publications that the event keeps.

        When the event ends, a ``Down`` arrives; with ``link``, an exit. ``monitor(EventName(...))``
        and ``link`` do the same. With ``follow`` neither arrives: the subscription outlives its
        producer, and goes on with the next event of that name.

        Raises:
            BadInputError: ``link`` and ``follow`` exclude each other.
            EventError: of kind ``"unknown"``; there is no such event; never with ``follow``.
            RelationError: of kind ``"exists"``; this process has subscribed already.
        """
        if link and follow:
            raise BadInputError("subscribe(link)", link, "False with follow=True")
        process = self._process
        publishing = process.kernel.publisher
        name = publishing.name(event)
        is_here = process.router.remote is None or name.node == process.router.node
        read = publishing.events.find if follow else publishing.events.get
        found = read(name) if is_here else None
        self._relate(name, Kind.LINK if link else Kind.MONITOR, follow=follow)
        # Another node sends the publications that it keeps as messages.
        return () if found is None else found.recent

    def unsubscribe(self, event: str | EventName) -> None:
        """Unsubscribe from an event.

        Raises:
            RelationError: of kind ``"unknown"``; this process has not subscribed.
        """
        process = self._process
        name = process.kernel.publisher.name(event)
        linked = name in process.kernel.relations.of_watcher(process.id, Kind.LINK)
        self._unrelate(name, Kind.LINK if linked else Kind.MONITOR)

    def _relate(
        self, target: Target | EventName | NodeName, kind: Kind, *, follow: bool = False
    ) -> None:
        process = self._process
        process.allow(Operation.RELATE)
        if (
            not isinstance(target, NodeName | EventName)
            and process.router.resolve(target) is process
        ):
            raise NotAllowedError(
                f"{process} cannot {kind.value} itself; its own end is told to terminate(reason)"
            )
        process.kernel.links.relate(process, target, kind, follow=follow)

    def _unrelate(self, target: Target | EventName | NodeName, kind: Kind) -> None:
        process = self._process
        process.allow(Operation.RELATE)
        process.kernel.links.unrelate(process, target, kind)
