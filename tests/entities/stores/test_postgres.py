"""The database of entities: killed, restarted, lost, open twice, and of another encoding."""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import InitError, TargetDownError, ask, open_node
from ergo_py.entities import EntityStoreError, FencedError, Store
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import Address
from ergo_py.errors import BadInputError
from ergo_py.network import Memory
from ergo_py.testing import STORE_RULES, opened_store
from ergo_py.testing.stores import StoreRule
from tests.entities.shards.programs import TYPES as FLEET
from tests.entities.shards.programs import Ledger, Note, start_fleet
from tests.entities.support import (
    Sharing,
    check_shared_shards,
    database_answer,
    database_setting,
)
from tests.postgres import PostgresServer, needs_postgres, running_postgres
from tests.support import running_node, short_directory

from ..bank import Account, open_bank

pytestmark = needs_postgres
numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server for the tests of this file."""
    with running_postgres() as running:
        yield running


@pytest.fixture
def schema() -> str:
    """A schema of the test's own."""
    return f"test{next(numbers)}"


def database(server: PostgresServer, schema: str, **more: str) -> Store:
    """A store of this server."""
    extra = " ".join(f"{name}='{value}'" for name, value in more.items())
    return make_database(f"{server.conninfo} {extra}", schema)


def make_database(conninfo: str, schema: str = "ergo") -> Store:
    """A store. The package psycopg may be missing where these tests are skipped."""
    from ergo_py.entities import Postgres

    return Postgres(conninfo, schema=schema)


@pytest.mark.parametrize("rule", STORE_RULES, ids=lambda rule: rule.__name__)
async def test_the_database_keeps_the_contract(
    server: PostgresServer, schema: str, rule: StoreRule
) -> None:
    await rule(lambda: database(server, schema))


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
async def test_a_server_that_ends_fails_commands_and_service_returns_with_it(
    server: PostgresServer, schema: str, how: signal.Signals
) -> None:
    async with open_bank(database(server, schema)) as node:
        ada = node.entity(Account, "ada")
        assert await ada.call(ask(Account.deposit, 1)) == 1
        server.stop(how)
        try:
            with pytest.raises(TargetDownError, match="cannot write to"):
                await ada.call(ask(Account.deposit, 1))
            with pytest.raises(EntityStoreError, match="cannot read"):
                await ada.call(ask(Account.deposit, 1))
        finally:
            server.start()
        assert await ada.call(ask(Account.deposit, 1)) == 2


async def test_a_database_belongs_to_a_single_program_at_a_time(
    server: PostgresServer, schema: str
) -> None:
    async with opened_store(database(server, schema)):
        async with open_node("other@test", log_level="critical"):
            with pytest.raises(InitError, match="is open in another program"):
                async with opened_store(database(server, schema)):
                    pass
        async with opened_store(database(server, schema + "b")):
            pass  # another schema is another store
    async with opened_store(database(server, schema)):
        pass


async def test_a_program_that_lost_its_connection_does_not_write_after_another(
    server: PostgresServer, schema: str
) -> None:
    with cut_off_by_proxy(server) as (proxy, cut):
        async with opened_store(database(proxy, schema)) as old:
            await old.commit([Write(ADA, 0, 1, 0, None, b"old")])
            cut(True)
            async with opened_store(database(server, schema)) as new:
                await new.commit([Write(ADA, 1, 2, 0, None, b"new")])
            with pytest.raises(EntityStoreError):
                await old.commit([Write(BOB, 0, 1, 0, None, b"late")])
            with pytest.raises(EntityStoreError, match="restart the program"):
                await old.commit([Write(BOB, 0, 1, 0, None, b"late")])
            with pytest.raises(EntityStoreError, match="restart the program"):
                await old.load([ADA])
    async with opened_store(database(server, schema)) as store:
        assert await store.load([ADA, BOB]) == [Row(2, b"new"), None]


async def test_a_program_comes_back_although_the_server_keeps_its_lost_session(
    server: PostgresServer, schema: str
) -> None:
    with cut_off_by_proxy(server) as (proxy, cut):
        async with opened_store(database(proxy, schema)) as store:
            await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
            cut(False)
            with pytest.raises(EntityStoreError, match="cannot"):
                await store.load([ADA])

            assert await store.load([ADA]) == [Row(1, b"1")]


