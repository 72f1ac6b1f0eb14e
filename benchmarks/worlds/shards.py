"""Worlds of entities on three nodes that share a store: accounts that pay each other. In `fleet`
nodes crash, stop and lose each other, and the names of the cluster and the store of the rows, too;
in `lives` accounts also have timers, an account is deleted and used again, and few messages may
wait; in `moves` a node joins and others drain, and commands have no ids.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import trio

from ergo_py import Actor, Backoff, Caller, ChildSpec, ErgoError, Node, Reject, Request
from ergo_py.entities import Entities, Entity, EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Due, Row, Write
from ergo_py.entity_handles import Address, entities_of, inspections
from ergo_py.testing import World
from ergo_py.testing.world.checkers import Checker
from ergo_py.testing.world.disk import WorldDisk
from ergo_py.testing.world.history import History
from ergo_py.testing.world.node import WorldNode

from .entities import Balance, Credit, Deposit, Pay

__all__ = ["fleet", "lives", "moves"]

SHARDS = 3
LEASE = 4.0
STEPS = 8
"""Commands of a client."""
LATE = 5.0
"""Seconds that a commit to a late disk may take."""
TRIES = 6
"""How often a client repeats a command."""
FEW = 10
"""With fewer attempts, messages are parked while a shard has no host."""
SETTLED = 10.0
"""Seconds after the last fault in which all shards have hosts, and all messages have arrived: two
leases and a pause before another attempt.
"""


@dataclass
class Life(Balance):
    """The state of an account from its first effect to its deletion."""

    name: str = ""
    """No other life has it."""
    ended: dict[str, list[str]] = field(default_factory=dict)
    """The effects on Joe before his deletions, by the names of his lives."""


@dataclass(frozen=True)
class Look(Request[list[str]]):
    """The effects on the account."""


@dataclass(frozen=True)
class Earn(Request[None]):
    """Get a coin after a delay: a timer, or a message to itself without one."""

    id: str
    delay: float


@dataclass(frozen=True)
class Coin:
    """The coin."""

    id: str


@dataclass(frozen=True)
class Close(Request[None]):
    """Delete the account."""

    id: str


@dataclass(frozen=True)
class Closed:
    """The last state of an account that was deleted: a commit may have a whole life in it."""

    name: str
    entries: list[str]


@dataclass(frozen=True)
class Ended(Request[dict[str, list[str]]]):
    """The states of the accounts that were deleted."""


class Account(Entity[Life]):
    """An account."""

    begun = 0
    """How many lives this process has begun."""

    def _note(self, entry: str) -> None:
        state = self.state
        state.entries.append(entry)
        if not state.name:
            # An account that was deleted may begin again in the same process and moment.
            self.begun += 1
            state.name = f"{self.begun} of {self.pid} at {trio.current_time()}"

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Carry out a command."""
        state = self.state
        match request:
            case Deposit(id, amount):
                state.amount += amount
                self._note(id)
            case Pay(id, to, amount):
                if state.amount < amount:
                    raise Reject(ValueError("not enough"))
                state.amount -= amount
                self._note(id)
                self.send(self.entity(ACCOUNTS[to], "it"), Credit(id, amount))
            case Earn(id, delay):
                self._note(id)
                itself = self.entity(type(self), self.key)
                if delay:
                    self.send_after(delay, itself, Coin(id))
                else:
                    self.send(itself, Coin(id))
            case Close(_):
                if state.entries:
                    self.send(self.entity(Eve, "it"), Closed(state.name, list(state.entries)))
                self.delete()
                return None
            case Look():
                return list(state.entries)
            case Ended():
                return dict(state.ended)
            case _:
                raise Reject(LookupError(request))
        return state.amount

    def handle_message(self, message: Any, sender: Any) -> None:
        """Take an amount, or a coin."""
        match message:
            case Credit(id, amount):
                self.state.amount += amount
                self._note(f"got {id}")
            case Coin(id):
                self.state.amount += 1
                self._note(f"coin {id}")
            case Closed(name, entries):
                if name in self.state.ended:
                    self._note(f"closed {name} again")
                self.state.ended[name] = entries


class Ada(Account):
    """An account of a class of its own: the history of the world knows its processes."""


class Bob(Account):
    """A second account."""


class Eve(Account):
    """A third account."""


class Joe(Account):
    """A fourth account. It is deleted now and then, and tells Eve its last state."""


