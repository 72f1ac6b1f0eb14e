"""The contract of stores, for the stores of the package; and each rule finds a store that breaks
it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from ergo_py import InitError, open_node
from ergo_py.entities import FencedError, MemoryStore, SQLite
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
