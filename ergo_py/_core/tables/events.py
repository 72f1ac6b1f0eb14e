"""`Events`: the publish/subscribe table: events with producer, subscribers and buffer.

The buffer of an event holds its last few publications for late subscribers.
"""

from collections import deque

from ..vocabulary.errors import EventTakenError, EventUnknownError, NotAllowedError
from ..vocabulary.ids import PID, EventName, Ref
from ..vocabulary.messages import Published

__all__ = ["Event", "Events", "Subscription"]


class Subscription:
    """A subscriber's entry in an event."""

    __slots__ = ("dropped", "relations")

    def __init__(self) -> None:
        self.relations: int = 0
        """Number of links and monitors. A process may have both, and gets each publication once."""
        self.dropped: int = 0
        """Messages lost because the subscriber's mailbox was full: publications, or older messages
        that a publication displaced.
        """

    def count_dropped(self) -> None:
        """Count a lost message."""
        self.dropped += 1


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
        self.name: EventName = name
        self.producer: PID = producer
        self.token: Ref = token
        self.notifies: bool = notifies
        self.open: bool = is_open
        self.published: int = 0
        self.subscribers: dict[PID, Subscription] = {}
        # maxlen: the buffer drops its oldest publication on purpose.
        self._buffer: deque[Published] = deque(maxlen=buffer)

    @property
    def recent(self) -> tuple[Published, ...]:
        """The last few publications, oldest first."""
        return tuple(self._buffer)

    def note(self, publication: Published) -> None:
        """Count a publication and buffer it for late subscribers."""
        self.published += 1
        self._buffer.append(publication)

    def check_publisher(self, publisher: PID, token: Ref | None) -> None:
        """Check that the publisher is the producer or has the token, or that the event is open to
        all.

        Raises:
            NotAllowedError: the publisher may not publish. The text names the producer.
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
            EventError: of kind ``"taken"``; the name is in use; nothing is changed.
        """
        current = self._events.setdefault(event.name, event)
        if current is not event:
            raise EventTakenError(event.name.name, current.producer)

    def find(self, name: EventName) -> Event | None:
        """The event of this name, or None."""
        return self._events.get(name)

    def get(self, name: EventName) -> Event:
        """The event of this name.

        Raises:
            EventError: of kind ``"unknown"``; no event has this name.
        """
        event = self._events.get(name)
        if event is None:
            raise EventUnknownError(name.name, [each.name for each in self._events])
        return event

    def remove(self, name: EventName) -> Event:
        """Remove an event, and return it.

        Raises:
            EventError: of kind ``"unknown"``; no event has this name.
        """
        event = self.get(name)
        del self._events[name]
        return event

    def all(self) -> tuple[Event, ...]:
        """All events, oldest first."""
        return tuple(self._events.values())

    def subscribe(self, event: Event, subscriber: PID) -> bool:
        """Add a relation of a subscriber. True if the event had no subscriber before."""
        first = not event.subscribers
        event.subscribers.setdefault(subscriber, Subscription()).relations += 1
        return first

    def unsubscribe(self, event: Event, subscriber: PID) -> bool:
        """Remove a relation of a subscriber. True if the event has no subscriber left."""
        subscription = event.subscribers.get(subscriber)
        if subscription is None:
            return False
        subscription.relations -= 1
        if subscription.relations == 0:
            del event.subscribers[subscriber]
        return not event.subscribers
