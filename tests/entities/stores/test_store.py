"""The contract of stores, for the stores of the package; and each rule finds a store that breaks
it.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ergo_py import InitError, Shutdown, open_node
from ergo_py.entities import EntityStoreError, FencedError, MemoryStore, SQLite, Store
from ergo_py.entities.stores.store import Due, Row, Write
from ergo_py.entity_handles import Address
from ergo_py.testing import STORE_RULES, opened_store
from ergo_py.testing.stores import StoreRule
from tests.entities.support import Sharing, check_shared_shards

with_each_rule = pytest.mark.parametrize(
    "rule", STORE_RULES, ids=[rule.__name__ for rule in STORE_RULES]
)


@with_each_rule
async def test_sqlite_keeps_the_rule(rule: StoreRule, tmp_path: Path) -> None:
    await rule(lambda: SQLite(tmp_path / "state.db"))


@with_each_rule
async def test_a_memory_store_keeps_the_rule(rule: StoreRule) -> None:
    store = MemoryStore()
    await rule(lambda: store)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_store_has_a_single_owner(kind: str, tmp_path: Path) -> None:
    memory = MemoryStore()

    def make() -> Any:
        return memory if kind == "memory" else SQLite(tmp_path / "state.db")

    async with opened_store(make()):
        with pytest.raises(InitError, match="EntityStoreError"):
            async with opened_store(make()):
                pass


class Forgetful(MemoryStore):
    """Drops the last write of a batch."""

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit(writes[:-1] or writes)


class Unordered(MemoryStore):
    """Leaves out missing rows, and moves them behind the others."""

    async def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        return sorted(await super().load(addresses), key=lambda row: row is None)


class Short(MemoryStore):
    """Cuts long keys."""

    async def commit(self, writes: Sequence[Write]) -> None:
        short = [
            each._replace(address=each.address._replace(key=each.address.key[:99]))
            for each in writes
        ]
        await super().commit(short)


class Marking(MemoryStore):
    """Keeps deleted rows, without a record."""

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit([each._replace(record=each.record or b"") for each in writes])


class Unchecked(MemoryStore):
    """Writes over every version."""

    async def commit(self, writes: Sequence[Write]) -> None:
        rows = self.rows
        await super().commit(
            [
                each._replace(base=rows[each.address][0].version if each.address in rows else 0)
                for each in writes
            ]
        )


class OneByOne(MemoryStore):
    """Writes the rows of a refused batch that stand before the refused row."""

    async def commit(self, writes: Sequence[Write]) -> None:
        for each in writes:
            await super().commit([each])


class Tokenless(MemoryStore):
    """Accepts every token."""

    async def claim(self, shard: int, token: int) -> None:
        pass


class SingleToken(MemoryStore):
    """Has a single token for all shards."""

    async def claim(self, shard: int, token: int) -> None:
        await super().claim(0, token)

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit([each._replace(shard=0) for each in writes])


class FirstShard(MemoryStore):
    """Compares the token of the first write of a batch only."""

    async def commit(self, writes: Sequence[Write]) -> None:
        first = writes[0]
        await super().commit(
            [each._replace(shard=first.shard, token=first.token) for each in writes]
        )


class OldWriter(MemoryStore):
    """Checks the token of a claim, and not that of a write."""

    async def commit(self, writes: Sequence[Write]) -> None:
        await super().commit([each._replace(token=2**63) for each in writes])


class LateTokens(MemoryStore):
    """Forgets its token at a restart."""

    async def close(self) -> None:
        await super().close()
        rows = self.rows
        self.__init__()  # type: ignore[misc]
        self.rows = rows


class AnyOrder(MemoryStore):
    """Finds due rows in the order of their keys."""

    async def due(self, before: float, limit: int) -> list[Due]:
        return sorted(await super().due(before, limit), key=lambda each: each.address)


class Inclusive(MemoryStore):
    """Begins a page behind the key that was asked for."""

    async def keys(self, kind: str, start: str, limit: int) -> list[str]:
        return [key for key in await super().keys(kind, start, limit) if key != start]


class Late(MemoryStore):
    """A cancelled commit takes effect after a later load."""

    async def commit(self, writes: Sequence[Write]) -> None:
        try:
            await super().commit(writes)
        except trio.Cancelled:
            self.late = list(writes)
            raise

    async def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        found = await super().load(addresses)
        late, self.late = getattr(self, "late", []), []
        if late:
            await super().commit(late)
        return found


class Alone(MemoryStore):
    """Reads nothing while a commit is under way."""

    is_busy = False

    async def commit(self, writes: Sequence[Write]) -> None:
        self.is_busy = True
        await super().commit(writes)
        self.is_busy = False

    async def keys(self, kind: str, start: str, limit: int) -> list[str]:
        if self.is_busy:
            raise EntityStoreError("busy")
        return await super().keys(kind, start, limit)


class Open(MemoryStore):
    """Works after it has closed."""

    def _check_open(self) -> None:
        pass


class Confused(MemoryStore):
    """Refuses a version that skips two numbers."""

    async def commit(self, writes: Sequence[Write]) -> None:
        if any(each.version - each.base == 3 for each in writes):
            raise FencedError("no")
        await super().commit(writes)


BROKEN: Final[list[tuple[Callable[[], MemoryStore], str]]] = [
    (Forgetful, "commits_are_found"),
    (Unordered, "loads_keep_their_order"),
    (Short, "rows_are_whole"),
    (Marking, "deleted_rows_are_gone"),
    (Unchecked, "other_versions_are_refused"),
    (OneByOne, "other_versions_are_refused"),
    (Tokenless, "older_tokens_are_refused"),
    (OldWriter, "older_tokens_are_refused"),
    (LateTokens, "older_tokens_are_refused"),
    (SingleToken, "each_shard_has_its_token"),
    (FirstShard, "each_shard_has_its_token"),
    (AnyOrder, "due_rows_come_earliest_first"),
    (Inclusive, "keys_come_in_pages"),
    (Late, "a_cancelled_commit_is_whole_or_absent"),
    (Alone, "operations_may_run_at_once"),
    (Open, "a_closed_store_fails"),
    (Confused, "random_operations_agree_with_a_dict"),
]


@pytest.mark.parametrize("broken, rule", BROKEN)
async def test_a_rule_finds_a_store_that_breaks_it(
    broken: Callable[[], MemoryStore], rule: str
) -> None:
    store = broken()
    (found,) = [each for each in STORE_RULES if each.__name__ == rule]
    with pytest.raises((AssertionError, FencedError)):
        await found(lambda: store)


def test_every_rule_has_a_store_that_breaks_it() -> None:
    assert {rule for _, rule in BROKEN} == {rule.__name__ for rule in STORE_RULES}


async def test_programs_that_share_a_store_write_to_their_own_shards() -> None:
    store = MemoryStore()
    async with open_node("store@test", log_level="critical") as node:
        await check_shared_shards(node, lambda: store)


async def test_a_file_is_not_shared(tmp_path: Path) -> None:
    async with open_node("store@test", log_level="critical") as node:
        with pytest.raises(InitError, match="use Postgres for entities on several nodes"):
            await node.spawn(Sharing, SQLite(tmp_path / "state.db"))


class Claim(NamedTuple):
    """A shard is claimed with a token."""

    shard: int
    token: int


class Change(NamedTuple):
    """A write, as a distance from the row that is there."""

    address: Address
    off_by: int
    """How much its base differs from the version of the row."""
    step: int
    token: int
    due: float | None
    record: bytes | None
    shard: int


ADDRESSES: Final = [
    Address(kind, key) for kind in ("Account", "Accounts") for key in ("a", "a/b", "A\n", "é", "😀")
]
MOMENTS: Final = [None, 0.0, 1.5, 1e10]

claims = st.builds(Claim, st.integers(0, 2), st.integers(0, 4))
changes = st.builds(
    Change,
    st.sampled_from(ADDRESSES),
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    st.integers(1, 3),
    st.sampled_from([4, 4, 4, 4, 0, 2]),
    st.sampled_from(MOMENTS),
    st.none() | st.binary(max_size=3),
    st.integers(0, 2),
)
batches = st.lists(changes, min_size=1, max_size=4, unique_by=lambda each: each.address)
programs = st.lists(st.lists(claims | batches, max_size=6), min_size=1, max_size=3)
"""The steps of some programs, one after the other."""


class Model:
    """A dict, which the store must agree with."""

    def __init__(self) -> None:
        self.rows: dict[Address, tuple[Row, float | None]] = {}
        self.tokens: dict[int, int] = {}

    def version(self, address: Address) -> int:
        """The version of a row; 0 for none."""
        return self.rows[address][0].version if address in self.rows else 0

    def write(self, change: Change) -> Write:
        """The write of a change."""
        base = max(0, self.version(change.address) + change.off_by)
        version = base + change.step
        return Write(
            change.address, base, version, change.token, change.due, change.record, change.shard
        )

    async def claim(self, store: Store, claim: Claim) -> None:
        """Claim a shard, and compare."""
        await self._do(store.claim(*claim), claim.token >= self.tokens.get(claim.shard, 0))
        self.tokens[claim.shard] = max(claim.token, self.tokens.get(claim.shard, 0))

    async def commit(self, store: Store, writes: list[Write]) -> None:
        """Write, and compare."""
        is_allowed = all(
            each.base == self.version(each.address) and each.token >= self.tokens.get(each.shard, 0)
            for each in writes
        )
        await self._do(store.commit(writes), is_allowed)
        for each in writes if is_allowed else ():
            if each.record is None:
                self.rows.pop(each.address, None)
            else:
                self.rows[each.address] = Row(each.version, each.record), each.due

    async def _do(self, attempt: Awaitable[None], is_allowed: bool) -> None:
        if is_allowed:
            await attempt
        else:
            with pytest.raises(FencedError):
                await attempt

    async def compare(self, store: Store) -> None:
        """Compare the rows."""
        rows = [self.rows[each][0] if each in self.rows else None for each in ADDRESSES]
        assert list(await store.load(ADDRESSES)) == rows

    async def compare_pages(self, store: Store) -> None:
        """Compare the pages of moments and keys."""
        due = sorted(Due(at, each) for each, (_, at) in self.rows.items() if at is not None)
        for before, limit in ((0.0, 9), (1.5, 1), (1.5, 9), (1e9, 3), (1e12, 20)):
            expected = [each for each in due if each.moment < before]
            found = await store.due(before, limit)
            # Of those with equal moments, any may come first.
            assert [each.moment for each in found] == [each.moment for each in expected][:limit]
            assert {*found} <= {*expected}
        for kind, start, limit in (
            *(("Account", start, 9) for start in ("", "a", "a\0", "z")),
            *(("Accounts", "", 2), ("Accounts", "a\0", 1), ("Acc", "", 9)),
        ):
            keys = sorted(key for (name, key) in self.rows if name == kind and key >= start)
            assert list(await store.keys(kind, start, limit)) == keys[:limit]


async def check_programs(
    make: Callable[[], Store], steps: Sequence[Sequence[Claim | list[Change]]]
) -> None:
    """Let some programs use a store one after the other, and compare it with a dict."""
    model = Model()
    async with open_node("store@test", log_level="critical") as node:
        for program in steps:
            store = make()
            owner = await node.spawn(Sharing, store, False)
            await model.compare(store)
            for step in program:
                if isinstance(step, Claim):
                    await model.claim(store, step)
                else:
                    await model.commit(store, [model.write(each) for each in step])
                    await model.compare(store)
            await model.compare_pages(store)
            node.send_exit(owner, Shutdown("done"))
            await node.wait_ended(owner)


@given(programs)
def test_a_memory_store_agrees_with_a_dict(steps: list[list[Claim | list[Change]]]) -> None:
    store = MemoryStore()
    trio.run(check_programs, lambda: store, steps)


@given(programs)
def test_sqlite_agrees_with_a_dict(steps: list[list[Claim | list[Change]]]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "state.db"
        trio.run(check_programs, lambda: SQLite(path, synchronous="NORMAL"), steps)


@pytest.mark.parametrize(
    "broken",
    [
        *(Marking, Unchecked, OneByOne, Tokenless, SingleToken, FirstShard, OldWriter, LateTokens),
        *(AnyOrder, Inclusive, Confused, Unordered),
    ],
)
def test_the_comparison_with_a_dict_finds_a_broken_store(broken: type[MemoryStore]) -> None:
    @settings(phases=[Phase.generate], max_examples=400)
    @given(programs)
    def compare(steps: list[list[Claim | list[Change]]]) -> None:
        store = broken()
        trio.run(check_programs, lambda: store, steps)

    with pytest.raises((AssertionError, FencedError, pytest.fail.Exception, BaseExceptionGroup)):
        compare()
