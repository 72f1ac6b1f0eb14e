"""Files of released versions: this version loads them, and refuses those of later versions.

``python -m tests.entities.test_rows DIRECTORY >tests/entities/rows/LAYOUT.sql`` writes rows of this
version, for each layout once.
"""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from ergo_py import Backoff, Caller, InitError, Node, Reject, Request, ask, exposed
from ergo_py.entities import Entity, EntityStoreError, SQLite
from ergo_py.entities.errors import StateUnreadableError
from ergo_py.entities.record import Origin, Owed, Record
from ergo_py.entities.stores.store import Write
from ergo_py.entity_handles import Address
from ergo_py.network.messages.message_types import MessageTypes
from ergo_py.testing import opened_store
from tests.entities.bank import open_bank

ROWS = Path(__file__).parent / "rows"
LATER = datetime(2999, 1, 1, tzinfo=UTC).timestamp()


class Color(Enum):
    """A part of a state."""

    RED = "red"


@dataclass
class Line:
    """A part of a state."""

    text: str = ""
    price: Decimal = Decimal(0)


@dataclass
class Order:
    """A state with parts of many types. Do not change it: the files have its rows."""

    count: int = 0
    lines: list[Line] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    at: datetime | None = None
    color: Color | None = None
    counts: dict[str, int] = field(default_factory=dict)
    raw: bytes = b""


@dataclass(frozen=True)
class Fill(Request[str]):
    """Fill the state, and owe messages."""


@dataclass(frozen=True)
class Reminder:
    """A message to itself."""

    text: str


