"""The database of entities: killed, restarted, lost, open twice, and of another encoding."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

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
from tests.entities.support import check_shared_shards, database_setting
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

    with psycopg.connect(server.conninfo, autocommit=True) as looking, trio.fail_after(20):
        statement = "select from pg_locks where not granted"
        while looking.execute(statement).fetchone() is None:  # noqa: ASYNC110
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
