"""Events: who publishes what, who has subscribed, and the last few of each for those who come
later.
"""

from collections import deque

from ..vocabulary.errors import EventTakenError, EventUnknownError, NotAllowedError
from ..vocabulary.ids import PID, EventName, Ref
from ..vocabulary.messages import Published

__all__ = ["Event", "Events", "Subscription"]


class Subscription:
    """One subscriber of one event."""

    __slots__ = ("dropped", "relations")

    def __init__(self) -> None:
        self.relations = 0
        """A process may be linked to an event and monitor it as well; it gets each publication
        once.
        """
        self.dropped = 0
        """What it has lost because its mailbox was full: publications, or older messages that had
        to go for one.
        """


class Event:
    """A registered event."""

    __slots__ = (
        "_buffer",
        "name",
        "notifies",
        "open",
        "producer",
        "published",
        "subscribers",
        "token",
    )

    def __init__(
        self, name: EventName, producer: PID, token: Ref, buffer: int, notifies: bool, is_open: bool
    ) -> None:
        self.name = name
        self.producer = producer
        self.token = token
        self.notifies = notifies
        self.open = is_open
        self.published = 0
        self.subscribers: dict[PID, Subscription] = {}
        # A ring that forgets its oldest entry is what is wanted here.
        self._buffer: deque[Published] = deque(maxlen=buffer)

    @property
    def recent(self) -> tuple[Published, ...]:
        """The last few publications, oldest first."""
        return tuple(self._buffer)

    def note(self, publication: Published) -> None:
        """Count a publication and keep it for those who come later."""
        self.published += 1
        self._buffer.append(publication)

    def check_publisher(self, publisher: PID, token: Ref | None) -> None:
        """Refuse a publisher who is neither the producer nor holds the token, unless the event is
        open to all.

        Raises:
            NotAllowedError: says whose event it is.
        """
        if not self.open and publisher != self.producer and token != self.token:
            raise NotAllowedError(
                f"{self.name.name!r} is an event of {self.producer}: publish with the token that "
                "register_event returned, "
                "or have it registered with open=True"
            )


class Events:
    """The table of all events of a node."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: dict[EventName, Event] = {}

    def __len__(self) -> int:
        return len(self._events)

    def register(self, event: Event) -> None:
        """Add an event.

        Raises:
            EventTakenError: the name is in use; nothing is changed.
        """
        current = self._events.setdefault(event.name, event)
        if current is not event:
            raise EventTakenError(event.name.name, current.producer)

    def find(self, name: EventName) -> Event | None:
        """The event of this name, if there is one."""
        return self._events.get(name)

    def get(self, name: EventName) -> Event:
        """The event of this name.

        Raises:
            EventUnknownError: there is none.
        """
        event = self._events.get(name)
        if event is None:
            raise EventUnknownError(name.name)
        return event

    def remove(self, name: EventName) -> Event:
        """Take an event away.

        Raises:
            EventUnknownError: there is none.
        """
        event = self.get(name)
        del self._events[name]
        return event

    def all(self) -> tuple[Event, ...]:
        """Every event, oldest first."""
        return tuple(self._events.values())

    def subscribe(self, event: Event, subscriber: PID) -> bool:
        """Add a subscriber. True if it is the event's first one."""
        first = not event.subscribers
        event.subscribers.setdefault(subscriber, Subscription()).relations += 1
        return first

    def unsubscribe(self, event: Event, subscriber: PID) -> bool:
        """Take one relation of a subscriber away. True if nobody is left."""
        subscription = event.subscribers.get(subscriber)
        if subscription is None:
            return False
        subscription.relations -= 1
        if subscription.relations == 0:
            del event.subscribers[subscriber]
        return not event.subscribers
