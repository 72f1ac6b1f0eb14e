"""`ToDatabase`: a table as the end of a pipeline, with SQLite and with a PostgreSQL server."""

import sqlite3
import threading
from contextlib import closing
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ergo_py import Backoff, ChildSpec
from ergo_py.errors import BadInputError
from ergo_py.pipelines import Item, Pipeline, Retry, SQLiteQueue, Stage, ToDatabase
from tests.meta.owner import eventually
from tests.postgres import needs_postgres, running_postgres
from tests.support import running_node

INSERT = "insert into row values (?, ?)"
QUICK = Backoff(0.001, 0.01)


def connect(path: Path, **options: Any) -> sqlite3.Connection:
    database: sqlite3.Connection = sqlite3.connect(path / "rows.db", **options)
    database.execute("create table if not exists row (number integer primary key, name not null)")
    return database


def stored(path: Path) -> list[tuple[int, str]]:
    with closing(connect(path)) as database:
        return database.execute("select number, name from row order by number").fetchall()


def into(path: Path, statement: str = INSERT, **options: Any) -> ToDatabase:
    return ToDatabase(partial(connect, path), statement, **options)


def write(sink: ToDatabase, *bodies: object) -> None:
    sink.handle_batch([Item(body) for body in bodies])


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement, bodies",
    [
        (INSERT, [(1, "one"), (2, "two"), (3, "three")]),
        (INSERT, [[(1, "one"), (2, "two")], [], (3, "three")]),
        (
            "insert into row values (:number, :name)",
            [
                {"number": 1, "name": "one"},
                [{"number": 2, "name": "two"}, {"number": 3, "name": "three"}],
            ],
        ),
        ("insert into row values (?, ?)  -- one row", [(1, "one"), (2, "two"), (3, "three")]),
    ],
)
def test_a_body_is_a_row_or_a_list_of_rows(
    tmp_path: Path, statement: str, bodies: list[object]
) -> None:
    sink = into(tmp_path, statement)
    sink.open()
    write(sink, *bodies)
    sink.close()

    assert stored(tmp_path) == [(1, "one"), (2, "two"), (3, "three")]


def test_a_batch_without_rows_needs_no_transaction(tmp_path: Path) -> None:
    sink = into(tmp_path, "drop table row")
    sink.open()
    write(sink)
    write(sink, [])
    sink.close()

    assert stored(tmp_path) == []


WITH = "with new (number, name) as (values (?, ?)) insert into row select number, name from new"


@pytest.mark.parametrize(
    "options", [{}, {"isolation_level": None}, {"isolation_level": "EXCLUSIVE"}]
)
@pytest.mark.parametrize("statement", [INSERT, WITH])
@pytest.mark.parametrize("bad", [(1, "again"), (9, None), (9,), [(8, "eight"), (9,)]])
def test_a_batch_with_a_bad_row_leaves_no_row(
    tmp_path: Path, bad: object, statement: str, options: dict[str, Any]
) -> None:
    """`sqlite3` begins a transaction for statements with some first words only."""
    sink = ToDatabase(partial(connect, tmp_path, **options), statement)
    sink.open()
    write(sink, (1, "one"))
    with pytest.raises(sqlite3.Error):
        write(sink, (2, "two"), bad, (3, "three"))
    sink.close()

    assert stored(tmp_path) == [(1, "one")]


@pytest.mark.parametrize("body", ["1a", b"1a", bytearray(b"1a"), 7, None, ["1a"], [[1, "one"]]])
def test_a_body_that_is_no_row_is_refused(tmp_path: Path, body: object) -> None:
    """A text of two letters would be a row with two values."""
    sink = into(tmp_path)
    sink.open()
    with pytest.raises(TypeError, match=r"let the stage before return a tuple or a dict, .* not "):
        write(sink, (1, "one"), body)
    sink.close()

    assert stored(tmp_path) == []