async def test_a_load_waits_for_a_commit_with_a_lost_answer(
    server: PostgresServer, schema: str
) -> None:
    """Also if nodes share the database, so that the lock of the schema is free for all of them."""
    import psycopg

    async with open_node("store@test", log_level="critical") as node:
        with (
            cut_off_by_proxy(server) as (proxy, cut),
            psycopg.connect(server.conninfo, autocommit=True) as admin,
        ):
            store = database(proxy, schema)
            await node.spawn(Sharing, store)
            await store.claim(1, 1)
            session = int(await database_answer(store, "select pg_backend_pid()"))
            with late_commits(admin):
                version = await commit_until_late(store, admin, session, cut)
            found: list[Row | None] = []

            async def load() -> None:
                with trio.fail_after(60):
                    while not found:
                        with suppress(EntityStoreError):
                            found.extend(await store.load([ADA]))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(load)
                waits = "select from pg_locks where not granted"
                try:
                    await wait_for(lambda: found or admin.execute(waits).fetchone())
                finally:
                    os.kill(session, signal.SIGCONT)
            assert found == [Row(version, b"late")]


@contextmanager
def late_commits(admin: Any) -> Iterator[None]:
    """Let commits wait for a copy of the database that does not exist."""
    try:
        admin.execute("alter system set synchronous_standby_names = 'absent'")
        admin.execute("select pg_reload_conf()")
        yield
    finally:
        admin.execute("alter system reset synchronous_standby_names")
        admin.execute("select pg_reload_conf()")


async def commit_until_late(
    store: Store, admin: Any, session: int, cut: Callable[[bool], None]
) -> int:
    """Commit versions until a commit waits. Stop its session there, and cut the connection. Returns
    the version of the commit, which no session sees yet.
    """
    late = "select from pg_stat_activity where pid = %s and wait_event = 'SyncRep'"
    ends: list[str] = []

    def is_known() -> object:
        return ends or admin.execute(late, (session,)).fetchone()

    async def commit(version: int) -> None:
        try:
            await store.commit([Write(ADA, version - 1, version, 1, None, b"late", 1)])
        except EntityStoreError as error:
            ends.append(str(error))
        else:
            ends.append("")

    for version in count(1):
        ends.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, version)
            await wait_for(is_known)
            if not ends:
                os.kill(session, signal.SIGSTOP)
                cut(False)
        if ends[0]:
            return version
    raise AssertionError


async def test_behind_a_pooler_a_program_takes_its_former_session_again(
    server: PostgresServer, schema: str
) -> None:
    with pooler_before(server) as (pooler, cut):
        async with opened_store(database(pooler, schema)) as store:
            await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
            cut()
            with pytest.raises(EntityStoreError):
                await store.load([ADA])
            assert await store.load([ADA]) == [Row(1, b"1")]


async def test_behind_a_pooler_a_program_ends_no_session_of_another_client(
    server: PostgresServer, schema: str
) -> None:
    import psycopg

    with pooler_before(server) as (pooler, cut):
        async with opened_store(database(pooler, schema)) as store:
            await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
            session = int(await database_answer(store, "select pg_backend_pid()"))
            cut()
            with psycopg.connect(pooler.conninfo, autocommit=True) as other:
                assert other.execute("select pg_backend_pid()").fetchone() == (session,)
                with pytest.raises(EntityStoreError):
                    await store.load([ADA])
                assert await store.load([ADA]) == [Row(1, b"1")]
                assert other.execute("select 1").fetchone() == (1,)


async def test_nodes_share_a_database_and_write_to_their_own_shards(
    server: PostgresServer, schema: str
) -> None:
    async with open_node("store@test", log_level="critical") as node:
        await check_shared_shards(node, lambda: database(server, schema))


async def test_nodes_of_a_cluster_share_the_entities_of_a_database(
    server: PostgresServer, schema: str
) -> None:
    network = Memory(types=FLEET)
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        for node in (a, b):
            await start_fleet(node, database(server, schema))
        for node in (a, b):
            for key in ("ada", "bob", "eve"):
                await node.entity(Ledger, key).call(Note(node.name), once=node.name, timeout=30)
        assert await a.drain(timeout=30) == []
        for key in ("ada", "bob", "eve"):
            assert await a.entity(Ledger, key).call(Note(), timeout=30) == ["a@test", "b@test"]


