"""A world of versions: a program with ledgers starts many times, with an older or a newer class of
their state, on a node that crashes, with a disk that fails and is late.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar, TypeVar

import msgspec
import trio

from ergo_py import Backoff, Caller, ChildSpec, ErgoError, Node, Reject, Request
from ergo_py.entities import Entities, Entity
from ergo_py.entities.errors import StateUnreadableError
from ergo_py.entities.record import Owed, Record
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import Address
from ergo_py.network.messages.message_types import MessageTypes
from ergo_py.testing import World
from ergo_py.testing.world.history import History
from ergo_py.testing.world.node import WorldNode

from .disk_store import DiskStore

__all__ = ["versions"]

KEYS = ("ada", "bob", "eve")
CLIENTS = 2
STEPS = 8
TRIES = 5
"""How often a client repeats a command."""
QUIET = tuple(f"quiet {number}" for number in range(24))
"""Ledgers that no client uses. An earlier program has left them, some with a timer."""
DISTANT = 1e6
"""The moment of timers that do not fire in the world."""
EARLY = 1e-6
"""Seconds that count as rounding."""

S = TypeVar("S")


@dataclass
class Units:
    """The state of the first version."""

    units: int = 0
    entries: list[str] = field(default_factory=list)
    """All effects on the ledger, in order."""


@dataclass
class Named:
    """The state of the second version, with another field."""

    units: int = 0
    entries: list[str] = field(default_factory=list)
    currency: str = "EUR"


@dataclass
class Cents:
    """The state of the third version: a field has another meaning, and another its default."""

    cents: int = 0
    entries: list[str] = field(default_factory=list)
    currency: str = "USD"

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """From the states with units."""
        return {"cents": data.pop("units") * 100, **data}


@dataclass(frozen=True)
class Add(Request[int]):
    """Add units. Returns how many there are."""

    id: str
    units: int


@dataclass(frozen=True)
class Pay(Request[int]):
    """Transfer units to another ledger, perhaps later."""

    id: str
    to: str
    units: int
    delay: float


@dataclass(frozen=True)
class Refuse(Request[None]):
    """Change the state, and refuse."""

    id: str


@dataclass(frozen=True)
class Credit:
    """Units arrive."""

    id: str
    units: int


@dataclass(frozen=True)
class Coin:
    """A timer of a ledger."""

    id: str


TYPES = [Add, Pay, Refuse, Credit, Coin]


class Ledger(Entity[S]):
    """A ledger of any version."""

    unit: ClassVar[tuple[str, int]] = "units", 1
    """The field with the amount, and how much of it a unit is."""

    def init(self) -> None:
        """Let the book compare the state with the stored row."""
        book = self.env["book"]
        assert isinstance(book, Book)
        book.check_loaded(self.key, self.state)

    def _add(self, units: int, entry: str) -> int:
        state: Any = self.state
        name, unit = self.unit
        amount: int = getattr(state, name) + units * unit
        setattr(state, name, amount)
        state.entries.append(entry)
        return amount // unit

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Carry out a command."""
        match request:
            case Add(id, units):
                return self._add(units, id)
            case Pay(id, to, units, delay):
                other = self.entity(type(self), to)
                if delay:
                    self.send_after(delay, other, Credit(id, units))
                else:
                    self.send(other, Credit(id, units))
                return self._add(-units, id)
            case Refuse(_):
                self._add(1_000_000, "refused")
        raise Reject(ValueError(request))

    def handle_message(self, message: Any, sender: Any) -> None:
        """Take units."""
        match message:
            case Credit(id, units):
                self._add(units, f"credit {id}")
            case Coin(id):
                self._add(1, f"coin {id}")


class Ledger1(Ledger[Units]):
    """The ledger of the first version."""

    kind = "Ledger"


class Ledger2(Ledger[Named]):
    """The ledger of the second version."""

    kind = "Ledger"


class Ledger3(Ledger[Cents]):
    """The ledger of the third version."""

    kind = "Ledger"
    unit = "cents", 100


KINDS: dict[int, type[Ledger[Any]]] = {1: Ledger1, 2: Ledger2, 3: Ledger3}
FIELDS = {
    1: {"units", "entries"},
    2: {"units", "entries", "currency"},
    3: {"cents", "entries", "currency"},
}
"""The fields that each version stores."""


def _version(state: bytes | None) -> int:
    """The version that has stored a state; 0 if it fits none."""
    found = msgspec.msgpack.decode(state or b"\x80").keys()
    return next((each for each, fields in FIELDS.items() if fields == found), 0)


def _expected(state: bytes, version: int) -> dict[str, Any]:
    """The state that a version has to load."""
    data = msgspec.msgpack.decode(state)
    if version >= 2:
        data.setdefault("currency", {2: "EUR", 3: "USD"}[version])
    if version == 3 and "units" in data:
        data["cents"] = data.pop("units") * 100
    return dict(data)


