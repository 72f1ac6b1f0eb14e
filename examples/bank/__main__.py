"""The bank as a program: kill it, start it again, and the balances are there.

    python -m examples.bank [DIRECTORY [PORT]]

It keeps the file bank.db and the folder letters in the directory, by default here.
"""

import sys
from pathlib import Path

import trio

from ergo_py import Node, run
from ergo_py.entities import SQLite

from .front import Bank, balances


async def main(node: Node) -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8090
    store = SQLite(directory / "bank.db")
    await node.spawn(Bank, store, directory / "letters", port, name="bank")
    for owner, balance in (await balances(node)).items():
        print(f"{owner} has {balance}")
    print(f"http://127.0.0.1:{await node.call('front', 'port')}", flush=True)
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="bank@localhost", control="look,act,attach")