def test_a_new_table_is_there_for_others_before_the_first_batch(tmp_path: Path) -> None:
    """Uncommitted, it would lock them out."""

    def connected() -> sqlite3.Connection:
        database = connect(tmp_path)
        database.execute("insert into row values (0, 'none')")
        return database

    sink = ToDatabase(connected, INSERT)
    sink.open()
    with closing(connect(tmp_path, timeout=0.0)) as other:
        other.execute("insert into row values (1, 'one')")
        other.commit()
    sink.close()

    assert stored(tmp_path) == [(0, "none"), (1, "one")]


class Number(Stage):
    def handle(self, item: Item) -> object:
        return int(item.body), "a name"


def rows(path: Path, sink: ToDatabase, *numbers: int, tries: int = 1) -> ChildSpec:
    """A pipeline from a queue with these numbers."""
    queue = SQLiteQueue(path / "queue.db", "rows")
    queue.put(*(b"%d" % number for number in numbers))
    plan = Pipeline.spec(
        queue,
        Number(),
        sink,
        retry=Retry(tries, QUICK),
        poison=SQLiteQueue(path / "queue.db", "refused"),
        reopen=QUICK,
    )
    return ChildSpec("rows", plan)


def open_items(path: Path, queue: str) -> list[tuple[bytes, str]]:
    """The bodies and errors of the items of a queue."""
    with closing(sqlite3.connect(path / "queue.db")) as database:
        return database.execute(
            "select body, error from items where queue = ?", (queue,)
        ).fetchall()


async def test_a_bad_row_goes_to_poison_alone_and_the_others_are_stored(tmp_path: Path) -> None:
    async with running_node() as node:
        await node.supervise(
            [rows(tmp_path, into(tmp_path, batch=16), *range(20), 7, *range(20, 40))]
        )
        await eventually(lambda: not open_items(tmp_path, "rows"))

    assert [number for number, _ in stored(tmp_path)] == [*range(40)]
    [(body, error)] = open_items(tmp_path, "refused")
    assert body == b"7"
    assert "UNIQUE constraint failed" in error


# -- faults ----------------------------------------------------------------------------------------


class Failing(ToDatabase):
    """Notes its failed batches."""

    def __init__(self, *args: Any, failed: threading.Event, **options: Any) -> None:
        super().__init__(*args, **options)
        self.failed = failed

    def handle_batch(self, items: list[Item]) -> None:
        try:
            super().handle_batch(items)
        except sqlite3.OperationalError:
            self.failed.set()
            raise


async def test_rows_wait_while_another_program_has_locked_the_file(tmp_path: Path) -> None:
    failed = threading.Event()

    def connected() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "rows.db", timeout=0.001)

    sink = Failing(connected, INSERT, failed=failed)
    with closing(connect(tmp_path, isolation_level=None)) as other:
        async with running_node() as node:
            other.execute("begin exclusive")
            await node.supervise([rows(tmp_path, sink, *range(10), tries=1_000_000)])
            await eventually(failed.is_set)
            other.execute("rollback")
            await eventually(lambda: not open_items(tmp_path, "rows"))

    assert [number for number, _ in stored(tmp_path)] == [*range(10)]


async def test_a_database_may_be_absent_when_the_pipeline_starts(tmp_path: Path) -> None:
    tries: list[int] = []

    def connected() -> sqlite3.Connection:
        tries.append(len(tries))
        if len(tries) < 4:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(tmp_path)

    async with running_node() as node:
        await node.supervise([rows(tmp_path, ToDatabase(connected, INSERT), 1, 2)])
        await eventually(lambda: not open_items(tmp_path, "rows"))

    assert tries == [0, 1, 2, 3]
    assert [number for number, _ in stored(tmp_path)] == [1, 2]


def test_wake_interrupts_a_statement_of_sqlite(tmp_path: Path) -> None:
    numbers = "with recursive n(i) as (select ? union all select i + 1 from n limit 50000000)"
    sink = into(
        tmp_path, f"insert into row select i, 'x' from ({numbers} select i from n) where i < 0"
    )
    errors: list[BaseException] = []

    def work() -> None:
        sink.open()
        try:
            write(sink, (1,))
        except sqlite3.OperationalError as error:
            errors.append(error)
        sink.close()

    sink.wake()  # not open yet
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        sink.wake()
        thread.join(0.001)
    sink.wake()  # closed
    sink.close()

    assert [str(error) for error in errors] == ["interrupted"]


