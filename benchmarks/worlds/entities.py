"""A world of entities: accounts that pay each other, with timers and jobs, and registers, on a node
that crashes, with a disk that fails and is late.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import trio

from ergo_py import (
    NO_REPLY,
    Actor,
    Backoff,
    Caller,
    ChildSpec,
    ErgoError,
    Node,
    Reject,
    Request,
    Shutdown,
    TargetDownError,
)
from ergo_py.entities import AnswerUnknownError, Entities, Entity, EntityInspector
from ergo_py.entities.record import Origin, Record
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import Address, entities_of
from ergo_py.testing import World
from ergo_py.testing.world.history import History
from ergo_py.testing.world.node import WorldNode

from .disk_store import DiskStore

__all__ = ["bank", "parking"]

ACCOUNTS = ("ada", "bob", "eve")
REGISTERS = ("one", "two", "gone")
CLIENTS = 3
STEPS = 8
TRIES = 8
"""How often a client repeats a command."""
SAME = -1
"""The answer of a register that refuses the value that it has."""
AWAKE = 2
"""The most entities that are awake."""
UNKNOWN = {"value": 3, "unit": "EUR"}
ODD = Address("Register", "odd")
"""A register whose stored state has a field that its class does not have."""
OLD = {Address("Register", f"old {number}"): (None, 1e6)[number % 2] for number in range(8)}
"""Registers that no client uses, some with work to do in a distant future."""


@dataclass
class Balance:
    """The state of an account."""

    amount: int = 0
    entries: list[str] = field(default_factory=list)
    """All effects on the account, in order."""


@dataclass(frozen=True)
class Deposit(Request[int]):
    """Add an amount."""

    id: str
    amount: int


@dataclass(frozen=True)
class Clear(Deposit):
    """Add an amount, and answer after a delay."""

    delay: float = 0.0


@dataclass(frozen=True)
class Pay(Request[int]):
    """Transfer an amount to another account, perhaps later."""

    id: str
    to: str
    amount: int
    delay: float = 0.0


@dataclass(frozen=True)
class Earn(Request[float]):
    """Get a coin after a delay. Returns the moment."""

    id: str
    delay: float


@dataclass(frozen=True)
class Break(Request[None]):
    """Change the state, owe a message, and crash."""

    id: str


@dataclass(frozen=True)
class Credit:
    """An amount arrives."""

    id: str
    amount: int


@dataclass(frozen=True)
class Cleared:
    """The answer to a command is to be given."""

    id: str


@dataclass(frozen=True)
class Coin:
    """A timer of an account."""

    id: str
    due: float


class Account(Entity[Balance]):
    """An account. It tells the auditor of its node each command that is stored."""

    def init(self) -> None:
        """Note which key this process has."""
        self.callers: dict[str, tuple[Caller, int]] = {}
        self.send("auditor", (self.key, self.pid))

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Carry out a command."""
        state = self.state
        match request:
            case Clear(id, amount, delay):
                state.amount += amount
                state.entries.append(id)
                self.callers[id] = caller, state.amount
                self.send_after(delay, self.entity(Account, self.key), Cleared(id))
                return NO_REPLY
            case Deposit(id, amount):
                state.amount += amount
            case Pay(id, to, amount, delay):
                state.amount -= amount
                other = self.entity(Account, to)
                if delay:
                    self.send_after(delay, other, Credit(id, amount))
                else:
                    self.send(other, Credit(id, amount))
                if state.amount < 0:
                    known = state.entries[-1] if state.entries else ""
                    state.entries.append("refused")
                    raise Reject(ValueError("not enough", known))
                state.entries.append(f"to {to} {'later ' * bool(delay)}{id}")
            case Earn(id, delay):
                due = trio.current_time() + delay
                self.send_after(delay, self.entity(Account, self.key), Coin(id, due))
                state.entries.append(id)
                return due
            case Break(id):
                state.entries.append(id)
                self.send(self.entity(Account, "ada"), Credit(id, 1000))
                raise RuntimeError(id)
            case _:
                raise Reject(LookupError(request))
        state.entries.append(id)
        self.send("auditor", (self.key, id))
        return state.amount

    def handle_message(self, message: Any, sender: Any) -> None:
        """Take an amount, or a coin, or give an answer."""
        match message:
            case Cleared(id):
                caller, amount = self.callers.pop(id, (None, 0))
                if caller is not None:  # the one of this life
                    self.reply(caller, amount)
            case Credit(id, amount):
                self.state.amount += amount
                self.state.entries.append(f"from {sender.key} {id}")
            case Coin(id, due):
                self.state.amount += 1
                self.state.entries.append(f"coin {id}")
                if trio.current_time() < due:
                    self.state.entries.append(f"early {id}")

    def terminate(self, reason: object) -> None:
        """Y9: an entity sleeps only with a stored state. With a keeper that was killed it may end
        before its commit.
        """
        book, keeper = self.env["book"], entities_of(self.node)[Account].keeper
        assert isinstance(book, Book)
        assert keeper is not None
        if isinstance(reason, Shutdown) and keeper.accepting and self.state.entries:
            book.check_stored(self.key, self.state.entries[-1], "the sleep")


