"""Directories that change while they are watched, with the help of the operating system and without."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Crashed, InitError, Shutdown
from ergo_py.meta.watch import Change, DirectoryWatch, PathChanged
from tests.meta.owner import Owned, eventually, owning
from tests.support import open_descriptors

ADDED, MODIFIED, DELETED = Change.ADDED, Change.MODIFIED, Change.DELETED


HAS_PACKAGE = find_spec("watchfiles") is not None
BOTH = [
    pytest.param(True, id="polling"),
    pytest.param(
        False, id="watchfiles", marks=pytest.mark.skipif(not HAS_PACKAGE, reason="the extra watch is not installed")
    ),
]


def watch(path: Path, polling: bool, **options: Any) -> DirectoryWatch:
    return DirectoryWatch(path, polling=polling, **{"interval": 0.01, **options})


async def told(owned: Owned, change: Change, path: Path) -> None:
    """Wait until this is told; a file that is written may be told as modified, too."""
    while True:
        message = await owned.until(PathChanged)
        if (message.change, message.path) == (change, str(path)):
            return
        assert message.change is MODIFIED, message


@pytest.mark.parametrize("polling", BOTH)
async def test_files_that_come_change_and_go_are_told(polling: bool, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    async with owning() as owned:
        source = await owned.spawn(watch(tmp_path, polling))

        (tmp_path / "new").write_text("x")
        await told(owned, ADDED, tmp_path / "new")
        (tmp_path / "old").write_text("longer")
        await told(owned, MODIFIED, tmp_path / "old")
        (tmp_path / "new").unlink()
        await told(owned, DELETED, tmp_path / "new")

        shown = await owned.node.inspect_meta(source)
        assert shown["backend"] == ("polling" if polling else "watchfiles")
        assert shown["paths"] == "1"


@pytest.mark.parametrize("polling", BOTH)
async def test_a_whole_tree_that_is_moved_in_or_out_is_told(polling: bool, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    (outside / "d").mkdir(parents=True)
    (outside / "d" / "f").write_text("x")
    inside.mkdir()
    async with owning() as owned:
        await owned.spawn(watch(inside, polling))

        (outside / "d").rename(inside / "d")
        await told(owned, ADDED, inside / "d")
        await told(owned, ADDED, inside / "d" / "f")
        (inside / "d" / "g").write_text("x")
        await told(owned, ADDED, inside / "d" / "g")
        (inside / "d").rename(outside / "d")

        await told(owned, DELETED, inside / "d" / "g")
        await told(owned, DELETED, inside / "d" / "f")
        await told(owned, DELETED, inside / "d")


@pytest.mark.parametrize("polling", BOTH)
async def test_nothing_is_lost_when_many_files_change_at_once(polling: bool, tmp_path: Path) -> None:
    async with owning() as owned:
        await owned.spawn(watch(tmp_path, polling))

        for number in range(500):
            (tmp_path / str(number)).write_text("x")

        seen: set[str] = set()
        while len(seen) < 500:
            seen.add((await owned.until(PathChanged)).path)


@pytest.mark.parametrize("polling", BOTH)
async def test_what_is_there_at_the_beginning_is_told_if_so_asked(polling: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "skip").write_text("x")
    async with owning() as owned:
        source = await owned.spawn(watch(tmp_path, polling, initial=True, ignore=lambda path: path.endswith("skip")))

        assert await owned.next() == PathChanged(source, ADDED, str(tmp_path / "file"))


@pytest.mark.parametrize("polling", BOTH)
async def test_a_directory_that_is_removed_ends_the_watch_after_what_was_in_it(polling: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("x")
    async with owning() as owned:
        await owned.spawn(watch(root, polling))

        shutil.rmtree(root)
        reason = await owned.down()

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, FileNotFoundError)
        assert [message.change for message in owned.of(PathChanged)] == [DELETED]


@pytest.mark.parametrize("polling", BOTH)
async def test_stopping_takes_no_time_and_leaves_nothing_open(polling: bool, tmp_path: Path) -> None:
    async with owning() as owned:
        before = open_descriptors()
        source = await owned.spawn(watch(tmp_path, polling), stop_timeout=60)
        (tmp_path / "file").write_text("x")
        await told(owned, ADDED, tmp_path / "file")

        with trio.fail_after(15):
            owned.node.send_exit(source)
            assert await owned.down() == Shutdown()

        # The thread inside the package takes a moment.
        with trio.fail_after(15):
            await eventually(lambda: open_descriptors() <= before)


@pytest.mark.parametrize("polling", BOTH)
async def test_a_slow_receiver_slows_the_watch_and_loses_nothing(polling: bool, tmp_path: Path) -> None:
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(watch(tmp_path, polling, receiver=owned.owner), backlog=5)
        for number in range(50):
            (tmp_path / str(number)).touch()

        queued = await owned.filled(5)
        go_on()

        assert queued == 5
        assert {(await owned.until(PathChanged)).path for _ in range(50)} == {str(tmp_path / str(n)) for n in range(50)}


async def test_without_the_package_it_polls_unless_told_not_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    async with owning() as owned:
        source = await owned.spawn(DirectoryWatch(tmp_path, interval=0.01))
        with pytest.raises(InitError, match=r"ergo_py\[watch\]"):
            await owned.spawn(DirectoryWatch(tmp_path, polling=False))

        (tmp_path / "file").touch()

        await told(owned, ADDED, tmp_path / "file")
        assert (await owned.node.inspect_meta(source))["backend"] == "polling"


async def test_what_the_operating_system_does_not_tell_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf:
        """A package that never has anything to tell: its queue has overflowed."""

        @staticmethod
        def watch(*_: object, stop_event: Any, **__: object) -> Iterator[set[tuple[int, str]]]:
            while not stop_event.is_set():
                yield set()
                time.sleep(0.01)

    monkeypatch.setitem(sys.modules, "watchfiles", Deaf)
    monkeypatch.setattr("ergo_py.meta.watch._RESCAN", 0.05)
    async with owning() as owned:
        await owned.spawn(DirectoryWatch(tmp_path, polling=False))

        for name in ("one", "two"):
            (tmp_path / name).touch()
            await told(owned, ADDED, tmp_path / name)


async def test_what_is_no_directory_is_an_error_of_the_spawn(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    async with owning() as owned:
        with pytest.raises(InitError, match="no such directory"):
            await owned.spawn(DirectoryWatch(tmp_path / "missing"))
        with pytest.raises(InitError, match="no such directory"):
            await owned.spawn(DirectoryWatch(file))


@pytest.mark.parametrize(
    "options", [{"path": 7}, {"path": os.fsencode("x")}, {"path": "x", "interval": 0}, {"path": "x", "receiver": 7}]
)
def test_arguments_that_can_never_be_right_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        DirectoryWatch(**options)
