"""A fleet of three programs, each in a network namespace of its own, with links that are cut:
`python -m benchmarks test-deep tests/entities/shards/test_links.py`.

Each namespace has a NATS server for its node, and the three servers are a cluster, so two nodes can
be cut from each other. PostgreSQL is in a namespace of its own.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations
from typing import Any

import pytest
import trio

from ergo_py.entities.record import Record
from ergo_py.entities.shards.shard_map import shard_of
from ergo_py.entity_handles import Address
from ergo_py.network.messages.codec import msgspec
from tests.entities.shards.links import Links, NatsServers
from tests.entities.shards.programs import KEYS, LEASE, SHARDS, Notes, fleet_program
from tests.entities.support import Sharing
from tests.postgres import needs_postgres, running_postgres, server_user
from tests.support import THOROUGH, running_node, short_directory

NODES = ["a", "b", "c"]
ROWS = "rows"
"""The namespace of PostgreSQL."""
SENT = [("a", other) for other in ("b", "c", ROWS)]
RECEIVED = [(other, "a") for _, other in SENT]

# The log of all claims and writes, in the order in which PostgreSQL has carried them out: a commit
# locks the rows of its shards, and a claim changes them.
AUDIT = """
    create table ergo.seen (
        id bigserial, node text, shard int, token bigint, kind text, key text, version bigint
    );
    create function ergo.note_claim() returns trigger language plpgsql as $$ begin
        insert into ergo.seen (node, shard, token)
        values (host(inet_client_addr()), new.shard, new.token);
        return null;
    end $$;
    create function ergo.note_write() returns trigger language plpgsql as $$ begin
        insert into ergo.seen (node, kind, key, version)
        values (host(inet_client_addr()), new.kind, new.key, new.version);
        return null;
    end $$;
    create trigger seen after insert or update on ergo.shards
        for each row execute function ergo.note_claim();
    create trigger seen after insert or update on ergo.entities
        for each row execute function ergo.note_write();