async def test_a_claim_waits_for_the_commits_before_it_and_refuses_those_behind_it(
    server: PostgresServer, schema: str
) -> None:
    import psycopg

    async with opened_store(database(server, schema)) as store:
        await store.claim(3, 1)
        with psycopg.connect(server.conninfo) as other:
            # Another program has claimed the shard, and that is not stored yet.
            other.execute(f"update {schema}.shards set token = 2".encode())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect_fenced, store, Write(ADA, 0, 1, 1, None, b"late", 3))
                await wait_until_blocked(server)
                other.commit()
        assert await store.load([ADA]) == [None]


async def expect_fenced(store: Store, write: Write) -> None:
    with pytest.raises(FencedError):
        await store.commit([write])


async def wait_until_blocked(server: PostgresServer) -> None:
    """Wait until a statement waits for a lock."""
    import psycopg

    with psycopg.connect(server.conninfo, autocommit=True) as looking:
        statement = "select from pg_locks where not granted"
        await wait_for(lambda: looking.execute(statement).fetchone())


async def wait_for(find: Callable[[], object]) -> None:
    """Wait until a function finds something: an empty row is something, too."""
    with trio.fail_after(60):
        while find() in (None, []):  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.01)


async def test_tables_of_the_first_layout_are_upgraded(server: PostgresServer, schema: str) -> None:
    import psycopg

    async with opened_store(database(server, schema)) as store:
        await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"drop table {schema}.shards".encode())
        connection.execute(
            f"alter table {schema}.owner drop column is_shared, add token bigint".encode()
        )
        connection.execute(f"update {schema}.owner set layout = 1, token = 0".encode())
    for _ in range(2):
        async with opened_store(database(server, schema)) as store:
            assert await store.load([ADA]) == [Row(1, b"1")]
            await store.claim(0, 1)
            await expect_fenced(store, Write(ADA, 1, 2, 0, None, b"late"))


async def test_a_refused_write_leaves_the_connection_open(
    server: PostgresServer, schema: str
) -> None:
    async with opened_store(database(server, schema)) as store:
        await store.claim(0, 2)
        with pytest.raises(FencedError):
            await store.commit([Write(ADA, 0, 1, 1, None, b"1")])
        await store.commit([Write(ADA, 0, 1, 2, None, b"2")])
        assert await store.load([ADA]) == [Row(1, b"2")]


async def test_the_server_waits_for_its_disk_although_its_setting_is_off(
    server: PostgresServer, schema: str
) -> None:
    store = database(server, schema, options="-c synchronous_commit=off")
    async with opened_store(store):
        assert await database_setting(store, "synchronous_commit") == "on"
    store = database(server, schema, options="-c synchronous_commit=local")
    async with opened_store(store):
        assert await database_setting(store, "synchronous_commit") == "local"


async def test_a_database_without_unicode_is_refused(server: PostgresServer, schema: str) -> None:
    import psycopg

    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(
            "create database ascii encoding 'SQL_ASCII' template template0 locale 'C'"
        )
    with pytest.raises(InitError, match="use a database with the encoding UTF8"):
        async with opened_store(database(server, schema, dbname="ascii")):
            pass


async def test_tables_of_a_later_layout_are_refused(server: PostgresServer, schema: str) -> None:
    import psycopg

    async with opened_store(database(server, schema)):
        pass
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"update {schema}.owner set layout = 3".encode())
    with pytest.raises(InitError, match="the layout 3, and this version of ergo_py knows 2"):
        async with opened_store(database(server, schema)):
            pass


@pytest.mark.parametrize(
    "conninfo", ["postgresql://u:hush@x/d?odd=1", "host=x hush", "x hush=", 5, None]
)
def test_a_wrong_address_is_told_without_its_password(conninfo: str) -> None:
    with pytest.raises(BadInputError, match="the address of a database") as caught:
        make_database(conninfo)
    assert "hush" not in "".join(map(str, (caught.value, caught.value.__cause__)))


@pytest.mark.parametrize("schema", ["", "a" * 64, "\u00e9" * 32, "a\0b", "100%", "\ud800", 5])
def test_a_wrong_schema_is_told(schema: str) -> None:
    with pytest.raises(BadInputError, match="a name of 1 to 63 bytes, without %"):
        make_database("host=x", schema)


