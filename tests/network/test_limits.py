"""``max_calls=`` and ``max_watches=``: what a node keeps for another node is limited."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from inspect import signature
from typing import Any

import pytest
import trio

from ergo_py import (
    NO_REPLY,
    Actor,
    BadInputError,
    Caller,
    CallTimeoutError,
    Down,
    EventName,
    Node,
    Overflow,
    Why,
)
from ergo_py.network import NATS, Local, Memory
from ergo_py.network.access.limits import Limits
from ergo_py.network.errors import TooManyCallsError
from ergo_py.network.incoming import watched
from ergo_py.network.protocol.operations import (
    Call,
    ConfirmedSend,
    Route,
    Watch,
    encode_route,
    sender_place,
)
from tests.actors import Puppet
from tests.network.pairs import Add, Echo, Total, make_network, network_of, two_nodes, until
from tests.network.test_nodes import Counter, Talker

KEPT_THERE = (
    "3 calls of 'a@test' to 'b@test' wait for an answer, which is the limit of 'b@test'; call "
    "again when some are answered, or open the network of 'b@test' with a larger max_calls="
)
KEPT_HERE = KEPT_THERE.replace("of 'b@test'", "of 'a@test'")
WATCHED_THERE = (
    "'a@test' watches 3 processes, names and events of 'b@test', which is the limit of 'b@test'; "
    "end watches that are no longer needed, or open the network of 'b@test' with a larger "
    "max_watches="
)
WATCHED_HERE = WATCHED_THERE.replace("limit of 'b@test'", "limit of 'a@test'").replace(
    "network of 'b@test'", "network of 'a@test'"
)


class Keeper(Actor):
    """Answers a call when a message comes."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    def handle_call(self, request: Any, caller: Caller) -> Any:
        self.callers.append(caller)
        return NO_REPLY

    def handle_message(self, message: Add, sender: Any) -> None:
        for caller in self.callers[: message.number]:
            self.reply(caller, "answered")
        del self.callers[: message.number]


