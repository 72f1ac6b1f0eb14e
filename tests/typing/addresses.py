"""The lines that type checkers must accept, and the lines that they must refuse, of addresses that
know the class of their process. Never run, only checked: see spawn_and_call.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from ergo_py import (
    PID,
    Actor,
    Alias,
    Key,
    MetaProcess,
    Name,
    Node,
    Pool,
    PoolSpec,
    Request,
    ask,
    exposed,
)
from ergo_py.aio import AsyncioNode
from ergo_py.blocking import BlockingNode
from ergo_py.methods import cast
from ergo_py.pipelines import Batch
from ergo_py.testing import Probe


@dataclass(frozen=True)
class Add:
    amount: int


@dataclass(frozen=True)
class Reset:
    pass


class Counter(Actor[Add | Reset]):
    def handle_message(self, message: Add | Reset, sender: PID) -> None:
        assert_type(self.pid.number, int)
        self.send(self.pid, Reset())
        self.send(sender, "anything")

    @exposed
    def total(self) -> int:
        return 0


class Tally(Actor[Add | Reset]):
    batch = Batch(100, within=0.01)

    def handle_batch(self, messages: Sequence[Add | Reset]) -> None:
        assert_type(messages[0], Add | Reset)


class TallyOfAll(Actor[Add | Reset]):
    batch = Batch(100)

    async def handle_batch(self, messages: Sequence[object]) -> None:
        assert_type(messages[0], object)


class TallyOfTexts(Actor[Add | Reset]):
    batch = Batch(100)

    def handle_batch(self, messages: Sequence[str]) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


class Exact(Counter):
    pass


class Account(Actor):
    def handle_message(self, message: str, sender: object) -> None:
        pass

    @exposed
    async def deposit(self, amount: int) -> float:
        return amount


@dataclass(frozen=True)
class Total(Request[int, Counter]):
    pass


@dataclass(frozen=True)
class Balance(Request[float]):
    pass


class Workers(Pool[Counter]):
    def workers(self) -> PoolSpec[Counter]:
        return PoolSpec(Counter, size=2)


class AnyWorkers(Pool):
    def workers(self) -> PoolSpec:
        return PoolSpec(Counter, size=2)


async def right_for_messages(node: Node, any_pid: PID, alias: Alias, any_message: Any) -> None:
    counter = await node.spawn(Counter)
    assert_type(counter, PID[Counter])
    assert_type(await node.spawn(Exact), PID[Exact])
    exact: PID[Counter] = await node.spawn(Exact)
    adding: PID[Actor[Add]] = counter
    node.send(counter, Add(3))
    node.send(exact, Reset())
    node.send(adding, Add(3))
    node.send(counter, any_message)
    node.send(counter, cast(Counter.total))
    node.send_after(1.0, counter, Add(3))
    for anything in (any_pid, alias, "counter", Name("counter"), Key("users", "ada")):
        node.send(anything, Add(3))
        node.send(anything, "anything")
    node.send(await node.spawn(Account), b"no class declares it")


async def right_for_calls(node: Node, any_pid: PID, any_request: Any) -> None:
    counter, account = await node.spawn(Exact), await node.spawn(Account)
    assert_type(await node.call(counter, ask(Counter.total)), int)
    assert_type(await node.call(counter, Total()), int)
    assert_type(await node.call(account, ask(Account.deposit, 3)), float)
    assert_type(await node.call(account, Balance()), float)
    assert_type(await node.call(counter, Balance()), float)
    assert_type(await node.call(any_pid, Total()), int)
    assert_type(await node.call("counter", Total()), int)
    for untyped in ("total", None, [1], {"a": 1}, Add(1), int, lambda: 3, (1, 2), any_request):
        assert_type(await node.call(counter, untyped), Any)
    stock: Name[Counter] = Name("stock", "stock@paris")
    assert_type(await node.call(stock, ask(Counter.total)), int)


async def right_for_pools(node: Node) -> None:
    pool = await node.spawn(Pool, PoolSpec(Counter, size=2))
    assert_type(pool, PID[Pool[Counter]])
    assert_type(await node.call(pool, ask(Counter.total)), int)
    assert_type(await node.call(await node.spawn(Workers), ask(Counter.total)), int)
    assert_type(await node.call(await node.spawn(AnyWorkers), ask(Counter.total)), int)
    node.send(pool, Add(3))


async def right_on_other_loops(
    blocking: BlockingNode, asyncio: AsyncioNode, probe: Probe, counter: PID[Counter]
) -> None:
    assert_type(blocking.spawn(Counter), PID[Counter])
    assert_type(blocking.call(counter, Total()), int)
    assert_type(await asyncio.spawn(Counter), PID[Counter])
    assert_type(await asyncio.call(counter, ask(Counter.total)), int)
    assert_type(await probe.call(counter, Total()), int)
    blocking.send(counter, Add(3))
    asyncio.send(counter, Reset())
    probe.send(counter, Reset())


async def wrong_messages(node: Node, counter: PID[Counter], adding: PID[Actor[Add]]) -> None:
    node.send(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.send_wait(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.send_after(1.0, counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.send_every(1.0, counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.send(adding, Reset())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stock: Name[Counter] = Name("stock")
    node.send(stock, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    user: Key[Counter] = Key("users", "ada")
    node.send(user, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrong_calls(node: Node, counter: PID[Counter], account: PID[Account]) -> None:
    await node.call(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await node.call(account, Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    node.call_from_thread(account, Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    stock: Name[Account] = Name("stock", "stock@paris")
    await node.call(stock, Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    (await node.call(counter, Total())).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await node.call(await node.spawn(Pool, PoolSpec(Counter)), ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await node.call(await node.spawn(Workers), ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def an_account(counter: PID[Counter]) -> PID[Account]:
    return counter  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def a_subclass(counter: PID[Counter]) -> PID[Exact]:
    return counter  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def more_messages(counter: PID[Counter]) -> PID[Actor[Add | Reset | str]]:
    return counter  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def wrong_on_other_loops(
    blocking: BlockingNode, asyncio: AsyncioNode, probe: Probe, counter: PID[Counter]
) -> None:
    blocking.send(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    blocking.send_every(1.0, counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    blocking.call(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    blocking.ask(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    asyncio.send(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await asyncio.call(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    probe.send(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await probe.call(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


class Wrong(Actor[str]):
    def handle_message(self, message: int, sender: object) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    async def ask_wrongly(self, counter: PID[Counter]) -> None:
        self.send(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        self.send(self.pid, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        self.send_after(1.0, self.pid, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await self.call(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


class Reader(MetaProcess):
    def __init__(self, counter: PID[Counter]) -> None:
        self.counter = counter

    def start(self) -> None:
        self.send(self.counter, Add(3))
        self.send(self.counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
