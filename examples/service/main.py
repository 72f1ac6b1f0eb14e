"""A ledger that is killed again and again while clients keep calling it, and not a single entry is
lost or made twice.
"""

from dataclasses import dataclass

import trio

from ergo_py import (
    Actor,
    Caller,
    ChildSpec,
    Node,
    Request,
    Service,
    Strategy,
    SupervisorSpec,
    open_node,
)
from ergo_py.supervision import Fate

CLIENTS, DEPOSITS, KILLS = 5, 100, 20


@dataclass(frozen=True)
class Deposit(Request[int]):
    """Book an amount; the answer is the sum so far. The id makes it safe to ask twice."""

    id: str
    amount: int


@dataclass(frozen=True)
class Read(Request[dict[str, int]]):
    """All entries that were ever booked."""


class Store(Actor):
    """Keeps the entries. It stands before the ledger in the tree, so the ledger's end does not
    touch it.
    """

    def __init__(self) -> None:
        self.entries: dict[str, int] = {}

    def handle_call(self, request: object, caller: Caller) -> object:
        if isinstance(request, Deposit):
            self.entries[request.id] = request.amount
        return dict(self.entries)


class Ledger(Actor):
    """Books deposits, slowly enough to be killed in the middle of a booking."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        entries = await self.service("store").call(request)
        await trio.sleep(0.0005)
        return sum(entries.values())


async def client(ledger: Service, number: int) -> None:
    """Keeps calling while the ledger dies and restarts. Only the option ``retry`` knows about
    restarts.
    """
    for count in range(DEPOSITS):
        await ledger.call(Deposit(f"{number}/{count}", amount=1), timeout=30, retry=True)


async def vandal(node: Node, ledger: Service) -> None:
    """Kills the ledger as soon as it answers."""
    for _ in range(KILLS):
        await ledger.call(Read(), timeout=30)
        node.kill("ledger")


async def main() -> None:
    tree = SupervisorSpec(
        [
            ChildSpec("store", Store),
            # KEEP: if the ledger ends, calls waiting in its mailbox continue with its successor.
            ChildSpec("ledger", Ledger, mailbox=Fate.KEEP),
        ],
        strategy=Strategy.REST_FOR_ONE,
        intensity=KILLS,
        period=60,
    )
    async with open_node("bank@localhost", log_level="error") as node:
        bank = await node.supervise(tree, name="bank")
        ledger = node.service("ledger")

        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(client, ledger, number)
            nursery.start_soon(vandal, node, ledger)

        entries = await node.service("store").call(Read())
        restarts = {child.name: child.restarts for child in bank.children()}
        print(
            f"{CLIENTS * DEPOSITS} deposits made, {len(entries)} in the store, "
            f"{sum(entries.values())} in all"
        )
        print(f"the ledger was killed {KILLS} times and started again {restarts['ledger']} times")


if __name__ == "__main__":
    trio.run(main)
