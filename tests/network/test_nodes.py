"""Two nodes: the verbs work with a target on another node as with a target on the own node."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    BadInputError,
    Behind,
    Caller,
    CallTimeoutError,
    Crashed,
    Custom,
    Down,
    EventName,
    Exit,
    Key,
    MailboxFullError,
    MetaProcess,
    Name,
    NodeDown,
    NodeName,
    NodeUp,
    NoNode,
    NoProcess,
    Overflow,
    Priority,
    Reject,
    Shutdown,
    TargetDownError,
    Why,
)
from ergo_py.errors import UnhandledCallError
from ergo_py.network import Local, Memory, RemoteError, UnreadableError
from ergo_py.network.errors import MessageTypeError, NodeBusyError
from ergo_py.network.protocol.frames import Bye, Data, encode_frame, read_frame
from tests.actors import Puppet, Recorder
from tests.network.pairs import (
    TYPES,
    Add,
    Echo,
    Order,
    Total,
    carrier_of,
    make_network,
    network_of,
    two_nodes,
    until,
)
from tests.support import kernel_of, running_node


class Counter(Actor):
    """Adds numbers, plain or async."""

    def __init__(self) -> None:
        self.total = 0
        self.senders: list[Any] = []

    def handle_message(self, message: Add, sender: Any) -> None:
        self.total += message.number
        self.senders.append(sender)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        match request:
            case Total():
                return self.total
            case Echo("reject"):
                raise Reject(LookupError("no such thing"))
            case Echo("own error"):
                raise Reject(OwnError("odd"))
            case Echo("crash"):
                raise RuntimeError("broken")
            case Echo("object"):
                return object()
            case Echo("never"):
                return NO_REPLY
            case Echo(value):
                return value
        raise AssertionError


class OwnError(Exception):
    """An exception that is not listed."""


class Talker(Actor):
    """Runs a function of the test in its own callbacks, and keeps other messages."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def init(self) -> None:
        self.trap_exit = True

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        result = request(self)
        return await result if hasattr(result, "__await__") else result

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)

    def handle_event(self, event: Any) -> None:
        self.heard.append((event.event.name, event.message))


# -- messages ------------------------------------------------------------------------------------


async def test_a_message_reaches_a_pid_and_a_name_of_another_node(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter, name="counter")
        assert a.send(pid, Add(1))
        assert a.send(Name("counter", "b@test"), Add(2))

        assert await a.call(pid, Total()) == 3
        assert a.nodes() == ["b@test"]
        assert b.nodes() == ["a@test"]


async def test_messages_and_calls_of_a_sender_keep_their_order(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Recorder, heard)
        await b.spawn(Counter, name="other")
        for number in range(3000):
            a.send(pid, number)
            if number % 500 == 0:
                assert await a.call(pid, None) == list(range(number + 1))
        await a.call(pid, None)

    assert heard == list(range(3000))


async def test_the_sender_of_a_message_can_be_answered(network: Any) -> None:
    heard: list[Any] = []

    class Answerer(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.send(sender, ["answer", message, self.pid])

    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Answerer)
        talker = await a.spawn(Talker, heard)
        await a.call(talker, lambda me: me.send(pid, "question"))
        await until(lambda: heard)

        assert heard == [["answer", "question", pid]]


async def test_a_higher_priority_overtakes_on_the_other_node(network: Any) -> None:
    heard: list[Any] = []

    class Slow(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "first":
                await gate.wait()
            heard.append(message)

    gate = trio.Event()
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Slow)
        a.send(pid, "first")
        await until(lambda: b.process_info(pid).state.value != "sleep")
        a.send(pid, "normal")
        await a.send_wait(pid, "high", priority=Priority.HIGH)
        gate.set()
        await until(lambda: len(heard) == 3)

    assert heard == ["first", "high", "normal"]


async def test_a_timer_sends_the_message_as_it_was_when_it_was_armed(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Recorder, heard)
        talker = await a.spawn(Talker, [])
        message = [1]

        def arm(me: Talker) -> None:
            me.send_after(0.01, pid, message)
            message.append(2)
            with pytest.raises(MessageTypeError):
                me.send_after(0.01, pid, object())

        await a.call(talker, arm)
        await until(lambda: heard)

    assert heard == [[1]]