class Sale(Entity[Order]):
    """An entity of the files."""

    @exposed
    def look(self) -> Order:
        """The state."""
        return self.state

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Fill the state."""
        if not isinstance(request, Fill):
            raise Reject(LookupError(request))
        self.state = filled()
        me = self.entity(Sale, self.key)
        self.send_after(LATER - _now(), me, Reminder("late"), name="late")
        self.send(self.entity(Sale, "other"), Reminder("now"))
        return "filled"

    def handle_message(self, message: Any, sender: Any) -> None:
        """Count a reminder."""
        self.state.count += 1


def filled() -> Order:
    """The state of the entity ``full``."""
    return Order(
        count=7,
        lines=[Line("tea", Decimal("3.50")), Line("中", Decimal("-1e-9"))],
        tags={"new"},
        at=datetime(2026, 11, 17, 9, 30, tzinfo=UTC),
        color=Color.RED,
        counts={"a": 2**40},
        raw=bytes(range(256)),
    )


def _now() -> float:
    return 1_800_000_000.0


def _owing() -> bytes:
    """A record with a part of each kind."""
    types = MessageTypes([Reminder], is_limited=False)
    message = types.encode(Reminder("kept"))
    record = Record()
    record.keep(Sale.__state_type__.encode(Order(count=1)))
    record.begin_numbers(12345)
    record.owe(
        [
            Owed(1, "", "", message, attempts=20, is_parked=True),
            Owed(2, "Sale", "other", message),
            Owed(3, "", "", message, attempts=2),
            Owed(4, "", "", message, name="late", due=LATER),
        ]
    )
    record.see(Origin("Sale", "other", 77), 9)
    record.remember("id-1", _now(), types.encode("first"))
    encoded = record.encode()
    assert encoded is not None
    return encoded


def _write(path: Path) -> None:
    """Write a file of this version."""

    async def program() -> None:
        async with open_sales(path) as node:
            await node.entity(Sale, "full").call(Fill(), once="fill")
            await _until(node, "other", 1)
        async with opened_store(SQLite(path)) as store:
            await store.commit([Write(Address("Sale", "owing"), 0, 3, 0, 0.0, _owing())])

    trio.run(program)


def open_sales(path: Path) -> Any:
    """A node that keeps the entities of the files."""
    began = trio.current_time()

    def now() -> float:
        return _now() + trio.current_time() - began

    backoff = Backoff(0.001, 0.01)
    return open_bank(SQLite(path), kinds=[Sale], types=[Reminder], now=now, backoff=backoff)


async def _until(node: Node, key: str, count: int) -> None:
    """Wait until an entity has got so many reminders."""
    with trio.fail_after(30):
        while (await node.entity(Sale, key).call(ask(Sale.look))).count < count:  # noqa: ASYNC110
            await trio.sleep(0.001)


def _dump(path: Path) -> str:
    """The file as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        marks = [
            f"pragma {name} = {connection.execute(f'pragma {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        return "\n".join([*marks, *connection.iterdump(), ""])


def _restore(sql: Path, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql.read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", sorted(path.stem for path in ROWS.glob("*.sql")))
async def test_rows_of_a_released_version_are_loaded(version: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _restore(ROWS / f"{version}.sql", path)

    async with open_sales(path) as node:
        full, owing = node.entity(Sale, "full"), node.entity(Sale, "owing")
        assert await full.call(ask(Sale.look)) == filled()
        assert await full.call(Fill(), once="fill") == "filled"
        assert await owing.call(Fill(), once="id-1") == "first"
        await _until(node, "other", 2)
        await _until(node, "owing", 2)

    with closing(sqlite3.connect(path)) as connection:
        rows = dict(connection.execute("select key, record from entities").fetchall())
    record = Record.decode(rows["owing"])
    assert {each.number: each.is_parked for each in record.owed.values()} == {1: True, 4: False}
    assert record.birth == 12345


def test_this_version_has_its_rows_in_the_repository(tmp_path: Path) -> None:
    _write(tmp_path / "state.db")
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        (layout,) = connection.execute("pragma user_version").fetchone()
        schema = connection.execute("select sql from sqlite_master order by name").fetchall()
        ((record,),) = connection.execute(
            "select record from entities where key = 'full'"
        ).fetchall()

    _restore(ROWS / f"{layout}.sql", tmp_path / "kept.db")

    with closing(sqlite3.connect(tmp_path / "kept.db")) as connection:
        assert (
            connection.execute("select sql from sqlite_master order by name").fetchall() == schema
        )
        ((kept,),) = connection.execute("select record from entities where key = 'full'").fetchall()
    assert msgspec.msgpack.decode(kept)[:2] == msgspec.msgpack.decode(record)[:2]


def _set_record_layout(connection: sqlite3.Connection) -> None:
    ((record,),) = connection.execute("select record from entities where key = 'full'").fetchall()
    parts = msgspec.msgpack.decode(record)
    changed = msgspec.msgpack.encode([2, *parts[1:], "a part of a later version"])
    connection.execute("update entities set record = ? where key = 'full'", [changed])


def _add_field(connection: sqlite3.Connection) -> None:
    ((record,),) = connection.execute("select record from entities where key = 'full'").fetchall()
    parts = msgspec.msgpack.decode(record)
    state = msgspec.msgpack.decode(parts[1])
    parts[1] = msgspec.msgpack.encode({**state, "later": 1})
    connection.execute(
        "update entities set record = ? where key = 'full'", [msgspec.msgpack.encode(parts)]
    )


@pytest.mark.parametrize(
    "change, error",
    [(_set_record_layout, EntityStoreError), (_add_field, StateUnreadableError)],
)
async def test_a_row_of_a_later_version_is_refused_and_stays(
    change: Callable[[sqlite3.Connection], None], error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "state.db"
    _restore(ROWS / "1.sql", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        change(connection)
        before = connection.execute("select * from entities where key = 'full'").fetchall()

    async with open_sales(path) as node:
        for _ in range(2):
            with pytest.raises(error):
                await node.entity(Sale, "full").call(Fill())

    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("select * from entities where key = 'full'").fetchall()
    assert found == before


async def test_a_file_of_a_later_version_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _restore(ROWS / "1.sql", path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 3")
    before = path.read_bytes()

    with pytest.raises(InitError, match="has the layout 3"):
        async with opened_store(SQLite(path)):
            pass

    assert path.read_bytes() == before


if __name__ == "__main__":
    place = Path(sys.argv[1]) / "state.db"
    _write(place)
    sys.stdout.write(_dump(place))