ACCOUNTS: dict[str, type[Account]] = {each.__name__: each for each in (Ada, Bob, Eve, Joe)}
TYPES = [Deposit, Pay, Look, Credit, Earn, Coin, Close, Closed, Ended]


class Batch(list[Write]):
    """The writes of a commit, and their node."""

    def __init__(self, node: str, writes: Sequence[Write]) -> None:
        super().__init__(writes)
        self.node = node


class Rows:
    """The rows that all nodes share, with a look at each commit."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.store.after_commit = self._audit
        self.newest: dict[int, int] = {}
        """The highest token of a commit to each shard."""
        self.writers: dict[tuple[int, int], str] = {}
        """The nodes of the commits, by shards and tokens."""
        self.lives: dict[str, dict[str, list[str]]] = {key: {} for key in ACCOUNTS}
        """The stored effects on each account, by the names of its lives, in order."""
        self.complaints: list[str] = []

    async def _audit(self, _number: int, writes: Sequence[Write]) -> None:
        """Y2, Y9: no commit with an older token, and a token has a single writer; a life only
        grows, and does not come back.
        """
        assert isinstance(writes, Batch)
        for write in writes:
            shard, token, node = write.shard, write.token, writes.node
            if token < self.newest.get(shard, 0):
                self.complaints.append(
                    f"{node} commits to {shard} with {token} after a newer token"
                )
            self.newest[shard] = max(token, self.newest.get(shard, 0))
            if shard >= 0 and self.writers.setdefault((shard, token), node) != node:
                self.complaints.append(f"two nodes commit to {shard} with {token}")
            if write.address.kind in ACCOUNTS and write.record is not None:
                self._note_life(write.address.kind, Record.decode(write.record).state)

    def _note_life(self, key: str, encoded: bytes | None) -> None:
        lives = self.lives[key]
        life = Life() if encoded is None else ACCOUNTS[key].__state_type__.load(encoded)
        if not life.entries:
            return
        before = lives.setdefault(life.name, [])
        if life.name != list(lives)[-1]:
            self.complaints.append(f"{key} lives again: {life.name}")
        if life.entries[: len(before)] != before:
            self.complaints.append(f"{before} of {key} become {life.entries}")
        before[:] = life.entries


class NodeStore:
    """The shared rows, as a node reaches them: late, or not at all, as its disk."""

    def __init__(self, rows: Rows, disk: WorldDisk, node: str, seed: int) -> None:
        self._rows = rows
        self._disk = disk
        self._node = node
        self._random = Random(repr((seed, "store", node)))

    def __repr__(self) -> str:
        return f"NodeStore({self._node})"

    async def open(self, owner: Actor, *, shared: bool = False) -> None:
        """Open it. A node that has crashed has not closed it."""
        await self._rows.store.open(owner, shared=shared)

    async def close(self) -> None:
        """Do nothing: another start of the node may have it open."""

    async def _reach(self) -> None:
        # Never at once: a program that is stopped has often a commit under way.
        await trio.sleep(self._random.choice((0.001, 0.01, 0.1)))
        await self._disk.wait()
        try:
            self._disk.check()
        except OSError as error:
            raise EntityStoreError(f"the store cannot be reached: {error}") from error

    async def claim(self, shard: int, token: int) -> None:
        """Refuse older tokens."""
        await self._reach()
        await self._rows.store.claim(shard, token)
        self._rows.newest[shard] = max(token, self._rows.newest.get(shard, 0))
        await self._reach()

    async def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        """Read rows."""
        await self._reach()
        return await self._rows.store.load(addresses)

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write rows. The answer may be lost."""
        # The thread of a store goes on, although the process that waits for it is killed; and it
        # goes on first when a stopped program continues.
        with trio.CancelScope(shield=True):
            await self._reach()
            await self._rows.store.commit(Batch(self._node, writes))
        await self._reach()

    async def due(self, before: float, limit: int) -> list[Due]:
        """Read which entities have work to do."""
        await self._reach()
        return await self._rows.store.due(before, limit)

    async def keys(self, kind: str, start: str, limit: int) -> list[str]:
        """Read keys."""
        return await self._rows.store.keys(kind, start, limit)


class Book:
    """The commands of the clients."""

    def __init__(self) -> None:
        self.answered: dict[str, tuple[str, Any]] = {}
        self.unknown: dict[str, tuple[str, Any]] = {}
        """Commands without an answer, or refused: an attempt may have taken effect, also late:
        after another attempt was refused.
        """
        self.complaints: list[str] = []


