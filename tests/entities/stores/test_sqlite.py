"""The file of entities: full, removed, read-only, foreign, and open twice."""

import inspect
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor, BadInputError, InitError, Node, TargetDownError, ask
from ergo_py.entities import Entities, EntityStoreError, SQLite
from ergo_py.entities.stores import sqlite
from ergo_py.entities.stores.file_systems import check_local_disk
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entities.stores.threaded import ThreadedStore
from ergo_py.entity_handles import Address
from ergo_py.testing import opened_store
from tests.entities.support import fill_file, read_pragma
from tests.support import running_node

from ..bank import TYPES, Account, open_bank

ADA = Address("Account", "ada")

needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")


async def test_a_removed_file_fails_commands_and_service_returns_with_it(tmp_path: Path) -> None:
    path, moved = tmp_path / "state.db", tmp_path / "moved.db"
    async with open_bank(SQLite(path)) as node:
        ada = node.entity(Account, "ada")
        assert await ada.call(ask(Account.deposit, 1)) == 1
        path.rename(moved)
        with pytest.raises(TargetDownError, match="removed or replaced"):
            await ada.call(ask(Account.deposit, 1))
        with pytest.raises(EntityStoreError, match="removed or replaced"):
            await ada.call(ask(Account.deposit, 1))
        moved.rename(path)
        assert await ada.call(ask(Account.deposit, 1)) == 2


async def _restart_keeper(node: Node) -> None:
    """Kill the keeper, and wait for the next."""
    service = node.service("entities")
    pid = service.pid
    assert pid is not None
    node.kill(pid)
    while service.pid in (None, pid):  # noqa: ASYNC110 - the supervisor tells nobody
        await trio.sleep(0.01)


@pytest.mark.parametrize("how", ["away", "emptied", "replaced"])
async def test_a_restarted_keeper_opens_no_other_file(how: str, tmp_path: Path) -> None:
    path, moved = tmp_path / "state.db", tmp_path / "moved.db"
    async with open_bank(SQLite(path)) as node:
        ada = node.entity(Account, "ada")
        assert await ada.call(ask(Account.deposit, 100)) == 100
        path.rename(moved)
        if how == "emptied":
            path.touch()
        elif how == "replaced":
            async with opened_store(SQLite(tmp_path / "other.db")):
                pass
            (tmp_path / "other.db").rename(path)
        with pytest.raises(TargetDownError, match="removed or replaced"):
            await ada.call(ask(Account.deposit, 1))

        await _restart_keeper(node)
        for _ in range(3):
            with pytest.raises(EntityStoreError, match="removed or replaced"):
                await ada.call(ask(Account.deposit, 1))
        assert path.exists() is (how != "away")

        moved.rename(path)
        await _call_until_open(node)
        assert await ada.call(ask(Account.deposit, 1)) == 101
    async with open_bank(SQLite(path)) as node:
        assert (await node.entity(Account, "ada").call(ask(Account.look)))[0] == 101


async def _call_until_open(node: Node) -> None:
    """Wait until the keeper has opened its store."""
    with trio.fail_after(10):
        while True:
            try:
                await node.entity(Account, "ada").call(ask(Account.look))
            except EntityStoreError:
                await trio.sleep(0.01)
            else:
                return


async def test_no_file_is_made_beside_a_log_with_commits(tmp_path: Path) -> None:
    path, moved, log = (tmp_path / name for name in ("state.db", "moved.db", "state.db-wal"))
    async with opened_store(SQLite(path)) as store:
        await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
        path.rename(moved)
    assert log.stat().st_size
    for is_empty in (False, True):
        if is_empty:
            path.touch()
        with pytest.raises(InitError, match=r"its log .* has commits; put the file back"):
            async with opened_store(SQLite(path)):
                pass
    moved.rename(path)
    async with opened_store(SQLite(path)) as store:
        assert await store.load([ADA]) == [Row(1, b"1")]


