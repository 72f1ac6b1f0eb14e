"""Operations that no honest node sends: they harm neither processes nor the tables of a node."""

import collections
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    CallError,
    ChildSpec,
    Down,
    EventName,
    Exit,
    Key,
    Name,
    Node,
    NoProcess,
    NotAllowedError,
    Overflow,
    Shutdown,
    TargetDownError,
    Why,
)
from ergo_py._core.messaging.waiters import TaskCaller
from ergo_py._core.runtime.parking import park_as
from ergo_py._core.vocabulary.errors import ChildUnknownError
from ergo_py.errors import CallFailedError, ProcessUnknownError
from ergo_py.network import NotPermittedError, RemoteError, UnreadableError
from ergo_py.network.access.limits import ADDRESS, LARGEST
from ergo_py.network.access.permits import Permits
from ergo_py.network.errors import MessageTooLargeError, MessageTypeError
from ergo_py.network.node_requests.chunks import Chunks
from ergo_py.network.outgoing.look import Look, look
from ergo_py.network.protocol import operations as ops
from ergo_py.network.protocol.operations import sender_place
from tests.actors import Puppet
from tests.network.pairs import (
    Add,
    Colour,
    Echo,
    Order,
    Total,
    make_network,
    network_of,
    two_nodes,
    until,
)
from tests.network.support import routes_of
from tests.network.test_limits import Keeper
from tests.network.test_nodes import Counter, Talker
from tests.network.test_permits import Forwarding
from tests.support import Passes, running_node


async def hostile(a: Node) -> Any:
    """The node b, for operations that a writes by hand."""
    await a.at("b@test").ping()
    return network_of(a).peers["b@test"]


def route_to(peer: Any, pid: PID) -> bytes:
    """The route from the node itself to a process there."""
    me = sender_place(peer.network.kernel.pid)
    return ops.encode_route(ops.Route(peer.routes.place(pid), me, 0))


class Silent(Actor):
    """Answers no call."""

    def __init__(self, callers: list[Caller]) -> None:
        self.callers = callers

    def handle_call(self, request: Any, caller: Caller) -> Any:
        self.callers.append(caller)
        return NO_REPLY


# -- senders ---------------------------------------------------------------------------------------


async def test_an_exit_signal_with_the_sender_of_another_node_ends_the_session() -> None:
    """The exit signal of its parent ends a process that traps exits."""
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        parent = await b.spawn(Puppet)
        child = await b.call(parent, lambda me: me.spawn(Talker, heard))
        body = peer.network.types.encode_reason(Shutdown())
        peer.push(ops.Exit(peer.routes.place(child), sender_place(parent), False, body))
        await until(lambda: not a.nodes() and not b.nodes())
        assert b.process_info(child).pid == child
        assert heard == []

        # An honest exit signal is a message for a process that traps exits.
        sender = await a.spawn(Puppet)
        await a.call(sender, lambda me: me.send_exit(child, Shutdown("honest")))
        await until(lambda: heard)
        assert heard == [Exit(sender, Shutdown("honest"))]


