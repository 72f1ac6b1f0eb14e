"""A store of entities keeps the contract: the rules of the test kit, for a store of your own."""

from functools import partial
from pathlib import Path

from ergo_py.entities import SQLite
from ergo_py.testing import STORE_RULES


async def test_the_store_keeps_the_contract(tmp_path: Path) -> None:
    for rule in STORE_RULES:
        await rule(partial(SQLite, tmp_path / f"{rule.__name__}.db"))  # your store instead