class Book:
    """What the program, its store and the clients have noted."""

    def __init__(self, seed: int) -> None:
        self.version = 1
        """That of the present program."""
        self.answered: dict[str, tuple[str, Any]] = {}
        """The ledger and the command, by id."""
        self.given: dict[str, Any] = {}
        """All commands."""
        self.complaints: list[str] = []
        self.stores: list[DiskStore] = []
        """The stores of all programs, the present at last."""
        self.random = Random(repr((seed, "versions")))
        self.earlier = _earlier_rows(Random(repr((seed, "earlier"))))

    def record(self, key: str) -> Record:
        """The stored record of a ledger."""
        row, _ = self.stores[-1].rows.get(Address("Ledger", key), (None, None))
        return Record() if row is None else Record.decode(row.record)

    def audit(self, version: int, writes: Sequence[Write]) -> None:
        """Look at a commit of a version. Y10: it writes all fields of its class, and not over a row
        with fields that it does not have.
        """
        for write in writes:
            key, before = write.address.key, self.record(write.address.key).state
            if before is not None and _version(before) > version:
                self.complaints.append(f"version {version} writes over {before!r} of {key}")
            after = None if write.record is None else Record.decode(write.record).state
            if after is None or _version(after) != version:
                self.complaints.append(f"version {version} stores {after!r} in {key}")

    def check_loaded(self, key: str, state: Any) -> None:
        """Y10: a state is loaded as it was stored, with defaults for missing fields, and upgraded
        if it does not fit.
        """
        stored = self.record(key).state
        if stored is None:
            if state != type(state)():
                self.complaints.append(f"{key} begins with {state}")
        elif _version(stored) > self.version or _expected(stored, self.version) != asdict(state):
            self.complaints.append(f"version {self.version} loads {stored!r} of {key} as {state}")

    def check_refused(self, key: str, version: int) -> None:
        """Y10: a row that a version can read is not refused."""
        stored = self.record(key).state
        if _version(stored) <= version:
            self.complaints.append(f"version {version} refuses {stored!r} of {key}")


def _earlier_rows(random: Random) -> dict[Address, tuple[Row, float | None]]:
    """The rows that earlier programs of all versions have left."""
    rows: dict[Address, tuple[Row, float | None]] = {}
    types = MessageTypes(TYPES, is_limited=False)
    for number, key in enumerate(QUIET):
        version = number % len(KINDS) + 1
        record = Record()
        state = _expected(msgspec.msgpack.encode({"units": number, "entries": []}), version)
        record.state = msgspec.msgpack.encode(state)
        due = (None, DISTANT, random.uniform(0.0, 25.0), None)[number % 4]
        if due is not None:
            record.begin_numbers(number + 1)
            record.owe([Owed(1, "", "", types.encode(Coin(key)), "timer", due)])
        rows[Address("Ledger", key)] = Row(1, record.encode() or b""), record.due()
    return rows


class Client:
    """Repeats its commands, also while the program is too old for a ledger."""

    def __init__(self, world: World, node: WorldNode, book: Book, number: int) -> None:
        self.node, self.book, self.number = node, book, number
        self.random = Random(repr((world.plan.seed, "client", number)))

    async def run(self) -> None:
        """Do all steps."""
        random = self.random
        for step in range(STEPS):
            await trio.sleep(random.choice((0.0, 0.5, 2.0)))
            id, (key, other) = f"{self.number}.{step}", random.sample(KEYS, 2)
            delay = random.choice((0.0, random.uniform(0.0, 5.0)))
            choices = Add(id, random.randint(1, 50)), Pay(id, other, 7, delay), Refuse(id)
            await self.command(key, random.choice(choices))

    async def command(self, key: str, request: Any) -> None:
        """Give a command, and note that it was acknowledged."""
        self.book.given[request.id] = request
        for _ in range(TRIES):
            try:
                await self.node.run(lambda node: self.call(node, key, request))
            except ValueError:
                return  # a refusal
            except ErgoError:
                await trio.sleep(self.random.choice((0.1, 1.0, 2.0)))
            else:
                self.book.answered[request.id] = key, request
                return

    async def call(self, node: Node, key: str, request: Any) -> object:
        """Call a ledger once."""
        version = self.book.version
        try:
            return await node.entity(KINDS[version], key).call(request, once=request.id, timeout=2)
        except StateUnreadableError:
            self.book.check_refused(key, version)
            raise