def test_a_wake_at_the_moment_of_a_close_does_nothing(tmp_path: Path) -> None:
    connection = connect(tmp_path)
    sink = ToDatabase(lambda: connection, INSERT)
    sink.open()
    connection.close()

    sink.wake()


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, options, text",
    [
        (("rows.db", INSERT), {}, "a function that connects, such as partial"),
        ((sqlite3.connect, ""), {}, "a statement, such as"),
        ((sqlite3.connect, b"insert"), {}, "a statement, such as"),
        ((sqlite3.connect, INSERT), {"batch": 0}, "batch"),
        ((sqlite3.connect, INSERT), {"within": -1}, "within"),
        ((sqlite3.connect, INSERT), {"stuck_after": 0}, "stuck_after"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: tuple[Any, Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadInputError, match=text):
        ToDatabase(*arguments, **options)


class Autocommit:
    """A connection that commits each statement."""

    autocommit = True
    is_closed = False

    def cursor(self) -> None:
        raise AssertionError

    commit = cursor

    def close(self) -> None:
        self.is_closed = True


def test_a_connection_with_autocommit_is_refused() -> None:
    connection = Autocommit()
    sink = ToDatabase(lambda: connection, INSERT)

    with pytest.raises(BadInputError, match="a connection without autocommit"):
        sink.open()
    sink.close()
    assert connection.is_closed


@pytest.mark.parametrize("found", [None, "rows.db", 7])
def test_a_result_that_is_no_connection_is_refused(found: Any) -> None:
    sink = ToDatabase(lambda: found, INSERT)

    with pytest.raises(BadInputError, match="returns a connection, with cursor, commit, close"):
        sink.open()
    sink.close()


def test_an_error_does_not_tell_the_password_of_an_address() -> None:
    address: Any = "postgresql://ergo:secret@db/shop"

    with pytest.raises(BadInputError) as caught:
        ToDatabase(address, INSERT)
    assert "secret" not in str(caught.value)


# -- PostgreSQL ------------------------------------------------------------------------------------


@needs_postgres
def test_rows_are_stored_in_postgresql_as_a_whole_or_not_at_all() -> None:
    psycopg = pytest.importorskip("psycopg")
    with (
        running_postgres() as server,
        psycopg.connect(server.conninfo, autocommit=True) as session,
    ):
        session.execute("create table row (number int primary key, name text not null)")

        def numbers() -> list[int]:
            found = session.execute("select number from row order by number").fetchall()
            return [number for (number,) in found]

        connected = partial(psycopg.connect, server.conninfo)
        sink = ToDatabase(connected, "insert into row values (%s, %s) on conflict do nothing")
        sink.open()
        write(sink, (1, "one"), [(2, "two"), (1, "again")])
        with pytest.raises(psycopg.errors.NotNullViolation):
            write(sink, (3, "three"), (4, None))
        sink.close()
        assert numbers() == [1, 2]

        sink.open()
        write(sink, (3, "three"))
        sink.wake()
        sink.close()
        assert numbers() == [1, 2, 3]

        sink = ToDatabase(partial(connected, autocommit=True), INSERT)
        with pytest.raises(BadInputError, match="a connection without autocommit"):
            sink.open()
        sink.close()


@needs_postgres
def test_each_thread_may_make_the_table_when_it_connects() -> None:
    """Uncommitted, the table of the first thread would lock out the others."""
    psycopg = pytest.importorskip("psycopg")
    with running_postgres() as server:

        def connected() -> Any:
            session = psycopg.connect(server.conninfo, options="-c lock_timeout=5s")
            session.execute("create table if not exists row (number int primary key, name text)")
            return session

        first = ToDatabase(connected, "insert into row values (%s, %s)")
        second = copy(first)
        first.open()
        second.open()
        write(second, (1, "one"))
        second.close()
        first.close()