@asynccontextmanager
async def limited(who: str) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes. The named one has limits of 3, the other has those by default."""
    network = make_network("memory", max_calls=3, max_watches=3, beat=0.1)
    async with two_nodes(network) as (a, b):
        other = b if who == "a" else a
        network_of(other).context.limits = Limits(100_000, 100_000)
        yield a, b


async def refused_call(a: Node, pid: Any) -> str:
    with pytest.raises(TooManyCallsError) as refused:
        await a.call(pid, Echo(1))
    assert (refused.value.target, refused.value.request) == (pid, Echo(1))
    return str(refused.value)


async def test_the_callee_node_refuses_further_calls_until_some_are_answered() -> None:
    async with limited("b") as (a, b), trio.open_nursery() as nursery:
        pid = await b.spawn(Keeper)
        for _ in range(3):
            nursery.start_soon(partial(a.call, pid, Echo(0), timeout=None))
        await until(lambda: a.network().peers and a.network().peers["b@test"].calls == 3)

        assert await refused_call(a, pid) == KEPT_THERE
        there = b.network().peers["a@test"]
        assert there.refused == {"too many calls": 1}
        assert there.calls_in == 3
        await until(lambda: a.network().peers["b@test"].refused_there == there.refused)

        a.send(pid, Add(1))
        await until(lambda: b.network().peers["a@test"].calls_in == 2)
        nursery.start_soon(partial(a.call, pid, Echo(0), timeout=None))
        await until(lambda: b.network().peers["a@test"].calls_in == 3)
        assert await refused_call(a, pid) == KEPT_THERE
        a.send(pid, Add(3))


async def test_the_callee_node_refuses_further_messages_that_would_wait() -> None:
    async with limited("b") as (a, b), trio.open_nursery() as nursery:
        full = await b.spawn(Puppet, mailbox_size=1, overflow=Overflow.WAIT)
        other = await b.spawn(Counter)
        await b.suspend(full)
        a.send(full, Add(0))
        for number in (1, 2, 3):
            nursery.start_soon(a.send_wait, full, Add(number))
        await until(lambda: a.network().peers["b@test"].calls == 3)

        with pytest.raises(TooManyCallsError, match=re.escape(KEPT_THERE)):
            await a.send_wait(full, Add(4))
        assert await refused_call(a, other) == KEPT_THERE
        assert [(letter.target, letter.why) for letter in b.dead_letters()] == [(full, Why.FULL)]

        await b.resume(full)
        await until(lambda: b.network().peers["a@test"].calls_in == 0)
        assert await a.call(other, Total()) == 0
        assert await a.send_wait(full, Add(5))


async def test_the_calling_node_refuses_further_calls_and_sends_nothing() -> None:
    async with limited("a") as (a, b), trio.open_nursery() as nursery:
        pid = await b.spawn(Keeper)
        in_thread: Any = trio.to_thread.run_sync
        for _ in range(3):
            nursery.start_soon(partial(a.call, pid, Echo(0), timeout=None))
        await until(lambda: b.network().peers and b.network().peers["a@test"].calls_in == 3)
        sent = a.network().peers["b@test"].sent

        assert await refused_call(a, pid) == KEPT_HERE
        with pytest.raises(TooManyCallsError):
            await a.send_wait(pid, Add(0))
        with pytest.raises(TooManyCallsError):
            await a.at("b@test").ping()
        with pytest.raises(TooManyCallsError):
            await in_thread(a.call_from_thread, pid, Echo(1))
        here = a.network().peers["b@test"]
        assert (here.sent, here.dropped, here.calls) == (sent, 4, 3)
        assert b.network().peers["a@test"].refused == {}

        a.send(pid, Add(3))
        await until(lambda: a.network().peers["b@test"].calls == 0)
        assert await a.at("b@test").ping() >= 0.0


async def test_a_call_that_timed_out_makes_room_on_the_calling_node(autojump_clock: Any) -> None:
    async with limited("a") as (a, b):
        pid = await b.spawn(Keeper)
        for _ in range(10):
            with pytest.raises(CallTimeoutError):
                await a.call(pid, Echo(0), timeout=0.01)
        assert a.network().peers["b@test"].dropped == 0


@pytest.mark.parametrize("who, text", [("a", WATCHED_HERE), ("b", WATCHED_THERE)])
async def test_further_watches_end_with_the_reason_until_some_are_undone(
    who: str, text: str
) -> None:
    heard: list[Any] = []
    async with limited(who) as (a, b):
        pids = [await b.spawn(Counter) for _ in range(4)]
        watcher = await a.spawn(Talker, heard)
        for pid in pids:
            await a.call(watcher, lambda me, pid=pid: me.monitor(pid))
        await until(lambda: heard)
        assert isinstance(heard[0], Down)
        assert (heard[0].target, str(heard[0].reason)) == (pids[3], text)
        # The first operation, by which b knows its peer, may come after a's own refusal.
        await until(lambda: [each.watches_in for each in b.network().peers.values()] == [3])
        here, there = a.network().peers["b@test"], b.network().peers["a@test"]
        assert (here.watches, here.dropped) == (3, int(who == "a"))
        assert there.refused == ({"too many watches": 1} if who == "b" else {})

        # A target that is watched already needs no room.
        await a.call(watcher, lambda me: me.link(pids[2]))
        await a.call(watcher, lambda me: me.demonitor(pids[0]))
        await a.call(watcher, lambda me: me.monitor(pids[3]))
        assert await a.call(pids[0], Total()) == 0
        assert len(heard) == 1
        b.kill(pids[3])
        await until(lambda: len(heard) == 2)
        assert heard[1].target == pids[3]
        assert b.network().peers["a@test"].watches_in == 2


async def test_a_subscription_beyond_the_limit_ends_with_the_reason() -> None:
    heard: list[Any] = []
    async with limited("b") as (a, b):
        pids = [await b.spawn(Counter) for _ in range(3)]
        producer = await b.spawn(Puppet)
        await b.call(producer, lambda me: me.register_event("news"))
        watcher = await a.spawn(Talker, heard)
        for pid in pids:
            await a.call(watcher, lambda me, pid=pid: me.monitor(pid))
        await a.call(watcher, lambda me: me.subscribe(EventName("news", "b@test")))
        await until(lambda: heard)
        assert "a larger max_watches=" in str(heard[0])
        assert a.network().peers["b@test"].watches == 3
        assert b.network().peers["a@test"].watches_in == 3


async def test_a_node_that_asks_for_too_many_kept_publications_loses_its_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A subscription is short, and its answer is the whole buffer of the event."""
    monkeypatch.setattr(watched, "_KEPT", 100)
    heard: list[Any] = []

    def publish(me: Any) -> None:
        me.register_event("news", buffer=100)
        for number in range(100):
            me.publish("news", number)

    async with limited("b") as (a, b):
        producer = await b.spawn(Puppet)
        await b.call(producer, publish)
        await a.at("b@test").ping()
        # In a second, there is time for a single subscription.
        while not b.network().peers["a@test"].refused:
            watcher = await a.spawn(Talker, heard)
            await a.call(watcher, lambda me: me.subscribe(EventName("news", "b@test")))
            assert await a.at("b@test").ping() >= 0.0
        await until(lambda: any(isinstance(message, Down) for message in heard))
        assert "a smaller buffer=" in str([each for each in heard if isinstance(each, Down)])
        there = b.network().peers["a@test"]
        assert there.refused == {"too many kept publications": 1}
        assert there.watches_in == 0


