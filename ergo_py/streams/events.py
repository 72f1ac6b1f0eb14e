"""`EventStream`: the publications of an event, as an async iterator for ordinary code."""

from types import TracebackType

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.processes.spawn import spawn_at_once
from .._core.tables.events import Event
from .._core.tables.pending_calls import Caller
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.ids import EventName, Ref
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.messages import Down, Published
from .._core.vocabulary.options import DEFAULTS, check_name, check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason, Shutdown
from ..tasks.channel import Channel
from ..tasks.process import refusal, refuse_message

__all__ = ["EventStream", "open_events", "open_topic"]


class EventStream:
    """The publications of an event: the async iterator of ``node.events(name)``.

    It has subscribed when it is made. At most ``max_waiting`` publications wait; a further one
    takes the place of the oldest, and ``dropped`` counts it. The iteration ends when the event
    ends; ``reason`` says why. With ``follow`` it goes on with the next event of that name.
    ``close``, the end of an ``async with`` block and dropping the stream unsubscribe.
    """

    __slots__ = ("__weakref__", "_process", "_waiting")

    def __init__(self, process: Process, waiting: "_Publications") -> None:
        self._process = process
        self._waiting = waiting

    def __repr__(self) -> str:
        waiting = self._waiting
        return f"<EventStream {waiting.event.name!r} {len(waiting)} waiting>"

    @property
    def dropped(self) -> int:
        """The number of publications that were lost because too many waited."""
        return self._waiting.dropped

    @property
    def reason(self) -> Reason | None:
        """Why the stream has ended; None while it is open."""
        return self._waiting.reason

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Published:
        if await self._waiting.wait():
            return self._waiting.take()
        raise StopAsyncIteration

    def close(self) -> None:
        """Unsubscribe. From any thread."""
        if self._waiting.reason is None:
            try:
                self._process.router.bridge.do(
                    self._process.ask_to_exit, self._process.id, Shutdown()
                )
            except NodeStoppedError:  # the subscription has ended with the node
                return

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        await self._process.wait_gone()

    def __del__(self) -> None:
        self.close()


class _Publications(Channel[Published]):
    """The publications that the reader has not taken. The subscriber knows them, and not the
    stream, so that a dropped stream can be noticed.
    """

    __slots__ = ("event", "reason")

    def __init__(self, event: EventName, most: int) -> None:
        super().__init__(most)
        self.event: EventName = event
        self.reason: Reason | None = None
        """Why there are no more publications."""

    def end(self, reason: Reason) -> None:
        """Note that there are no more publications."""
        if self.reason is None:
            self.reason = reason
            self.finish()


@dataclass(frozen=True, slots=True)
class _Last:
    """To the subscriber itself: it has served all publications of its event."""

    reason: Reason


class Subscriber(Behaviour):
    """The process that subscribes for a stream."""

    def __init__(self, waiting: _Publications, follow: bool) -> None:
        self._waiting = waiting
        self._follow = follow

    def init(self) -> None:
        for publication in self.subscribe(self._waiting.event, follow=self._follow):
            self._waiting.put_newest(publication)

    def handle_event(self, event: Published) -> None:
        self._waiting.put_newest(event)

    def handle_message(self, message: object, sender: object) -> None:
        if type(message) is Down:
            # The end of an event may overtake its last publications, which wait in the mailbox.
            self.send(self.pid, _Last(message.reason))
        elif type(message) is _Last:
            self._waiting.end(message.reason)
            self.stop()
        else:
            refuse_message(self._process, message)

    def handle_call(self, request: object, caller: Caller) -> object:
        raise refusal(self._process, request)

    def terminate(self, reason: Reason) -> None:
        self._waiting.end(reason)


def open_events(
    kernel: Kernel, event: str | EventName, max_waiting: int, follow: bool
) -> EventStream:
    """Subscribe to an event.

    Raises:
        EventError: of kind ``"unknown"``; there is no such event; never with ``follow``.
    """
    check_number("max_waiting", max_waiting, least=1, whole=True)
    name = kernel.publisher.name(event)
    if not follow:
        kernel.publisher.events.get(name)
    waiting = _Publications(name, max_waiting)
    process = spawn_at_once(kernel, None, Subscriber, (waiting, follow), DEFAULTS)
    return EventStream(process, waiting)


def open_topic(kernel: Kernel, name: str, buffer: int) -> None:
    """Make an open event that belongs to the node, unless there is an event of that name that all
    may publish.

    Raises:
        EventError: of kind ``"taken"``; the event of that name belongs to a process, and is not
            open.
    """
    check_number("buffer", buffer, least=0, whole=True)
    publisher, router = kernel.publisher, kernel.router
    full = publisher.name(check_name(name))
    found = publisher.events.find(full)
    if found is None or not found.open:
        token = Ref(full.node, router.creation, next(router.references))
        kernel.links.register_event(
            Event(full, kernel.pid, token, buffer, notifies=False, is_open=True)
        )


show_public_names(__name__)
