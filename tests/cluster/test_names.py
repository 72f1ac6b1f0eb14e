"""Names in the cluster, in every kind of network."""

from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import BadInputError, CallTimeoutError, Down, Name, Shutdown, TargetDownError
from ergo_py.cluster import Cluster
from ergo_py.cluster.lease import Holder, LeaseKeeper, LeaseTerms
from ergo_py.errors import NameUnknownError, ProcessUnknownError
from ergo_py.network import Memory, StoreError
from ergo_py.network.errors import MessageTypeError
from tests.actors import Puppet, Recorder
from tests.network.pairs import SlowStore, carrier_of, two_nodes
from tests.support import kernel_of, running_node


async def wait_forever(_process: Any) -> None:
    await trio.sleep_forever()


SHORT: Any = {"lease": 1.0, "ending": 0.2}
LONG: Any = {"lease": 600.0, "ending": 1.0}
"""On a real clock: a machine that stands still for a second may end a short lease."""


async def test_a_name_is_found_by_all_nodes_and_free_when_its_process_ends(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        assert await Cluster(b).whereis("stock") is None
        # A bucket of NATS is new here, so the first name waits for its lease. The marker of a
        # removed entry lets the next registration begin at once.
        await Cluster(a).register("stock", await a.spawn(Recorder), wait=60, **SHORT)
        await Cluster(a).unregister("stock")
        pid = await a.spawn(Recorder)
        await Cluster(a).register("stock", pid, wait=60, **LONG)

        assert await Cluster(b).whereis("stock") == pid
        assert await b.call(pid, None) == []
        with pytest.raises(Cluster.TakenError, match=r"'stock' belongs to .* of node 'a@test'"):
            await Cluster(b).register("stock", await b.spawn(Recorder))
        with pytest.raises(Cluster.TakenError):
            await Cluster(a).register("stock", await a.spawn(Recorder))

        a.send_exit(pid)
        other = await b.spawn(Recorder)
        await Cluster(b).register("stock", other, wait=60, **LONG)
        assert await Cluster(a).wait_for("stock", timeout=60) == other

        await Cluster(b).unregister("stock")
        assert await Cluster(a).whereis("stock") is None
        assert await a.call(other, None) == []


async def test_a_notice_of_another_process_does_not_free_a_name(autojump_clock: Any) -> None:
    async with two_nodes(Memory()) as (a, b):
        pid, other = await a.spawn(Recorder), await a.spawn(Recorder)
        await Cluster(a).register("stock", pid, **SHORT)
        keeper = Name("ergo.cluster.name:stock", "a@test")
        a.send(keeper, Down(other, Shutdown()))
        with pytest.raises(MessageTypeError, match="a Down cannot travel"):
            b.send(keeper, Down(pid, Shutdown("forged")))
        await trio.testing.wait_all_tasks_blocked()
        assert await Cluster(b).whereis("stock") == pid
        with pytest.raises(Cluster.TakenError):
            await Cluster(b).register("stock", await b.spawn(Recorder))


async def test_a_process_that_loses_its_name_ends_before_another_can_have_it(
    autojump_clock: Any,
) -> None:
    network = Memory()
    async with two_nodes(network, limit=1000) as (a, b):
        polite, busy = await a.spawn(Recorder), await a.spawn(Puppet)
        a.send(busy, wait_forever)
        for name, pid in (("polite", polite), ("busy", busy)):
            await Cluster(a).register(name, pid, lease=6.0, ending=2.0)
        network.cut_store("a@test")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            ends: list[float] = []

            async def note(pid: Any) -> None:
                await a.wait_ended(pid)
                ends.append(trio.current_time() - began)

            nursery.start_soon(note, polite)
            nursery.start_soon(note, busy)
            successor = await b.spawn(Recorder)
            await Cluster(b).register("polite", successor, wait=60, lease=6.0, ending=2.0)
            taken = trio.current_time() - began
        assert max(ends) < 4.8 < taken
        assert await Cluster(b).whereis("polite") == successor


async def test_a_program_that_was_stopped_beyond_its_lease_kills_the_process_at_once(
    autojump_clock: Any,
) -> None:
    async with two_nodes(Memory(), limit=10_000) as (a, _):
        busy = await a.spawn(Puppet)
        await Cluster(a).register("busy", busy, lease=60.0, ending=20.0)
        a.send(busy, wait_forever)
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(100.0)  # the program was stopped meanwhile
        began = trio.current_time()
        await a.wait_ended(busy)
        assert trio.current_time() - began < 1.0


async def test_a_name_that_is_confirmed_too_late_is_given_back(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(Memory(), limit=1000) as (a, b):
        carrier = carrier_of(a)
        slow = SlowStore(carrier.store(), 1.0)
        monkeypatch.setattr(carrier, "store", lambda: slow)
        pid = await a.spawn(Recorder)
        with pytest.raises(StoreError, match="'stock' too late for a lease of 1 s; try again"):
            await Cluster(a).register("stock", pid, **SHORT)
        # Other nodes can have it at once.
        other = await b.spawn(Recorder)
        await Cluster(b).register("stock", other, **SHORT)


async def test_a_lease_is_given_up_again_if_the_first_attempt_was_cut_short(
    autojump_clock: Any,
) -> None:
    async with running_node("a@test", network=Memory(), limit=1000) as a:
        pid = await a.spawn(Recorder)
        keeper = LeaseKeeper(
            carrier_of(a).store(),
            "stock",
            LeaseTerms(1.0, 0.2),
            pid,
            trio.current_time,
            kernel_of(a).logger.warning,
        )
        await keeper.acquire()
        with trio.CancelScope() as scope:
            scope.cancel()
            await keeper.release()
        assert await keeper.holder() is not None

        await keeper.release()

        assert await keeper.holder() is None


async def test_a_name_that_is_not_there_is_awaited_or_refused(autojump_clock: Any) -> None:
    async with two_nodes(Memory(), limit=1000) as (a, b):
        with pytest.raises(CallTimeoutError):
            await Cluster(a).wait_for("stock", timeout=3)
        with pytest.raises(NameUnknownError):
            await Cluster(a).unregister("stock")
        with pytest.raises(ProcessUnknownError):
            await Cluster(a).register("stock", Name("nobody"))
        pid = await b.spawn(Recorder)
        with pytest.raises(ProcessUnknownError):
            await Cluster(a).register("stock", pid)
        with pytest.raises(BadInputError, match="at least"):
            await Cluster(b).register("stock", pid, lease=1.0)


async def test_a_name_is_awaited_while_the_store_cannot_be_reached(
    autojump_clock: Any,
) -> None:
    """A bucket of three servers takes some seconds to make."""
    network = Memory()
    async with two_nodes(network, limit=1000) as (a, b):
        network.cut_store("a@test")
        async with trio.open_nursery() as nursery:

            async def register() -> None:
                await trio.sleep(10)
                await Cluster(b).register("stock", await b.spawn(Recorder))
                await trio.sleep(10)
                network.heal_store("a@test")

            nursery.start_soon(register)
            found = await Cluster(a).wait_for("stock", timeout=60)
            assert found == await Cluster(b).whereis("stock")
            assert 20 < trio.current_time() < 25
        network.cut_store("a@test")
        with pytest.raises(StoreError, match="does not answer within 2 s"):
            await Cluster(a).wait_for("stock", timeout=3)
        with pytest.raises(CallTimeoutError):  # no answer in so short a time says nothing
            await Cluster(a).wait_for("stock", timeout=1)


async def test_an_unreachable_store_is_an_error_that_says_so(autojump_clock: Any) -> None:
    network = Memory()
    async with two_nodes(network, limit=1000) as (a, _):
        network.cut_store("a@test")
        with pytest.raises(StoreError, match="does not answer within 2 s"):
            await Cluster(a).whereis("stock")
        with pytest.raises(StoreError, match="does not answer within 2 s"):
            await Cluster(a).register("stock", await a.spawn(Recorder))


async def test_a_name_of_a_store_that_was_lost_is_not_taken_too_early(autojump_clock: Any) -> None:
    network = Memory()
    async with two_nodes(network, limit=1000) as (a, _):
        network.lose_store()
        pid = await a.spawn(Recorder)
        with pytest.raises(StoreError, match="register it with wait=60"):
            await Cluster(a).register("stock", pid)
        await Cluster(a).register("stock", pid, wait=60)
        assert await Cluster(a).whereis("stock") == pid


async def test_a_node_that_ended_without_a_word_leaves_names_that_can_be_taken(
    autojump_clock: Any,
) -> None:
    network = Memory()
    async with running_node("b@test", network=network, limit=1000) as b:
        async with running_node("a@test", network=network, limit=1000) as a:
            pid = await a.spawn(Recorder)
            await Cluster(a).register("stock", pid)
            network.cut_store("a@test")  # so that it cannot give the name up
        assert await Cluster(b).whereis("stock") is None
        other = await b.spawn(Recorder)
        await Cluster(b).register("stock", other)
        assert await Cluster(b).whereis("stock") == other
        with pytest.raises(TargetDownError):
            await b.call(pid, None)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"node": 1}', b"null"])
def test_an_unreadable_holder_has_a_lease_of_the_usual_length(data: bytes) -> None:
    holder = Holder.decode(data, 7.0)

    assert (holder.lease, holder.address) == (7.0, None)


def test_a_holder_survives_the_store() -> None:
    holder = Holder("a@test", 3, 4, "prices", 5.0, 6)

    assert Holder.decode(holder.encode(), 1.0) == holder
    strange = Holder("a@test", 3, 4, "", float("inf"), 6)
    assert Holder.decode(strange.encode(), 7.0).lease == 7.0