async def test_a_node_that_keeps_no_limits_cannot_make_the_tables_grow() -> None:
    """The operations of a hostile node do not pass through its own tables."""
    async with limited("b") as (a, b):
        keeper = await b.spawn(Keeper)
        full = await b.spawn(Puppet, mailbox_size=1, overflow=Overflow.WAIT)
        await b.suspend(full)
        a.send(full, Add(0))
        pids = [await b.spawn(Counter) for _ in range(50)]
        assert await a.at("b@test").ping() >= 0.0
        peer, me = network_of(a).peers["b@test"], sender_place(network_of(a).kernel.pid)
        body = network_of(a).types.encode(Echo(0))
        for number, pid in enumerate(pids):
            peer.push(Watch(10_000 + number, peer.routes.place(pid), 0))
            # All calls have the same number.
            peer.push(Call(7, encode_route(Route(peer.routes.place(keeper), me, 0)), body))
            peer.push(ConfirmedSend(8, encode_route(Route(peer.routes.place(full), me, 0)), body))
        assert await a.at("b@test").ping() >= 0.0
        there = b.network().peers["a@test"]
        assert (there.calls_in, there.watches_in) == (3, 3)
        assert there.refused == {"too many calls": 97, "too many watches": 47}
        await b.resume(full)


async def test_a_number_of_a_watch_that_is_used_twice_ends_the_session() -> None:
    async with limited("b") as (a, b):
        pids = [await b.spawn(Counter) for _ in range(2)]
        assert await a.at("b@test").ping() >= 0.0
        peer = network_of(a).peers["b@test"]
        for pid in pids:
            peer.push(Watch(10_000, peer.routes.place(pid), 0))
        await until(lambda: b.network().peers["a@test"].sessions and not b.nodes())
        assert b.network().peers["a@test"].watches_in == 0
        for pid in pids:
            b.kill(pid)
            assert str(await b.wait_ended(pid)) == "killed"
        assert await a.at("b@test").ping() >= 0.0


@pytest.mark.parametrize("name", ["max_calls", "max_watches"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many", None])
def test_a_limit_is_a_whole_number_from_1_up(name: str, value: Any) -> None:
    with pytest.raises(BadInputError, match=f"{name}: got .*; allowed is a whole number from 1 up"):
        make_network("memory", **{name: value})
    with pytest.raises(BadInputError, match=name):
        make_network("local", **{name: value})


@pytest.mark.parametrize("kind", [Local, Memory, NATS])
def test_both_limits_are_100_000_by_default(kind: type) -> None:
    options = signature(kind).parameters
    assert options["max_calls"].default == options["max_watches"].default == 100_000