class Client:
    """Repeats its commands until they are answered, or it gives up."""

    def __init__(self, world: World, nodes: list[WorldNode], book: Book, number: int) -> None:
        self.nodes, self.book, self.number = nodes, book, number
        self.random = Random(repr((world.plan.seed, "client", number)))

    async def run(self) -> None:
        """Do all steps."""
        for step in range(STEPS):
            await trio.sleep(self.random.choice((0.0, 0.01, 0.5, 1.5)))
            await self.command(f"{self.number}.{step}")
            if step % 3 == 0:
                await self.read()

    def may_forget(self, _key: str) -> bool:
        """Whether the account may have been deleted."""
        return False

    async def read(self) -> None:
        """Look at an account: a fresh answer has every command that was acknowledged before."""
        key = self.random.choice(list(ACCOUNTS))
        known = {id for id, (account, _) in self.book.answered.items() if account == key}
        node = self.random.choice(self.nodes)
        try:
            found = await node.run(partial(call, key=key, request=Look(), fresh=True))
        except ErgoError:
            return
        if (missing := sorted(known.difference(found))) and not self.may_forget(key):
            self.book.complaints.append(f"a fresh answer of {key} at {node.name} lacks {missing}")

    def draw(self, id: str) -> tuple[str, Any]:
        """An account, and a command for it."""
        key, other = self.random.sample(list(ACCOUNTS), 2)
        amount = self.random.randint(1, 30)
        return key, self.random.choice((Deposit(id, amount), Pay(id, other, amount)))

    async def command(self, id: str) -> None:
        """Give a command to an account."""
        key, request = self.draw(id)
        self.book.unknown[id] = key, request
        for _ in range(TRIES):
            node = self.random.choice(self.nodes)
            try:
                await node.run(partial(call, key=key, request=request, id=id))
            except ValueError:
                return
            except ErgoError:
                await trio.sleep(self.random.choice((0.0, 0.3, 1.0)))
                continue
            self.book.answered[id] = self.book.unknown.pop(id)
            return

    async def retry_parked(self) -> None:
        """Try parked messages again, now and then."""
        for _ in range(STEPS):
            await trio.sleep(self.random.choice((0.3, 1.0, 2.0)))
            await self.retry_all()

    async def retry_all(self) -> None:
        """Try the parked messages of all accounts again."""
        for kind in ACCOUNTS.values():
            node = self.random.choice(self.nodes)
            try:
                await node.run(partial(_retry, kind))
            except ErgoError:
                pass  # another operator does it later


async def _retry(kind: type[Account], node: Node) -> None:
    await EntityInspector(node).retry(kind, "it")


class ClosingClient(Client):
    """Also lets accounts earn coins, and closes one."""

    def may_forget(self, key: str) -> bool:
        """Only Joe is closed."""
        return key == "Joe"

    def draw(self, id: str) -> tuple[str, Any]:
        """An account, and a command for it."""
        choice = self.random.random()
        if choice < 0.15:
            return "Joe", Close(id)
        if choice < 0.4:
            key = self.random.choice(list(ACCOUNTS))
            return key, Earn(id, self.random.choice((0.0, 0.0, 0.2, 3.0)))
        return super().draw(id)


async def call(
    node: Node,
    *,
    key: str,
    request: Any,
    id: str | None = None,
    fresh: bool = False,
    timeout: float = 3.0,
) -> Any:
    """Call an account from a node."""
    entity = node.entity(ACCOUNTS[key], "it")
    return await entity.call(request, once=id, timeout=timeout, fresh=fresh)


def starter(
    world: World, rows: Rows, *, max_waiting: int = 1000, attempts: int = 1000
) -> Callable[[Node], Awaitable[None]]:
    """Lets a node host accounts."""

    async def start(node: Node) -> None:
        store = NodeStore(rows, world.nodes[node.name].disk, node.name, world.plan.seed)
        entities = Entities.spec(
            store,
            list(ACCOUNTS.values()),
            types=TYPES,
            idle=3.0,
            attempts=attempts,
            backoff=Backoff(0.1, 2.0),
            max_waiting=max_waiting,
            shards=SHARDS,
            lease=LEASE,
        )
        await node.supervise([ChildSpec("entities", entities, init_timeout=60.0)], intensity=1000)

    return start