@pytest.mark.counted
async def test_a_thread_and_a_reader_thread_send_to_another_node(network: Any) -> None:
    heard: list[Any] = []

    class Flood(MetaProcess):
        def start(self) -> None:
            for number in range(500):
                self.send(pid, number)
            try:
                self.send(pid, object())
            except MessageTypeError as error:
                refused.append(error)

    refused: list[Any] = []
    async with two_nodes(make_like(network, backlog=4096)) as (a, b):
        pid = await b.spawn(Recorder, heard)
        talker = await a.spawn(Talker, [])
        await a.call(talker, lambda me: me.spawn_meta(Flood()))
        await until(lambda: len(heard) == 500 and refused)

        def send() -> None:
            for number in range(500, 1000):
                a.send(pid, number)
            with pytest.raises(MessageTypeError):
                a.send(pid, object())
            answers.append(a.call_from_thread(pid, None)[-1])

        answers: list[int] = []
        thread = threading.Thread(target=send)
        thread.start()
        await trio.to_thread.run_sync(thread.join)

    assert heard == list(range(1000))
    assert answers == [999]


def make_like(network: Any, **settings: Any) -> Any:
    """A network of the same kind with other settings."""
    if isinstance(network, Local):
        return make_network("local", network.settings["directory"], **settings)
    return make_network("memory", **settings)


async def test_send_wait_tells_whether_a_mailbox_has_taken_the_message(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Recorder)
        assert await a.send_wait(pid, 1)
        assert not await a.send_wait(Name("nobody", "b@test"), 1)
        assert not await a.send_wait(Name("x", "nowhere@test"), 1)
        assert b.dead_letters()[-1].why is Why.NO_PROCESS


async def test_send_wait_waits_for_room_in_a_mailbox_of_another_node(network: Any) -> None:
    gate = trio.Event()

    class Slow(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await gate.wait()

    async with two_nodes(network) as (a, b):
        waits = await b.spawn(Slow, mailbox_size=1, overflow=Overflow.WAIT)
        refuses = await b.spawn(Slow, mailbox_size=1)
        for pid in (waits, refuses):
            a.send(pid, "served")
            await until(lambda: b.process_info(pid).state.value != "sleep")  # noqa: B023
            assert await a.send_wait(pid, "queued")
        with pytest.raises(MailboxFullError):
            await a.send_wait(refuses, "refused")
        with pytest.raises(NodeBusyError, match=r"within 0.01 s; it may still arrive"):
            await a.send_wait(waits, "late", timeout=0.01)
        results: list[bool] = []
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                results.append(await a.send_wait(waits, "in time"))

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert results == []
            gate.set()
        assert results == [True]


async def test_a_full_mailbox_counts_dead_letters_on_its_own_node(network: Any) -> None:
    gate = trio.Event()

    class Slow(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await gate.wait()

    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Slow, mailbox_size=1)
        for number in range(4):
            assert a.send(pid, number)
        with pytest.raises(MailboxFullError):
            await a.call(pid, "call")
        gate.set()
        assert [letter.why for letter in b.dead_letters()][:2] == [Why.FULL, Why.FULL]


async def test_a_message_that_cannot_travel_is_refused_in_the_turn_of_its_sender(
    network: Any,
) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        with pytest.raises(MessageTypeError, match="cannot travel to <PID 1 b@test>"):
            a.send(pid, object())
        with pytest.raises(MessageTypeError):
            await a.call(pid, object())
        with pytest.raises(MessageTypeError):
            await a.send_wait(pid, object())
        assert await a.call(pid, Total()) == 0


async def test_a_type_that_the_receiver_does_not_know_costs_that_message_only(
    meeting_place: Path,
) -> None:
    here = make_network("local", meeting_place)
    there = make_network("local", meeting_place, types=[Total, Echo])
    async with (
        running_node("a@test", network=here) as a,
        running_node("b@test", network=there) as b,
    ):
        pid = await b.spawn(Counter)
        a.send(pid, Add(1))
        with pytest.raises(UnreadableError, match="the type 'Add' is not in this node's"):
            await a.call(pid, Add(2))
        assert await a.call(pid, Total()) == 0
        assert [letter.why for letter in b.dead_letters()] == [Why.UNREADABLE]


async def test_a_message_larger_than_the_carrier_takes_is_refused(network: Any) -> None:
    from ergo_py.network.errors import MessageTooLargeError

    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Recorder)
        with pytest.raises(MessageTooLargeError, match="send it in parts"):
            a.send(pid, b"x" * (17 << 20))
        large = b"y" * 1_000_000  # a NATS server takes a MiB
        assert await a.call(pid, large) == []
        await a.send_wait(pid, large)
        assert await a.call(pid, None) == [large]


