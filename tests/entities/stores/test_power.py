"""A loss of power at any moment: the file has every acknowledged command, and none in part."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from ergo_py import open_node
from ergo_py.entities import SQLite
from tests.entities.support import checkpoint_often, set_synchronous
from tests.entities.traders import TRADERS, Told, faults_of, keep_traders, read_rows, trade
from tests.support import THOROUGH

from .recorded_disk import RecordedDisk, can_record, recorded

pytestmark = pytest.mark.skipif(not can_record(), reason="SQLite is linked into this Python")

SEEDS = range(40 if THOROUGH else 2)
STEPS = 60 if THOROUGH else 9
LIVES = 3 if THOROUGH else 2


def _record(directory: Path, synchronous: str = "") -> RecordedDisk:
    """Record programs that trade, in sequence; without a word, on a store as users have it."""

    async def program(disk: RecordedDisk, first: int) -> None:
        async with open_node("traders@here", log_level="critical") as node:
            store = SQLite(directory / "state.db")
            if synchronous:
                set_synchronous(store, synchronous)
            await keep_traders(node, store)
            await checkpoint_often(store, pages=20)
            async with trio.open_nursery() as nursery:
                for trader in range(TRADERS):
                    numbers = range(first, first + STEPS)
                    nursery.start_soon(trade, node, trader, numbers, disk.note)

    with recorded(directory) as disk:
        for life in range(LIVES):
            trio.run(program, disk, 1 + life * STEPS)
    return disk


def _losses(disk: RecordedDisk, scratch: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Lose power at every moment, and list the faults of the file."""
    points = disk.points()
    for seed in SEEDS:
        chosen = points if THOROUGH else Random(seed).sample(points, min(60, len(points)))
        for point in chosen:
            directory = scratch / "lost"
            directory.mkdir()
            disk.lose_power(point, seed, directory)
            yield point, seed, _faults(directory, Told().take(disk.notes_before(point)))
            for each in directory.iterdir():
                each.unlink()
            directory.rmdir()


def _faults(directory: Path, told: Told) -> list[str]:
    try:
        found: dict[str, Any] = {}
        if (directory / "state.db").exists():
            found = read_rows(directory / "state.db")
        return faults_of(found, told)
    except Exception as error:
        return [repr(error)]


def test_a_loss_of_power_takes_no_acknowledged_command(tmp_path: Path) -> None:
    directory = tmp_path / "disk"
    directory.mkdir()

    disk = _record(directory)

    assert [each for each in _losses(disk, tmp_path) if each[2]] == []
    told = Told().take(disk.notes_before(len(disk.events)))
    assert told.answered == {str(trader): LIVES * STEPS for trader in range(TRADERS)}
    assert faults_of(read_rows(directory / "state.db"), told) == []


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_file_that_is_not_synced_loses_acknowledged_commands(
    synchronous: str, tmp_path: Path
) -> None:
    directory = tmp_path / "disk"
    directory.mkdir()

    disk = _record(directory, synchronous)

    assert any("acknowledged" in str(faults) for *_, faults in _losses(disk, tmp_path))
