"""Rings of calls over several nodes: each is found and named, and no other call is refused."""

from typing import Any

import pytest
import trio

from ergo_py import NO_REPLY, Actor, Caller, CallTimeoutError
from ergo_py.errors import DeadlockError
from ergo_py.network import deadlocks
from ergo_py.network.protocol.operations import Probe, sender_place
from tests.network.pairs import TYPES, make_network, network_of, two_nodes, until
from tests.support import running_node


class Link(Actor):
    """Calls the next process of a chain, and answers with its answer; the last answers itself."""

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.next: Any = None
        self.heard = [] if heard is None else heard

    def handle_message(self, message: Any, sender: Any) -> None:
        self.next = message

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        if self.next is None:
            return f"end of {request}"
        try:
            return await self.call(self.next, request, timeout=None)
        except DeadlockError as error:
            self.heard.append(error)
            return "a ring"


async def test_a_ring_over_two_nodes_is_named(networks: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(networks()) as (a, b):
        one, two = await a.spawn(Link, heard), await b.spawn(Link, heard)
        a.send(one, two)
        b.send(two, one)

        assert await a.call(one, "x", timeout=30) == "a ring"
        assert heard
        assert all(error.ring in ((one, two, one), (two, one, two)) for error in heard)
        assert "this call would wait forever: <PID" in str(heard[0])
        # All processes serve again.
        a.send(one, None)
        assert await b.call(two, "y") == "end of y"


@pytest.mark.counted
async def test_a_ring_over_three_nodes_with_local_calls_between_is_named(
    autojump_clock: Any,
) -> None:
    """a1 → a2 → b1 → b2 → c → a1: the ring closes with a call of a process to another on a."""
    heard: list[Any] = []
    network = make_network("memory")
    async with (
        running_node("a@test", network=network, limit=1000) as a,
        running_node("b@test", network=network, limit=1000) as b,
        running_node("c@test", network=network, limit=1000) as c,
    ):
        nodes = [a, a, b, b, c]
        chain = [await node.spawn(Link, heard) for node in nodes]
        for position, node in enumerate(nodes):
            node.send(chain[position], chain[(position + 1) % len(chain)])

        for first in range(len(chain)):
            heard.clear()
            assert await nodes[first].call(chain[first], "x", timeout=60) == "a ring"
            assert len(heard) == 1
            ring = heard[0].ring
            start = chain.index(ring[0])
            assert ring == (*chain[start:], *chain[:start], ring[0])


async def test_a_local_call_that_closes_a_ring_over_nodes_is_found(autojump_clock: Any) -> None:
    heard: list[Any] = []
    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        first, second, there = (
            await a.spawn(Link, heard),
            await a.spawn(Link, heard),
            await b.spawn(Link, heard),
        )
        a.send(first, there)
        b.send(there, second)
        a.send(second, first)

        assert await a.call(first, "x", timeout=60) == "a ring"
        assert [error.ring[0] for error in heard] == [second]
        assert heard[0].ring == (second, first, there, second)


async def test_a_chain_without_a_ring_is_left_alone(autojump_clock: Any) -> None:
    """Many callers wait for a process that waits abroad for a while."""

    class Slow(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> Any:
            await trio.sleep(5)
            return request

    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        slow = await b.spawn(Slow)
        link = await a.spawn(Link)
        a.send(link, slow)
        answers: list[Any] = []

        async def ask(number: int) -> None:
            node = a if number % 2 else b
            answers.append(await node.call(link, number, timeout=None))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
        assert sorted(answers) == list(range(10))


async def test_a_deferred_call_is_no_part_of_a_ring(autojump_clock: Any) -> None:
    class Deferring(Link):
        async def handle_call(self, request: Any, caller: Caller) -> Any:
            self.waiting = caller
            return NO_REPLY

        def handle_message(self, message: Any, sender: Any) -> None:
            self.reply(self.waiting, message)

    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        deferring = await b.spawn(Deferring)
        link = await a.spawn(Link)
        a.send(link, deferring)
        answers: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answers.append(await a.call(link, "x", timeout=None))

            nursery.start_soon(ask)
            await trio.sleep(1)
            with pytest.raises(CallTimeoutError):
                await b.call(link, "y", timeout=1)
            b.send(deferring, "late")
        assert answers == ["late"]


async def test_a_ring_through_a_forwarded_call_is_found(autojump_clock: Any) -> None:
    class Forwarding(Actor):
        def __init__(self, to: Any) -> None:
            self.to = to

        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.forward(self.to, request, caller)

    heard: list[Any] = []
    network = make_network("memory")
    async with (
        two_nodes(network, limit=1000) as (a, b),
        running_node("c@test", network=network, limit=1000) as c,
    ):
        first, last = await a.spawn(Link, heard), await c.spawn(Link, heard)
        relay = await b.spawn(Forwarding, last)
        a.send(first, relay)
        c.send(last, first)

        assert await a.call(first, "x", timeout=60) == "a ring"
        assert {error.ring for error in heard} <= {(first, last, first), (last, first, last)}


async def test_forwarded_calls_and_own_calls_of_a_node_do_not_mix(network: Any) -> None:
    """Calls have the numbers of the nodes that made them: two of them may be equal."""

    class Forwarding(Actor):
        def __init__(self, to: Any) -> None:
            self.to = to

        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.forward(self.to, request, caller)

    class Later(Actor):
        def __init__(self) -> None:
            self.waiting: list[tuple[Caller, Any]] = []

        def handle_call(self, request: Any, caller: Caller) -> Any:
            self.waiting.append((caller, request))
            return NO_REPLY

        def handle_message(self, message: Any, sender: Any) -> None:
            for caller, request in self.waiting:
                self.reply(caller, request)
            self.waiting.clear()

    async with two_nodes(network) as (a, b), running_node("c@test", network=network) as c:
        later = await c.spawn(Later)
        relay = await b.spawn(Forwarding, later)
        answers: list[Any] = []

        async def ask(node: Any, to: Any, request: Any) -> None:
            answers.append((request, await node.call(to, request)))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, a, relay, f"a{number}")
                nursery.start_soon(ask, b, later, f"b{number}")
            await until(lambda: c.network().peers.get("b@test") is not None)
            await until(lambda: c.network().peers["b@test"].calls_in == 100)
            c.send(later, "go")
        assert len(answers) == 100
        assert all(asked == answered for asked, answered in answers)


async def test_a_probe_of_a_call_that_is_over_has_no_effect(autojump_clock: Any) -> None:
    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        one, two = await a.spawn(Link), await b.spawn(Link)
        a.send(one, two)
        assert await a.call(one, "x") == "end of x"
        peer = network_of(a).peer("b@test")
        probe = Probe(sender_place(one), 1, [sender_place(one)], 99_999)
        peer.push(probe)
        assert await a.at("b@test").ping() >= 0
        assert await a.call(one, "y") == "end of y"


async def test_only_so_many_calls_are_followed(monkeypatch: Any, autojump_clock: Any) -> None:
    monkeypatch.setattr(deadlocks, "_SUSPECTS", 0)
    network = make_network("memory", types=TYPES)
    async with two_nodes(network, limit=1000) as (a, b):
        one, two = await a.spawn(Link), await b.spawn(Link)
        a.send(one, two)
        b.send(two, one)
        with pytest.raises(CallTimeoutError):
            await a.call(one, "x", timeout=5)
