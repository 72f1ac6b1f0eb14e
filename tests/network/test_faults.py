"""Faults of the network between two nodes, in virtual time: cuts, losses, freezes."""

from typing import Any

import pytest
import trio

from ergo_py import (
    BadInputError,
    Down,
    EventName,
    Exit,
    Name,
    Node,
    NodeName,
    NodeStoppedError,
    NoNode,
    TargetDownError,
    Why,
)
from ergo_py.network import NetworkError
from ergo_py.network.protocol.frames import Hello, encode_frame
from tests.actors import Puppet, Recorder, Witness
from tests.network.pairs import Add, Echo, Total, make_network, network_of, two_nodes
from tests.network.test_nodes import Counter, Talker
from tests.support import kernel_of, running_node


async def test_a_break_shorter_than_the_patience_is_invisible(autojump_clock: Any) -> None:
    heard: list[Any] = []
    got: list[Any] = []
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Recorder, got)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(NodeName("b@test")))
        await a.call(watcher, lambda me: me.monitor(pid))
        for second in range(5):
            network.cut("a@test", "b@test")
            for number in range(20):
                a.send(pid, 20 * second + number)
            # The last heartbeat was up to a second before the cut, and the patience is 5 s.
            await trio.sleep(3.5)
            network.heal()
            await trio.sleep(2.5)
        assert await a.call(pid, None) == list(range(100))
        assert heard == []


async def test_both_nodes_end_the_session_in_a_partition_and_begin_another(
    autojump_clock: Any,
) -> None:
    heard: dict[str, list[Any]] = {"a": [], "b": []}
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, b):
        here, there = await a.spawn(Counter), await b.spawn(Counter)
        for node, label, target in ((a, "a", there), (b, "b", here)):
            watcher = await node.spawn(Talker, heard[label])
            await node.call(watcher, monitor_of(target))
        await a.call(there, Total())
        await b.call(here, Total())
        network.cut("a@test", "b@test")
        a.send(there, Add(1))
        await trio.sleep(7.0)

        assert heard == {
            "a": [Down(there, NoNode("b@test"))],
            "b": [Down(here, NoNode("a@test"))],
        }
        assert a.nodes() == b.nodes() == []
        assert [letter.why for letter in a.dead_letters()] == [Why.UNCONFIRMED]
        network.heal()
        assert await a.call(there, Total()) == 0
        assert a.nodes() == ["b@test"]
        assert len(heard["a"]) == len(heard["b"]) == 1


def monitor_of(target: Any) -> Any:
    return lambda me: me.monitor(target)


async def test_a_lost_node_is_told_in_a_single_step(autojump_clock: Any) -> None:
    heard: list[Any] = []
    errors: list[Any] = []
    network = make_network("memory", backlog=2000, window=1024)
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Puppet, name="puppet")
        await b.call(pid, lambda me: me.register_event("news"))
        watcher = await a.spawn(Talker, heard)

        def watch(me: Talker) -> None:
            me.link(pid)
            me.monitor(Name("puppet", "b@test"))
            me.subscribe(EventName("news", "b@test"))
            me.monitor(NodeName("b@test"))

        await a.call(watcher, watch)
        await a.call(pid, None)
        network.cut("a@test", "b@test")

        async def call(size: int) -> None:
            try:
                await a.call(pid, Echo(b"x" * size), timeout=None)
            except TargetDownError as error:
                errors.append(error.reason)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(call, 900)
            nursery.start_soon(send_wait, a, pid, errors)
            await trio.sleep(4.9)
            assert errors == []
            assert heard == []

        assert sorted(map(str, errors)) == ["False", *[f"{NoNode('b@test')}: it is silent"] * 6]
        await a.call(watcher, lambda me: None)
        assert {type(message) for message in heard} == {Down, Exit}
        assert len(heard) == 4
        assert kernel_of(a).relations.count(watcher) == 0


async def send_wait(node: Any, pid: Any, results: list[Any]) -> None:
    results.append(await node.send_wait(pid, b"y" * 900))


async def test_a_node_that_was_lost_watches_nothing_here(autojump_clock: Any) -> None:
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Puppet)
        watcher = await a.spawn(Talker, [])
        await a.call(watcher, lambda me: me.monitor(pid))
        await a.call(pid, None)
        assert kernel_of(b).relations.count(pid) == 1
        network.cut("a@test", "b@test")
        await trio.sleep(7.0)

        assert kernel_of(b).relations.count(pid) == 0


async def test_a_frozen_node_goes_on_after_the_thaw(autojump_clock: Any) -> None:
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        await a.call(pid, Total())
        network.freeze("b@test")
        a.send(pid, Add(5))
        await trio.sleep(4.0)
        network.thaw("b@test")

        assert await a.call(pid, Total()) == 5


