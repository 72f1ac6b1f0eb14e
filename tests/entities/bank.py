"""A small bank of entities, and programs that keep it: a program can stop at any write."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from ergo_py import Caller, CallError, ChildSpec, Node, Reject, Request, exposed, open_node
from ergo_py.entities import Entities, Entity, EntityStoreError, MemoryStore
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Store, Write
from ergo_py.entity_handles import Address
from ergo_py.errors import ServiceError

__all__ = [
    "Account",
    "Balance",
    "Bank",
    "Credit",
    "Interest",
    "Life",
    "Pay",
    "TYPES",
    "open_bank",
    "records",
    "run_virtual",
]


@dataclass
class Balance:
    """The state of an account."""

    amount: int = 0
    entries: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Pay(Request[int]):
    """Transfer an amount to another account."""

    to: str
    amount: int


@dataclass(frozen=True)
class Credit:
    """An amount arrives."""

    amount: int


@dataclass(frozen=True)
class Interest:
    """A timer of an account."""


TYPES = [Pay, Credit, Interest]


class Account(Entity[Balance]):
    """An account."""

    @exposed
    def deposit(self, amount: int) -> int:
        """Add an amount."""
        self.state.amount += amount
        return self.state.amount

    @exposed
    def look(self) -> tuple[int, tuple[str, ...]]:
        """The amount and the entries."""
        return self.state.amount, tuple(self.state.entries)

    @exposed
    def earn_later(self, delay: float) -> None:
        """Earn interest after a delay."""
        self.send_after(delay, self.entity(Account, self.key), Interest(), name="interest")

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Transfer."""
        match request:
            case Pay(to, amount):
                self.state.amount -= amount
                self.send(self.entity(Account, to), Credit(amount))
                if self.state.amount < 0:
                    raise Reject(ValueError("not enough"))
                return self.state.amount
        raise Reject(LookupError(request))

    def handle_message(self, message: Any, sender: Any) -> None:
        """Take a credit, or interest."""
        match message:
            case Credit(amount):
                self.state.amount += amount
                self.state.entries.append(f"{amount} from {sender.key}")
            case Interest():
                self.state.amount += 1
                self.state.entries.append("interest")
            case "crash":
                raise RuntimeError("a planted failure")


class Life(MemoryStore):
    """The store of a program: it shares its rows with the programs before and after. From a stop
    on, it does nothing.
    """

    def __init__(self, rows: dict[Any, Any] | None = None) -> None:
        super().__init__()
        if rows is not None:
            self.rows = rows
        self.is_stopped = False

    def stop(self) -> None:
        """Stop here, as a program that is killed does."""
        self.is_stopped = True

    async def load(self, addresses: Sequence[Address]) -> Any:
        """Read, unless it has stopped."""
        await self._pass()
        return await super().load(addresses)

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write, unless it has stopped."""
        await self._pass()
        await super().commit(writes)

    async def due(self, before: float, limit: int) -> Any:
        """Read, unless it has stopped."""
        await self._pass()
        return await super().due(before, limit)

    async def _pass(self) -> None:
        if self.is_stopped:
            raise EntityStoreError("the program has stopped")


@asynccontextmanager
async def open_bank(store: Store, **options: Any) -> AsyncIterator[Node]:
    """A node that keeps accounts. Its wall clock is trio's."""
    keywords: dict[str, Any] = {"types": TYPES, "now": trio.current_time, **options}
    env = keywords.pop("env", None)
    async with open_node("bank@test", log_level="critical", env=env) as node:
        await node.supervise(
            [
                ChildSpec(
                    "entities", Entities.spec(store, keywords.pop("kinds", [Account]), **keywords)
                )
            ],
            name="bank",
            intensity=100,
        )
        yield node


class Bank:
    """A client that repeats its commands until each is answered, also by later programs."""

    def __init__(self, **options: Any) -> None:
        self.life = Life()
        self.options = options
        self.refused = 0
        self.node: Node | None = None
        """The node of the present program."""

    async def run(self, *steps: Callable[[Node], Awaitable[object]]) -> list[object]:
        """Do the steps in order, each until it succeeds. A stopped store is the end of a
        program: the next program goes on.
        """
        answers: list[object] = []
        while len(answers) < len(steps):
            async with open_bank(self.life, **self.options) as node:
                self.node = node
                while len(answers) < len(steps) and not self.life.is_stopped:
                    try:
                        answers.append(await steps[len(answers)](node))
                    except (CallError, ServiceError, EntityStoreError):
                        self.refused += 1
                        await trio.sleep(0.01)
                if not self.life.is_stopped:
                    await self.settle()
            if self.life.is_stopped:
                stopped, self.life = self.life, Life(self.life.rows)
                self.life.commits = stopped.commits
                if len(answers) == len(steps):
                    async with open_bank(self.life, **self.options):
                        await self.settle()
            self.node = None
        return answers

    async def settle(self) -> None:
        """Wait until no message is owed, or the program has stopped."""
        with trio.fail_after(400):
            while not self.life.is_stopped and any(  # noqa: ASYNC110 - virtual time
                each.owed for each in records(self.life).values()
            ):
                await trio.sleep(0.1)


def records(store: MemoryStore) -> dict[str, Record]:
    """The stored records, by their keys."""
    return {address.key: Record.decode(row.record) for address, (row, _) in store.rows.items()}


def run_virtual(function: Callable[[], Awaitable[Any]]) -> Any:
    """Run a test in virtual time."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(function, clock=clock)
