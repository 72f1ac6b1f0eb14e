"""No two leases have the same number, in seeded partitions with a store that is rolled back;
`python -m benchmarks partitions` runs many more seeds.
"""

from typing import Any

import pytest
import trio

from ergo_py import PID
from ergo_py.cluster.lease import LeaseKeeper, LeaseTerms
from ergo_py.network.stores.memory_store import StoreTable
from ergo_py.network.stores.seen_revisions import SeenRevisions
from ergo_py.network.stores.store import Age, Entry
from tests.cluster.partitions import Violation, silent, simulate_keepers, simulate_nodes
from tests.network.support import largest_number
from tests.support import THOROUGH


def test_no_number_twice_in_seeded_partitions_with_a_store_that_is_rolled_back() -> None:
    starts = [simulate_keepers(seed) for seed in range(1000 if THOROUGH else 3)]

    assert sum(starts) > 3 * len(starts)


def test_no_number_twice_on_nodes_with_a_store_that_is_rolled_back() -> None:
    starts = [simulate_nodes(seed) for seed in range(1000 if THOROUGH else 2)]

    assert sum(starts) > 3 * len(starts)


class LateStore:
    """A store that confirms each write after a while, and notes when it was asked."""

    def __init__(self) -> None:
        self.table = StoreTable()
        self.asked: list[float] = []

    async def get(self, key: str) -> Entry | None:
        return self.table.get(key)

    async def put(self, key: str, value: bytes, revision: int) -> Entry:
        self.asked.append(trio.current_time())
        fresh = self.table.set(key, value, revision, len(self.asked))
        await trio.sleep(1.5)
        return fresh

    async def delete(self, key: str, revision: int) -> None:
        self.table.set(key, b"", revision, len(self.asked))

    async def age(self) -> Age:
        return Age(1000.0, 1000.0)

    def is_gone(self, _node: str, _creation: int) -> bool:
        return False


async def test_a_lease_counts_from_the_moment_before_its_renewal_is_sent(
    autojump_clock: Any,
) -> None:
    """Another node may have seen the renewal at once, however late the confirmation is."""
    store, terms = LateStore(), LeaseTerms(10.0, 1.0)

    def keeper(node: str) -> LeaseKeeper:
        return LeaseKeeper(store, "only", terms, PID(node, 1, 1), trio.current_time, silent)

    holder = keeper("a@test")
    lease_of_a = await holder.acquire()
    assert holder.expires_at == store.asked[0] + 8.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder.hold)
        await trio.sleep(4.0)
        confirmed = [asked for asked in store.asked if asked + 1.5 < trio.current_time()]
        assert len(confirmed) > 1
        assert holder.expires_at == confirmed[-1] + 8.0
        nursery.cancel_scope.cancel()  # no further renewal
    other, last = keeper("b@test"), trio.current_time()
    await other.acquire()
    # The other node counts from the moment at which it has first seen the last renewal.
    assert store.asked[-1] >= last + 10.0
    assert not lease_of_a.is_held


async def test_a_program_that_was_stopped_does_not_write_with_an_old_revision(
    autojump_clock: Any,
) -> None:
    """A store that was replaced by an older copy may have used the revision again."""

    class StoppedStore(LateStore):
        async def get(self, key: str) -> Entry | None:
            await trio.sleep(10.0)
            return await super().get(key)

    store = StoppedStore()
    pid = PID("a@test", 1, 1)
    keeper = LeaseKeeper(store, "only", LeaseTerms(10, 1), pid, trio.current_time, silent)
    assert not await keeper.try_once()
    assert store.asked == []
    keeper = LeaseKeeper(store, "only", LeaseTerms(12, 1), pid, trio.current_time, silent)
    assert await keeper.try_once()


async def test_a_renewal_leaves_the_entry_of_another_node_with_the_same_revision_alone(
    autojump_clock: Any,
) -> None:
    """A store that was replaced by an older copy gives out its last revisions again."""
    store, terms = LateStore(), LeaseTerms(10.0, 1.0)
    backup = store.table.copy()

    def keeper(node: str) -> LeaseKeeper:
        return LeaseKeeper(store, "only", terms, PID(node, 1, 1), trio.current_time, silent)

    a, b = keeper("a@test"), keeper("b@test")
    first = await a.acquire()
    entry = store.table.get("only")
    store.table.restore(backup)
    second = await b.acquire()
    other = store.table.get("only")
    assert entry is not None
    assert other is not None
    assert other.revision == entry.revision
    assert second.token > first.token

    with trio.fail_after(60):
        assert await a.hold() == "another node has its lease"

    assert store.table.get("only") == other
    assert second.is_held


async def test_a_store_that_was_lost_uses_no_revision_again(autojump_clock: Any) -> None:
    await trio.sleep(1)
    table = StoreTable()
    first = table.set("key", b"value", 0, 1)
    table.lose_all()

    assert table.set("key", b"value", 0, 1).revision > first.revision


def test_the_simulation_notices_numbers_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_clock(seen: SeenRevisions) -> int:
        return largest_number(seen) + 1

    monkeypatch.setattr(SeenRevisions, "next_number", without_clock)

    with pytest.raises(Violation):
        for seed in range(30):
            simulate_keepers(seed)
