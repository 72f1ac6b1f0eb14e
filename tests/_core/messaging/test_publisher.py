"""Events on a real node: subscribing, publishing, ends, and the events of the node."""

import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    ChildSpec,
    Custom,
    DeadLetter,
    Down,
    EventName,
    EventStarted,
    EventStopped,
    Killed,
    MailboxFullError,
    Node,
    NoProcess,
    NotAllowedError,
    Overflow,
    Priority,
    Published,
    Unregistered,
    open_node,
)
from ergo_py._core.messaging.publisher import (
    BLOCKED,
    DEAD_LETTER,
    NODE_EVENTS,
    PROCESS_ENDED,
    PROCESS_STARTED,
    RESTARTED,
)
from ergo_py._core.vocabulary.errors import (
    EventTakenError,
    EventUnknownError,
    RelationExistsError,
    RelationUnknownError,
)
from ergo_py._core.vocabulary.info import Ended, Restarted
from ergo_py.info import BlockedReport
from tests.actors import Puppet
from tests.support import block_until_reported, kernel_of, router_of, running_node


class Producer(Actor):
    """Registers an event and publishes to it on request."""

    def __init__(
        self, name: str = "prices", buffer: int = 0, notify: bool = False, is_open: bool = False
    ) -> None:
        self.event, self.buffer, self.notify, self.is_open = name, buffer, notify, is_open
        self.seen: list[object] = []

    def init(self) -> None:
        self.token = self.register_event(
            self.event, buffer=self.buffer, notify=self.notify, open=self.is_open
        )

    def handle_message(self, message: Any, sender: Any) -> None:
        self.seen.append(message)

    def handle_call(self, request: Any, caller: Any) -> object:
        return request(self)


class Subscriber(Actor):
    def __init__(self) -> None:
        self.events: list[Published] = []
        self.messages: list[object] = []

    def handle_event(self, event: Published) -> None:
        self.events.append(event)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.messages.append(message)

    def handle_call(self, request: Any, caller: Any) -> object:
        return request(self)


async def publish(node: Node, producer: PID, *messages: object) -> None:
    for message in messages:
        await node.call(producer, lambda actor, message=message: actor.publish("prices", message))
    await wait_all_tasks_blocked()


async def contents(node: Node, subscriber: PID) -> list[object]:
    received: list[object] = await node.call(
        subscriber, lambda actor: [event.message for event in actor.events]
    )
    return received


async def test_every_subscriber_gets_each_publication_once_and_in_order() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            producer = await node.spawn(Producer)
            subscribers = [await node.spawn(Subscriber) for _ in range(3)]
            for subscriber in subscribers:
                await node.call(subscriber, lambda actor: actor.subscribe("prices"))
            await node.call(subscribers[0], lambda actor: actor.link(EventName("prices")))

            await publish(node, producer, 1, 2, 3)

            assert [await contents(node, subscriber) for subscriber in subscribers] == [
                [1, 2, 3]
            ] * 3


async def test_a_new_subscriber_gets_the_last_few_publications() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            producer = await node.spawn(Producer, "prices", 2)
            await publish(node, producer, 1, 2, 3)
            subscriber = await node.spawn(Subscriber)

            handed = await node.call(subscriber, lambda actor: actor.subscribe("prices"))

            assert [publication.message for publication in handed] == [2, 3]
            assert await contents(node, subscriber) == []


async def test_the_producer_is_notified_of_the_first_and_of_the_last_subscriber() -> None:
    with trio.fail_after(30):
        async with open_node("n@h", watchdog=None) as node:
            producer = await node.spawn(Producer, "prices", 0, True)
            first, second = await node.spawn(Subscriber), await node.spawn(Subscriber)

            for subscriber in (first, second):
                await node.call(subscriber, lambda actor: actor.subscribe("prices"))
            await node.call(first, lambda actor: actor.unsubscribe("prices"))
            node.kill(second)
            await node.wait_ended(second)
            await wait_all_tasks_blocked()

            name = EventName("prices", "n@h")
            assert await node.call(producer, lambda actor: actor.seen) == [
                EventStarted(name),
                EventStopped(name),
            ]