SIGNALS = [
    Down(Name("sink", "b@test"), Shutdown("forged")),
    Exit(Name("sink", "b@test"), Shutdown("forged")),
]


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: type(signal).__name__)
async def test_a_signal_of_the_runtime_is_no_message_of_another_node(signal: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        watcher = await b.spawn(Talker, heard)
        peer = await hostile(a)
        kind = type(signal).__name__
        with pytest.raises(MessageTypeError, match=f"a {kind} cannot travel .* holds it"):
            a.send(watcher, signal)
        with pytest.raises(MessageTypeError, match=f"a {kind} cannot travel"):
            await a.send_wait(watcher, signal)
        with pytest.raises(MessageTypeError, match=f"a {kind} cannot travel"):
            await a.call(watcher, signal)

        route, body = route_to(peer, watcher), peer.network.types.encode(signal)
        peer.push(ops.Send(route, body))
        peer.push(ops.ConfirmedSend(1000, route, body))
        peer.push(ops.Call(1001, route, body))
        a.send(watcher, Echo(signal))  # a value of a message is what its sender says
        await until(lambda: heard)
        assert heard == [Echo(signal)]
        assert [letter.why for letter in b.dead_letters()] == [Why.UNREADABLE] * 2
        assert b.network().peers["a@test"].refused == {"unreadable": 3}


async def test_a_sender_of_the_receiving_node_has_sent_to_another_node_before() -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        sink, honest, silent = [await b.spawn(Puppet, heard) for _ in range(3)]
        back = await a.spawn(Forwarding, sink)
        peer = await hostile(a)
        body = peer.network.types.encode(Add(1))
        for forged in (silent, PID("b@test", silent.creation, 0)):
            place = ops.Route(peer.routes.place(sink), sender_place(forged), 0)
            route = ops.encode_route(place)
            peer.push(ops.Send(route, body))
            peer.push(ops.Call(1000, route, body))
            with pytest.raises(NotPermittedError, match="sends in the name of"):
                await confirmed(peer, route, body)
        assert heard == []
        assert b.network().peers["a@test"].refused == {"forged sender": 6}
        assert [letter.why for letter in b.dead_letters()] == [Why.NOT_PERMITTED] * 4

        await b.call(honest, lambda me: me.send(back, Add(2)))
        assert await b.call(honest, lambda me: me.call(back, Total())) == [Add(2)]
        assert heard == [Add(2)]


async def confirmed(peer: Any, route: bytes, body: bytes) -> Any:
    """The confirmation of a message that is written by hand."""
    task: Any = trio.lowlevel.current_task()
    number = next(peer.router.references)
    caller = TaskCaller(peer.network.kernel.pid, number, None, None, task, peer)
    caller.wait_without_limit()
    peer.push(ops.ConfirmedSend(peer.remember(caller), route, body))
    with trio.fail_after(30):
        await park_as(task, caller)
    return caller.result()


# -- texts -----------------------------------------------------------------------------------------


async def test_a_text_of_no_encoding_costs_the_session_only() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        counter = await b.spawn(Counter)
        await hostile(a)
        data = ops.encode_operation(ops.NodeRequest(1, "name", b""))
        network_of(b).connections["a@test"].deliver(data.replace(b"name", b"\xffame"))
        await until(lambda: not a.nodes() and not b.nodes())

        assert await a.call(counter, Total()) == 0


# -- lengths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["send", "call", "ask", "watch", "exit", "key", "refused"])
async def test_an_address_that_is_too_long_ends_the_session_and_is_not_kept(act: str) -> None:
    hub = make_network("memory")
    async with two_nodes(hub) as (a, b):
        if act == "refused":
            network_of(b).context.permits = Permits("call")
        peer = await hostile(a)
        me = sender_place(peer.network.kernel.pid)
        executor = network_of(b).connections["a@test"].executor
        place = (
            ops.Place(4, 0, 0, "r", peer.network.types.encode("k" * ADDRESS))
            if act == "key"
            else ops.Place(2, 0, 0, "n" * (ADDRESS + 1))
        )
        route = ops.encode_route(ops.Route(place, me, 0))
        body = peer.network.types.encode(1)
        op: Any = {
            "call": ops.Call(1000, route, body),
            "ask": ops.ConfirmedSend(1000, route, body),
            "watch": ops.Watch(1000, place, 0),
            "exit": ops.Exit(place, me, False, body),
        }.get(act, ops.Send(route, body))
        peer.push(op)
        await until(lambda: not a.nodes() and not b.nodes())
        assert routes_of(executor) == {}
        assert executor.watched.count == 0


async def test_the_longest_address_and_the_longest_name_of_a_node_travel() -> None:
    heard: list[Any] = []
    long = f"{'ä' * 125}@test"
    async with (
        running_node(long, network=(hub := make_network("memory"))) as a,
        running_node("b@test", network=hub) as b,
    ):
        name = "ü" * (ADDRESS // 2)
        await b.spawn(Puppet, heard, name=name)
        a.send(Name(name, "b@test"), Add(1))
        await until(lambda: heard)
        route = ops.Route(ops.Place(2, 0, 0, "n"), ops.Sender(False, "c" * 5000, 1, 1), 0)
        peer = network_of(a).peers["b@test"]
        peer.push(ops.Send(ops.encode_route(route), b"\1"))
        await until(lambda: not a.nodes() and not b.nodes())


# -- dead letters ----------------------------------------------------------------------------------


async def test_a_message_that_becomes_a_dead_letter_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = make_network("memory")
    decoded: list[Any] = []
    async with running_node("b@test", network=hub) as b:
        async with running_node("a@test", network=hub) as a:
            await a.at("b@test").ping()
            ended = await b.spawn(Puppet)
            b.kill(ended)
            await b.wait_ended(ended)
            for node in (a, b):
                spy_on(monkeypatch, node, decoded)
            missing = Name("none", "b@test")
            for to in (ended, missing):
                a.send(to, Order([], Colour.RED))
                assert not await a.send_wait(to, Order([], Colour.RED))
                with pytest.raises(TargetDownError):
                    await a.call(to, Echo("x"))
            assert [letter.message_type for letter in b.dead_letters()] == ["Order"] * 4
            assert b.network().peers["a@test"].refused == {"undelivered": 6}
            a.send(Name("none", "c@test"), Order([], Colour.RED))  # no such node
            await until(a.dead_letters)
            assert a.dead_letters()[0].message_type == "Order"
        assert [value for value in decoded if not isinstance(value, bool | NoProcess)] == []


async def test_a_message_that_is_not_permitted_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[Any] = []
    async with two_nodes(make_network("memory", allow="call")) as (a, b):
        await a.at("b@test").ping()
        spy_on(monkeypatch, b, decoded)
        pid = await b.spawn(Puppet)
        a.send(pid, Add(1))
        with pytest.raises(NotPermittedError):
            await a.send_wait(pid, Order([], Colour.RED))
        assert [letter.message_type for letter in b.dead_letters()] == ["Add", "Order"]
        assert decoded == []


def spy_on(monkeypatch: pytest.MonkeyPatch, node: Node, decoded: list[Any]) -> None:
    """List all values that a node decodes."""
    types = network_of(node).types
    decode = types.decode

    def spy(data: Any) -> Any:
        decoded.append(decode(data))
        return decoded[-1]

    monkeypatch.setattr(types, "decode", spy)
    for connection in network_of(node).connections.values():
        monkeypatch.setattr(connection.executor, "_decode", spy)


# -- values ----------------------------------------------------------------------------------------


async def test_a_reason_that_is_none_becomes_a_reason() -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        target, other = await a.spawn(Counter), await a.spawn(Counter)
        watcher, plain = await b.spawn(Talker, heard), await b.spawn(Puppet)
        await b.call(watcher, lambda me: me.monitor(target))
        await b.call(plain, lambda me: me.link(other))
        await a.at("b@test").ping()
        for pid in (target, other):
            watched = network_of(a).connections["b@test"].executor.watched
            number = watched.number_of(pid)
            peer.push(ops.Ended(number, peer.network.types.encode(5)))
        me = sender_place(network_of(a).kernel.pid)
        peer.push(ops.Exit(peer.routes.place(watcher), me, False, peer.network.types.encode([1])))
        reason = await b.wait_ended(plain)
        assert reason == Shutdown("a reason of the type int, which is not a reason")
        await until(lambda: len(heard) == 2)
        assert {type(notice) for notice in heard} == {Down, Exit}
        assert all(isinstance(notice.reason, Shutdown) for notice in heard)


@pytest.mark.parametrize(
    "kind, payload",
    [
        ("service unknown", 5),
        ("service gone", 5),
        ("service busy", None),
        ("deadlock", 5),
        ("crashed", 5),
        ("down", "x"),
        ("unsendable", [1, 2, 3]),
        ("ergo", ["BadInputError", "text", None, {"args": 5}]),
        ("another", b"x"),
    ],
)
async def test_a_failure_with_a_strange_payload_ends_the_call(kind: str, payload: Any) -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        callers: list[Caller] = []
        silent = await a.spawn(Silent, callers)
        errors: list[BaseException] = []

        async def call() -> None:
            try:
                await b.call(silent, Total(), timeout=None)
            except (CallError, RemoteError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await until(lambda: callers)
            number = callers[0].number
            peer.push(ops.Failed(number, kind, peer.network.types.encode(payload)))
        assert len(errors) == 1
        assert a.nodes() == ["b@test"]


# -- tables ----------------------------------------------------------------------------------------


async def test_causes_of_refusals_that_a_node_tells_are_limited() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        for number in range(10):
            peer.push(ops.Counts({f"{number} {each}": 1 for each in range(100)}, []))
        peer.push(ops.Counts({"0 5": 7}, []))
        await a.at("b@test").ping()
        told = b.network().peers["a@test"].refused_there
        assert len(told) == 100
        assert told["0 5"] == 7


async def test_a_message_that_waits_for_room_ends_with_the_session_of_its_sender() -> None:
    """An answer to it in the next session would be the answer to another call."""
    network = make_network("memory")
    async with running_node("b@test", network=network) as b:
        full = await b.spawn(Puppet, mailbox_size=1, overflow=Overflow.WAIT)
        await b.suspend(full)
        async with running_node("a@test", network=network) as a:
            a.send(full, Add(0))
            await a.at("b@test").ping()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.send_wait, full, Add(1))
                await until(lambda: b.network().peers["a@test"].calls_in == 1)
                nursery.cancel_scope.cancel()
        assert b.network().peers["a@test"].calls_in == 0
        assert [letter.why for letter in b.dead_letters()] == [Why.UNCONFIRMED]
        async with running_node("a@test", network=network) as a:
            keeper = await b.spawn(Keeper)
            await a.at("b@test").ping()
            # The calls of the new node have the numbers of the old node's calls.
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(a.call, keeper, Echo(0))
                await until(lambda: b.network().peers["a@test"].calls_in == 10)
                await b.resume(full)
                assert await b.call(full, None) == [Add(0)]
                a.send(keeper, Add(10))
        assert b.network().peers["a@test"].refused == {}


async def test_a_node_that_asks_and_takes_no_answers_loses_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ergo_py.network.node_connection.ANSWERS", 1 << 20)
    network = make_network("memory", backlog=1 << 20)
    async with two_nodes(network) as (a, b):
        factory = await b.spawn(Factory)
        peer = await hostile(a)
        connection = network_of(a).connections["b@test"]
        monkeypatch.setattr(connection, "receive", lambda *_frame: None)  # nothing is acknowledged
        route = route_to(peer, factory)
        body = peer.network.types.encode(Echo(100_000))
        waiting = [0]
        for number in range(100):
            peer.push(ops.Call(1000 + number, route, body))
            await trio.testing.wait_all_tasks_blocked()
            if not b.nodes():
                break
            waiting.append(b.network().peers["a@test"].waiting_bytes)
        assert b.nodes() == []
        assert 1 << 20 < max(waiting) < 3 << 20
        assert b.network().peers["a@test"].waiting_bytes == 0


async def test_probes_and_refused_calls_look_through_a_limited_number_of_calls(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks through all open calls of its node."""
    monkeypatch.setattr("ergo_py.network.incoming.executor._LOOKS", 50)
    async with two_nodes(make_network("memory")) as (a, b):
        callers: list[Caller] = []
        silent = await b.spawn(Silent, callers)
        peer = await hostile(a)
        route, body = route_to(peer, silent), peer.network.types.encode(Total())
        for number in range(10):
            peer.push(ops.Call(1000 + number, route, body))
        for number in range(100):
            peer.push(ops.Withdraw(2000 + number))
        peer.push(ops.Withdraw(1000))
        await a.at("b@test").ping()
        assert b.network().peers["a@test"].calls_in == 10  # the look was refused
        await trio.sleep(1.0)
        peer.push(ops.Withdraw(1000))
        await a.at("b@test").ping()
        assert b.network().peers["a@test"].calls_in == 9


async def test_a_short_request_about_an_unknown_process_has_a_short_answer() -> None:
    """A node that may watch and call must not list the names of a node, either."""
    async with two_nodes(make_network("memory")) as (a, b):
        children = [ChildSpec(f"child-{number:030}", Puppet) for number in range(200)]
        await b.supervise(children)
        await b.spawn(Puppet, name="puppet")
        await a.at("b@test").ping()
        before = b.network().peers["a@test"].bytes_out

        with pytest.raises(ProcessUnknownError) as unknown:
            await a.wait_ended(Name("puppte", "b@test"))
        with pytest.raises(ChildUnknownError) as missing:
            await a.at("b@test").service("child").call(Total())

        assert str(unknown.value) == "there is no process at Name('puppte', 'b@test')"
        assert str(missing.value).endswith("'child-000000000000000000000000000009', …")
        assert b.network().peers["a@test"].bytes_out - before < 2_000


# -- permits ---------------------------------------------------------------------------------------


async def test_a_node_looks_into_no_third_node_for_another() -> None:
    """b permits a to look, and c permits b to look, but not a."""
    hub = make_network("memory", allow={"a@test": "default,look"})
    async with two_nodes(hub) as (a, _), running_node("c@test", network=hub) as c:
        network_of(c).context.permits = Permits({"b@test": "default,look"})
        pid = await c.spawn(Puppet)
        peer = await hostile(a)
        for verb in ("inspect", "inspect_meta", "process_info"):
            with pytest.raises(NotAllowedError, match="'b@test' looks into its own processes only"):
                await look(peer, Look(verb, (pid,)), {}, 5.0)
        with pytest.raises(NotPermittedError, match="'c@test' does not permit 'a@test' to look"):
            await a.inspect(pid)
        # By a keyword neither.
        for keywords in ({"to": pid}, {"to": pid, "timeout": 1.0}):
            with pytest.raises(UnreadableError, match="does not know the request 'look'"):
                await look(peer, Look("inspect"), keywords, 5.0)
        assert "b@test" not in c.network().peers


@pytest.mark.parametrize(
    "verb, arguments, keywords",
    [
        ("events", ("ergo.node_up",), {}),
        ("events", (), {"name": "ergo.node_up"}),
        ("crashes", (1, 2), {}),
        ("crashes", (), {"timeout": 1.0}),
        ("info", (1,), {}),
        ("inspect", (), {"timeout": 1.0, "more": 1}),
        ("stop", (), {}),
    ],
)
async def test_a_look_has_the_arguments_of_honest_nodes_only(
    verb: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """``node.events(name)`` would make a stream of publications, which no code closes."""
    async with two_nodes(make_network("memory", allow="default,look")) as (a, b):
        peer = await hostile(a)
        with pytest.raises(UnreadableError, match="does not know the request 'look'"):
            await look(peer, Look(verb, arguments), keywords, 5.0)
        assert b.nodes() == ["a@test"]


async def test_looks_that_arrive_together_begin_in_turns_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, begun, get_info = Passes(), list[int](), Node.info

    def counted(node: Node) -> Any:
        begun.append(passes.number)
        return get_info(node)

    monkeypatch.setattr(Node, "info", counted)
    async with two_nodes(make_network("memory", allow="default,look")) as (a, _):
        peer = await hostile(a)
        body = peer.network.types.encode(["info", [], {}])
        command = peer.network.types.encode([1, "info", {}])
        trio.lowlevel.add_instrument(passes)
        for number in range(50):
            peer.push(ops.NodeRequest(1_000_000 + number, "look", body))
            peer.push(ops.NodeRequest(2_000_000 + number, "control", command))
        with trio.fail_after(60):
            while len(begun) < 100:
                await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(passes)

    assert len(set(begun)) == len(begun)


async def test_looks_are_answered_beside_as_many_waits_as_a_node_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ergo_py.network.node_requests.answers._AT_ONCE", 10)
    too_many = "10 requests of 'a@test' wait here already"
    async with (
        two_nodes(make_network("memory", allow="default,look")) as (a, b),
        trio.open_nursery() as nursery,
    ):
        there, silent = a.at("b@test"), await b.spawn(Puppet)
        for _ in range(10):
            nursery.start_soon(a.wait_ended, silent)
        await there.ping()

        assert (await there.info()).name == "b@test"
        for wait in (a.wait_ended(silent), there.inspect(silent), there.ask_control(1, "info", {})):
            with pytest.raises(NotAllowedError, match=too_many):
                await wait
        nursery.cancel_scope.cancel()


async def test_many_looks_that_arrive_together_are_all_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ergo_py.network.node_requests.answers._AT_ONCE", 10)
    names = list[str]()
    async with two_nodes(make_network("memory", allow="default,look")) as (a, _):

        async def look() -> None:
            names.append((await a.at("b@test").info()).name)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(look)

    assert names == ["b@test"] * 50


async def test_the_bytes_of_looks_that_wait_for_their_turn_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ergo_py.network.node_requests.request_queue._MOST", 10_000)
    results = collections.Counter[str]()
    async with two_nodes(make_network("memory", allow="default,look")) as (a, b):
        there, name = a.at("b@test"), "p" * 1000
        await b.spawn(Puppet, name=name)
        await there.ping()

        async def look() -> None:
            try:
                await there.process_info(name)
                results["answered"] += 1
            except NotAllowedError as error:
                results[str(error)] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(look)
        # Those that were answered have made room.
        await look()

    text = "the requests of 'a@test' that wait for their turn here would have more than 10000 bytes"
    assert results.keys() == {"answered", f"{text}; ask later"}
    assert 4 <= results["answered"] <= 6


async def test_looks_of_a_lost_session_do_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, get_info = list[str](), Node.info

    def counted(node: Node) -> Any:
        begun.append(node.name)
        return get_info(node)

    monkeypatch.setattr(Node, "info", counted)
    hub = make_network("memory", allow="default,look")
    async with running_node("b@test", network=hub) as b:
        async with running_node("a@test", network=hub) as a:
            peer = await hostile(a)
            body = peer.network.types.encode(["info", [], {}])
            for number in range(5_000):
                peer.push(ops.NodeRequest(1_000_000 + number, "look", body))
            while not begun:
                await trio.lowlevel.checkpoint()
        await until(lambda: not b.nodes())
        known = len(begun)
        await trio.testing.wait_all_tasks_blocked()
        assert known < 5_000
        assert len(begun) == known

        async with running_node("a@test", network=hub) as a:
            assert (await a.at("b@test").info()).name == "b@test"


async def test_looks_that_wait_for_their_turn_need_the_permit_until_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results, get_info = collections.Counter[str](), Node.info
    async with two_nodes(make_network("memory", allow="default,look")) as (a, b):
        there = a.at("b@test")
        await there.ping()

        def info(node: Node) -> Any:
            network_of(b).context.permits = Permits("default")
            network_of(b).connections["a@test"].executor.read_permits()
            return get_info(node)

        async def look() -> None:
            try:
                results[(await there.info()).name] += 1
            except NotPermittedError:
                results["refused"] += 1

        monkeypatch.setattr(Node, "info", info)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(look)

    assert results == {"b@test": 1, "refused": 49}


async def test_looks_of_all_nodes_share_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, begun, get_info = Passes(), list[int](), Node.info

    def counted(node: Node) -> Any:
        begun.append(passes.number)
        return get_info(node)

    monkeypatch.setattr(Node, "info", counted)
    hub = make_network("memory", allow="default,look")
    async with two_nodes(hub) as (a, _), running_node("c@test", network=hub) as c:
        peers = [await hostile(a), await hostile(c)]
        body = peers[0].network.types.encode(["info", [], {}])
        trio.lowlevel.add_instrument(passes)
        for peer in peers:
            for number in range(20):
                peer.push(ops.NodeRequest(1_000_000 + number, "look", body))
        with trio.fail_after(60):
            while len(begun) < 40:
                await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(passes)

    assert len(set(begun)) == len(begun)


async def test_an_answer_about_a_node_is_limited_where_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_nodes(make_network("memory", allow="default,look")) as (a, b):
        there = a.at("b@test")
        for first, more in (
            ([17 << 20, 1, b"x"], b"x"),  # without end
            ([200_000, 1, b"["], b"[" * 100_000),  # nested
            ([3, 1, b"no "], b"JSON"),
            (["size", 1, b""], b""),
        ):
            monkeypatch.setattr(Chunks, "first", lambda _self, _answer, first=first: first)
            monkeypatch.setattr(Chunks, "next", lambda _self, *_at, more=more: more)
            with pytest.raises(UnreadableError, match="gave another kind of answer"):
                await there.ask_control(1, "ps", {})
        assert b.nodes() == ["a@test"]


async def test_a_spawned_process_is_linked_to_processes_of_the_asking_node_only() -> None:
    hub = make_network("memory", allow="default,spawn", spawns={"counter": Counter})
    async with two_nodes(hub) as (a, b):
        pid = await b.spawn(Puppet)
        peer = await hostile(a)
        with pytest.raises(UnreadableError, match="does not know the request 'spawn'"):
            await peer.ask("spawn", "asked", ["counter", [], None, pid], 5.0)
        assert b.processes() == [pid]


async def test_a_forged_probe_fails_no_call(autojump_clock: Any) -> None:
    """A node that has called a process cannot make that process' own calls fail."""
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        callers: list[Caller] = []
        silent = await b.spawn(Silent, callers)
        busy = await b.spawn(Puppet)
        b.send(busy, lambda me: me.call(silent, Total(), timeout=50))
        await until(lambda: callers)
        peer.push(ops.Call(1000, route_to(peer, busy), peer.network.types.encode(1)))
        place = sender_place(busy)
        peer.push(ops.Probe(place, callers[0].number, [place], 1000))
        await a.at("b@test").ping()
        assert not callers[0].settled


# -- watches ---------------------------------------------------------------------------------------


async def test_a_watch_that_is_undone_before_the_session_begins_leaves_nothing(
    network: Any,
) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        pid, producer = await b.spawn(Counter), await b.spawn(Puppet)
        await b.call(producer, lambda me: me.register_event("news"))
        watcher = await a.spawn(Talker, heard)
        news = EventName("news", "b@test")

        def hesitate(me: Talker) -> None:
            me.monitor(pid)
            me.subscribe(news)
            me.demonitor(pid)
            me.unsubscribe(news)
            me.monitor(pid)
            me.subscribe(news)

        await a.call(watcher, hesitate)
        await a.at("b@test").ping()
        await b.call(producer, lambda me: me.publish("news", 5))
        await until(lambda: heard)
        b.kill(pid)
        await until(lambda: len(heard) == 2)
        assert heard[0] == ("news", 5)
        assert isinstance(heard[1], Down)
        assert b.network().peers["a@test"].watches_in == 1


@pytest.mark.counted
async def test_an_address_that_cannot_travel_leaves_no_relation() -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, _):
        watcher = await a.spawn(Talker, heard)
        for key in (object(), "k" * 3000):
            target = Key("registry", key, "b@test")

            def watch(me: Talker, target: Any = target) -> None:
                for _ in range(2):  # the second try is refused like the first
                    with pytest.raises((MessageTypeError, MessageTooLargeError)):
                        me.monitor(target)

            await a.call(watcher, watch)
        assert network_of(a).connections["b@test"].watches.__len__() == 0


# -- sizes -----------------------------------------------------------------------------------------


class Factory(Actor):
    """Answers with as many bytes as it is asked for, and publishes them."""

    def init(self) -> None:
        self.register_event("bytes")

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return b"x" * request.value

    def handle_message(self, message: Add, sender: Any) -> None:
        self.publish("bytes", b"x" * message.number)


async def test_values_larger_than_a_frame_travel_in_parts(network: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(network) as (a, b):
        for node in (a, b):
            network_of(node).carrier.max_operation = 48 << 10
        factory = await b.spawn(Factory)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.subscribe(EventName("bytes", "b@test")))
        assert await a.call(factory, Echo(3 << 20)) == b"x" * (3 << 20)
        a.send(factory, Add(2 << 20))
        await until(lambda: heard)
        assert heard == [("bytes", b"x" * (2 << 20))]
        echo = await b.spawn(Counter)
        large = ("y" * 300_000, ["z" * 70_000])
        assert await a.call(echo, Echo(large)) == large
        account = a.network().peers["b@test"]
        assert account.sent > 8
        assert account.sent == account.confirmed + account.on_the_way + account.waiting


async def test_a_value_that_is_too_large_costs_itself_only(networks: Any) -> None:
    heard: list[Any] = []
    network = networks(allow="default,spawn", spawns={"counter": Counter})
    async with two_nodes(network) as (a, b):
        factory, puppet = await b.spawn(Factory), await b.spawn(Puppet)
        watcher = await a.spawn(Talker, heard)
        there = a.at("b@test")
        await a.call(watcher, lambda me: me.subscribe(EventName("bytes", "b@test")))
        with pytest.raises(CallFailedError, match=r"an answer of .* bytes"):
            await a.call(factory, Echo(LARGEST + 1))
        a.send(factory, Add(LARGEST + 1))
        a.send(factory, Add(1))
        await until(lambda: heard)
        assert heard == [("bytes", b"x")]
        with pytest.raises(MessageTooLargeError, match=f"allowed are {LARGEST} bytes: send it in"):
            await there.spawn("counter", b"x" * (LARGEST + 1))
        with pytest.raises(MessageTypeError, match=r"the type builtins\.object cannot travel"):
            await there.spawn("counter", object())
        with pytest.raises(MessageTooLargeError, match="the name or key of an address"):
            a.send(Key("r", "k" * 3000, "b@test"), Add(1))
        with pytest.raises(MessageTooLargeError, match="the name or key of an address"):
            await a.call(Name("n" * 3000, "b@test"), Total())
        a.send_exit(puppet, Shutdown("e" * (LARGEST + 1)))
        assert "eeee… (16773131 characters)" in str(await b.wait_ended(puppet))
        assert await there.ping() >= 0.0
        assert a.network().peers["b@test"].sessions == 1


@pytest.mark.parametrize("numbers", [[1], [0, 0], [0, 2], [0, 1, 1], range(20)])
async def test_parts_without_end_and_wrong_parts_end_the_session(numbers: Any) -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        for number in numbers:
            peer.push(ops.Part(number, False, b"", memoryview(bytes(1 << 20))))
        await until(lambda: not a.nodes() and not b.nodes())
        assert await a.at("b@test").ping() >= 0.0


async def test_parts_of_parts_end_the_session() -> None:
    async with two_nodes(make_network("memory")) as (a, b):
        peer = await hostile(a)
        inner = ops.encode_operation(ops.Part(0, True, b"", memoryview(b"x")))
        peer.push(ops.Part(0, True, b"", memoryview(inner)))
        await until(lambda: not a.nodes() and not b.nodes())
        assert await a.at("b@test").ping() >= 0.0


async def test_a_large_message_that_is_lost_on_the_way_is_a_dead_letter(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make_network("memory", window=64 << 10)
    carry, left = network.carry, [10]

    def carry_some(sender: str, to: str, frame: bytes) -> None:
        left[0] -= sender == "a@test"
        if left[0] >= 0:
            carry(sender, to, frame)

    async with two_nodes(network) as (a, b):
        network_of(a).carrier.max_operation = 16 << 10
        pid = await b.spawn(Counter)
        await a.at("b@test").ping()
        monkeypatch.setattr(network, "carry", carry_some)
        a.send(pid, "x" * (1 << 20))  # ten frames arrive, with its first parts
        a.send(pid, "y" * (1 << 18))
        await until(lambda: len(a.dead_letters()) == 2)
        first, second = a.dead_letters()
        assert (first.message_type, second.message_type) == ("Unreadable", "str")
        assert first.target == second.target == pid
        assert first.why is second.why is Why.UNCONFIRMED
