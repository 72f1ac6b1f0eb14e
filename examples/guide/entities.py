"""Accounts whose balances survive the program, with transfers that arrive once."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import trio

from ergo_py import Caller, ChildSpec, Node, Reject, Request, ask, exposed, open_node
from ergo_py.entities import Entities, Entity, SQLite


@dataclass(frozen=True)
class Pay(Request[int]):
    to: str
    amount: int


@dataclass(frozen=True)
class Credit:
    amount: int


@dataclass
class Balance:
    amount: int = 0  # every field has a default: a new account is Balance()


class Account(Entity[Balance]):
    @exposed
    def deposit(self, amount: int) -> int:
        self.state.amount += amount  # the state at the end of the callback is stored
        return self.state.amount  # leaves when it is on disk

    @exposed
    def balance(self) -> int:
        return self.state.amount

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Pay(to, amount):
                self.state.amount -= amount
                if self.state.amount < 0:
                    raise Reject(ValueError("not enough"))  # the state is put back
                self.send(self.entity(Account, to), Credit(amount))  # in the same commit
                return self.state.amount
        raise Reject(LookupError(request))

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Credit(amount):
                self.state.amount += amount


async def start(node: Node, path: Path) -> None:
    entities = Entities.spec(SQLite(path), [Account], types=[Credit])
    await node.supervise([ChildSpec("entities", entities)])


async def main(path: Path) -> None:
    async with open_node("bank@here") as node:
        await start(node, path)
        ada = node.entity(Account, "ada")
        for _ in range(2):  # safe to repeat: the id makes it one
            print("ada", await ada.call(ask(Account.deposit, 10), once="invoice-17"))
        print("ada", await ada.call(Pay("bob", 3)))
        try:
            await ada.call(Pay("bob", 300))
        except ValueError as error:
            print("refused:", error)
    async with open_node("bank@here") as node:  # a program later
        await start(node, path)
        print("ada", await node.entity(Account, "ada").call(ask(Account.balance)))
        bob = node.entity(Account, "bob")
        while not (amount := await bob.call(ask(Account.balance))):  # noqa: ASYNC110
            await trio.sleep(0.01)  # a transfer is two commits: the second follows soon
        print("bob", amount)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder) / "bank.db")