# -- calls ---------------------------------------------------------------------------------------


async def test_a_call_of_another_node_ends_in_each_way_a_call_ends(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        silent = await b.spawn(type("Silent", (Actor,), {}))
        order = Order([Add(1)], TYPES[-1].RED)  # type: ignore[attr-defined]

        assert await a.call(pid, Echo(order)) == order
        with pytest.raises(LookupError, match="no such thing"):
            await a.call(pid, Echo("reject"))
        with pytest.raises(RemoteError, match="OwnError: odd"):
            await a.call(pid, Echo("own error"))
        with pytest.raises(CallTimeoutError):
            await a.call(pid, Echo("never"), timeout=0.02)
        with pytest.raises(UnhandledCallError, match="Silent at <PID 2 b@test> has no handle_call"):
            await a.call(silent, Total())
        with pytest.raises(TargetDownError, match="crashed: RuntimeError: broken") as caught:
            await a.call(pid, Echo("crash"))
        assert isinstance(caught.value.reason, Crashed)
        assert "raise RuntimeError" in caught.value.reason.traceback
        with pytest.raises(TargetDownError) as caught:
            await a.call(pid, Total())
        assert caught.value.reason == NoProcess()


async def test_an_answer_that_cannot_travel_fails_the_call_and_not_the_callee(
    network: Any,
) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        with pytest.raises(Exception, match=r"builtins\.object cannot travel"):
            await a.call(pid, Echo("object"))
        assert await a.call(pid, Total()) == 0


async def test_a_call_is_forwarded_between_nodes(network: Any) -> None:
    class Forwarder(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.forward(target, request, caller)

    async with two_nodes(network) as (a, b), running_node("c@test", network=network) as c:
        target = await c.spawn(Counter)
        forwarder = await b.spawn(Forwarder)
        assert await a.call(forwarder, Echo("hello")) == "hello"
        with pytest.raises(LookupError):
            await a.call(forwarder, Echo("reject"))


async def test_an_actor_calls_an_actor_of_another_node_and_back(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        talker = await a.spawn(Talker, [])
        assert await a.call(talker, lambda me: me.call(pid, Echo(me.pid))) == talker


# -- links, monitors, exits ----------------------------------------------------------------------


async def test_a_monitor_tells_the_end_of_each_kind_of_target(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Puppet, name="puppet")
        other = await b.spawn(Counter)
        alias = await b.call(pid, lambda me: me.create_alias())
        await b.call(pid, lambda me: me.register_event("news"))
        watcher = await a.spawn(Talker, heard)
        name, event = Name("puppet", "b@test"), EventName("news", "b@test")

        def watch(me: Talker) -> None:
            for target in (pid, alias, name, event, other):
                me.monitor(target)
            me.demonitor(other)

        await a.call(watcher, watch)
        await a.call(other, Total())
        b.send_exit(other, "unwatched")
        b.send_exit(pid, "done")
        await until(lambda: len(heard) == 4)

        assert {down.target for down in heard} == {pid, alias, name, event}
        assert all(down.reason == Custom("done") for down in heard)


async def test_a_monitor_of_a_missing_process_tells_at_once(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, _b):
        watcher = await a.spawn(Talker, heard)
        gone = PID("b@test", 1, 99)
        await a.call(watcher, lambda me: me.monitor(gone))
        await a.call(watcher, lambda me: me.monitor(Name("x", "nowhere@test")))
        await until(lambda: len(heard) == 2)

        assert set(heard) == {
            Down(gone, NoProcess()),
            Down(Name("x", "nowhere@test"), NoNode("nowhere@test")),
        }


async def test_a_link_ends_the_process_or_sends_an_exit(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Puppet)
        trapping = await a.spawn(Talker, heard)
        plain = await a.spawn(Puppet)
        await a.call(trapping, lambda me: me.link(pid))
        await a.call(plain, lambda me: me.link(pid))
        await a.call(pid, None)
        b.send_exit(pid, "done")

        assert await a.wait_ended(plain) == Custom("done")
        await until(lambda: heard)
        assert heard == [Exit(pid, Custom("done"))]


async def test_exit_and_kill_reach_a_process_of_another_node(networks: Any) -> None:
    async with two_nodes(networks(allow="default,kill")) as (a, b):
        first, second = await b.spawn(Puppet), await b.spawn(Puppet)
        assert a.send_exit(first, Shutdown("please"))
        assert a.kill(second)

        assert await b.wait_ended(first) == Shutdown("please")
        assert str(await b.wait_ended(second)) == "killed"


async def test_a_single_watch_crosses_the_wire_for_many_watchers() -> None:
    network = make_network("memory")
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Puppet)
        for _ in range(20):
            watcher = await a.spawn(Talker, heard)
            await a.call(watcher, lambda me: me.monitor(pid))
        await a.call(pid, None)
        assert kernel_of(b).relations.count(pid) == 1
        b.send_exit(pid, "done")
        await until(lambda: len(heard) == 20)


# -- events --------------------------------------------------------------------------------------


async def test_events_of_another_node_arrive_with_the_publications_it_keeps(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        producer = await b.spawn(Puppet)
        await b.call(producer, lambda me: me.register_event("news", buffer=2))
        for number in range(3):
            await b.call(producer, publish_of("news", number))
        news, others = EventName("news", "b@test"), list[Any]()
        for kept, label in ((heard, "first"), (others, "second")):
            watcher = await a.spawn(Talker, kept)
            assert await a.call(watcher, lambda me: me.subscribe(news)) == ()
            # Published while the subscription is on its way: it comes once, either way.
            await b.call(producer, publish_of("news", label))
        await b.call(producer, publish_of("news", "last"))
        await until(lambda: heard and others and heard[-1] == others[-1] == ("news", "last"))
        published = [("news", message) for message in (0, 1, 2, "first", "second", "last")]
        for kept in (heard, others):
            assert len(kept) >= 2
            assert kept == published[-len(kept) :]

        await b.call(producer, lambda me: me.unregister_event("news"))
        await until(lambda: isinstance(heard[-1], Down) and isinstance(others[-1], Down))


def publish_of(event: str, message: object) -> Any:
    return lambda me: me.publish(event, message)


async def test_a_publication_that_cannot_travel_is_dropped_and_counted(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        producer = await b.spawn(Puppet)
        await b.call(producer, lambda me: me.register_event("news"))
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.subscribe(EventName("news", "b@test")))
        await a.call(producer, None)
        assert await b.call(producer, publish_of("news", object())) == 0
        assert await b.call(producer, publish_of("news", "fine")) == 1
        await until(lambda: heard)
        assert heard == [("news", "fine")]


async def test_node_up_and_node_down_are_events_of_the_node(network: Any) -> None:
    heard: list[Any] = []
    async with running_node("a@test", network=network) as a:
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.subscribe("ergo.node_up"))
        await a.call(watcher, lambda me: me.subscribe("ergo.node_down"))
        async with running_node("b@test", network=network) as b:
            pid = await b.spawn(Counter)
            await a.call(pid, Total())
            assert await a.discover() == ["b@test"]
        await until(lambda: len(heard) == 2)

    assert heard == [
        ("ergo.node_up", NodeUp("b@test")),
        ("ergo.node_down", NodeDown("b@test", Shutdown("the node goes down"))),
    ]


# -- the end of a node ---------------------------------------------------------------------------


async def test_a_node_that_goes_down_is_told_to_all_that_depend_on_it(network: Any) -> None:
    heard: list[Any] = []
    errors: list[BaseException] = []
    async with running_node("a@test", network=network) as a:
        async with trio.open_nursery() as nursery:  # noqa: SIM117 - the node ends first
            async with running_node("b@test", network=network) as b:
                pid = await b.spawn(Counter)
                watcher = await a.spawn(Talker, heard)
                await a.call(watcher, lambda me: me.monitor(NodeName("b@test")))
                await a.call(watcher, lambda me: me.link(pid))

                async def call() -> None:
                    try:
                        await a.call(pid, Echo("never"), timeout=None)
                    except TargetDownError as error:
                        errors.append(error)

                nursery.start_soon(call)
                await a.call(pid, Total())
                await trio.testing.wait_all_tasks_blocked()
        await until(lambda: len(heard) == 2)

        # The normal end keeps its place behind messages; the loss of a node is urgent.
        assert Exit(pid, Shutdown()) in heard
        assert Down(NodeName("b@test"), NoNode("b@test")) in heard
        assert len(errors) == 1
        # The next use tries to connect again.
        with pytest.raises(TargetDownError, match="no connection to node b@test"):
            await a.call(pid, Total())


async def test_a_node_that_starts_again_has_a_new_life(network: Any) -> None:
    async with running_node("a@test", network=network) as a:
        async with running_node("b@test", network=network) as b:
            old = await b.spawn(Counter, name="counter")
            a.send(old, Add(1))
            assert await a.call(old, Total()) == 1
        async with running_node("b@test", network=network) as b:
            await b.spawn(Counter, name="counter")
            assert await a.call(Name("counter", "b@test"), Total()) == 0
            with pytest.raises(TargetDownError) as caught:
                await a.call(old, Total())
            assert caught.value.reason == NoProcess()
            a.send(old, Add(1))
            assert await a.call(Name("counter", "b@test"), Total()) == 0
            assert b.dead_letters()[-1].why is Why.NO_PROCESS


# -- bounds --------------------------------------------------------------------------------------


async def test_a_plain_send_is_refused_when_too_many_bytes_wait() -> None:
    network = make_network("memory", backlog=1000)
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Recorder)
        await a.call(pid, None)
        network.freeze("b@test")
        sent = 0
        with pytest.raises(NodeBusyError, match="bytes wait for the node 'b@test'"):
            while True:
                a.send(pid, b"x" * 100_000)
                sent += 1
        assert a.dead_letters()[-1].why is Why.FULL
        network.thaw("b@test")
        assert len(await a.call(pid, None)) == sent


async def test_operations_that_come_of_a_pass_of_a_reader_leave_in_a_single_frame() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Counter)
        assert await a.call(pid, Total()) == 0
        network, frames = network_of(a), list[bytes]()
        carrier = carrier_of(a)
        send = carrier.send

        def note(to: str, frame: bytes) -> None:
            frames.append(frame)
            send(to, frame)

        carrier.send = note
        task = trio.lowlevel.current_task()

        network.begin_pass(task)
        network.frame("b@test", encode_frame(Bye(1, 2, "of an old session")))
        for number in range(3):
            a.send(pid, Add(number))
        assert frames == []
        network.end_pass(task)

        (frame,) = map(read_frame, frames)
        assert isinstance(frame, Data)
        assert len(frame.ops) == 3
        assert await a.call(pid, Total()) == 3


