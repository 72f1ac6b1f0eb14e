"""The private parts of entities and their stores that tests look at."""

from collections.abc import Callable
from typing import Any

import pytest

from ergo_py import PID, Actor, InitError, Node, Shutdown
from ergo_py.entities import FencedError, SQLite, Store
from ergo_py.entities.activations.wanted import Wanted
from ergo_py.entities.active_entities import Keeping
from ergo_py.entities.asleep import Asleep
from ergo_py.entities.schedule import Schedule
from ergo_py.entities.shards.shard_map import Place, ShardMap
from ergo_py.entities.shards.wire import ENTITY
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entities.stores.threaded import ThreadedStore
from ergo_py.entity_handles import Address

__all__ = [
    "Sharing",
    "check_shared_shards",
    "checkpoint_often",
    "counted_looks",
    "database_answer",
    "database_setting",
    "HostView",
    "fill_file",
    "host_of",
    "keeping_of",
    "read_pragma",
    "set_synchronous",
    "table_sizes",
]


class Sharing(Actor):
    """A process that has a store open, and shares it."""

    def __init__(self, store: Store, shared: bool = True) -> None:
        self.store = store
        self.shared = shared

    async def init(self) -> None:
        await self.store.open(self, shared=self.shared)

    async def terminate(self, reason: object) -> None:
        await self.store.close()


async def check_shared_shards(node: Node, make: Callable[[], Store]) -> None:
    """Check that two owners share a store, that the claim of one refuses the writes of the other to
    that shard only, and that no owner has the store alone meanwhile.
    """
    one, two = make(), make()
    owners = [await node.spawn(Sharing, each) for each in (one, two)]
    with pytest.raises(InitError, match="open"):
        await node.spawn(Sharing, make(), False)
    ada, bob = Address("Account", "ada"), Address("Account", "bob")
    await one.claim(1, 10)
    await one.claim(2, 11)
    await one.commit([Write(ada, 0, 1, 10, None, b"a1", 1), Write(bob, 0, 1, 11, None, b"b1", 2)])

    await two.claim(1, 12)

    assert await two.load([ada]) == [Row(1, b"a1")]
    late = [Write(bob, 1, 2, 11, None, b"b2", 2), Write(ada, 1, 2, 10, None, b"late", 1)]
    with pytest.raises(FencedError):
        await one.commit(late)
    with pytest.raises(FencedError):
        await one.claim(1, 10)
    await one.commit(late[:1])
    await two.commit([Write(ada, 1, 2, 12, None, b"a2", 1)])
    assert await one.load([ada, bob]) == [Row(2, b"a2"), Row(2, b"b2")]
    for owner in owners:
        node.send_exit(owner, Shutdown("done"))
        await node.wait_ended(owner)
    await node.spawn(Sharing, make(), False)


def keeping_of(node: Node, kind: type[Actor]) -> Keeping:
    """The work of the keeper of a class of entities."""
    keeping = node._entities[kind].keeping
    assert isinstance(keeping, Keeping)
    return keeping


async def database_setting(store: Store, name: str) -> str:
    """A setting of the session of a PostgreSQL database."""
    return await database_answer(store, "select current_setting(%s)", name)


async def database_answer(store: Store, statement: str, *values: str) -> str:
    """The first value that a statement finds in the session of a PostgreSQL database."""

    def read(database: Any) -> str:
        return str(database._connection.execute(statement, values).fetchone()[0])

    assert isinstance(store, ThreadedStore)
    return await store.run(read)


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """The entities that keepers look at, from now on, to see whether they can wake."""
    looks, can_wake = list[Address](), Keeping._can_wake

    def count(self: Keeping, address: Address) -> bool:
        looks.append(address)
        return can_wake(self, address)

    monkeypatch.setattr(Keeping, "_can_wake", count)
    return looks


def table_sizes(keeping: Keeping) -> dict[str, int]:
    """How many entries each table of a keeper has."""
    tables = {**vars(keeping), "slots": keeping.table.slots}
    return {
        name: len(each)
        for name, each in tables.items()
        if isinstance(each, dict | Schedule | Wanted | Asleep)
    }


async def fill_file(store: SQLite) -> None:
    """Let no page be added to the file, by the connection that is open now."""

    def limit(file: Any) -> None:
        connection = file._open()
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages}")

    await store.run(limit)


async def checkpoint_often(store: SQLite, pages: int) -> None:
    """Let the log be copied to the file after so many pages."""

    def limit(file: Any) -> None:
        file._open().execute(f"pragma wal_autocheckpoint = {pages}")

    await store.run(limit)


async def read_pragma(store: Store, name: str) -> int:
    """A setting of the connection that is open now."""

    def read(file: Any) -> int:
        value: int = file._open().execute(f"pragma {name}").fetchone()[0]
        return value

    assert isinstance(store, ThreadedStore)
    return await store.run(read)


def set_synchronous(store: SQLite, value: str) -> None:
    """Let the file be opened with another ``pragma synchronous``, also one that is not allowed."""
    unchecked: Any = store
    unchecked._synchronous = value


class HostView:
    """The shards of a node."""

    def __init__(self, keeping: Keeping) -> None:
        assert keeping.host is not None
        self._host = keeping.host

    def held(self) -> dict[int, int]:
        """The shards whose entities may be awake there, with their tokens."""
        return dict(self._host._held)

    def shard(self, kind: type[Any], key: str) -> int:
        """The shard of an entity."""
        return self._host.shard_of(Address(kind.kind, key))

    def has(self, kind: type[Any], key: str) -> bool:
        """Whether an entity may be awake there."""
        return self._host.holds(Address(kind.kind, key))

    def lose(self, shard: int) -> int:
        """Tell the node with the map, which this is, that another host has a shard. Returns its
        token.
        """
        present = self._host._map
        places, token = list(present.places), present.last + 1
        places[shard] = Place(PID("other@world", 1, 1), token)
        later = ShardMap(present.version + 1, token, tuple(places))
        self._host._keeper.node.send(self._host._name, (ENTITY, "map", later.to_wire()))
        return token

    def limit_looks(self, most: int) -> None:
        """Let the keeper fail that looks for shards to claim more often: without a wait between
        its looks it would never let the test go on.
        """
        looks, has_work = 0, self._host.has_work

        def counted() -> bool:
            nonlocal looks
            looks += 1
            assert looks < most, "the keeper looks for shards again and again"
            return has_work()

        unchecked: Any = self._host
        unchecked.has_work = counted

    @property
    def has_map(self) -> bool:
        """Whether the keeper of the map runs there."""
        return self._host._keeper.node.whereis("entities.map") is not None


def host_of(node: Node, kind: type[Actor]) -> HostView:
    """The shards of a node."""
    return HostView(keeping_of(node, kind))
