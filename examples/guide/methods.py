import trio

from ergo_py import Actor, ChildSpec, Reject, ask, exposed, open_node
from ergo_py.methods import cast


class Account(Actor):
    def __init__(self, owner: str, *, limit: int = 0) -> None:
        self.owner = owner
        self.limit = limit
        self.balance = 0

    @exposed
    def deposit(self, amount: int, *, twice: bool = False) -> int:
        self.balance += 2 * amount if twice else amount
        return self.balance

    @exposed
    async def withdraw(self, amount: int) -> int:
        if self.balance - amount < -self.limit:
            raise Reject(ValueError(f"{self.owner} has {self.balance}"))
        self.balance -= amount
        return self.balance

    def close(self) -> None:
        """Not exposed: only the actor itself calls it."""


async def main() -> None:
    async with open_node() as node:
        account = await node.spawn(Account.spec("Ada", limit=50), name="account")
        print(await node.call(account, ask(Account.deposit, 10, twice=True)))  # inferred: int
        node.send(account, cast(Account.deposit, 5))
        print(await node.call(account, ask(Account.withdraw, 60)))
        try:
            await node.call(account, ask(Account.withdraw, 60))
        except ValueError as error:
            print("refused:", error)
        print("the message:", ask(Account.deposit, 10, twice=True))

        await node.supervise([ChildSpec("savings", Account.spec("Bob", limit=0), shutdown=1)])
        savings = node.service("savings")
        print(await savings.call(ask(Account.deposit, 7)))


if __name__ == "__main__":
    trio.run(main)