async def test_a_file_that_is_lost_during_an_opening_stays_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, moved, connect = tmp_path / "state.db", tmp_path / "moved.db", sqlite3.connect

    def lose(*args: Any, **options: Any) -> sqlite3.Connection:
        path.rename(moved)
        if is_replaced:
            path.write_bytes(moved.read_bytes())
        connection: sqlite3.Connection = connect(*args, **options)
        return connection

    for is_replaced in (False, True):
        store = SQLite(path)
        async with opened_store(store):
            pass
        monkeypatch.setattr(sqlite3, "connect", lose)
        with pytest.raises(InitError, match="removed or replaced" if is_replaced else "open"):
            async with opened_store(store):
                pass
        monkeypatch.undo()
        assert path.exists() is is_replaced
        moved.rename(path)


async def test_a_file_has_a_single_program_under_all_its_names(tmp_path: Path) -> None:
    path, other = tmp_path / "state.db", tmp_path / "link.db"
    async with opened_store(SQLite(path)) as store:
        other.symlink_to(path)
        with pytest.raises(InitError, match="open in another program"):
            async with opened_store(SQLite(other)):
                pass
        other.unlink()
        other.hardlink_to(path)
        for name in (other, path):
            with pytest.raises(InitError, match=r"another program|2 names \(hard links\)"):
                async with opened_store(SQLite(name)):
                    pass
        await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
    with pytest.raises(InitError, match=r"2 names \(hard links\)"):
        async with opened_store(SQLite(path)):
            pass
    other.unlink()
    other.symlink_to(path)
    async with opened_store(SQLite(other)) as store:
        assert await store.load([ADA]) == [Row(1, b"1")]
        with pytest.raises(InitError, match="open in another program"):
            async with opened_store(SQLite(path)):
                pass


async def test_a_lock_that_was_removed_is_taken_again(tmp_path: Path) -> None:
    path, lock = tmp_path / "state.db", tmp_path / "state.db.lock"
    async with opened_store(SQLite(path)) as store:
        lock.unlink()
        assert await store.due(1.0, 1) == []
        with pytest.raises(InitError, match="open in another program"):
            async with opened_store(SQLite(path)):
                pass

        lock.unlink()
        async with opened_store(SQLite(path)) as thief:
            for _ in range(2):
                with pytest.raises(EntityStoreError, match="open in another program"):
                    await store.due(1.0, 1)
                with pytest.raises(EntityStoreError, match="open in another program"):
                    await store.commit([Write(ADA, 0, 1, 0, None, b"2")])
            await thief.commit([Write(ADA, 0, 1, 0, None, b"1")])
        assert await store.load([ADA]) == [Row(1, b"1")]