async def test_a_late_answer_is_dropped_and_counted(autojump_clock: Any) -> None:
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        await a.call(pid, Total())
        network.freeze("b@test")
        with pytest.raises(TimeoutError):
            await a.call(pid, Total(), timeout=1.0)
        network.thaw("b@test")
        await trio.sleep(1.0)

        assert a.info().late_replies == 1
        assert await a.call(pid, Total()) == 0


async def test_a_node_knows_a_limited_number_of_other_nodes(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.network.network._NODES", 100)
    network = make_network("memory")
    async with running_node("a@test", network=network, limit=1000) as a:
        for number in range(150):
            assert a.send(Name("x", f"n{number}@test"), 1)
            if number % 10 == 0:
                await trio.sleep(0.01)  # the attempts fail, and their nodes can be forgotten
        network.freeze("a@test")
        with pytest.raises(NetworkError, match="at most 100 other nodes"):
            for number in range(150):
                a.send(Name("x", f"m{number}@test"), 1)
        network.thaw("a@test")


async def test_the_end_of_a_watch_meets_no_limit_and_opens_no_connection(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make_network("memory")
    async with running_node("a@test", network=network, limit=1000) as a:
        follower = await a.spawn(Puppet)
        lost = EventName("prices", "lost@test")
        await a.call(follower, lambda me: me.subscribe(lost, follow=True))
        await trio.sleep(1.0)  # the attempt fails
        monkeypatch.setattr("ergo_py.network.network._IDLE", 0)
        assert a.send(Name("x", "other@test"), 1)  # forgets the first node
        monkeypatch.setattr("ergo_py.network.network._NODES", 1)

        await a.call(follower, lambda me: me.unsubscribe(lost))

        assert list(network_of(a).connections) == ["other@test"]


async def test_local_messages_are_never_encoded(autojump_clock: Any) -> None:
    async with running_node("a@test", network=make_network("memory"), limit=1000) as a:
        pid = await a.spawn(Recorder)
        message = object()
        a.send(pid, message)
        assert await a.call(pid, message) == [message]


class OddError(Exception):
    """A listed exception that cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


async def test_a_lost_message_that_cannot_be_read_again_is_a_dead_letter(
    autojump_clock: Any,
) -> None:
    network = make_network("memory", types=[OddError])
    async with running_node("a@test", network=network, limit=1000) as a:
        assert a.send(Name("x", "nowhere@test"), OddError("a", "b"))
        await trio.sleep(1.0)

        assert [letter.why for letter in a.dead_letters()] == [Why.NO_NODE]


async def test_invitations_of_too_many_nodes_do_not_end_a_node(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.network.network._NODES", 100)
    network = make_network("memory")
    async with running_node("a@test", network=network, limit=1000) as a:
        for number in range(120):
            invitation = encode_frame(Hello(1, 1, number + 1, 0, 1000))
            network.carry(f"n{number}@test", "a@test", invitation)
        await trio.sleep(1.0)
        pid = await a.spawn(Recorder)

        assert await a.call(pid, None) == []


async def test_a_node_that_has_stopped_refuses_messages_to_other_nodes(
    autojump_clock: Any,
) -> None:
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        await a.call(pid, Total())
    for to in (pid, Name("x", "elsewhere@test")):
        with pytest.raises(NodeStoppedError):
            a.send(to, Add(1))
        with pytest.raises(NodeStoppedError):
            await a.call(to, Total())


class BrokenNetwork:
    """A network that cannot be closed."""

    hooks = ()

    def join_network(self, _kernel: object) -> "BrokenNetwork":
        return self

    async def open(self) -> None:
        pass

    async def close(self, seconds: float) -> None:
        raise LookupError("broken")


@pytest.mark.counted
async def test_a_network_that_cannot_be_closed_does_not_keep_the_node_open() -> None:
    ends: list[Any] = []
    nodes: list[Node] = []
    with pytest.raises(LookupError, match="broken"):
        async with running_node("a@test", network=BrokenNetwork()) as a:
            nodes.append(a)
            await a.spawn(Witness, ends)

    assert nodes[0].exit_report is not None
    assert len(ends) == 1


async def test_a_fault_of_a_node_that_never_joined_is_refused() -> None:
    network = make_network("memory")
    async with running_node("a@test", network=network):
        faults: list[tuple[Any, ...]] = [
            (network.cut, "a@test", "b@tset"),
            (network.heal, "b@tset", "a@test"),
            (network.freeze, "b@tset"),
            (network.thaw, "b@tset"),
        ]
        for fault, *nodes in faults:
            with pytest.raises(BadInputError, match=r"'b@tset'.*of this network: \['a@test'\]"):
                fault(*nodes)
    network.cut("a@test", "a@test")
    network.heal("a@test", "a@test")