@pytest.mark.parametrize("give_up", [True, False])
async def test_subscribers_get_the_end_of_an_event_with_its_reason(give_up: bool) -> None:
    with trio.fail_after(30):
        async with open_node("n@h", watchdog=None) as node:
            producer = await node.spawn(Producer)
            subscriber = await node.spawn(Subscriber)
            await node.call(subscriber, lambda actor: actor.subscribe("prices"))

            if give_up:
                await node.call(producer, lambda actor: actor.unregister_event("prices"))
            else:
                node.send_exit(producer, "enough")
                await node.wait_ended(producer)
            await wait_all_tasks_blocked()

            expected = Down(
                EventName("prices", "n@h"), Unregistered() if give_up else Custom("enough")
            )
            assert await node.call(subscriber, lambda actor: actor.messages) == [expected]
            assert "prices" not in node.events()
            assert node.info().relations == 0


async def test_a_monitor_of_an_unknown_event_gets_down_at_once() -> None:
    with trio.fail_after(30):
        async with open_node("n@h", watchdog=None) as node:
            subscriber = await node.spawn(Subscriber)

            await node.call(subscriber, lambda actor: actor.monitor(EventName("nothing")))
            await wait_all_tasks_blocked()

            expected = Down(EventName("nothing", "n@h"), NoProcess())
            assert await node.call(subscriber, lambda actor: actor.messages) == [expected]


async def test_publishing_needs_the_producer_the_token_or_an_open_event() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            producer = await node.spawn(Producer)
            await node.spawn(Producer, "public", 0, False, True)
            stranger = await node.spawn(Subscriber)
            token = await node.call(producer, lambda actor: actor.token)

            def try_to_publish(actor: Subscriber) -> str:
                with pytest.raises(NotAllowedError, match="token"):
                    actor.publish("prices", 1)
                actor.publish("prices", 1, token=token)
                actor.publish("public", 1)
                with pytest.raises(EventUnknownError, match="register_event"):
                    actor.publish("unknown", 1)
                return "tried"

            assert await node.call(stranger, try_to_publish) == "tried"


async def test_mistakes_with_events_raise_and_leave_events_unchanged() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            producer, other = await node.spawn(Producer), await node.spawn(Subscriber)

            def try_them(actor: Subscriber) -> str:
                with pytest.raises(EventTakenError, match="prices"):
                    actor.register_event("prices")
                with pytest.raises(EventUnknownError):
                    actor.unregister_event("prices")
                with pytest.raises(EventUnknownError):
                    actor.subscribe("unknown")
                with pytest.raises(RelationUnknownError):
                    actor.unsubscribe("prices")
                actor.subscribe("prices")
                with pytest.raises(RelationExistsError):
                    actor.subscribe("prices")
                return "tried"

            assert await node.call(other, try_them) == "tried"
            await publish(node, producer, 1)
            assert await contents(node, other) == [1]


async def test_losses_of_a_slow_subscriber_follow_its_overflow_rule_and_are_counted() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            producer = await node.spawn(Producer)
            slow = await node.spawn(Subscriber, mailbox_size=1)
            quick = await node.spawn(Subscriber)
            for subscriber in (slow, quick):
                await node.call(subscriber, lambda actor: actor.subscribe("prices"))

            def publish_three(actor: Producer) -> list[int]:
                return [actor.publish("prices", number) for number in range(3)]

            taken = await node.call(producer, publish_three)
            await wait_all_tasks_blocked()

            assert taken == [2, 1, 1]
            assert await contents(node, slow) == [0]
            assert await contents(node, quick) == [0, 1, 2]
            assert node.process_info(slow).dropped == 2
            info = node.event_info("prices")
            assert (info.producer, info.published, info.kept, info.open) == (producer, 3, 0, False)
            assert info.subscribers == {slow: 2, quick: 0}


