"""``node.network()``: the accounts of both nodes agree, whatever the carrier loses."""

import threading
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio

from ergo_py import (
    CallTimeoutError,
    MailboxFullError,
    Name,
    Node,
    NotAllowedError,
    Overflow,
    TargetDownError,
)
from ergo_py.network import UnreadableError
from ergo_py.network.network import share_of_window
from ergo_py.network.traffic.info import NetworkInfo, PeerInfo
from tests.actors import Puppet
from tests.network.pairs import Add, Echo, Total, make_network, network_of, two_nodes, until
from tests.network.test_nodes import Counter
from tests.support import running_node


def account(of: Node, about: str) -> PeerInfo:
    return of.network().peers[about]


def check(one: PeerInfo) -> None:
    """The operations to a node add up, at any time."""
    parts = (one.confirmed, one.on_the_way, one.waiting, one.unconfirmed, one.unsent)
    assert one.sent == sum(parts), one
    assert one.taken >= 0


async def agree(a: Node, b: Node) -> tuple[PeerInfo, PeerInfo]:
    """Wait until nothing is on the way, and check that both nodes tell the same."""
    while True:
        await a.at(b.name).ping()
        await trio.sleep(1)
        here, there = account(a, b.name), account(b, a.name)
        check(here)
        check(there)
        if not (here.on_the_way or there.on_the_way or here.waiting or there.waiting):
            break
    assert here.confirmed == there.received
    assert there.confirmed == here.received
    assert here.refused_there == there.refused
    assert there.refused_there == here.refused
    return here, there


async def test_messages_that_arrive_are_confirmed_on_both_nodes(networks: Any) -> None:
    async with two_nodes(networks(beat=0.1)) as (a, b):
        pid = await b.spawn(Counter)
        for _ in range(100):
            a.send(pid, Add(1))
        assert await a.call(pid, Total()) == 100
        here, there = account(a, "b@test"), account(b, "a@test")
        assert (here.node, here.state, there.state) == ("b@test", "up", "up")
        check(here)
        assert here.sent == there.received == 101
        assert there.sent == here.received == 1
        assert (here.sessions, there.sessions) == (1, 1)
        assert here.bytes_out >= there.bytes_in > 100
        assert there.frames_in >= 1
        await until(lambda: account(a, "b@test").confirmed == 101)
        await until(lambda: account(a, "b@test").round_trip is not None)
        await until(lambda: account(b, "a@test").round_trip is not None)
        round_trip = account(a, "b@test").round_trip
        assert round_trip is not None
        assert round_trip >= 0.0
        assert isinstance(a.network(), NetworkInfo)
        assert a.network().node == "a@test"


async def test_each_cause_of_a_refusal_is_counted_and_told(autojump_clock: Any) -> None:
    async with two_nodes(make_network("memory"), limit=1000) as (a, b):
        full = await b.spawn(Puppet, mailbox_size=1, overflow=Overflow.RAISE)
        await b.suspend(full)
        a.send(full, Add(1))
        a.send(full, Add(2))
        with pytest.raises(MailboxFullError):
            await a.send_wait(full, Add(3))
        with pytest.raises(MailboxFullError):
            await a.call(full, Total())
        nobody = Name("nobody", "b@test")
        a.send(nobody, Add(4))
        assert not await a.send_wait(nobody, Add(5))
        a.send_exit(nobody)
        with pytest.raises(TargetDownError, match="cannot answer"):
            await a.call(nobody, Total())

        _, there = await agree(a, b)
        assert there.refused == {"full": 3, "undelivered": 4}
        assert there.taken == there.received - 7
        await b.resume(full)


async def test_an_unreadable_message_is_counted(autojump_clock: Any) -> None:
    network, other = make_network("memory"), make_network("memory", types=[])
    async with (
        running_node("a@test", network=network, limit=1000) as a,
        running_node("b@test", network=_Both(network, other), limit=1000) as b,
    ):
        pid = await b.spawn(Counter)
        a.send(pid, Add(1))
        with pytest.raises(UnreadableError, match="cannot read"):
            await a.call(pid, Echo(1))
        _, there = await agree(a, b)
        assert there.refused == {"unreadable": 2}


class _Both:
    """A network with the carrier of one description and the types of another."""

    hooks = ()

    def __init__(self, carrier: Any, types: Any) -> None:
        self._carrier, self._types = carrier, types

    def join_network(self, kernel: Any) -> Any:
        network = self._carrier.join_network(kernel)
        network.context.types = self._types.join_network(kernel).types
        kernel.router.join_network(network)
        return network


