"""dbos: a workflow of a single step for each command, on SQLite. A workflow and its steps are
stored, so it stores more.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUntypedFunctionDecorator=false

import tempfile
from pathlib import Path

from dbos import DBOS

from ..clocks import Stopwatch
from ..harness import Figures, Variant

__all__ = ["ADDS"]

_accounts: dict[str, int] = {}


@DBOS.step()  # type: ignore[untyped-decorator]
def _change(key: str, amount: int) -> int:
    _accounts[key] = _accounts.get(key, 0) + amount
    return _accounts[key]


@DBOS.workflow()  # type: ignore[untyped-decorator]
def _deposit(key: str, amount: int) -> int:
    return int(_change(key, amount))


def _commands(size: int) -> Figures:
    """A tenth of the commands: each takes some ten milliseconds."""
    count = max(1, size // 10)
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'accounts.db'}"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
        DBOS.launch()
        try:
            _deposit("account", 1)
            with Stopwatch() as watch:
                for _ in range(count):
                    _deposit("account", 1)
        finally:
            DBOS.destroy()
    return watch.each(count)


ADDS: dict[str, dict[str, Variant]] = {"entities, 1 client": {"dbos": _commands}}
