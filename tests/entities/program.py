"""A bank in a program of its own, which tells each acknowledged command on its output."""

import sys
from pathlib import Path

import trio

from ergo_py import ChildSpec, ask, open_node
from ergo_py.entities import Entities, SQLite
from tests.entities.bank import TYPES, Account, Pay

CLIENTS = 8


async def main(path: Path, life: str) -> None:
    """Deposit and transfer until the program is killed."""
    async with open_node("bank@here", log_level="critical") as node:
        entities = Entities.spec(SQLite(path), [Account], types=TYPES, max_awake=CLIENTS // 2)
        await node.supervise([ChildSpec("entities", entities)])

        async def client(number: int) -> None:
            account = node.entity(Account, str(number))
            for step in range(1_000_000):
                await account.call(ask(Account.deposit, 2), once=f"{life}-{step}", timeout=None)
                tell(f"deposit {number} 2\n")
                await account.call(
                    Pay(str((number + 1) % CLIENTS), 1), once=f"{life}-{step}-pay", timeout=None
                )
                tell(f"pay {number} 1\n")

        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(client, number)


def tell(line: str) -> None:
    """Write a line at once: the program may be killed after it."""
    sys.stdout.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    tell("ready\n")
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