def doubled(found: dict[str, list[str]]) -> Iterator[str]:
    """Tell the entries that accounts have more than once."""
    for key, entries in found.items():
        for entry, count in Counter(entries).items():
            if count > 1:
                yield f"{entry} has taken effect {count} times at {key}"


async def fleet(world: World) -> None:
    """Y9: at most one activation of a key commits, and without stopped programs at most one lives.
    No acknowledged command is lost, each takes effect once, and so does each transfer.
    """
    rows, book, found = await _run_fleet(world, Client)

    def commands_are_kept(_history: History) -> Iterator[str]:
        yield from rows.complaints
        yield from book.complaints
        yield from doubled(found)
        commands = {**book.answered, **book.unknown}
        for id, (key, request) in commands.items():
            if id in book.answered and id not in found[key]:
                yield f"{key} has lost {request}, which was acknowledged"
            if isinstance(request, Pay):
                done, got = id in found[key], f"got {id}" in found[request.to]
                if done != got:
                    yield f"{request} of {key}: {done}, and {request.to} has got it: {got}"

    _check(world, commands_are_kept)


async def lives(world: World) -> None:
    """Y6, Y7: as `fleet`, with timers and messages of an account to itself, with an account that is
    deleted and used again, with little room for messages that wait, and with messages that are
    parked after few attempts, until an operator tries them again.
    """
    draw = Random(repr((world.plan.seed, "limits")))
    rows, book, found = await _run_fleet(
        world,
        ClosingClient,
        max_waiting=draw.choice((2, 1000)),
        attempts=draw.choice((2, 5, 1000)),
        network={"backlog": draw.choice((1_500, 1 << 20))},
    )

    ended: dict[str, list[str]] = await world.nodes["a@world"].run(
        partial(call, key="Eve", request=Ended())
    )
    every = {key: [entries] for key, entries in found.items()}
    every["Joe"] += ended.values()

    def lives_are_whole(_history: History) -> Iterator[str]:
        yield from rows.complaints
        yield from book.complaints
        commands = book.answered | book.unknown
        for key, its_lives in every.items():
            for entries in its_lives:
                yield from doubled({key: [each for each in entries if each[:4] != "got "]})
                yield from (f"{key}: {each}" for each in entries if each.endswith("again"))
                for coin in (each for each in entries if each.startswith("coin ")):
                    if coin.removeprefix("coin ") not in entries:
                        yield f"{key} has got the {coin} of another life"
            for id in its_lives[0]:
                is_earned = id in commands and isinstance(commands[id][1], Earn)
                if is_earned and f"coin {id}" not in its_lives[0]:
                    yield f"{key} has not got the coin of {id}"
        for id, (key, request) in commands.items():
            if isinstance(request, Close):
                continue
            done = sum(id in entries for entries in every[key])
            if id in book.answered and not done:
                yield f"{key} has lost {request}, which was acknowledged"
            if isinstance(request, Pay):
                # Its id goes with a deleted account: the repetition is a command of its own.
                got = sum(entries.count(f"got {id}") for entries in every[request.to])
                if done != got:
                    yield f"{request} of {key}: {done} times, and {request.to} has got it: {got}"
        closed = sum(isinstance(request, Close) for _, request in commands.values())
        # The id of a command that deletes goes with the next deletion: its repetition may close the
        # account again.
        if len(ended) > closed * TRIES:
            yield f"Joe has ended {len(ended)} times, and was closed {closed} times"

    _check(world, lives_are_whole)


async def _run_fleet(
    world: World,
    client: type[Client],
    *,
    max_waiting: int = 1000,
    attempts: int = 1000,
    **options: Any,
) -> tuple[Rows, Book, dict[str, list[str]]]:
    """Run three nodes with clients and faults. Returns the rows, the commands, and the effects that
    the accounts tell at the end.
    """
    rows, book = Rows(), Book()
    start = starter(world, rows, max_waiting=max_waiting, attempts=attempts)
    nodes = await world.start(3, start, types=TYPES, **options)
    world.faults(
        seconds=20.0,
        cut=0.06,
        one_way=0.03,
        delay=0.05,
        cut_store=0.05,
        slow_store=0.05,
        fail_disk=0.05,
        slow_disk=0.08,
        pause=0.1,
        crash=0.05,
        skew=0.03,
        kill=0.05,
        victims=["entities", "entities.map", *ACCOUNTS],
    )
    clients = [client(world, nodes, book, number) for number in range(4)]
    async with trio.open_nursery() as nursery:
        for each in clients:
            nursery.start_soon(each.run)
            if attempts < FEW:
                nursery.start_soon(each.retry_parked)
    await trio.sleep(max(0.0, 22.0 - trio.current_time()))
    await world.heal()
    if attempts < FEW:
        await trio.sleep(SETTLED)
        for each in clients:
            await each.retry_all()
    await trio.sleep(SETTLED)
    found: dict[str, list[str]] = {}
    for number, key in enumerate(ACCOUNTS):
        look = partial(call, key=key, request=Look())
        found[key] = await nodes[number % 3].run(look)
    return rows, book, found