async def test_a_message_displaced_by_a_publication_is_a_loss_of_that_subscriber() -> None:
    async with running_node() as node:
        producer = await node.spawn(Producer)
        slow = await node.spawn(Subscriber, mailbox_size=1, overflow=Overflow.DROP_OLDEST)
        await node.call(slow, lambda actor: actor.subscribe("prices"))

        taken = await node.call(
            producer, lambda actor: [actor.publish("prices", number) for number in range(3)]
        )
        await wait_all_tasks_blocked()

        assert taken == [1, 1, 1]
        assert await contents(node, slow) == [2]
        assert node.event_info(EventName("prices")).subscribers == {slow: 2}


async def test_an_event_that_does_not_exist_has_no_info() -> None:
    async with running_node() as node:
        with pytest.raises(EventUnknownError):
            node.event_info("prices")


async def test_the_node_publishes_restarts() -> None:
    async with running_node() as node:
        observer = await node.spawn(Subscriber)
        await node.call(observer, lambda actor: actor.subscribe(RESTARTED))
        tree = await node.supervise([ChildSpec("child", Subscriber)])

        node.kill("child")
        await node.wait_ended("child")
        await wait_all_tasks_blocked()

        child = node.whereis("child")
        assert child is not None
        assert await contents(node, observer) == [Restarted(tree.pid, "child", child, Killed())]


async def test_the_node_publishes_that_a_callback_is_slow() -> None:
    async with running_node(watchdog=0.05) as node:
        observer = await node.spawn(Subscriber)
        await node.call(observer, lambda actor: actor.subscribe(BLOCKED))
        slow = await node.spawn(Producer)

        while not await node.call(slow, lambda _: block_until_reported(node, slow), timeout=20):
            pass
        reports: list[BlockedReport] = []
        while not reports:
            # A busy machine may be the cause of others.
            heard = await contents(node, observer)
            reports = [
                one for one in heard if isinstance(one, BlockedReport) and one.process == slow
            ]

        assert (reports[0].behaviour, reports[0].callback) == ("Producer", "handle_call")


async def test_the_node_publishes_starts_ends_and_dead_letters() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            observer = await node.spawn(Subscriber)
            for name in (PROCESS_STARTED, PROCESS_ENDED, DEAD_LETTER):
                await node.call(observer, lambda actor, name=name: actor.subscribe(name))

            child = await node.spawn(Subscriber, name="child")
            node.send_exit(child, "enough")
            await node.wait_ended(child)
            node.send(child, "too late")
            await wait_all_tasks_blocked()

            started, ended, letter = await contents(node, observer)
            assert started == child
            assert ended == Ended(child, "child", "Subscriber", Custom("enough"))
            assert isinstance(letter, DeadLetter)
            assert (letter.target, letter.message_type) == (child, "str")


async def test_a_full_subscriber_of_dead_letters_causes_no_more_dead_letters() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            observer = await node.spawn(Subscriber, mailbox_size=1)
            await node.call(observer, lambda actor: actor.subscribe(DEAD_LETTER))

            for _ in range(5):
                node.send("nobody", "lost")

            assert sum(node.info().dead_letters.values()) == 5


async def test_the_nodes_events_create_no_notices_without_subscribers() -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None) as node:
            observer = await node.spawn(Subscriber)
            await node.call(observer, lambda actor: actor.subscribe(DEAD_LETTER))
            await node.call(observer, lambda actor: actor.unsubscribe(DEAD_LETTER))

            node.send("nobody", "lost")
            await wait_all_tasks_blocked()

            assert await contents(node, observer) == []
            assert kernel_of(node).publisher.heard == set()
            assert router_of(node).dead_letters.announce is None
            assert set(node.events()) == set(NODE_EVENTS)


async def test_a_producer_that_has_ended_gets_no_notices() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: me.register_event("news", notify=True))
        publishing = kernel_of(node).publisher
        event = publishing.events.get(publishing.name("news"))
        node.kill(pid)
        await node.wait_ended(pid)

        publishing._tell_producer(event, EventStopped(event.name))

        assert node.info().dead_letters == {}