@dataclass
class Cell:
    """The state of a register."""

    value: int = 0


@dataclass(frozen=True)
class Get(Request[int]):
    """Read a register."""

    key: str


@dataclass(frozen=True)
class Put(Request[int]):
    """Write a register, which must have another value. Returns the value before."""

    key: str
    value: int


@dataclass(frozen=True)
class Drop(Request[int]):
    """Delete a register. Returns the value before."""

    key: str


class Register(Entity[Cell]):
    """A register, which takes a while to start: others are awake meanwhile."""

    async def init(self) -> None:
        """Note which key this process has."""
        self.send("auditor", (self.key, self.pid))
        await trio.sleep(0.05)

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Read or write."""
        before = self.state.value
        match request:
            case Put(_, value):
                if value == before:
                    raise Reject(ValueError("the same"))
                self.state.value = value
            case Drop(_):
                self.delete()
        return before


class RegisterModel:
    """The sequential register."""

    def start(self) -> int:
        """Empty at first."""
        return 0

    def step(self, state: int, request: Any) -> tuple[int, int]:
        """The value before is the answer, or that the command was refused."""
        match request:
            case Put(_, value):
                return value, SAME if value == state else state
            case Drop(_):
                return 0, state
        return state, state


TYPES = [Deposit, Clear, Pay, Earn, Break, Credit, Cleared, Coin]


class Auditor(Actor):
    """Notes the commands that left an entity: each must be stored."""

    def __init__(self, book: "Book") -> None:
        self.book = book

    def handle_message(self, message: Any, sender: Any) -> None:
        """Note a command, or the start of an entity."""
        key, told = message
        if isinstance(told, str):
            self.book.told.add(told)
            self.book.check_stored(key, told, "a message")
        else:
            self.book.keys[told] = key


class Book:
    """The commands of the clients, and their answers."""

    def __init__(self) -> None:
        self.answered: dict[str, tuple[str, Any, object]] = {}
        """By id: the account, the command, and the answer."""
        self.refused: set[str] = set()
        self.unknown: dict[str, tuple[str, Any]] = {}
        self.told: set[str] = set()
        """The commands that the auditor knows."""
        self.keys: dict[object, str] = {}
        """The keys of processes."""
        self.complaints: list[str] = []
        self.store: DiskStore | None = None
        """The store of the present start of the node."""
        self.stores: list[DiskStore] = []
        """Those of all starts."""

    def balance(self, key: str) -> Balance:
        """The stored state of an account."""
        record = self.record(key)
        if record is None or record.state is None:
            return Balance()
        balance: Balance = Account.__state_type__.load(record.state)
        return balance

    def record(self, key: str) -> Record | None:
        """The stored record of an account."""
        assert self.store is not None
        row, _ = self.store.rows.get(Address("Account", key), (None, None))
        return None if row is None else Record.decode(row.record)

    def check_stored(self, key: str, entry: str, what: str) -> None:
        """Y1: what leaves an entity waits until the state that it tells of is stored. A look at the
        end would find the entry: the client repeats its command.
        """
        if entry and entry not in self.balance(key).entries:
            self.complaints.append(f"{what} of {key} tells of {entry!r}, which is not stored")

    def check_unknown(self, key: str, request: Any, error: AnswerUnknownError) -> None:
        """Y4: only an answer that was deferred may be unknown, and its command is stored."""
        self.check_stored(key, request.id, "an answer that is not known")
        if not isinstance(request, Clear):
            self.complaints.append(f"{request} was answered with {error}")

    def audit(self, writes: Sequence[Write]) -> None:
        """Look at a commit. Y6: an entity has got a message only if its sender has stored it, and a
        sender forgets a message only if its receiver has stored the effect.
        """
        for write in writes:
            key, record = write.address.key, write.record
            if write.address.kind != "Account" or record is None:
                continue
            before, after = self.record(key) or Record(), Record.decode(record)
            kept = {(each.target, each.message) for each in after.owed.values()}
            for number in before.owed.keys() - after.owed.keys():
                target = before.owed[number].target
                origin = Origin("Account", key, before.birth)
                # A timer that fires is kept under another number.
                if target is not None and (target, before.owed[number].message) not in kept:
                    there = self.record(target.key)
                    if there is None or there.seen.get(origin, 0) < number:
                        self.complaints.append(f"{key} forgets a message before {target} has it")
            if after.state is not None and after.state != before.state:
                entries = Account.__state_type__.load(after.state).entries
                for entry in entries[len(self.balance(key).entries) :]:
                    self._check_sent(key, entry)

    def _check_sent(self, key: str, entry: str) -> None:
        word, _, rest = entry.partition(" ")
        sender, _, id = rest.partition(" ")
        if word == "from" and sender != key:
            sent = self.balance(sender).entries
            if f"to {key} {id}" not in sent and f"to {key} later {id}" not in sent:
                self.complaints.append(f"{key} stores {entry!r}, which {sender} has not stored")


class Client:
    """Repeats its commands until they are answered, or it gives up."""

    def __init__(self, world: World, node: WorldNode, book: Book, number: int) -> None:
        self.world, self.node, self.book, self.number = world, node, book, number
        self.random = Random(repr((world.plan.seed, "client", number)))
        self.pauses = Random(repr((world.plan.seed, "pauses", number)))

    async def run(self) -> None:
        """Do all steps."""
        for step in range(STEPS):
            await trio.sleep(self.random.choice((0.0, 0.01, 0.5, 2.0)))
            if self.pauses.random() < 0.1:
                await self.use_odd()
            if self.random.random() < 0.4:
                await self.use_register(f"{self.number}.{step}")
                continue
            # Several commands at once share a commit, and their messages keep their order.
            key, other = self.random.sample(ACCOUNTS, 2)
            async with trio.open_nursery() as nursery:
                for part in range(self.random.choice((1, 1, 4))):
                    id = f"{self.number}.{step}.{part}"
                    nursery.start_soon(self.command, id, key, other)
        # The last timers fire while nothing else wakes the accounts, and registers need room.
        async with trio.open_nursery() as nursery:
            for part in range(2):
                id = f"{self.number}.{STEPS}.{part}"
                nursery.start_soon(self.command, id, self.random.choice(ACCOUNTS), "", Earn)
        for step in range(STEPS):
            await trio.sleep(self.random.choice((0.0, 0.5, 1.0)))
            await self.use_register(f"{self.number}.{STEPS}.{step}")

    async def command(self, id: str, key: str, other: str, kind: type | None = None) -> None:
        """Give a command to an account."""
        random, book = Random(repr((self.world.plan.seed, id))), self.book
        commands = (
            Deposit(id, random.randint(1, 50)),
            Clear(id, random.randint(1, 50), random.uniform(0.0, 1.5)),
            Pay(id, other, random.randint(0, 30)),
            Pay(id, other, random.randint(0, 30)),
            Pay(id, other, random.randint(0, 30), random.uniform(0.0, 3.0)),
            Earn(id, random.uniform(0.0, 5.0)),
            Credit(id, 7),
            Break(id),
        )
        request: Any = random.choice([each for each in commands if kind in (None, type(each))])
        book.unknown[id] = key, request
        try:
            answer = await self.ask(Account, key, request, id, TRIES)
        except ValueError as error:
            book.check_stored(key, error.args[1], "a refusal")
            book.refused.add(id)
            del book.unknown[id]
            return
        except AnswerUnknownError as error:
            book.check_unknown(key, request, error)
            return
        except ErgoError:
            return
        if not isinstance(request, Credit):  # which is stored, and takes effect later
            book.check_stored(key, id, "an answer")
        book.answered[id] = key, request, answer
        del book.unknown[id]
        if random.random() < 0.2:
            try:
                again = await self.ask(Account, key, request, id, 2)
            except AnswerUnknownError as error:
                book.check_unknown(key, request, error)
                return
            except ErgoError:
                return
            if again != answer:
                book.complaints.append(f"{request} was answered with {answer}, then with {again}")

    async def use_register(self, id: str) -> None:
        """Read or write a register. A register that may be deleted forgets the ids of its commands,
        so its commands are not repeated.
        """
        random, history = self.random, self.world.history
        key = random.choice(REGISTERS)
        request: Any = random.choice((Get(key), Put(key, random.randint(1, 4))))
        if key == "gone" and random.random() < 0.3:
            request = Drop(key)
        operation = history.begin(self.node.name, key, request)
        try:
            answer = await self.ask(
                Register, key, request, "" if key == "gone" else id, 1 if key == "gone" else TRIES
            )
        except ValueError:
            history.finish(operation, SAME, None)
        except ErgoError as error:
            history.finish(operation, None, error)
        else:
            history.finish(operation, answer, None)

    async def use_odd(self) -> None:
        """Call a register whose state cannot be read."""
        try:
            answer = await self.ask(Register, ODD.key, Put(ODD.key, 5), "", 1)
        except ValueError as refusal:
            answer = refusal
        except ErgoError:
            return
        self.book.complaints.append(f"{ODD} answers {answer}, and its state is unreadable")

    async def retry_parked(self) -> None:
        """Try parked messages again, again and again."""
        for _ in range(STEPS * 2):
            await trio.sleep(self.pauses.choice((0.1, 0.3, 1.0, 2.0)))
            await self.retry_all()

    async def retry_all(self) -> None:
        """Try the parked messages of all accounts again."""
        for key in ACCOUNTS:
            try:
                await self.node.run(partial(_retry, key))
            except ErgoError:
                pass  # an operator tries it later

    async def ask(
        self, kind: type[Entity[Any]], key: str, request: Any, id: str, tries: int
    ) -> Any:
        """Call an entity, and repeat the call."""
        for left in reversed(range(tries)):
            try:
                return await self.node.run(lambda node: self.call(node, kind, key, request, id))
            except ErgoError as error:
                if not left or isinstance(request, Break) or isinstance(error, AnswerUnknownError):
                    raise
                await trio.sleep(self.random.choice((0.0, 0.1, 1.0)))
        raise AssertionError

    async def call(
        self, node: Node, kind: type[Entity[Any]], key: str, request: Any, id: str
    ) -> Any:
        """Call an entity once. Callers are told of its end, unless it sleeps: it ends so, too, with
        a keeper that was killed.
        """
        entity, keeper = node.entity(kind, key), entities_of(node)[kind].keeper
        assert keeper is not None
        try:
            if isinstance(request, Credit):
                return await entity.post(request, once=id, timeout=2.0)
            return await entity.call(request, once=id or None, timeout=2.0)
        except TargetDownError as error:
            if isinstance(error.reason, Shutdown) and keeper.accepting:
                self.book.complaints.append(f"{key} sleeps, and tells its caller: {error}")
            raise


async def _retry(key: str, node: Node) -> None:
    await EntityInspector(node).retry(Account, key)


async def bank(world: World) -> None:
    """Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y12: acknowledged commands are kept, each takes effect once,
    and no money is lost; a failed command may be repeated, and service returns. Y10: a state that
    cannot be read is refused, and stays. Y11: entities without work to do are not loaded.
    """
    book, clients = await _open(world, attempts=1000)
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.run)
    await world.heal()
    # Before any other command: those wake entities that nothing else would wake.
    await _settle(book)
    await _check(world, book, clients, transfers_keep_their_order)


async def parking(world: World) -> None:
    """The same if messages are parked after few attempts, and an operator tries them again, also
    while their receivers have them.
    """
    book, clients = await _open(world, attempts=world.plan.seed % 3 + 1)
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.run)
            nursery.start_soon(client.retry_parked)
    await world.heal()
    for _ in range(TRIES):
        await clients[0].retry_all()
        await _settle(book, 5.0)
    await _check(world, book, clients)


async def _open(world: World, attempts: int) -> tuple[Book, list[Client]]:
    book = Book()

    async def start(node: Node) -> None:
        book.store = DiskStore(world.nodes[node.name].disk, book.audit)
        if not book.stores:
            book.store.fill(_earlier_rows())
        book.stores.append(book.store)
        await node.spawn(Auditor, book, name="auditor")
        entities = Entities.spec(
            book.store,
            [Account, Register],
            TYPES,
            now=trio.current_time,
            max_awake=AWAKE,
            idle=1.0,
            attempts=attempts,
            backoff=Backoff(0.1, 2.0),
        )
        await node.supervise([ChildSpec("entities", entities)], intensity=1000)

    (node,) = await world.start(["bank@world"], start, env={"book": book})
    world.faults(
        seconds=20.0,
        crash=0.1,
        kill=0.2,
        fail_disk=0.1,
        slow_disk=0.15,
        skew=0.05,
        pause=0.03,
        victims=["Account", "Register", "entities"],
    )
    return book, [Client(world, node, book, number) for number in range(CLIENTS)]


def _earlier_rows() -> dict[Address, tuple[Row, float | None]]:
    """The rows that an earlier program has left."""
    rows: dict[Address, tuple[Row, float | None]] = {}
    for address, due in {ODD: None, **OLD}.items():
        record = Record()
        record.state = msgspec.msgpack.encode(UNKNOWN if address == ODD else {"value": 3})
        rows[address] = Row(1, record.encode() or b""), due
    return rows


async def _settle(book: Book, seconds: float = 25.0) -> None:
    """Wait until no message is owed: for less than the time after which a keeper looks for
    forgotten work.
    """
    for _ in range(int(seconds * 2)):
        assert book.store is not None
        if not any(record.owed for record in book.store.records().values()):
            return
        await trio.sleep(0.5)


async def _check(world: World, book: Book, clients: list[Client], *more: "Check") -> None:
    world.check(_checker(book, no_message_is_owed))
    for key in ACCOUNTS:  # service returns, and each command can be carried out
        await clients[0].ask(Account, key, Deposit(f"last {key}", 1), f"last {key}", TRIES)
        book.answered[f"last {key}"] = key, Deposit(f"last {key}", 1), None
    await _settle(book)
    world.check(
        World.linearizable(RegisterModel(), key=lambda request: request.key),
        *(_checker(book, find) for find in (*CHECKS, *more)),
    )


# -- the checks ------------------------------------------------------------------------------------

Check = Callable[[Book, dict[str, Balance], History], Iterator[str]]


def _checker(book: Book, find: Check) -> Callable[[History], Iterator[str]]:
    def check(history: History) -> Iterator[str]:
        return find(book, _balances(book), history)

    check.__name__ = find.__name__
    return check


def _balances(book: Book) -> dict[str, Balance]:
    assert book.store is not None
    return {each.key: book.balance(each.key) for each in book.store.rows if each.kind == "Account"}


def acknowledged_commands_are_kept(
    book: Book, balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y2, Y3: an acknowledged command is stored, and a refused command is not."""
    for id, (key, request, _) in book.answered.items():
        entries = balances[key].entries if key in balances else []
        wanted = f"from {key} {id}" if isinstance(request, Credit) else id
        if wanted not in entries:
            yield f"{key} has acknowledged {request}, and has not stored it"
    for key, balance in balances.items():
        for entry in balance.entries:
            id = entry.rpartition(" ")[2]
            if id in book.refused or entry == "refused":
                yield f"{key} has refused {entry}, and has stored it"