def _check(world: World, commands_are_kept: Checker) -> None:
    # A stopped program may have a commit under way, to a late disk, for which its entities wait. It
    # is refused.
    world.check(commands_are_kept, *(World.at_most_one(each, grace=LATE) for each in ACCOUNTS))


class Mover:
    """Lets a node join and two nodes drain, while clients give commands without ids."""

    def __init__(self, world: World, rows: Rows, nodes: list[WorldNode]) -> None:
        self.world, self.rows, self.nodes = world, rows, nodes
        self.random = Random(repr((world.plan.seed, "mover")))
        self.asked: dict[str, list[str]] = {key: [] for key in ACCOUNTS}
        """The entries that each account must have."""
        self.complaints: list[str] = []

    async def run(self) -> None:
        """Let a node join, and then two drain."""
        await trio.sleep(self.random.choice((0.0, 0.5, 2.0)))
        self.nodes += await self.world.start(1, starter(self.world, self.rows))
        leaving = self.random.sample(self.nodes, 2)
        for node in leaving:
            await trio.sleep(self.random.choice((0.0, 0.3, 1.0, 3.0)))
            if left := await node.run(lambda each: each.drain(timeout=60.0)):
                self.complaints.append(f"{node.name} has not drained: {left}")
            if held := (await node.run(host_facts))["held"]:
                self.complaints.append(f"{node.name} has shards after its drain: {held}")
            for other in self.nodes:
                known = (await other.run(host_facts))["nodes"].get(node.name, {})
                if known.get("shards"):
                    self.complaints.append(f"{other.name} does not know that {node.name} drained")

    async def work(self, number: int) -> None:
        """Give commands: calls and messages."""
        random = Random(repr((self.world.plan.seed, "worker", number)))
        for step in range(2 * STEPS):
            await trio.sleep(random.choice((0.0, 0.01, 0.1, 0.5)))
            key, node, id = (
                random.choice(list(ACCOUNTS)),
                random.choice(self.nodes),
                f"{number}.{step}",
            )
            if random.random() < 0.3:
                self.asked[key].append(f"got {id}")
                node.node.entity(ACCOUNTS[key], "it").send(Credit(id, 1))
                continue
            self.asked[key].append(id)
            try:
                await node.run(partial(call, key=key, request=Deposit(id, 1), timeout=60.0))
            except ErgoError as error:
                self.complaints.append(f"{id} at {key} from {node.name}: {error!r}")


async def host_facts(node: Node) -> Any:
    """The map of shards as a node knows it."""
    (facts,) = [await each.facts() for each in inspections(entities_of(node))]
    return facts["map"]


async def moves(world: World) -> None:
    """Y9: a planned move loses no command and carries out none twice, and a node that has drained
    has no shards.
    """
    rows = Rows()
    mover = Mover(world, rows, await world.start(2, starter(world, rows), types=TYPES))
    world.faults(
        seconds=10.0,
        limits={"delay": (0.0, 0.3), "slow_disk": (0.0, 0.3)},
        delay=0.3,
        slow_disk=0.3,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mover.run)
        for number in range(5):
            nursery.start_soon(mover.work, number)
    await world.heal()
    await trio.sleep(SETTLED)
    found: dict[str, list[str]] = {}
    for number, key in enumerate(ACCOUNTS):
        look = partial(call, key=key, request=Look())
        found[key] = await mover.nodes[number % 3].run(look)

    def commands_are_kept(_history: History) -> Iterator[str]:
        yield from rows.complaints
        yield from mover.complaints
        yield from doubled(found)
        for key, asked in mover.asked.items():
            if missing := sorted(set(asked).difference(found[key])):
                yield f"{key} has lost {missing}"

    world.check(commands_are_kept, *(World.at_most_one(each) for each in ACCOUNTS))