async def test_a_process_also_publishes_from_a_thread() -> None:
    heard: list[Any] = []

    class Listener(Actor):
        def init(self) -> None:
            self.subscribe("news")

        def handle_event(self, event: Published) -> None:
            heard.append(event.message)

    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await node.call(pid, lambda me: me.register_event("news"))
        await node.spawn(Listener)
        publishing = kernel_of(node).publisher

        taken = await trio.to_thread.run_sync(
            publishing.publish, pid, publishing.name("news"), "from a thread", None
        )
        await wait_all_tasks_blocked()

    assert (taken, heard) == (1, ["from a thread"])


NOTICES = [EventStarted, EventStopped] * 2


class BusyProducer(Actor):
    """Registers an event, waits in its first message, and keeps the messages after it."""

    def __init__(self, gate: trio.Event, heard: list[Any]) -> None:
        self.gate = gate
        self.heard = heard

    def init(self) -> None:
        self.register_event("news", notify=True)

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)
        if message == "wait":
            await self.gate.wait()


@pytest.mark.parametrize("overflow", [Overflow.RAISE, Overflow.DROP_OLDEST, Overflow.WAIT])
async def test_notices_of_events_are_signals_that_no_bound_counts_or_drops(
    overflow: Overflow,
) -> None:
    heard: list[Any] = []
    gate = trio.Event()
    async with running_node() as node:
        pid = await node.spawn(BusyProducer, gate, heard, mailbox_size=2, overflow=overflow)
        listener = await node.spawn(Puppet)
        node.send(pid, "wait")
        await wait_all_tasks_blocked()
        for _ in range(2):
            await node.call(listener, lambda me: me.subscribe("news"))
            await node.call(listener, lambda me: me.unsubscribe("news"))

        for number in range(2):
            assert node.send(pid, number, priority=Priority.HIGH)
        if overflow is Overflow.RAISE:
            with pytest.raises(MailboxFullError):
                node.send(pid, 2, priority=Priority.HIGH)
        elif overflow is Overflow.DROP_OLDEST:
            assert node.send(pid, 2, priority=Priority.HIGH)
        gate.set()
        await wait_all_tasks_blocked()

        assert [type(one) for one in heard[1:5]] == NOTICES
        assert heard[5:] == ([1, 2] if overflow is Overflow.DROP_OLDEST else [0, 1])
        lost = [] if overflow is Overflow.WAIT else ["int"]
        assert [letter.message_type for letter in node.dead_letters()] == lost


async def test_notices_that_a_producer_did_not_handle_are_no_dead_letters() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(BusyProducer, trio.Event(), heard)
        listener = await node.spawn(Puppet)
        node.send(pid, "wait")
        await wait_all_tasks_blocked()
        await node.call(listener, lambda me: me.subscribe("news"))
        node.kill(pid)
        await node.wait_ended(pid)

        assert heard == ["wait"]
        assert node.dead_letters() == []


@pytest.mark.parametrize("subscribed", [False, True])
async def test_dead_letters_are_in_the_log_at_the_level_debug(
    subscribed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Any] = []

    class Listens(Actor):
        def init(self) -> None:
            if subscribed:
                self.subscribe(DEAD_LETTER)

        def handle_event(self, event: Published) -> None:
            heard.append(event.message)

    async with open_node(watchdog=None, log_output="json", log_level="debug") as node:
        await node.spawn(Listens)
        assert not node.send("conter", 1.5)
        await wait_all_tasks_blocked()

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line["event"] == "dead letter"]
    assert (line["level"], line["target"], line["message_type"]) == ("debug", "'conter'", "float")
    assert line["why"] == "there is no process at this address"
    assert len(heard) == int(subscribed)


async def test_dead_letters_are_not_in_the_log_at_the_usual_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with open_node(watchdog=None, log_output="json") as node:
        assert not node.send("conter", 1.5)
        assert router_of(node).dead_letters.announce is None

    assert capsys.readouterr().err == ""