async def test_a_password_is_in_no_error(tmp_path: Path) -> None:
    with short_directory() as nowhere:
        store = make_database(f"host={nowhere} user=u password=hush dbname=d")
        assert repr(store) == f"Postgres({nowhere}/d schema ergo)"
        with pytest.raises(InitError, match="cannot open") as caught:
            async with opened_store(store):
                pass
    error: BaseException | None = caught.value
    while error is not None:
        assert "hush" not in str(error)
        error = error.__cause__


ADA, BOB = Address("Account", "ada"), Address("Account", "bob")


@contextmanager
def cut_off_by_proxy(
    server: PostgresServer,
) -> Iterator[tuple[PostgresServer, Callable[[bool], None]]]:
    """A proxy before the server, and a function that cuts its connections: those to the program,
    and also those to the server if told so.
    """
    near: list[socket.socket] = []
    far: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass  # cut

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the proxy has ended
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(str(server.place / ".s.PGSQL.5432"))
            near.append(client)
            far.append(upstream)
            for pair in ((client, upstream), (upstream, client)):
                threads.append(threading.Thread(target=pump, args=pair))
                threads[-1].start()

    def cut(is_told: bool) -> None:
        for each in near + (far if is_told else []):
            with suppress(OSError):  # cut before
                each.shutdown(socket.SHUT_RDWR)

    with short_directory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / ".s.PGSQL.5432"))
        listener.listen()
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield PostgresServer(place), cut
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for each in near + far:
                with suppress(OSError):  # closed by its peer
                    each.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(20)
            for each in near + far:
                each.close()


@contextmanager
def pooler_before(
    server: PostgresServer,
) -> Iterator[tuple[PostgresServer, Callable[[], None]]]:
    """A pooler that keeps sessions: each client has a session of the server until its connection
    ends, and then another client has it. And a function that cuts the connections of all clients.
    """
    idle: list[tuple[socket.socket, bytes]] = []
    sessions: list[socket.socket] = []
    clients: dict[socket.socket, threading.Thread] = {}

    def begin(start: bytes) -> tuple[socket.socket, bytes]:
        """A session of the server, and what it has said about itself."""
        if idle:
            return idle.pop()
        upstream = socket.socket(socket.AF_UNIX)
        sessions.append(upstream)
        upstream.connect(str(server.place / ".s.PGSQL.5432"))
        upstream.sendall(start)
        return upstream, read_until_ready(upstream)

    def serve(client: socket.socket) -> None:
        size = read_exactly(client, 4)
        upstream, greeting = begin(size + read_exactly(client, int.from_bytes(size) - 4))
        client.sendall(greeting)
        while True:
            ready, _, _ = select.select([client, upstream], [], [])
            if upstream in ready:
                data = upstream.recv(1 << 16)
                if not data:
                    client.close()
                    return  # the session has ended
                client.sendall(data)
            elif not (message := read_message(client)) or message[:1] == b"X":
                break
            else:
                upstream.sendall(message)
        client.close()
        upstream.sendall(b"Q" + (16).to_bytes(4) + b"discard all\0")
        read_until_ready(upstream)
        idle.append((upstream, greeting))

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the pooler has ended
            clients[client] = threading.Thread(target=serve, args=(client,))
            clients[client].start()

    def cut() -> None:
        for client, thread in list(clients.items()):
            with suppress(OSError):  # closed before
                client.shutdown(socket.SHUT_RDWR)
            thread.join(20)

    with short_directory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / ".s.PGSQL.5432"))
        listener.listen()
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield PostgresServer(place), cut
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(20)
            cut()
            for each in sessions:
                each.close()


def read_exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes; none at the end of the connection."""
    found = b""
    while len(found) < size:
        data = source.recv(size - len(found))
        if not data:
            return b""
        found += data
    return found


def read_message(source: socket.socket) -> bytes:
    """The next message of the protocol; nothing at the end of the connection."""
    if not (head := read_exactly(source, 5)):
        return b""
    size = int.from_bytes(head[1:]) - 4
    return head + (read_exactly(source, size) if size else b"")


def read_until_ready(source: socket.socket) -> bytes:
    """All messages until the server is ready for the next query."""
    found = b""
    while (message := read_message(source)) and message[:1] != b"Z":
        found += message
    return found + message