"""


class Fleet:
    """Three programs, and the log of PostgreSQL."""

    def __init__(self, links: Links, conninfo: str, programs: list[trio.Process]) -> None:
        self.links = links
        self._conninfo = conninfo
        self._programs = programs

    async def ask(self, query: str) -> list[Any]:
        """The rows of a query, over a socket that no cut reaches."""
        return await trio.to_thread.run_sync(_ask, self._conninfo, query)

    async def hosts(self) -> dict[int, str]:
        """The addresses of the nodes that have claimed each shard last."""
        claims = "select shard, node from ergo.seen where shard is not null order by id"
        return dict(await self.ask(claims))

    async def until_hosts_are(self, *names: str) -> None:
        """Wait until these nodes have claimed all shards."""
        places = {self.links.address(each) for each in names}
        with trio.fail_after(100):
            while True:
                found = await self.hosts()
                if len(found) == SHARDS and set(found.values()) == places:
                    return
                await trio.sleep(0.1)

    async def acknowledged(self) -> tuple[dict[str, str], dict[str, str]]:
        """End the clients, and wait until their last commands are acknowledged. The ledgers of all
        commands, and the ledgers that ids were passed to.
        """
        noted: dict[str, str] = {}
        passed: dict[str, str] = {}
        with trio.fail_after(100):
            for program in self._programs:
                assert program.stdin is not None
                await program.stdin.send_all(b"end\n")
            for program in self._programs:
                one, two = json.loads(await _line(program))
                noted |= one
                passed |= two
        return noted, passed

    async def until_all_have_commands(self) -> None:
        """Wait until the clients, which go through the ledgers in turn, have reached each of them.
        On a busy machine they have done a few steps only when the last cut ends.
        """
        with trio.fail_after(100):
            while True:
                ids = await self.ids()
                if all(any(not id.startswith("got ") for id in ids.get(key, ())) for key in KEYS):
                    return
                await trio.sleep(0.1)

    async def ids(self) -> dict[str, list[str]]:
        """The ids in the stored state of each ledger."""
        rows = await self.ask("select key, record from ergo.entities where kind = 'Ledger'")
        states = {key: Record.decode(record).state for key, record in rows}
        return {
            key: msgspec.msgpack.decode(state, type=Notes).ids if state else []
            for key, state in states.items()
        }

    async def complaints(self) -> list[str]:
        """Writes of a node that has not claimed the shard last, and versions that do not grow."""
        return list(_complaints(await self.ask("select * from ergo.seen order by id")))


def _ask(conninfo: str, query: str) -> list[Any]:
    import psycopg

    with psycopg.connect(conninfo, autocommit=True) as connection:
        found = connection.execute(query.encode())
        return [] if found.description is None else found.fetchall()


async def _line(program: trio.Process) -> bytes:
    assert program.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        line += await program.stdout.receive_some()
    return line


def _complaints(seen: list[Any]) -> Iterator[str]:
    claims: dict[int, tuple[int, str]] = {}
    versions: Counter[str] = Counter()
    for _, node, shard, token, kind, key, version in seen:
        if shard is not None:
            last, holder = claims.get(shard, (0, node))
            if token < last or (token == last and node != holder):
                yield f"{node} claims {shard} with {token} after {last} of {holder}"
            claims[shard] = token, node
        elif kind == "Ledger":
            held = shard_of(Address(kind, key), SHARDS)
            if held not in claims or claims[held][1] != node:
                yield f"{node} writes {key}, and {claims.get(held)} has the shard"
            if version <= versions[key]:
                yield f"{node} writes {version} of {key} after {versions[key]}"
            versions[key] = version


@asynccontextmanager
async def running_fleet() -> AsyncIterator[Fleet]:
    """Three programs that share ledgers, each in a namespace of its own."""
    from ergo_py.entities import Postgres

    with (
        Links(*NODES, ROWS) as links,
        short_directory() as place,
        NatsServers(links, NODES, place) as servers,
        running_postgres(links.address(ROWS), links.enter(ROWS, server_user())) as server,
    ):
        async with running_node() as node:
            await node.spawn(Sharing, Postgres(server.conninfo))  # makes the tables
        with trio.fail_after(60):
            while not servers.has_leader():  # noqa: ASYNC110 - other programs say so
                await trio.sleep(0.05)
        # A connection ends in the longer cuts, and goes on after the shorter cuts.
        database = f"host={links.address(ROWS)} user=ergo dbname=postgres tcp_user_timeout=2000"
        async with AsyncExitStack() as stack:
            programs: list[trio.Process] = []
            fleet = Fleet(links, server.conninfo, programs)
            await fleet.ask(AUDIT)
            for name in NODES:
                program = fleet_program(
                    f"{name}@test", "nats://127.0.0.1:4222", database, 2, links.enter(name)
                )
                programs.append(await stack.enter_async_context(program))
            await fleet.until_hosts_are(*NODES)
            yield fleet


def test_the_log_shows_a_node_that_writes_without_its_shard() -> None:
    key = KEYS[0]
    shard = shard_of(Address("Ledger", key), SHARDS)

    def claim(node: str, token: int) -> tuple[Any, ...]:
        return 0, node, shard, token, None, None, None

    def write(node: str, version: int) -> tuple[Any, ...]:
        return 0, node, None, None, "Ledger", key, version

    moved = [claim("a", 1), write("a", 1), claim("b", 2), write("b", 2)]
    assert list(_complaints(moved)) == []
    assert list(_complaints([*moved, write("a", 3)])) != []
    assert list(_complaints([*moved, write("b", 2)])) != []
    assert list(_complaints([*moved, claim("a", 2)])) != []
    assert list(_complaints([write("a", 1)])) != []


@needs_postgres
@pytest.mark.skipif(not THOROUGH, reason="cuts links for longer than a lease")
@pytest.mark.parametrize(
    "cut, loses_lease",
    [
        pytest.param([*SENT, *RECEIVED], True, id="a node from all"),
        pytest.param(SENT, True, id="all that a node sends"),
        pytest.param(RECEIVED, True, id="all that a node receives"),
        pytest.param(list(permutations("ab", 2)), False, id="two nodes from each other"),
        pytest.param([("a", ROWS), (ROWS, "a")], False, id="a node from the store"),
        pytest.param([(ROWS, "a")], False, id="all that the store sends to a node"),
    ],
)
async def test_a_cut_link_loses_and_doubles_no_acknowledged_command(
    cut: list[tuple[str, str]], loses_lease: bool
) -> None:
    async with running_fleet() as fleet:
        fleet.links.cut(cut)
        await trio.sleep(LEASE / 3)
        fleet.links.heal()
        await fleet.until_hosts_are(*NODES)

        fleet.links.cut(cut)
        if loses_lease:
            await fleet.until_hosts_are("b", "c")
        else:
            await trio.sleep(2 * LEASE)
        fleet.links.heal()
        await fleet.until_hosts_are(*NODES)
        await fleet.until_all_have_commands()
        noted, passed = await fleet.acknowledged()

        ids = await fleet.ids()
        assert [id for id, key in noted.items() if id not in ids[key]] == []
        assert set(noted.values()) == set(KEYS)
        with trio.fail_after(100):
            while not all(f"got {id}" in ids[to] for id, to in passed.items()):
                await trio.sleep(0.1)
                ids = await fleet.ids()
        for key in KEYS:
            assert [id for id, count in Counter(ids[key]).items() if count > 1] == []
        assert await fleet.complaints() == []
