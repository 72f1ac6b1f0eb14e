"""A crash keeps synced writes, and keeps, loses or tears the others at sectors."""

from random import Random

import pytest
import trio

from ergo_py.testing import World
from ergo_py.testing.world.disk import SECTOR, WorldDisk
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def crashed(seed: int, *writes: bytes, synced: int = 0) -> bytes:
    disk = WorldDisk(Random(seed))
    file = disk.file("journal")
    for number, data in enumerate(writes):
        file.write(data)
        if number + 1 == synced:
            file.sync()
    disk.crash()
    return file.read()


def test_writes_are_read_before_they_are_synced() -> None:
    file = WorldDisk(Random(1)).file("journal")
    file.write(b"hello")
    file.write(b"J", 0)

    assert file.read() == b"Jello"
    assert file.read(1, 3) == b"ell"
    assert len(file) == 5


def test_synced_writes_survive_and_others_may() -> None:
    found = {crashed(seed, b"one", b"two", b"three", synced=2) for seed in range(50)}

    assert found == {b"onetwo", b"onetwothree"}


def test_a_lost_write_before_a_kept_write_leaves_zeros() -> None:
    found = {crashed(seed, b"one", b"two") for seed in range(100)}

    assert found == {b"", b"one", b"onetwo", b"\0\0\0two"}


def test_a_write_is_torn_at_the_border_of_a_sector() -> None:
    sizes = {len(crashed(seed, b"x" * 100, b"y" * 2000, synced=1)) for seed in range(200)}

    assert sizes == {100, SECTOR, 2 * SECTOR, 3 * SECTOR, 4 * SECTOR, 2100}


def test_a_crash_syncs_the_rest() -> None:
    disk = WorldDisk(Random(1))
    file = disk.file("journal")
    file.write(b"x" * 3000)
    disk.crash()
    left = file.read()
    disk.crash()

    assert file.read() == left
    assert disk.crashes == 2
    assert disk.names == ["journal"]


def test_a_file_that_is_cut_stays_cut() -> None:
    disk = WorldDisk(Random(1))
    file = disk.file("journal")
    file.write(b"hello")
    file.truncate(2)
    disk.crash()

    assert disk.file("journal").read() == b"he"


def test_a_write_to_a_disk_that_fails_raises_and_changes_nothing() -> None:
    disk = WorldDisk(Random(1))
    file = disk.file("journal")
    file.write(b"one")
    disk.fail(1.0)

    with pytest.raises(OSError, match="fails in this world"):
        file.write(b"two")
    disk.fail(0.0)
    file.write(b"three")

    assert file.read() == b"onethree"


def test_a_sync_that_fails_keeps_or_loses_the_writes_before_it() -> None:
    found = set()
    for seed in range(50):
        disk = WorldDisk(Random(seed))
        file = disk.file("journal")
        file.write(b"one")
        file.sync()
        file.write(b"two")
        disk.fail(1.0)
        with pytest.raises(OSError, match="fails in this world"):
            file.sync()
        before = file.read()
        disk.crash()
        assert file.read() == before
        found.add(before)

    assert found == {b"one", b"onetwo"}


def test_a_slow_disk_takes_its_time() -> None:
    async def test(world: World) -> None:
        disk = WorldDisk(Random(1))
        await disk.wait()
        assert trio.current_time() == 0.0
        disk.slow(2.0)
        await disk.wait()
        assert 0.0 < trio.current_time() <= 2.0

    assert run_world(World(Plan(0)), test) is None
