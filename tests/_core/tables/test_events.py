"""The table of events against a naive model."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ergo_py import PID, EventName, NotAllowedError, Published, Ref
from ergo_py._core.tables.events import Event, Events
from ergo_py._core.vocabulary.errors import EventTakenError, EventUnknownError

PEOPLE = [PID("n@h", 1, number) for number in range(1, 6)]
people = st.sampled_from(PEOPLE)
names = st.sampled_from("abc").map(lambda name: EventName(name, "n@h"))


class EventsMachine(RuleBasedStateMachine):
    subscriptions = Bundle("subscriptions")

    def __init__(self) -> None:
        super().__init__()
        self.events = Events()
        self.model: dict[EventName, tuple[PID, list[object], int, list[PID]]] = {}
        self.numbers = iter(range(100, 10_000))

    @rule(name=names, producer=people, buffer=st.integers(0, 3))
    def register(self, name: EventName, producer: PID, buffer: int) -> None:
        event = Event(
            name, producer, Ref("n@h", 1, next(self.numbers)), buffer, notifies=False, is_open=False
        )
        if name in self.model:
            with pytest.raises(EventTakenError):
                self.events.register(event)
        else:
            self.events.register(event)
            self.model[name] = (producer, [], buffer, [])

    @rule(name=names)
    def remove(self, name: EventName) -> None:
        if name in self.model:
            self.events.remove(name)
            del self.model[name]
        else:
            with pytest.raises(EventUnknownError):
                self.events.remove(name)

    @rule(target=subscriptions, name=names, subscriber=people)
    def subscribe(self, name: EventName, subscriber: PID) -> tuple[EventName, PID]:
        event = self.events.find(name)
        if event is not None:
            subscribers = self.model[name][3]
            assert self.events.subscribe(event, subscriber) is (not subscribers)
            subscribers.append(subscriber)
        return name, subscriber

    @rule(which=consumes(subscriptions))
    def unsubscribe(self, which: tuple[EventName, PID]) -> None:
        name, subscriber = which
        event = self.events.find(name)
        if event is None:
            return
        subscribers = self.model[name][3]
        was_there = subscriber in subscribers
        if was_there:
            subscribers.remove(subscriber)
        assert self.events.unsubscribe(event, subscriber) is (was_there and not subscribers)

    @rule(name=names, publisher=people, with_token=st.booleans())
    def publish(self, name: EventName, publisher: PID, with_token: bool) -> None:
        event = self.events.find(name)
        if event is None:
            return
        producer, published, _, _ = self.model[name]
        token = event.token if with_token else None
        if publisher == producer or with_token:
            event.check_publisher(publisher, token)
            event.note(Published(name, len(published), 0.0))
            published.append(len(published))
        else:
            with pytest.raises(NotAllowedError):
                event.check_publisher(publisher, token)

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        assert {event.name for event in self.events.all()} == set(self.model)
        assert len(self.events) == len(self.model)
        for name, (producer, published, buffer, subscribers) in self.model.items():
            event = self.events.get(name)
            assert event.producer == producer
            assert event.published == len(published)
            assert [entry.message for entry in event.recent] == (
                published[-buffer:] if buffer else []
            )
            assert set(event.subscribers) == set(subscribers)
            assert sum(one.relations for one in event.subscribers.values()) == len(subscribers)


TestEvents = EventsMachine.TestCase


def test_any_process_may_publish_an_open_event() -> None:
    event = Event(
        EventName("a", "n@h"), PEOPLE[0], Ref("n@h", 1, 99), 0, notifies=False, is_open=True
    )

    event.check_publisher(PEOPLE[1], None)