def messages_wait_for_the_store(
    book: Book, balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y1: a message to another process leaves when its command is stored."""
    stored = {entry for balance in balances.values() for entry in balance.entries}
    for id in sorted(book.told - stored):
        yield f"the auditor knows {id}, which is not stored"


def no_effect_is_doubled(
    _book: Book, balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y4, Y6, Y7: each effect happens once."""
    for key, balance in balances.items():
        for entry, times in Counter(balance.entries).items():
            if times > 1:
                yield f"{key} has {entry!r} {times} times"


def each_moment_goes_well(
    book: Book, _balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y1, Y4, Y6, Y9: what clients, auditor and store have noted when it happened."""
    yield from book.complaints
    for store in book.stores:
        yield from store.complaints


def transfers_arrive(_book: Book, balances: dict[str, Balance], _history: History) -> Iterator[str]:
    """Y6: each stored transfer arrives."""
    for key, other, sent, got in _transfers(balances):
        for each in sent:
            if each.removeprefix("later ") not in got:
                yield f"{key} has paid {each} to {other}, where it has not arrived"


def transfers_keep_their_order(
    _book: Book, balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y6: transfers arrive in order for each pair, unless one is parked."""
    for key, other, sent, got in _transfers(balances):
        at_once = [each for each in sent if not each.startswith("later ")]
        arrived = [each for each in got if each in at_once]
        if arrived != [each for each in at_once if each in arrived]:
            yield f"{key} has paid {at_once} to {other}, where {arrived} arrived"


def _transfers(balances: dict[str, Balance]) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """For each pair of accounts: what the first has sent, and what the second has got."""
    for key, other in permutations(ACCOUNTS, 2):
        yield (
            key,
            other,
            _entries(balances, key, f"to {other} "),
            _entries(balances, other, f"from {key} "),
        )


def _entries(balances: dict[str, Balance], key: str, prefix: str) -> list[str]:
    entries = balances[key].entries if key in balances else []
    return [each.removeprefix(prefix) for each in entries if each.startswith(prefix)]


def money_is_conserved(
    book: Book, balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y3, Y6: balances are the sum of all stored deposits, coins and posted credits."""
    wanted = 0
    known = {id: request for id, (_, request, _) in book.answered.items()}
    known |= {id: request for id, (_, request) in book.unknown.items()}
    for key, balance in balances.items():
        for entry in balance.entries:
            request = known.get(entry)
            if isinstance(request, Deposit):
                wanted += request.amount
            elif entry.startswith("coin "):
                wanted += 1
            elif entry.startswith(f"from {key} "):
                wanted += 7
    total = sum(balance.amount for balance in balances.values())
    if total != wanted:
        yield f"the accounts have {total}, and {wanted} was paid in"


def timers_fire(book: Book, balances: dict[str, Balance], _history: History) -> Iterator[str]:
    """Y7: each acknowledged timer fires, and none is early."""
    for id, (key, request, _) in book.answered.items():
        if isinstance(request, Earn) and f"coin {id}" not in balances[key].entries:
            yield f"the timer {id} of {key} has not fired"
    for key, balance in balances.items():
        yield from (f"{key}: {each}" for each in balance.entries if each.startswith("early"))


def no_message_is_owed(
    book: Book, _balances: dict[str, Balance], _history: History
) -> Iterator[str]:
    """Y6: all outboxes are empty, a minute after the last fault."""
    assert book.store is not None
    for address, record in book.store.records().items():
        for owed in record.owed.values():
            yield f"{address} still owes {owed}"


def few_are_awake(book: Book, _balances: dict[str, Balance], history: History) -> Iterator[str]:
    """Y8, Y9: no more entities live than allowed, and none twice."""
    changes: list[tuple[float, int, str]] = []
    lives = [each for each in history.lifetimes if each.name in ("Account", "Register")]
    for life in lives:
        key = book.keys.get(life.pid, str(life.pid))
        changes += [(life.began, 1, key), (life.ended, -1, key)]
    awake: Counter[str] = Counter()
    for at, change, key in sorted(changes):
        awake[key] += change
        if awake[key] > 1:
            yield f"{key} lives twice at {at:.2f} s"
        if sum(awake.values()) > AWAKE:
            yield f"{sum(awake.values())} entities are awake at {at:.2f} s"


def rows_stay(book: Book, _balances: dict[str, Balance], _history: History) -> Iterator[str]:
    """Y10, Y11: an unreadable row stays as it is, and rows without work to do are not read."""
    assert book.store is not None
    for address, row in _earlier_rows().items():
        if book.store.rows[address] != row:
            yield f"the row of {address} was {row}, and is {book.store.rows[address]}"
    for store in book.stores:
        if found := sorted({address for _, address, _ in store.loads} & OLD.keys()):
            yield f"{found} were loaded, without a command and without work to do"


CHECKS: tuple[Check, ...] = (
    rows_stay,
    acknowledged_commands_are_kept,
    messages_wait_for_the_store,
    no_effect_is_doubled,
    each_moment_goes_well,
    transfers_arrive,
    money_is_conserved,
    timers_fire,
    no_message_is_owed,
    few_are_awake,
)
