"""Traders in a program of their own, which tells each command on its output. It trades until it is
killed; with a limit it trades a little, stops, and waits for the coins under way.
"""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

import trio

from ergo_py import Node, open_node
from ergo_py.entities import EntityStoreError, SQLite
from ergo_py.entities.activations.activation import Activation
from ergo_py.entities.activations.commands import Commands
from ergo_py.entities.activations.held_output import HeldOutput
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Write
from ergo_py.entity_handles import Address

from .traders import TRADERS, Trader, keep_traders, trade

__all__ = ["RULES"]


LONELY: Final = TRADERS + 3
"""A trader that gets no coins."""


class Failing(SQLite):
    """A store whose commits fail now and then: before the write, or after it."""

    commits = 0
    fails_next = False

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write, or fail."""
        self.commits += 1
        if self.commits % 29 == 0:
            raise EntityStoreError("a fault before the write")
        await super().commit(writes)
        if self.fails_next or self.commits % 23 == 0:
            self.fails_next = False
            raise EntityStoreError("a fault after the write")


_OUTPUT: Final[Any] = HeldOutput
_COMMANDS: Final[Any] = Commands
_ACTIVATION: Final[Any] = Activation


def _break_replies() -> None:
    _OUTPUT.is_stored = lambda _self: True


def _break_ids() -> None:
    _COMMANDS.answer = lambda *_args: False


def _break_waking() -> None:
    fail = Activation.fail

    def forget(self: Activation, error: EntityStoreError, due: float | None = None) -> None:
        fail(self, error, due)
        self.due = None

    _ACTIVATION.fail = forget


RULES: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "replies leave before the commit": _break_replies,
    "ids are ignored": _break_ids,
    "entities do not wake after a failure": _break_waking,
}
"""Rules of entities, and how to break each."""


async def main(
    path: Path, first: dict[str, int], limit: float, synchronous: Literal["FULL", "NORMAL"]
) -> None:
    """Trade until the program is killed, or wait at most ``limit`` seconds for the coins."""
    async with open_node("traders@here", log_level="off") as node:
        store = Failing(path, synchronous=synchronous)
        await keep_traders(node, store)
        async with trio.open_nursery() as nursery:
            for trader in range(TRADERS):
                begin = first.get(str(trader), 1)
                numbers = range(begin, begin + 7) if limit else count(begin)
                nursery.start_soon(trade, node, trader, numbers, tell)
        with trio.move_on_after(limit):
            await _settle(store)
            await _give_up(node, store)
            await _settle(store)


async def _give_up(node: Node, store: Failing) -> None:
    """Pay a coin: the commit fails after the write, and the client does not repeat its command. No
    other trader sends to this one, so that only the keeper can wake it.
    """
    await trade(node, LONELY, [1], tell)
    store.fails_next = True
    await trade(node, LONELY, [2], tell, gives_up=True)


async def _settle(store: SQLite) -> None:
    """Wait until no trader owes a coin. Calls would wake the traders."""
    addresses = [Address(Trader.kind, str(trader)) for trader in (*range(TRADERS), LONELY)]
    while any(  # noqa: ASYNC110
        row is not None and Record.decode(row.record).owed for row in await store.load(addresses)
    ):
        await trio.sleep(0.01)


def tell(line: str) -> None:
    """Write a line at once: the program may be killed after it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    RULES[given["broken"]]()
    trio.run(main, Path(given["path"]), given["first"], given["limit"], given["synchronous"])
