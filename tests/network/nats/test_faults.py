"""Faults between a node and a real NATS server: cuts, stalls, trickles, outages, slow readers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from ergo_py import Down, Node, NoNode, TargetDownError
from tests.actors import Recorder
from tests.network.nats.proxy import Proxy, open_proxy
from tests.network.nats.server import NatsServer
from tests.network.nats.test_nats import FAST
from tests.network.pairs import Total, make_network, network_of, until
from tests.network.test_nodes import Counter, Talker
from tests.support import running_node


@asynccontextmanager
async def nodes_behind_proxies(
    server: NatsServer, **settings: Any
) -> AsyncIterator[tuple[Node, Node, Proxy, Proxy]]:
    """The nodes a@test and b@test, each with a proxy of its own."""
    network: dict[str, Any] = {**FAST, **settings}
    network["cluster"] = f"faults-{id(network)}"
    async with (
        open_proxy(server.port) as of_a,
        open_proxy(server.port) as of_b,
        running_node("a@test", network=make_network("nats", of_a.url, **network)) as a,
        running_node("b@test", network=make_network("nats", of_b.url, **network)) as b,
    ):
        yield a, b, of_a, of_b


async def test_cut_connections_are_invisible(shared_server: NatsServer) -> None:
    got: list[Any] = []
    heard: list[Any] = []
    async with nodes_behind_proxies(shared_server) as (a, b, of_a, of_b):
        pid = await b.spawn(Recorder, got)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        for number in range(600):
            a.send(pid, (number, "x" * 500))
            if number % 100 == 50:
                proxy = of_a if number % 200 == 50 else of_b
                await until(lambda proxy=proxy, cuts=number // 200: proxy.connections > cuts)
                proxy.cut()
            if not number % 10:
                await trio.sleep(0.001)
        await until(lambda: len(got) == 600)
        assert [number for number, _ in got] == list(range(600))
        assert heard == []


async def test_a_stalled_connection_is_invisible_within_the_patience(
    shared_server: NatsServer,
) -> None:
    """The node leaves the connection that is silent, and connects again."""
    got: list[Any] = []
    heard: list[Any] = []
    async with nodes_behind_proxies(shared_server) as (a, b, of_a, _):
        pid = await b.spawn(Recorder, got)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        a.send(pid, 0)
        await until(lambda: got == [0])
        of_a.stall()
        for number in range(1, 100):
            a.send(pid, number)
        await until(lambda: of_a.connections > 1)
        of_a.flow()
        await until(lambda: len(got) == 100)
        assert got == list(range(100))
        assert heard == []


async def test_a_trickle_of_bytes_changes_nothing(shared_server: NatsServer) -> None:
    got: list[Any] = []
    async with nodes_behind_proxies(shared_server) as (a, b, of_a, of_b):
        pid = await b.spawn(Recorder, got)
        counter = await b.spawn(Counter)
        await a.call(counter, Total())
        of_a.trickle(1)
        of_b.trickle(2)
        for number in range(100):
            a.send(pid, (number, "x" * number))
        assert await a.call(counter, Total(), timeout=60) == 0
        await until(lambda: len(got) == 100)
        assert got == [(number, "x" * number) for number in range(100)]
        of_a.flow()
        of_b.flow()


async def test_a_slow_reader_holds_no_more_than_its_window(server: NatsServer) -> None:
    """A node that does not read: the server queues at most its window, and does not cut it off."""
    got: list[Any] = []
    settings: dict[str, Any] = {"window": 64 << 10, "backlog": 64 << 20}
    async with nodes_behind_proxies(server, **settings) as (a, b, _, of_b):
        pid = await b.spawn(Recorder, got)
        await a.at("b@test").ping()
        of_b.stall_reader()
        for number in range(4000):
            a.send(pid, (number, "x" * 1000))
        await until(lambda: a.network().peers["b@test"].on_the_way_bytes > 32 << 10)
        account = a.network().peers["b@test"]
        assert account.on_the_way_bytes <= 64 << 10
        assert account.waiting > 3000
        of_b.flow()
        await until(lambda: len(got) == 4000)
        assert [number for number, _ in got] == list(range(4000))
        assert "Slow Consumer" not in server.log()
        assert a.network().peers["b@test"].sessions == 1


class Ordered:
    """The numbers that have arrived, and where numbers are missing between."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def holes(self) -> int:
        return sum(
            after != before + 1 for before, after in zip(self.got, self.got[1:], strict=False)
        )


@pytest.mark.parametrize("outage", ["within the patience", "beyond the patience"])
async def test_the_outage_table(outage: str, server: NatsServer) -> None:
    """The server is killed under a flow of messages, and started again. Within the patience,
    nothing is lost, doubled or told. Beyond it, both nodes are told once, and there is a single
    hole, at the end of the session.
    """
    is_long = outage == "beyond the patience"
    settings = {"beat": 0.05, "patience": 1.0, "grace": 0.5} if is_long else FAST
    arrived = Ordered()
    downs: dict[str, list[Any]] = {"a@test": [], "b@test": []}
    stop = trio.Event()
    sent = 0
    network = make_network("nats", server.url, **settings)
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
        trio.open_nursery() as nursery,
    ):
        pid = await b.spawn(Recorder, arrived.got)
        for node, other in ((a, b), (b, a)):
            watcher = await node.spawn(Talker, downs[node.name])
            target = await other.spawn(Counter)
            await node.call(watcher, lambda me, target=target: me.monitor(target))
            await node.call(target, Total())

        async def flood() -> None:
            nonlocal sent
            while not stop.is_set():
                a.send(pid, sent)
                sent += 1
                await trio.sleep(0.001)

        nursery.start_soon(flood)
        await until(lambda: len(arrived.got) > 50)
        server.kill()
        await until(lambda: all(downs.values()) if is_long else sent > 300)
        await trio.to_thread.run_sync(server.start)
        mark = sent
        await until(lambda: bool(arrived.got) and arrived.got[-1] > mark + 50)
        stop.set()
        await until(lambda: arrived.got[-1] == sent - 1)
        told = {name: list(found) for name, found in downs.items()}

    assert sorted(set(arrived.got)) == arrived.got, "doubled, or out of order"
    expected = 1 if is_long else 0
    assert {name: len(found) for name, found in told.items()} == dict.fromkeys(told, expected)
    assert all(type(down) is Down for found in told.values() for down in found)
    assert arrived.holes() == expected
    assert (len(arrived.got) == sent) is not is_long


async def test_a_node_that_is_cut_off_for_good_is_told_on_both_sides(
    shared_server: NatsServer,
) -> None:
    settings = {"beat": 0.05, "patience": 1.0, "grace": 0.9}
    async with nodes_behind_proxies(shared_server, **settings) as (a, b, of_a, _):
        pid = await b.spawn(Counter)
        assert await a.call(pid, Total()) == 0
        assert network_of(b).is_up("a@test")
        of_a.stall()
        with pytest.raises(TargetDownError) as lost:
            await a.call(pid, Total(), timeout=None)
        assert lost.value.reason == NoNode("b@test")
        await until(lambda: not network_of(b).is_up("a@test"))
        of_a.flow()
