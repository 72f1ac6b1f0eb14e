"""Seventeen mistakes that both type checkers must find. Never run, only checked: see
spawn_and_call.py.
"""

from dataclasses import dataclass
from typing import assert_type

from typing_extensions import override

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    Group,
    Name,
    Node,
    Pool,
    PoolSpec,
    Registry,
    Request,
    Service,
    ask,
    blocking,
    exposed,
    run,
)
from ergo_py.aio import open_node as open_asyncio_node
from ergo_py.methods import cast
from ergo_py.testing import checked_node


@dataclass(frozen=True)
class Add:
    amount: int


class Counter(Actor[Add]):
    def __init__(self, start: int = 0) -> None:
        self.start = start

    @exposed
    def total(self) -> int:
        return self.start


class Account(Actor[str]):
    @exposed
    def deposit(self, amount: int) -> float:
        return amount


@dataclass(frozen=True)
class Total(Request[int, Counter]):
    pass


async def main(node: Node) -> int:
    return await node.call("counter", Total())


async def in_spawn_and_supervision(node: Node) -> None:
    # 1: arguments of the constructor; 2: the name of an option; 3: its value
    await node.spawn(Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.spawn(Counter, 5, mailboxsize=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await node.spawn(Counter, 5, mailbox_size="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # 4: a child
    ChildSpec("counter", Counter, "five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ChildSpec("counter", Counter, 5, restrat="never")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    # 5: no await
    node.spawn(Counter, 5)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


class WrongSignature(Actor):
    # 6
    def handle_message(self, message: object) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


async def in_options() -> None:
    # 7, 8
    run(main, nmae="shop@site")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    run(main, log_lvel="debug")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    run(Counter, name=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    blocking.open_node(log_lvel="debug")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    open_asyncio_node(log_level=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    checked_node(wachdog=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    result = run(main)
    result.upper()  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


class WrongAnswer(Actor):
    # 9
    def handle_call(self, request: Total, caller: Caller) -> object:
        return request.answer_with("five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Misspelled(Actor):
    # 10
    @override
    def handle_mesage(self, message: object, sender: PID) -> None:  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
        pass


def length(text: str) -> int:
    return len(text)


async def in_messages(node: Node, counter: PID[Counter], counters: Group[Counter]) -> None:
    # 11: send; 12: a timer; 13: reply_to and broadcast
    node.send(counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.send_every(1.0, counter, "add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    _ = node.run_task(length, "a", reply_to=counter)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    counters.broadcast("add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def in_calls(node: Node, counter: PID[Counter], account: PID[Account]) -> None:
    # 14: a method of another class; 15: a request for another class
    await node.call(counter, ask(Account.deposit, 3))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await node.call(account, Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def in_other_addresses(
    node: Node,
    account: PID[Account],
    stock: Name[Account],
    service: Service[Account],
    accounts: Registry[Account],
    counters: Group[Counter],
) -> None:
    # 16
    await node.call(stock, Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await service.call(Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    service.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.call(accounts.address("ada"), Total())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    accounts.register("ada", await node.spawn(Counter))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    counters.join(account)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool = await node.spawn(Pool, PoolSpec(Account, size=2))
    await node.call(pool, ask(Counter.total))  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    # 17: the answer of another node's process
    remote: Name[Counter] = Name("counter", "shop@paris")
    (await node.call(remote, ask(Counter.total))).upper()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def right(node: Node, counter: PID[Counter], account: PID[Account], any_pid: PID) -> None:
    service: Service[Counter] = node.service("counter")
    service.send(Add(3))
    service.send(cast(Counter.total))
    assert_type(await service.call(Total()), int)
    assert_type(await service.call(ask(Counter.total)), int)
    await service.call("anything")
    counters: Registry[Counter] = node.registry("counters")
    counters.register("ada", counter)
    counters.register("bob", any_pid)
    counters.broadcast("ada", Add(3))
    (await node.call(counters.address("ada"), Total())).bit_length()
    group: Group[Account] = node.group("accounts")
    group.join(account)
    group.broadcast("hello")
    for member in group.members():
        node.send(member, "hello")
    node.group("any").broadcast(5)
    _ = node.run_task(length, "a", reply_to=any_pid)
