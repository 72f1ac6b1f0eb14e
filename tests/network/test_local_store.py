"""The store of a `Local` network: its files are removed, and its disk is full."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py.cluster import Cluster
from ergo_py.network import StoreError
from ergo_py.network.stores import local_store
from ergo_py.network.stores.file_locks import locked_file
from ergo_py.network.stores.local_store import LocalStore
from ergo_py.network.stores.store import LARGEST, Entry
from tests.actors import Recorder
from tests.network.pairs import make_network
from tests.network.support import open_files
from tests.support import running_node


@contextmanager
def stores(place: Path, *nodes: str) -> Iterator[list[LocalStore]]:
    made = [LocalStore(place, node, 1) for node in nodes]
    try:
        yield made
    finally:
        for store in made:
            store.close()


async def test_a_directory_that_is_made_for_the_first_time_has_lost_nothing(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        assert (await a.age()).made == inf
        assert (await b.age()).made == inf
        assert (await a.age()).whole == inf


async def test_a_directory_that_was_removed_under_a_program_counts_as_new(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test", "c@test") as (a, b, c):
        first = await a.put("key", b"value", 0)
        await b.age()
        shutil.rmtree(tmp_path / "names")

        # The third program has never used the store before.
        for store in (c, b, a):
            age = await store.age()
            assert age.made < 600
            assert age.whole < 600
        assert await a.get("key") is None
        assert (await a.put("key", b"value", 0)).number > first.number


async def test_a_directory_that_was_removed_after_all_programs_had_ended_is_no_loss(
    tmp_path: Path,
) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        await a.put("key", b"value", 0)
        # It has opened its files, and holds no entry: it waits for the lock of the names.
        open_files(b)
        a.close()
        shutil.rmtree(tmp_path / "names")
        with stores(tmp_path, "c@test") as (c,):
            assert (await c.age()).made == inf


def remove_entries(place: Path, *keys: str) -> None:
    """As ``rm names/*``, which spares hidden files."""
    for path in (place / "names").glob("[!.]*"):
        if not keys or path.name[1:] in keys:
            path.unlink()


async def test_entries_that_were_removed_under_a_program_make_the_store_new(tmp_path: Path) -> None:
    for removed in ((), ("key",)):
        with stores(tmp_path, "a@test", "b@test", "c@test") as (a, b, c):
            await a.put("key", b"value", 0)
            other = await a.put("other", b"value", 0)
            assert (await b.age()).made == inf
            remove_entries(tmp_path, *removed)

            # The third program has never used the store before.
            assert await c.get("key") is None
            for store in (c, b, a):
                assert (await store.age()).made < 600
            assert await a.get("other") == (other if removed else None)
            assert (await b.put("key", b"value", 0)).number > other.number
            shutil.rmtree(tmp_path / "names")


async def test_a_loss_is_noticed_once(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test") as (a,):
        await a.put("key", b"value", 0)
        await a.put("other", b"value", 0)
        remove_entries(tmp_path)
        assert await a.get("key") is None
        born = (tmp_path / "names" / ".born").read_bytes()
        assert await a.get("key") is None
        assert await a.get("other") is None
        assert (await a.put("other", b"value", 0)).value == b"value"
        assert (tmp_path / "names" / ".born").read_bytes() == born


async def test_a_loss_between_a_look_and_a_write_is_noticed(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        assert await b.get("key") is None
        await a.put("key", b"value", 0)
        remove_entries(tmp_path)
        await b.put("key", b"value", 0)
        assert (await b.age()).made < 600


async def test_a_released_entry_is_not_lost(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        for _ in range(2):
            first = await a.put("key", b"value", 0)
            await a.delete("key", first.revision)
            assert await b.get("key") is None
            assert (await b.age()).made == inf


class Killed(BaseException):
    """Stands for the kill of a program: nothing after it runs."""


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_a_program_that_is_killed_while_it_releases_a_name_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    unlink, done = Path.unlink, list[str]()

    def unlink_until_killed(path: Path, missing_ok: bool = False) -> None:
        if len(done) == steps:
            raise Killed
        unlink(path, missing_ok=missing_ok)
        done.append(path.name)

    with stores(tmp_path, "a@test", "b@test") as (a, b):
        first = await a.put("key", b"value", 0)
        assert (await b.age()).made == inf
        monkeypatch.setattr(Path, "unlink", unlink_until_killed)
        with suppress(Killed):
            await a.delete("key", first.revision)
        monkeypatch.undo()
        a.close()
        assert len(done) == steps

        # It is released, or the entry names a program that has ended.
        assert await b.get("key") == (first if steps < 2 else None)
        assert (await b.age()).made == inf
        # Who takes it over may lose it as ever.
        await b.put("key", b"value", first.revision if steps < 2 else 0)
        remove_entries(tmp_path)
        assert await b.get("key") is None
        assert (await b.age()).made < 600


async def test_entries_that_were_removed_after_all_programs_had_ended_are_no_loss(
    tmp_path: Path,
) -> None:
    with stores(tmp_path, "a@test") as (a,):
        await a.put("key", b"value", 0)
    remove_entries(tmp_path)
    with stores(tmp_path, "b@test") as (b,):
        assert await b.get("key") is None
        assert (await b.age()).made == inf


async def test_a_moment_of_birth_that_was_removed_counts_from_now(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        first = await a.put("key", b"value", 0)
        (tmp_path / "names" / ".born").unlink()
        assert await b.get("key") == first
        assert (await b.age()).made < 600


async def test_an_entry_that_is_just_being_written_is_not_lost(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        first = await a.put("key", b"value", 0)
        entry, hidden = tmp_path / "names" / "=key", tmp_path / "names" / ".later"
        entry.rename(hidden)
        lock = locked_file(tmp_path / "names" / ".lock")
        found: list[Entry | None] = []

        async def look() -> None:
            found.append(await b.get("key"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await wait_all_tasks_blocked()
            hidden.rename(entry)
            os.close(lock)
        assert found == [first]
        assert (await b.age()).made == inf


async def test_entries_of_a_version_without_marks_get_them_with_their_renewal(
    tmp_path: Path,
) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        first = await a.put("key", b"value", 0)
        shutil.rmtree(tmp_path / "names" / ".held")
        assert await b.get("key") == first
        assert (await b.age()).made == inf
        await a.put("key", b"value", first.revision)
        remove_entries(tmp_path)
        assert await b.get("key") is None
        assert (await b.age()).made < 600


async def test_no_lease_outlives_a_restart_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        await a.put("key", b"value", 0)
        shutil.rmtree(tmp_path / "names")
        assert (await b.age()).made < 600
        monkeypatch.setattr(local_store, "_boot", lambda: "another start")
        assert (await b.age()).made == inf


async def test_a_moment_of_birth_that_is_later_than_now_is_that_of_an_earlier_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On systems that tell no identity of the start."""
    monkeypatch.setattr(local_store, "_boot", lambda: "")
    with stores(tmp_path, "a@test") as (a,):
        await a.age()
        born = tmp_path / "names" / ".born"
        born.write_text(f" {time.monotonic() + 1000}", encoding="ascii")
        assert (await a.age()).made == inf
        born.write_text("garbage", encoding="ascii")
        assert (await a.age()).made < 600


async def test_a_presence_that_a_cleaner_has_removed_is_made_again(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        first = await a.put("key", b"value", 0)
        for path in sorted(tmp_path.glob(".a*")):  # noqa: ASYNC240
            path.unlink()
        assert not b.is_gone("a@test", 1)
        await a.put("key", b"value", first.revision)
        assert not b.is_gone("a@test", 1)
        shutil.rmtree(tmp_path / "names")
        assert (await b.age()).made < 600
        a.close()


async def test_two_programs_never_lock_two_files(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test", "b@test") as (a, b):
        first = await a.put("key", b"value", 0)
        (tmp_path / "names" / ".lock").unlink()
        second = await b.put("key", b"value", first.revision)
        assert await a.get("key") == second


class FullDisk:
    """A directory with room for so many files."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.room = 1000
        write = Path.write_bytes

        def write_bytes(path: Path, data: Any) -> int:
            if not path.exists() and len(os.listdir(place)) >= self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(path, data)

        monkeypatch.setattr(Path, "write_bytes", write_bytes)

    def fill(self) -> None:
        self.room = len(os.listdir(self.place))


async def test_a_lease_that_could_not_be_renewed_is_not_given_out_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(LocalStore(tmp_path, "a@test", 1)) as store:
        first = await store.put("key", b"value", 0)
        disk = FullDisk(tmp_path / "names", monkeypatch)
        disk.fill()
        with pytest.raises(StoreError, match="No space left on device"):
            await store.put("key", b"value", first.revision)
        await store.delete("key", first.revision)  # there is room for a single file now
        with pytest.raises(StoreError, match="No space left on device"):
            await store.put("key", b"value", 0)
        assert await store.get("key") is None
        assert (await store.age()).made == inf
        # Nothing is left behind, and all is well when there is room again.
        disk.room += 1
        again = await store.put("key", b"value", 0)
        await store.put("key", b"value", again.revision)
        assert len(os.listdir(tmp_path / "names")) == disk.room - 1


async def test_a_name_on_a_full_disk_is_refused_with_the_reason(
    meeting_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node("a@test", network=make_network("local", meeting_place)) as node:
        pid = await node.spawn(Recorder)
        await Cluster(node).register("first", pid)
        disk = FullDisk(meeting_place / "names", monkeypatch)
        disk.fill()
        with pytest.raises(StoreError, match="No space left on device"):
            await Cluster(node).register("second", pid)
        disk.room += 2
        await Cluster(node).register("second", pid)


@pytest.mark.parametrize("last", [b"9" * 20, b"9" * 40, b"-1", b"x", b"1_0", b"", b"\xff"])
async def test_a_damaged_last_revision_counts_as_missing(tmp_path: Path, last: bytes) -> None:
    with stores(tmp_path, "a@test") as (a,):
        first = await a.put("key", b"value", 0)
        (tmp_path / "names" / ".last").write_bytes(last)

        second = await a.put("key", b"other", first.revision)

        assert await a.get("key") == second == Entry(b"other", second.revision, second.number)
        assert first.number < second.number <= LARGEST


@pytest.mark.parametrize("digits", [b"9" * 20, b"-" + b"1" * 19, b"0" * 20, b" 1", b""])
async def test_a_file_without_a_revision_is_no_entry(tmp_path: Path, digits: bytes) -> None:
    with stores(tmp_path, "a@test") as (a,):
        await a.age()
        (tmp_path / "names" / "=key").write_bytes(digits)

        with pytest.raises(StoreError, match="is no entry of a name; remove the file"):
            await a.get("key")


def test_a_node_with_a_name_that_no_file_can_have_is_not_gone(tmp_path: Path) -> None:
    with stores(tmp_path, "a@test") as (a,):
        for node in ("\ud800", "\x00", "x" * 5000, "../a"):
            assert not a.is_gone(node, 1)
