"""Singletons on nodes of a network in memory, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from ergo_py import (
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    InitError,
    Name,
    Node,
    NotAllowedError,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
)
from ergo_py.cluster import Cluster, Singleton
from ergo_py.control.commands import COMMANDS
from ergo_py.control.request import Arguments, Client
from ergo_py.network import Memory
from tests.support import running_node


class Only(Actor):
    """Counts how many of its kind run."""

    running: list[str] = []
    most = 0

    def init(self) -> None:
        Only.running.append(self.node.name)
        Only.most = max(Only.most, len(Only.running))

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "crash":
            raise RuntimeError
        if request == "lease":
            lease = Singleton.lease_of(self)
            return lease.token, lease.is_held, lease.seconds_left
        if request == "check":
            Singleton.lease_of(self).check()
        return self.node.name

    def terminate(self, reason: object) -> None:
        Only.running.remove(self.node.name)


@pytest.fixture(autouse=True)
def fresh_count() -> None:
    Only.running = []
    Only.most = 0


def only(**settings: Any) -> list[ChildSpec]:
    spec = ChildSpec("only", Only, shutdown=1.0, terminate_timeout=1.0)
    return [Singleton(spec, **settings)]


@asynccontextmanager
async def nodes(network: Memory, *names: str) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        found = []
        for name in names:
            node = await stack.enter_async_context(
                running_node(f"{name}@test", network=network, limit=100_000)
            )
            found.append(node)
        yield found


async def test_a_singleton_runs_on_a_single_node_and_all_nodes_find_it(autojump_clock: Any) -> None:
    async with nodes(Memory(), "a", "b", "c") as (a, b, c):
        for node in (a, b, c):
            await node.supervise(only())
        address = await Cluster(b).wait_for("only", timeout=10)
        await trio.sleep(100)

        assert len(Only.running) == 1 == Only.most
        assert isinstance(address, Name)
        assert await c.call(address, "who") == address.node == Only.running[0]


async def test_another_node_takes_over_when_the_node_ends(autojump_clock: Any) -> None:
    network = Memory()
    async with nodes(network, "a", "b") as (a, b):
        async with running_node("first@test", network=network, limit=10_000) as first:
            await first.supervise(only())
            await Cluster(a).wait_for("only", timeout=10)
            for node in (a, b):
                await node.supervise(only())
            await trio.sleep(20)
            assert Only.running == ["first@test"]
        began = trio.current_time()
        while not Only.running:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert trio.current_time() - began < 2  # the lease was given up
        assert Only.most == 1


async def test_a_node_that_stops_the_singleton_gives_the_lease_up(autojump_clock: Any) -> None:
    async with nodes(Memory(), "a", "b") as (a, b):
        supervisor = await a.supervise(only())
        await Cluster(b).wait_for("only", timeout=10)
        await b.supervise(only())
        await trio.sleep(5)
        a.send_exit(supervisor.pid)
        await a.wait_ended(supervisor.pid)
        began = trio.current_time()
        while not Only.running:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert trio.current_time() - began < 2  # and not after the lease
        assert Only.running == ["b@test"]
        assert Only.most == 1


async def test_a_singleton_ends_before_its_lease_can_be_taken(autojump_clock: Any) -> None:
    network = Memory()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        await Cluster(b).wait_for("only", timeout=10)
        await b.supervise(only(lease=6.0))
        await trio.sleep(5)
        network.cut_store("a@test")
        began = trio.current_time()
        while Only.running == ["a@test"]:  # noqa: ASYNC110
            await trio.sleep(0.01)
        ended = trio.current_time() - began
        assert Only.running == []
        while not Only.running:  # noqa: ASYNC110
            await trio.sleep(0.01)
        taken = trio.current_time() - began

        assert 2.0 < ended < 4.8 - 2.0 + 0.1  # a tenth of the lease may pass before the cut
        assert 6.0 - 0.7 < taken < 8.0
        assert Only.running == ["b@test"]
        assert Only.most == 1
        network.heal_store("a@test")
        await trio.sleep(60)
        assert Only.running == ["b@test"]


class Slow(Only):
    """Takes its time to end."""

    async def terminate(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, reason: object
    ) -> None:
        await trio.sleep(100)
        raise AssertionError("cut off before")


async def test_a_child_that_will_not_end_is_cut_off_before_the_lease_ends(
    autojump_clock: Any,
) -> None:
    network = Memory()
    ends: list[float] = []
    async with nodes(network, "a", "b") as (a, b):
        spec = ChildSpec("only", Slow, shutdown=1.0, terminate_timeout=1.0)
        await a.supervise([Singleton(spec, lease=6.0)])
        await Cluster(b).wait_for("only", timeout=10)
        pid = a.whereis("only")
        assert pid is not None
        network.cut_store("a@test")
        began = trio.current_time()
        await a.wait_ended(pid)
        ends.append(trio.current_time() - began)
    assert ends[0] < 4.8


async def test_a_crashed_singleton_restarts_on_its_node_and_keeps_its_address(
    autojump_clock: Any,
) -> None:
    async with nodes(Memory(), "a", "b") as (a, b):
        for node in (a, b):
            await node.supervise(only())
        address = await Cluster(b).wait_for("only", timeout=10)
        with pytest.raises(TargetDownError):
            await b.call(address, "crash")
        await trio.sleep(1)
        assert await Cluster(a).whereis("only") == address
        assert await b.call(address, "who") == address.node


class Stopped(Actor):
    """Calls the request, which stops the program, and checks its lease."""

    starts: list[bool] = []

    def init(self) -> None:
        Stopped.starts.append(Singleton.lease_of(self).is_held)

    async def handle_call(self, request: Any, caller: Caller) -> None:
        request()
        Singleton.lease_of(self).check()


async def test_a_singleton_does_not_restart_after_its_lease(autojump_clock: Any) -> None:
    Stopped.starts = []
    spec = ChildSpec("only", Stopped, shutdown=1.0, terminate_timeout=1.0)
    async with nodes(Memory(), "a") as (a,):
        await a.supervise([Singleton(spec)], intensity=0)
        address = await Cluster(a).wait_for("only", timeout=10)
        with pytest.raises(TargetDownError, match="LeaseLostError"):
            await a.call(address, lambda: autojump_clock.jump(1000.0))
        await trio.sleep(100)

        # The second start is that of the next lease. The supervisor above has seen no crash.
        assert Stopped.starts == [True, True]
        assert await a.call(address, list) is None


async def test_a_singleton_that_fails_too_often_moves_to_another_node(autojump_clock: Any) -> None:
    class Picky(Only):
        def init(self) -> None:
            if self.node.name == "a@test" and trio.current_time() > 5:
                raise RuntimeError("not here")
            super().init()

    async with nodes(Memory(), "a", "b") as (a, b):
        spec = ChildSpec("only", Picky, shutdown=1.0, terminate_timeout=1.0)
        await a.supervise([Singleton(spec)], intensity=100, period=1.0)
        address = await Cluster(b).wait_for("only", timeout=10)
        await b.supervise([Singleton(spec)])
        await trio.sleep(10)
        assert Only.running == ["a@test"]
        a.kill(Name("only"))
        await trio.sleep(30)
        assert Only.running == ["b@test"]
        assert await Cluster(a).whereis("only") == Name("only", "b@test") != address


async def test_a_new_store_is_not_trusted_before_a_lease_has_passed(autojump_clock: Any) -> None:
    network = Memory()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        await Cluster(b).wait_for("only", timeout=10)
        await b.supervise(only(lease=6.0))
        await trio.sleep(5)
        network.cut_store("a@test")
        network.lose_store()
        await trio.sleep(5.5)
        assert Only.running == []  # a has ended it by now, and b waits
        await trio.sleep(2)
        assert Only.running == ["b@test"]
        assert Only.most == 1


async def test_the_lease_gives_a_growing_number_and_tells_when_it_is_lost(
    autojump_clock: Any,
) -> None:
    network = Memory()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        address = await Cluster(b).wait_for("only", timeout=10)
        token, is_held, left = await b.call(address, "lease")
        assert is_held
        assert 3.0 < left <= 4.8
        await b.call(address, "check")
        await b.supervise(only(lease=6.0))
        network.cut_store("a@test")
        await trio.sleep(10)
        assert Only.running == ["b@test"]
        later, _, _ = await b.call(Name("only", "b@test"), "lease")
        assert later > token


async def test_names_tells_the_holder_of_a_lease_to_holder_and_competitor(
    autojump_clock: Any,
) -> None:
    names = COMMANDS["names"].on_loop
    assert names is not None

    async def look(node: Node) -> Any:
        rows: Any = await names(Client(node, lambda _: None), Arguments("names", {}))
        (row,) = rows
        return row["holder"], row["token"], row["left"]

    network = Memory()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        address = await Cluster(a).wait_for("only", timeout=10)
        await trio.sleep(2)
        await b.supervise(only(lease=6.0))
        assert await look(b) == (None, None, 0.0), "it has not looked yet"
        await trio.sleep(2)

        token, _, _ = await a.call(address, "lease")
        (holder, number, left), (seen, same, longest) = await look(a), await look(b)
        assert (holder, number) == (seen, same) == ("a@test", token)
        assert 3.0 < left <= 4.8
        assert left < longest <= 6.0, "the holder ends before another node may take the lease"

        await a.drain()
        assert (await look(a))[0] is None
        await trio.sleep(2)
        assert (await look(b))[0] == "b@test"


async def token_of(node: Node, address: Any) -> int:
    token, _, _ = await node.call(address, "lease")
    assert isinstance(token, int)
    return token


async def test_a_store_that_is_rolled_back_to_a_free_name_is_not_trusted(
    autojump_clock: Any,
) -> None:
    network = Memory()
    free = network.back_up_store()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        first = await token_of(b, await Cluster(b).wait_for("only", timeout=10))
        await b.supervise(only(lease=6.0))
        await trio.sleep(5)
        network.cut_store("a@test")
        network.restore_store(free)
        await trio.sleep(5.0)
        assert Only.running == []  # a has ended it by now, and b waits
        await trio.sleep(4)
        assert Only.running == ["b@test"]
        assert Only.most == 1
        assert await token_of(b, Name("only", "b@test")) > first


async def test_a_node_that_has_seen_nothing_waits_if_another_node_has_told_of_the_loss(
    autojump_clock: Any,
) -> None:
    network = Memory()
    free = network.back_up_store()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        await Cluster(b).wait_for("only", timeout=10)
        network.cut_store("a@test")
        network.restore_store(free)
        assert await Cluster(b).whereis("only") is None  # b notices
        async with running_node("new@test", network=network, limit=1000) as new:
            await new.supervise(only(lease=6.0))
            await trio.sleep(5.0)
            assert Only.running == []
            await trio.sleep(3.0)
            assert Only.running == ["new@test"]
            assert Only.most == 1


async def test_a_holder_ends_at_once_if_the_store_has_lost_its_renewals(
    autojump_clock: Any,
) -> None:
    network = Memory()
    async with nodes(network, "a") as (a,):
        await a.supervise(only(lease=6.0))
        address = await Cluster(a).wait_for("only", timeout=10)
        first = await token_of(a, address)
        backup = network.back_up_store()
        await trio.sleep(3)
        network.restore_store(backup)
        await trio.sleep(1)  # a renewal is due each 0.6 s
        assert Only.running == []
        await trio.sleep(4)
        assert Only.running == []  # the store counts as new
        await trio.sleep(3)
        assert Only.running == ["a@test"]
        assert await token_of(a, address) > first


async def test_a_copy_of_the_store_that_has_lost_nothing_is_not_noticed(
    autojump_clock: Any,
) -> None:
    network = Memory()
    async with nodes(network, "a", "b") as (a, b):
        await a.supervise(only(lease=6.0))
        address = await Cluster(b).wait_for("only", timeout=10)
        first = await token_of(b, address)
        await b.supervise(only(lease=6.0))
        network.restore_store(network.back_up_store())
        await trio.sleep(20)
        assert Only.running == ["a@test"]
        assert await token_of(b, address) == first


@pytest.mark.parametrize("loss", ["rolled back", "lost"])
async def test_numbers_grow_when_all_nodes_restart_with_the_store(
    autojump_clock: Any, loss: str
) -> None:
    network = Memory()
    backup = network.back_up_store()
    tokens = []
    for _ in range(3):
        async with nodes(network, "a") as (a,):
            await a.supervise(only(lease=6.0))
            tokens.append(await token_of(a, await Cluster(a).wait_for("only", timeout=20)))
            await trio.sleep(20)
        if loss == "lost":
            network.lose_store()
        else:
            network.restore_store(backup)
    assert tokens == sorted(set(tokens))


async def test_a_lease_that_has_expired_is_not_held_again_with_the_next_lease(
    autojump_clock: Any,
) -> None:
    """A thread may keep a lease after its process has ended."""
    leases: list[Any] = []

    class Keeping(Only):
        def init(self) -> None:
            super().init()
            leases.append(Singleton.lease_of(self))

    network = Memory()
    async with nodes(network, "a") as (a,):
        spec = ChildSpec("only", Keeping, shutdown=1.0, terminate_timeout=1.0)
        await a.supervise([Singleton(spec, lease=6.0)])
        await trio.sleep(2)
        assert [lease.is_held for lease in leases] == [True]
        network.cut_store("a@test")
        await trio.sleep(10)
        assert [lease.is_held for lease in leases] == [False]
        network.heal_store("a@test")
        await trio.sleep(10)
        assert [lease.is_held for lease in leases] == [False, True]
        assert leases[0].token < leases[1].token
        with pytest.raises(Singleton.LeaseLostError):
            leases[0].check()


def test_an_expired_lease_says_so() -> None:
    from ergo_py.cluster.lease import Lease

    lease = Lease("only", 5, lambda: -1.0)
    assert not lease.is_held
    assert lease.seconds_left == 0.0
    with pytest.raises(Singleton.LeaseLostError, match="another node may run it"):
        lease.check()


async def test_a_process_outside_of_a_singleton_has_no_lease(autojump_clock: Any) -> None:
    async with running_node("a@test", network=Memory()) as node:
        pid = await node.spawn(Only)
        with pytest.raises(TargetDownError, match="belongs to no singleton"):
            await node.call(pid, "lease")


NO_SPEC: Any = Only


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Singleton(NO_SPEC), "a ChildSpec"),
        (lambda: Singleton(ChildSpec("x", Only), lease=10.0), "at least 21.4 s"),
        (lambda: Singleton(ChildSpec("x", Only, register=False)), "reach the singleton by its"),
        (lambda: Singleton(ChildSpec("x", Supervisor, SupervisorSpec())), "a number of seconds"),
    ],
)
def test_mistakes_are_explained(make: Any, text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        make()


async def test_a_node_without_a_network_runs_no_singleton() -> None:
    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.supervise(only())
        causes = []
        error: BaseException | None = caught.value
        while error is not None:
            causes.append(str(error))
            error = error.__cause__
        assert "has no network, and a cluster needs one" in " ".join(causes)
        with pytest.raises(NotAllowedError, match="network=Local"):
            Cluster(node)