@pytest.mark.parametrize("seed", range(3))
async def test_the_accounts_of_both_nodes_agree_after_losses_and_cuts(
    seed: int, autojump_clock: Any
) -> None:
    """Messages and calls in both directions, while frames are lost, links are cut for longer than
    the patience, and nodes are frozen. Each message is counted once on each node.
    """
    random = Random(seed)
    network = make_network("memory", window=2048)
    async with two_nodes(network, limit=100_000) as (a, b):
        targets = {a: await b.spawn(Counter), b: await a.spawn(Counter)}
        nobody = {a: Name("nobody", "b@test"), b: Name("nobody", "a@test")}

        async def talk(node: Node, pid: Any) -> None:
            for _ in range(60):
                for _ in range(random.randrange(40)):
                    node.send(pid if random.random() < 0.9 else nobody[node], Add(1))
                if random.random() < 0.3:
                    with suppress(TargetDownError, CallTimeoutError):
                        await node.call(pid, Total(), timeout=1)
                await trio.sleep(random.random())
                other = b if node is a else a
                if other.name in node.network().peers:
                    check(account(node, other.name))

        async def disturb() -> None:
            network.lose(random.choice((0.05, 0.3)), seed=seed)
            for _ in range(6):
                await trio.sleep(random.uniform(0, 4))
                if random.random() < 0.5:
                    network.cut("a@test", "b@test")
                    await trio.sleep(random.choice((1, 12)))
                    network.heal()
                else:
                    network.freeze("b@test")
                    await trio.sleep(random.choice((1, 12)))
                    network.thaw("b@test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk, a, targets[a])
            nursery.start_soon(talk, b, targets[b])
            nursery.start_soon(disturb)
        network.lose(0.0)
        network.heal()
        await trio.sleep(20)

        here, there = await agree(a, b)
        assert here.resent + there.resent > 0


async def test_the_accounts_begin_again_with_a_node_that_starts_again(autojump_clock: Any) -> None:
    network = make_network("memory")
    async with running_node("a@test", network=network, limit=1000) as a:
        for sent in (3, 7):
            async with running_node("b@test", network=network, limit=1000) as b:
                pid = await b.spawn(Counter)
                for _ in range(sent):
                    a.send(pid, Add(1))
                a.send(Name("nobody", "b@test"), Add(1))
                here, there = await agree(a, b)
                assert there.refused == {"undelivered": 1}
                assert here.sessions == there.sessions == 1
                assert here.sent == sent + 2  # and a ping
            # For the next start: it waits here until a session begins.
            await trio.sleep(20)


async def test_messages_that_wait_for_a_missing_node_are_unsent(autojump_clock: Any) -> None:
    async with running_node("a@test", network=make_network("memory"), limit=1000) as a:
        for _ in range(3):
            a.send(Name("x", "nowhere@test"), Add(1))
        await trio.sleep(20)
        lost = account(a, "nowhere@test")
        check(lost)
        assert (lost.state, lost.sent, lost.unsent, lost.sessions) == ("idle", 3, 3, 0)


async def test_a_refused_send_is_dropped_here(autojump_clock: Any) -> None:
    network = make_network("memory", backlog=100)
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        await a.at("b@test").ping()
        network.freeze("b@test")
        network_of(a).peer("b@test").session.grant(1)
        refused = 0
        for _ in range(200_000):
            try:
                a.send(pid, Add(1))
            except MailboxFullError:
                refused += 1
                break
        assert account(a, "b@test").dropped == refused == 1
        network.thaw("b@test")


async def test_a_node_without_a_network_has_no_accounts() -> None:
    async with running_node("alone") as alone:
        with pytest.raises(NotAllowedError, match="has no network; open it with"):
            alone.network()


async def test_the_accounts_are_read_from_any_thread(network: Any) -> None:
    found: list[Any] = []
    async with two_nodes(network) as (a, _):
        await a.at("b@test").ping()
        thread = threading.Thread(target=lambda: found.append(a.network()))
        thread.start()
        await trio.to_thread.run_sync(thread.join)
        assert found[0].peers["b@test"].received == 1


# -- windows -------------------------------------------------------------------------------------


def test_all_windows_together_hold_32_mib() -> None:
    assert share_of_window(1 << 20, 0) == share_of_window(1 << 20, 32) == 1 << 20
    assert share_of_window(1 << 20, 33) == 1 << 19
    assert share_of_window(4096, 1000) == 4096
    for nodes in range(1, 1001):
        assert nodes * share_of_window(1 << 20, nodes) <= 32 << 20
        assert nodes * share_of_window(64 << 20, nodes) <= 32 << 20


async def test_windows_shrink_and_grow_with_the_number_of_nodes(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("ergo_py.network.network._WINDOWS", 64 << 10)
    network = make_network("memory", window=64 << 10)
    async with two_nodes(network, limit=1000) as (a, b):
        pid = await b.spawn(Counter)
        await a.at("b@test").ping()
        assert account(b, "a@test").window == 64 << 10
        async with running_node("c@test", network=network, limit=1000) as c:
            await c.at("b@test").ping()
            assert account(b, "a@test").window == account(b, "c@test").window == 32 << 10
            await trio.sleep(2)
            for _ in range(5_000):
                a.send(pid, Add(1))
            assert account(a, "b@test").on_the_way_bytes <= 32 << 10
            assert await a.call(pid, Total()) == 5_000
        await trio.sleep(2)
        assert account(b, "a@test").window == 64 << 10