async def versions(world: World) -> None:
    """Y10: an older program refuses the rows of a newer program, and leaves them as they are, with
    their timers and messages; a newer program loads all, and stores what it has loaded. When it
    comes back, nothing is lost. Y11: a start loads the rows that are due, and no others.
    """
    book = Book(world.plan.seed)

    def child(node: Node, version: int) -> ChildSpec:
        store = DiskStore(world.nodes[node.name].disk, partial(book.audit, version))
        if not book.stores:
            store.fill(book.earlier)
        book.stores.append(store)
        book.version = version
        entities = Entities.spec(
            store,
            [KINDS[version]],
            TYPES,
            now=trio.current_time,
            idle=1.0,
            attempts=1000,
            backoff=Backoff(0.1, 2.0),
        )
        return ChildSpec("entities", entities)

    async def start(node: Node) -> None:
        spec = child(node, book.random.choice((*KINDS,)))
        await node.supervise([spec], name="ledgers", intensity=1000)

    async def deploy(version: int, node: Node) -> None:
        ledgers = node.supervisor("ledgers")
        await ledgers.remove_child("entities")
        await ledgers.add_child(child(node, version))

    async def deploy_others() -> None:
        for _ in range(STEPS):
            await trio.sleep(book.random.uniform(0.5, 4.0))
            try:
                await world_node.run(partial(deploy, book.random.choice((*KINDS,))))
            except ErgoError:
                pass  # the node has crashed, and starts again with a version of its own

    (world_node,) = await world.start(["ledgers@world"], start, env={"book": book})
    world.faults(
        seconds=20.0,
        crash=0.1,
        kill=0.1,
        fail_disk=0.1,
        slow_disk=0.1,
        victims=[*(each.__name__ for each in KINDS.values()), "entities"],
    )
    clients = [Client(world, world_node, book, number) for number in range(CLIENTS)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deploy_others)
        for client in clients:
            nursery.start_soon(client.run)
    await world.heal()
    await world_node.run(partial(deploy, max(KINDS)))
    await _settle(book)
    for key in KEYS:  # service returns
        await clients[0].command(key, Add(f"last {key}", 1))
    world.check(*(_checker(book, find) for find in CHECKS))
    missing = [key for key in KEYS if f"last {key}" not in book.answered]
    assert not missing, f"{missing} do not answer"


async def _settle(book: Book) -> None:
    """Wait until all messages and timers of the world have taken effect."""
    for _ in range(120):
        await trio.sleep(0.5)
        if not any(_owed(book)):
            return


def _owed(book: Book) -> Iterator[tuple[Address, Owed]]:
    for address, record in book.stores[-1].records().items():
        for each in record.owed.values():
            if each.due < DISTANT:
                yield address, each


# -- the checks ------------------------------------------------------------------------------------

Check = Callable[[Book], Iterator[str]]


def _checker(book: Book, find: Check) -> Callable[[History], Iterator[str]]:
    def check(_history: History) -> Iterator[str]:
        return find(book)

    check.__name__ = find.__name__
    return check


def each_version_keeps_the_rows(book: Book) -> Iterator[str]:
    """Y10: what the store and the programs have noted."""
    yield from book.complaints
    for store in book.stores:
        yield from store.complaints


def rows_without_work_stay(book: Book) -> Iterator[str]:
    """Y10: a row that nothing has used is as it was, byte by byte."""
    for address, row in book.earlier.items():
        if row[1] in (None, DISTANT) and book.stores[-1].rows.get(address) != row:
            yield f"the row of {address} was {row}, and is {book.stores[-1].rows.get(address)}"


def only_due_rows_are_loaded(book: Book) -> Iterator[str]:
    """Y11: of the ledgers that no client uses, a program loads those that are due. It loads such a
    ledger again after a commit that has failed, which may have happened.
    """
    for store in book.stores:
        known: set[Address] = set()
        for moment, address, due in store.loads:
            is_due = due is not None and due <= moment + EARLY
            if address in book.earlier and address not in known and not is_due:
                yield f"{address} is loaded at {moment:.2f}, and is due at {due}"
            known.add(address)


def nothing_is_lost(book: Book) -> Iterator[str]:
    """Y10: with the newest version all effects are there, once: of acknowledged commands, of
    messages and timers that were stored while an older version could not read them.
    """
    for address, owed in _owed(book):
        yield f"{address} still owes {owed}"
    entries = {
        key: _expected(book.record(key).state or b"\x80", 3).get("entries", []) for key in KEYS
    }
    for id, (key, request) in book.answered.items():
        if id not in entries[key]:
            yield f"{key} has acknowledged {request}, and has {entries[key]}"
    total = wanted = 0
    for key in KEYS:
        total += _expected(book.record(key).state or b"\x80", 3).get("cents", 0)
        for entry, times in Counter(entries[key]).items():
            request = book.given.get(entry)
            if times > 1 or entry == "refused":
                yield f"{key} has {entry} {times} times"
            if isinstance(request, Add):
                wanted += request.units * 100
            elif isinstance(request, Pay) and f"credit {entry}" not in entries[request.to]:
                yield f"{key} has paid {request}, which has not arrived"
    if total != wanted:
        yield f"the ledgers have {total} cents, and {wanted} were added"
    for number, key in enumerate(QUIET):
        (_, due), state = book.earlier[Address("Ledger", key)], book.record(key).state
        assert state is not None
        found = _expected(state, 3)
        fired = due is not None and due < DISTANT
        if (found["cents"], found["entries"]) != (
            (number + fired) * 100,
            [f"coin {key}"] * fired,
        ):
            yield f"{key} is due at {due}, and has {found}"


CHECKS: tuple[Check, ...] = (
    each_version_keeps_the_rows,
    rows_without_work_stay,
    only_due_rows_are_loaded,
    nothing_is_lost,
)
