"""`Node.drain`: a node goes out of service, and keeps running."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from ergo_py import (
    NO_REPLY,
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    Drain,
    Name,
    Node,
    NotAllowedError,
    Reject,
    SpawnError,
    TargetDownError,
)
from ergo_py.cluster import Cluster, Singleton
from ergo_py.network import Memory
from ergo_py.telemetry import Health
from ergo_py.testing import VirtualClock, explore
from ergo_py.web import WebServer
from tests.network.pairs import SlowStore, carrier_of
from tests.support import running_node


class Echo(Actor):
    """Answers with the name of its node; to "later" when it is told."""

    def init(self) -> None:
        self.waiting: list[Caller] = []

    def handle_call(self, request: object, caller: Caller) -> object:
        if request != "later":
            return self.node.name
        self.waiting.append(caller)
        return NO_REPLY

    def handle_message(self, message: object, sender: object) -> None:
        for caller in self.waiting:
            self.reply(caller, message)


class Draining(Actor):
    """Answers `Drain` as it is told: a number of cuts, an error, or not at all."""

    drains = True

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[float] = []

    def handle_call(self, request: object, caller: Caller) -> object:
        if isinstance(request, Drain):
            self.asked.append(request.timeout)
            if isinstance(self.answer, Exception):
                raise Reject(self.answer)
            return self.answer
        return list(self.asked)


def only() -> list[ChildSpec]:
    return [Singleton(ChildSpec("only", Echo, shutdown=1.0, terminate_timeout=1.0))]


@asynccontextmanager
async def nodes(*names: str, **options: Any) -> AsyncIterator[list[Node]]:
    network = Memory()
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_node(f"{name}@test", network=network, limit=100_000, **options)
            )
            for name in names
        ]


async def test_a_drained_node_gives_its_singleton_to_another_node_at_once(
    autojump_clock: Any,
) -> None:
    async with nodes("a", "b") as (a, b):
        await a.supervise(only())
        await Cluster(a).wait_for("only", timeout=10)
        await b.supervise(only())
        await trio.sleep(10)
        began = trio.current_time()

        assert await a.drain() == []

        while await Cluster(b).whereis("only") != Name("only", "b@test"):  # noqa: ASYNC110
            await trio.sleep(0.1)
        assert trio.current_time() - began < 3.0, "the lease is 6 s, and was given up"
        await trio.sleep(100)
        assert await b.call("only", "who") == "b@test"
        assert a.whereis("only") is None


async def test_a_drained_node_does_not_compete_again_even_if_its_keeper_restarts(
    autojump_clock: Any,
) -> None:
    async with nodes("a") as (a,):
        supervisor = await a.supervise(only())
        await Cluster(a).wait_for("only", timeout=10)
        await a.drain()
        keeper = supervisor.children()[0].pid
        assert keeper is not None
        a.kill(keeper)
        await trio.sleep(100)

        assert await Cluster(a).whereis("only") is None
        assert a.whereis("only") is None


async def test_a_node_that_waits_for_a_lease_drains_without_the_holder(
    autojump_clock: Any,
) -> None:
    async with nodes("a", "b") as (a, b):
        await a.supervise(only())
        await Cluster(a).wait_for("only", timeout=10)
        await b.supervise(only())
        await trio.sleep(3)

        assert await b.drain() == []

        await trio.sleep(100)
        assert await a.call("only", "who") == "a@test"


async def test_a_lease_that_is_not_confirmed_yet_is_given_up(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes("a", "b") as (a, b):
        carrier = carrier_of(a)
        slow = SlowStore(carrier.store(), 0.5)
        monkeypatch.setattr(carrier, "store", lambda: slow)
        await a.supervise(only())
        await trio.sleep(0.2)
        await b.supervise(only())
        began = trio.current_time()

        assert await a.drain() == []

        assert await Cluster(b).wait_for("only", timeout=10) == Name("only", "b@test")
        assert trio.current_time() - began < 3.0, "the lease is 6 s, and was given up"


async def test_a_drain_tells_the_leases_that_it_cannot_give_up(autojump_clock: Any) -> None:
    network = Memory()
    async with running_node("a@test", network=network, limit=100_000) as a:
        await a.supervise(only())
        await Cluster(a).wait_for("only", timeout=10)
        await Cluster(a).register("stock", await a.spawn(Echo))
        network.cut_store("a@test")

        singleton, name = sorted(await a.drain())

        assert singleton.startswith("SingletonKeeper ")
        assert name.startswith("ergo.cluster.name:stock ")
        assert singleton.endswith(
            "StoreError: the store of this network does not answer within 2 s"
        )
        assert name.endswith("StoreError: the store of this network does not answer within 2 s")
        assert a.whereis("only") is None


async def test_a_name_that_is_awaited_is_refused_when_its_node_drains(autojump_clock: Any) -> None:
    async with nodes("a", "b") as (a, b), trio.open_nursery() as nursery:
        await Cluster(b).register("stock", await b.spawn(Echo))
        waits = await a.spawn(Echo)

        async def register() -> None:
            with pytest.raises(NotAllowedError, match="draining"):
                await Cluster(a).register("stock", waits, wait=100)

        nursery.start_soon(register)
        await trio.sleep(5)
        began = trio.current_time()

        assert await a.drain(10) == []

        assert trio.current_time() - began < 3.0


def test_a_drained_node_gives_up_names_and_their_processes_go_on() -> None:
    async def drain_at_once() -> None:
        async with nodes("a", "b") as (a, b):
            stock = await a.spawn(Echo)
            await Cluster(a).register("stock", stock)

            assert await a.drain() == []

            await Cluster(b).register("stock", await b.spawn(Echo))
            assert await a.call(stock, "who") == "a@test"
            with pytest.raises(NotAllowedError, match="draining"):
                await Cluster(a).register("other", stock)

    assert explore(drain_at_once, range(20), clock=VirtualClock) == 20


async def test_processes_of_a_drained_node_leave_the_groups_of_the_cluster(
    autojump_clock: Any,
) -> None:
    async with nodes("a", "b") as (a, b):
        here, there = await Cluster(a).group("web"), await Cluster(b).group("web")
        one, two = await a.spawn(Echo), await b.spawn(Echo)
        here.join(one)
        there.join(two)
        await trio.sleep(1)
        assert set(there.members()) == {one, two}

        assert await a.drain() == []
        await trio.sleep(1)
        assert set(there.members()) == {two}

        here.join(one)  # it is no longer offered to others
        await trio.sleep(30)
        assert set(there.members()) == {two}


async def test_new_calls_of_other_nodes_are_refused_and_those_under_way_are_answered(
    autojump_clock: Any,
) -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        echo = await a.spawn(Echo, name="echo")
        answers: list[object] = []

        async def call() -> None:
            answers.append(await b.call(echo, "later", timeout=None))

        async def drain() -> None:
            answers.append(await a.drain(60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(1)
            nursery.start_soon(drain)
            await trio.sleep(1)
            with pytest.raises(TargetDownError, match="draining"):
                await b.call(echo, "who")
            with pytest.raises(TargetDownError, match="draining"):
                await c.call(Name("echo", "a@test"), "who")  # its first word to that node
            assert answers == []
            b.send(echo, "done")  # messages still arrive

        assert answers == ["done", []]
        assert a.network().peers["c@test"].refused == {"draining": 1}
        assert await a.call(echo, "who") == "a@test", "its own calls are not refused"


async def test_a_drain_tells_the_calls_that_are_not_answered_in_time(
    autojump_clock: Any,
) -> None:
    async with nodes("a", "b") as (a, b), trio.open_nursery() as nursery:
        echo = await a.spawn(Echo)
        nursery.start_soon(lambda: b.call(echo, "later", timeout=None))
        await trio.sleep(1)
        began = trio.current_time()

        assert await a.drain(5) == ["1 calls of other nodes are not answered"]
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        nursery.cancel_scope.cancel()


async def test_other_nodes_start_no_processes_on_a_drained_node(autojump_clock: Any) -> None:
    network = Memory(spawns={"echo": Echo}, allow={"*": "default,spawn"})
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        await b.at("a@test").spawn("echo")
        await a.drain()
        with pytest.raises(SpawnError, match="'a@test' is draining; start it on another node"):
            await b.at("a@test").spawn("echo")
        await a.spawn(Echo)  # the node itself does


class DrainsItsNode(Actor):
    """Drains its node in callbacks: directly, in a task that it waits for, and when it ends."""

    drains = True

    def __init__(self, found: dict[str, list[str]]) -> None:
        self.found = found

    async def drain(self, callback: str) -> None:
        self.found[callback] = await self.node.drain(5)

    async def handle_call(self, request: object, caller: Caller) -> object:
        await self.drain("handle_call")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.drain, "nursery")
        return None

    async def terminate(self, reason: object) -> None:
        await self.drain("terminate")


async def test_a_process_that_drains_its_node_does_not_wait_for_itself(
    autojump_clock: Any,
) -> None:
    async with running_node() as node:
        other = await node.spawn(Draining.spec(0))
        node.send(other, "busy")
        assert await node.drain(5) == []  # asked, though it has not run since this task spawned it
        found: dict[str, list[str]] = {}
        pid = await node.spawn(DrainsItsNode, found)

        await node.call(pid, "drain", timeout=60)
        node.send_exit(pid)
        await node.wait_ended(pid)

        assert found == {"handle_call": [], "nursery": [], "terminate": []}
        assert await node.call(other, "asked") == [5, 5, 5, 5]


@pytest.mark.counted
async def test_processes_that_take_part_are_asked_at_once_and_their_failures_told(
    autojump_clock: Any,
) -> None:
    async with running_node() as node:
        done = await node.spawn(Draining.spec(0), name="done")
        await node.spawn(Draining.spec(3), name="cut")
        await node.spawn(Draining.spec(ValueError("not now")), name="refuses")
        await node.spawn(Draining.spec(NO_REPLY), name="silent")
        began = trio.current_time()

        unfinished = await node.drain(5)

        assert sorted(text.partition(" ")[0] for text in unfinished) == ["cut", "refuses", "silent"]
        assert [text.partition(": ")[2] for text in sorted(unfinished)] == [
            "3 cut off",
            "ValueError: not now",
            "no answer within 5 s",
        ]
        assert trio.current_time() - began == pytest.approx(6)
        assert await node.call(done, "asked") == [5]


async def test_a_process_that_ends_while_it_drains_has_no_work_left(autojump_clock: Any) -> None:
    class Leaving(Draining):
        def handle_call(self, request: object, caller: Caller) -> object:
            self.stop()
            return NO_REPLY

    async with running_node() as node:
        await node.spawn(Leaving.spec(0))

        assert await node.drain() == []


async def test_a_node_without_network_and_work_drains_and_is_not_ready() -> None:
    async with running_node() as node:
        health = Health(node)
        assert not node.draining

        assert await node.drain() == []
        assert await node.drain() == [], "again has no effect"

        assert node.draining
        status, body = await trio.to_thread.run_sync(health.answer, "/readyz")
        assert status == 503
        assert b"the node is draining" in body
        assert (await trio.to_thread.run_sync(health.answer, "/healthz"))[0] == 200


async def test_web_servers_of_a_drained_node_take_no_further_requests() -> None:
    class Site(Actor):
        async def init(self) -> None:
            self.server = WebServer()
            await self.spawn_meta(self.server)

        def handle_call(self, request: object, caller: Caller) -> object:
            return self.server

    async with running_node() as node:
        server = await node.call(await node.spawn(Site), "server")
        assert not server.is_draining

        assert await node.drain() == []

        assert server.is_draining


async def test_a_drain_refuses_a_time_below_zero() -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="timeout"):
            await node.drain(-1)
        assert not node.draining


async def test_a_lease_is_not_held_after_the_drain(autojump_clock: Any) -> None:
    leases: list[Any] = []

    class Holder(Actor):
        def init(self) -> None:
            leases.append(Singleton.lease_of(self))

    async with nodes("a") as (a,):
        spec = ChildSpec("holder", Holder, shutdown=1.0, terminate_timeout=1.0)
        await a.supervise([Singleton(spec)])
        await Cluster(a).wait_for("holder", timeout=10)
        assert leases[0].is_held

        await a.drain()

        assert not leases[0].is_held