class Cramped(sqlite3.Connection):
    """A connection for which there is no shared memory."""

    is_private = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Execute a statement."""
        self.is_private = self.is_private or "exclusive" in sql
        if not self.is_private:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
            raise error
        return super().execute(sql, *values)


async def test_a_file_is_read_without_shared_memory_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect = tmp_path / "state.db", sqlite3.connect
    async with opened_store(SQLite(path)) as store:
        await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Cramped)
    )
    async with opened_store(SQLite(path)) as store:
        assert await store.load([ADA]) == [Row(1, b"1")]
        with closing(connect(path, timeout=0)) as reader, pytest.raises(sqlite3.OperationalError):
            reader.execute("select * from entities")
        monkeypatch.undo()
        assert await store.due(1.0, 1) == []
        with closing(connect(path, timeout=0)) as reader:
            assert len(reader.execute("select * from entities").fetchall()) == 1


async def test_a_defect_of_a_store_is_told_as_it_is() -> None:
    def fail(shared: bool) -> Any:
        raise ZeroDivisionError(shared)

    with pytest.raises(InitError, match="ZeroDivisionError"):
        async with opened_store(ThreadedStore(fail)):
            pass


async def test_a_full_file_fails_commands_and_service_returns_with_room(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SQLite(path)
    async with open_bank(store) as node:
        ada = node.entity(Account, "ada")
        assert await ada.call(ask(Account.deposit, 1)) == 1
        await fill_file(store)
        big = node.entity(Account, "b" * 900)
        with pytest.raises(TargetDownError, match="full"):
            for number in range(1000):
                await big.call(ask(Account.deposit, 1), once=str(number) * 50)
        assert (await ada.call(ask(Account.look)))[0] == 1
        # The connection was closed after the fault, and the next has no limit.
        assert await ada.call(ask(Account.deposit, 1)) == 2


@needs_user
def test_a_read_only_directory_is_told(tmp_path: Path) -> None:
    async def program() -> None:
        with pytest.raises(InitError, match="cannot open"):
            async with opened_store(SQLite(tmp_path / "state.db")):
                pass

    tmp_path.chmod(0o500)
    try:
        trio.run(program)
    finally:
        tmp_path.chmod(0o700)


async def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(InitError, match="cannot open"):
        async with opened_store(SQLite(tmp_path / "missing" / "state.db")):
            pass


async def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InitError, match="another program"):
        async with opened_store(SQLite(path)):
            pass
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(InitError, match="cannot open"):
        async with opened_store(SQLite(path)):
            pass
    assert path.read_bytes().startswith(b"not a database")


async def test_the_file_opens_again_after_its_owner_has_ended(tmp_path: Path) -> None:
    for _ in range(2):
        async with opened_store(SQLite(tmp_path / "state.db")) as store:
            await store.load([ADA])


async def test_a_connection_is_not_used_after_a_failed_write(tmp_path: Path) -> None:
    store = SQLite(tmp_path / "state.db")
    async with opened_store(store):
        await store.commit([Write(ADA, 0, 1, 0, None, b"1")])
        await fill_file(store)
        with pytest.raises(EntityStoreError, match="full"):
            await store.commit([Write(ADA, 1, 2, 0, None, bytes(100_000))])
        await store.commit([Write(ADA, 1, 2, 0, None, bytes(100_000))])
        (row,) = await store.load([ADA])
        assert row is not None
        assert row.version == 2


async def test_nothing_of_a_deleted_row_is_left_in_the_file(tmp_path: Path) -> None:
    path, record = tmp_path / "state.db", b"a secret of the account"
    async with opened_store(SQLite(path)) as store:
        await store.commit([Write(ADA, 0, 1, 0, None, record)])
    assert record in path.read_bytes()

    async with opened_store(SQLite(path)) as store:
        await store.commit([Write(ADA, 1, 2, 0, None, None)])
    assert record not in path.read_bytes()


async def test_no_operation_reads_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect, statements = tmp_path / "state.db", sqlite3.connect, list[str]()

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    async with opened_store(SQLite(path)) as store:
        await store.commit([Write(ADA, 0, 1, 0, 1.0, b"new")])
        await store.commit([Write(ADA, 1, 2, 0, 2.0, b"changed")])
        await store.load([ADA, Address("Account", "bob"), Address("Other", "ada")])
        await store.due(3.0, 10)
        await store.keys("Account", "", 10)
        await store.commit([Write(ADA, 2, 3, 0, None, None)])
    monkeypatch.undo()

    with closing(connect(path)) as reader:
        plans = [
            (statement, step)
            for statement in statements
            if " entities " in statement and not statement.strip().startswith("create")
            for *_, step in reader.execute(f"explain query plan {statement}")
        ]
    assert [plan for plan in plans if plan[1].startswith("SCAN entities")] == []
    assert {statement.split()[0] for statement, _ in plans} == {"select", "update", "delete"}


@pytest.mark.parametrize("path", ["", ":memory:", 7])
def test_a_wrong_path_is_refused(path: Any) -> None:
    with pytest.raises(ValueError, match="the path of a file"):
        SQLite(path)


def test_a_wrong_synchronous_is_refused() -> None:
    wrong: Any = "OFF"

    with pytest.raises(BadInputError, match='"FULL" or "NORMAL"'):
        SQLite("state.db", synchronous=wrong)


@pytest.mark.parametrize("options, level", [({}, 2), ({"synchronous": "NORMAL"}, 1)])
async def test_a_commit_waits_for_the_disk_unless_the_store_is_told_not_to(
    options: dict[str, Any], level: int, tmp_path: Path
) -> None:
    async with opened_store(SQLite(tmp_path / "state.db", **options)) as store:
        assert await read_pragma(store, "synchronous") == level


def test_statements_have_no_numbered_parameters() -> None:
    # Python 3.14 refuses them with a sequence of values; 3.11 does not even warn.
    assert re.findall(r"\?[0-9]", inspect.getsource(sqlite)) == []


MOUNTS = """
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / {home} rw,relatime - nfs4 server:/home rw,vers=4.2
31 30 0:41 / {local} rw - ext4 /dev/sdb1 rw
"""


async def test_a_network_file_system_is_refused_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    home, table = tmp_path / "a home", tmp_path / "mountinfo"
    local = home / "scratch"
    local.mkdir(parents=True)
    escaped = {"home": home, "local": local}
    text = MOUNTS.format(
        **{name: str(path).replace(" ", r"\040") for name, path in escaped.items()}
    )
    table.write_text(text, encoding="utf-8")
    monkeypatch.setattr("ergo_py.entities.stores.file_systems.MOUNTS", str(table))

    with pytest.raises(InitError, match=r"network file system \(nfs4 at .*Postgres"):
        async with open_bank(SQLite(home / "state.db")):
            pass
    assert not list(home.glob("state.db*"))
    assert check_local_disk(local / "state.db") == ""
    async with opened_store(SQLite(local / "state.db")) as store:
        assert await store.load([ADA]) == [None]


class Warned(Actor):
    """Tells the reason of the first warning."""

    def __init__(self, whys: trio.MemorySendChannel[object]) -> None:
        self.whys = whys

    def handle_log(self, record: Any) -> None:
        self.whys.send_nowait(record.fields["why"])


async def test_a_directory_of_the_host_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: Any
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("21 1 0:21 / / rw - 9p none rw,trans=fd\n", encoding="utf-8")
    monkeypatch.setattr("ergo_py.entities.stores.file_systems.MOUNTS", str(table))
    sent, received = trio.open_memory_channel[object](1)
    store = SQLite(tmp_path / "state.db")

    async with running_node() as node:
        node.add_logger(await node.spawn(Warned, sent), "warning")
        await node.spawn(Entities.spec(store, [Account], types=TYPES))

        assert "state.db is on a file system of the host (9p at /)" in str(await received.receive())
        assert await store.load([ADA]) == [None]


@pytest.mark.parametrize("name", ["loop/state.db", "a\0b"], ids=["loop", "zero"])
async def test_a_path_that_no_file_can_have_is_an_error_of_the_store(
    name: str, tmp_path: Path
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    # Python 3.13 resolves a loop to itself, and the file cannot be opened then.
    told = r"EntityStoreError: .*( cannot be a file|cannot open .* symbolic links)"
    with pytest.raises(InitError, match=told):
        async with open_bank(SQLite(tmp_path / name)):
            pass


async def test_a_system_without_a_table_of_mounts_refuses_no_file(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("ergo_py.entities.stores.file_systems.MOUNTS", str(tmp_path / "missing"))

    async with opened_store(SQLite(tmp_path / "state.db")) as store:
        assert await store.load([ADA]) == [None]


async def test_a_file_stays_the_same_when_the_program_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLite("state.db")
    async with open_bank(store) as node:
        ada, keeper = node.entity(Account, "ada"), node.whereis("entities")
        assert await ada.call(ask(Account.deposit, 1)) == 1
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        assert await ada.call(ask(Account.deposit, 1)) == 2
        assert keeper is not None
        node.kill(keeper)
        assert await ada.call(ask(Account.deposit, 1), once="x", retry=True) == 3
    assert repr(store) == f"SQLite({str(tmp_path / 'state.db')!r})"
