"""The stores that must keep the contract."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergo_py.entities import MemoryStore, SQLite


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Makes a store of each kind. A second store has the rows of the first."""
    if request.param == "sqlite":
        return lambda: SQLite(tmp_path / "state.db", synchronous="NORMAL")
    rows: dict[Any, Any] = {}

    def make() -> MemoryStore:
        store = MemoryStore()
        store.rows = rows
        return store

    return make