async def test_operations_of_a_long_pass_go_out_in_parts_so_that_both_nodes_work() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Counter)
        assert await a.call(pid, Total()) == 0
        network = network_of(a)
        peer = network.peers["b@test"]
        sent = a.network().peers["b@test"].frames_out
        task = trio.lowlevel.current_task()

        network.begin_pass(task)
        network.frame("b@test", encode_frame(Bye(1, 2, "of an old session")))
        for _ in range(1000):
            a.send(pid, Add(1))
        in_pass = a.network().peers["b@test"].frames_out - sent
        waiting = peer.session.queued_bytes
        network.end_pass(task)

        assert in_pass > 2
        assert waiting < 16 * 1024
        assert await a.call(pid, Total()) == 1000


async def test_a_priority_of_another_type_is_refused_before_the_message_travels() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Counter)
        assert await a.call(pid, Total()) == 0
        wrong: Any = 7
        with pytest.raises(BadInputError, match="or Priority"):
            a.send(pid, Add(1), priority=wrong)
        assert await a.call(pid, Total()) == 0


async def test_a_call_waits_for_room_instead() -> None:
    network = make_network("memory", backlog=1000, window=2048)
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        assert await a.call(pid, Total()) == 0
        results: list[Any] = []
        network.freeze("b@test")
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                results.append(await a.call(pid, Echo(b"y" * 900)))

            for _ in range(10):
                nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            network.thaw("b@test")
        assert results == [b"y" * 900] * 10


# -- the own node --------------------------------------------------------------------------------


@pytest.mark.counted
async def test_a_node_alone_has_the_usual_router_and_no_network() -> None:
    from ergo_py._core.messaging.router import Router

    async with running_node("alone") as node:
        assert type(kernel_of(node).router) is Router
        assert node.nodes() == []
        assert await node.discover() == []
        assert not node.send(Name("x", "b@test"), 1)


async def test_an_address_of_the_own_node_stays_on_it(network: Any) -> None:
    async with two_nodes(network) as (a, _):
        pid = await a.spawn(Recorder, name="here")
        message = object()
        assert a.send(Name("here", "a@test"), message)
        assert a.send(pid, message)
        assert await a.call(pid, None) == [message, message]
        assert a.nodes() == []


@pytest.mark.counted
async def test_a_key_of_a_registry_of_another_node_is_an_address(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Puppet)
        b.registry("users").register(("anna", 7), pid)
        key = Key("users", ("anna", 7), "b@test")
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(key))
        assert await a.send_wait(key, "hello")
        assert await a.call(key, None) == ["hello"]
        with pytest.raises(TargetDownError):
            await a.call(Key("users", "nobody", "b@test"), None)
        with pytest.raises(MessageTypeError):
            a.send(Key("users", object(), "b@test"), 1)
        b.send_exit(pid, "done")
        await until(lambda: heard)

        assert heard == [Down(key, Custom("done"))]


async def test_local_sends_of_a_node_with_a_network_wait_and_come_from_threads() -> None:
    async with running_node("a@test", network=make_network("memory")) as a:
        heard: list[Any] = []
        pid = await a.spawn(Recorder, heard, mailbox_size=50)
        assert await a.send_wait(pid, 1)
        await trio.to_thread.run_sync(lambda: a.send(pid, 2, priority=Priority.HIGH))
        await until(lambda: sorted(heard) == [1, 2])


async def test_a_watch_stays_while_a_process_still_watches() -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Puppet)
        watchers = [await a.spawn(Talker, heard) for _ in range(2)]
        for watcher in watchers:
            await a.call(watcher, lambda me: me.monitor(pid))
        await a.call(watchers[0], lambda me: me.demonitor(pid))
        await a.call(pid, None)
        b.send_exit(pid, "done")
        await until(lambda: heard)

        assert heard == [Down(pid, Custom("done"))]


@pytest.mark.counted
async def test_a_reader_task_that_drops_sends_to_another_node() -> None:
    heard: list[Any] = []

    class Source(MetaProcess):
        async def start(self) -> None:
            self.send(pid, 1)
            with pytest.raises(MessageTypeError):
                self.send(pid, object())
            await trio.sleep_forever()

    async with two_nodes(make_network("memory")) as (a, b):
        pid = await b.spawn(Recorder, heard)
        talker = await a.spawn(Talker, [])
        await a.call(talker, lambda me: me.spawn_meta(Source(), when_behind=Behind.DROP_NEWEST))
        await until(lambda: heard)

        assert heard == [1]


async def test_programs_that_restart_under_new_names_are_forgotten(autojump_clock: Any) -> None:
    network = Memory(types=TYPES)
    async with running_node("a@test", network=network, limit=10_000) as a:
        await a.spawn(Counter, name="counter")
        counter = Name("counter", "a@test")
        async with running_node("first@test", network=network, limit=10_000) as first:
            assert await first.call(counter, Total()) == 0
            for number in range(100):
                async with running_node(f"n{number}@test", network=network) as other:
                    assert await other.call(counter, Total()) == 0
            names = list(a.network().peers)
            assert len(names) <= 65
            assert "n99@test" in names  # the last accounts can be looked at
            assert "n0@test" not in names
            assert "first@test" in names  # it is connected
