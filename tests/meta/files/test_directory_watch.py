"""Directories that change while they are watched, with the help of the operating system and
without.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Crashed, InitError, Shutdown
from ergo_py.meta.files.directory_watch import Change, DirectoryWatch, PathChanged
from ergo_py.meta.files.inotify import lacks_watches
from tests.meta.owner import Owned, eventually, owning
from tests.support import open_descriptors, replace_private

ADDED, MODIFIED, DELETED = Change.ADDED, Change.MODIFIED, Change.DELETED


HAS_PACKAGE = find_spec("watchfiles") is not None
BOTH = [
    pytest.param(True, id="polling"),
    pytest.param(
        False,
        id="watchfiles",
        marks=pytest.mark.skipif(not HAS_PACKAGE, reason="the extra watch is not installed"),
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


async def told_among(owned: Owned, change: Change, path: Path) -> None:
    """Wait until this change is sent, among others."""
    while True:
        message = await owned.until(PathChanged)
        if (message.change, message.path) == (change, str(path)):
            return


def exchange(one: Path, other: Path) -> None:
    """Have two paths change places in a single step."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        pytest.skip("this system cannot exchange two directories")
    if library.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2):
        pytest.skip(
            f"this file system cannot exchange two directories: {os.strerror(ctypes.get_errno())}"
        )


@pytest.mark.parametrize("polling", BOTH)
async def test_added_modified_and_deleted_files_are_sent(polling: bool, tmp_path: Path) -> None:
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
async def test_each_path_of_a_tree_that_is_moved_in_or_out_is_sent(
    polling: bool, tmp_path: Path
) -> None:
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
async def test_no_change_is_lost_when_many_files_change_at_once(
    polling: bool, tmp_path: Path
) -> None:
    async with owning() as owned:
        await owned.spawn(watch(tmp_path, polling))

        for number in range(500):
            (tmp_path / str(number)).write_text("x")

        seen: set[str] = set()
        while len(seen) < 500:
            seen.add((await owned.until(PathChanged)).path)


@pytest.mark.parametrize("polling", BOTH)
async def test_with_initial_the_existing_files_are_sent_as_added(
    polling: bool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "skip").write_text("x")
    async with owning() as owned:
        source = await owned.spawn(
            watch(tmp_path, polling, initial=True, ignore=lambda path: path.endswith("skip"))
        )

        assert await owned.next() == PathChanged(source, ADDED, str(tmp_path / "file"))


@pytest.mark.parametrize("polling", BOTH)
async def test_a_removed_directory_ends_the_watch_after_its_files_are_reported(
    polling: bool, tmp_path: Path
) -> None:
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
async def test_the_watch_stops_at_once_and_leaves_no_descriptor_open(
    polling: bool, tmp_path: Path
) -> None:
    async with owning() as owned:
        before = open_descriptors()
        source = await owned.spawn(watch(tmp_path, polling), stop_timeout=60)
        (tmp_path / "file").write_text("x")
        await told(owned, ADDED, tmp_path / "file")

        with trio.fail_after(30):
            owned.node.send_exit(source)
            assert await owned.down() == Shutdown()

        # The thread inside the package takes a moment.
        with trio.fail_after(30):
            await eventually(lambda: open_descriptors() <= before)


@pytest.mark.parametrize("polling", BOTH)
async def test_a_slow_receiver_slows_the_watch_and_loses_no_change(
    polling: bool, tmp_path: Path
) -> None:
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(watch(tmp_path, polling, receiver=owned.owner), backlog=5)
        for number in range(50):
            (tmp_path / str(number)).touch()

        queued = await owned.filled(5)
        go_on()

        assert queued == 5
        assert {(await owned.until(PathChanged)).path for _ in range(50)} == {
            str(tmp_path / str(n)) for n in range(50)
        }


async def test_without_the_package_the_watch_polls_unless_polling_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    async with owning() as owned:
        source = await owned.spawn(DirectoryWatch(tmp_path, interval=0.01))
        with pytest.raises(InitError, match=r"ergo_py\[watch\]"):
            await owned.spawn(DirectoryWatch(tmp_path, polling=False))

        (tmp_path / "file").touch()

        await told(owned, ADDED, tmp_path / "file")
        assert (await owned.node.inspect_meta(source))["backend"] == "polling"


async def test_changes_that_the_operating_system_does_not_report_are_found(
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
    replace_private(monkeypatch, "rescan period of directories", 0.05)
    async with owning() as owned:
        await owned.spawn(DirectoryWatch(tmp_path, polling=False))

        for name in ("one", "two"):
            (tmp_path / name).touch()
            await told(owned, ADDED, tmp_path / name)


@pytest.mark.parametrize("polling", BOTH)
async def test_a_name_that_is_not_utf_8_is_sent_and_the_watch_continues(
    polling: bool, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff"
    async with owning() as owned:
        source = await owned.spawn(watch(tmp_path, polling))
        for name in ("one", "two"):
            try:
                os.close(os.open(odd, os.O_CREAT | os.O_WRONLY))
            except OSError:
                pytest.skip("this file system takes names in UTF-8 only")
            await told(owned, ADDED, Path(os.fsdecode(odd)))
            (tmp_path / name).touch()
            await told(owned, ADDED, tmp_path / name)
            os.unlink(odd)
            await told(owned, DELETED, Path(os.fsdecode(odd)))

        assert (await owned.node.inspect_meta(source))["backend"] == (
            "polling" if polling else "watchfiles"
        )


@pytest.mark.parametrize("polling", BOTH)
@pytest.mark.parametrize("is_removed", [False, True], ids=["renamed", "removed"])
async def test_a_directory_that_replaces_the_watched_directory_is_watched(
    polling: bool, is_removed: bool, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    new = tmp_path / "new"
    root.mkdir()
    (root / "old").touch()
    async with owning() as owned:
        await owned.spawn(watch(root, polling))
        for number in range(2):
            new.mkdir()
            (new / f"young{number}").touch()
            # In a single step, so that there is always a directory.
            exchange(new, root)
            if is_removed:
                shutil.rmtree(new)
            else:
                new.rename(tmp_path / f"away{number}")
            await told_among(owned, ADDED, root / f"young{number}")
            # Not found by the comparison, which comes after a minute.
            (root / f"younger{number}").touch()
            await told_among(owned, ADDED, root / f"younger{number}")


@pytest.mark.parametrize("polling", [None, False])
async def test_a_watch_polls_if_the_package_always_fails(
    polling: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        @staticmethod
        def watch(*_: object, **__: object) -> Iterator[set[tuple[int, str]]]:
            raise RuntimeError("internal error")
            yield set()

    monkeypatch.setitem(sys.modules, "watchfiles", Broken)
    async with owning() as owned:
        source = await owned.spawn(DirectoryWatch(tmp_path, polling=polling, interval=0.01))
        for name in ("one", "two"):
            (tmp_path / name).touch()
            await told(owned, ADDED, tmp_path / name)
        await until_backend(owned, source, "polling")


async def test_a_watch_polls_if_the_package_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        @staticmethod
        def watch(*_: object, **__: object) -> Iterator[set[tuple[int, str]]]:
            raise OSError(24, "inotify instance limit reached")
            yield set()

    monkeypatch.setitem(sys.modules, "watchfiles", Refused)
    async with owning() as owned:
        source = await owned.spawn(DirectoryWatch(tmp_path, interval=0.01))
        (tmp_path / "file").touch()
        await told(owned, ADDED, tmp_path / "file")
        assert (await owned.node.inspect_meta(source))["backend"] == "polling"

        await owned.spawn(DirectoryWatch(tmp_path, polling=False))
        reason = await owned.down()
        assert isinstance(reason, Crashed)
        assert "instance limit" in str(reason)


class Silent:
    """A package that listens to nothing, for want of watches, and does not say so."""

    @staticmethod
    def watch(*_: object, stop_event: Any, **__: object) -> Iterator[set[tuple[int, str]]]:
        while not stop_event.is_set():
            yield set()
            time.sleep(0.01)


async def test_the_tree_is_polled_when_no_inotify_watches_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", Silent)
    replace_private(monkeypatch, "lack of directory watches", lambda: True)
    async with owning() as owned:
        source = await owned.spawn(DirectoryWatch(tmp_path, interval=0.01))
        for name in ("one", "two"):
            (tmp_path / name).touch()
            await told(owned, ADDED, tmp_path / name)
        await until_backend(owned, source, "polling")

        await owned.spawn(DirectoryWatch(tmp_path, polling=False))
        reason = await owned.down()
        assert isinstance(reason, Crashed)
        assert "fs.inotify.max_user_watches" in str(reason)


async def test_a_watch_continues_when_inotify_watches_run_out_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking, asked = False, 0

    def lacks() -> bool:
        nonlocal asked
        asked += 1
        return lacking

    monkeypatch.setitem(sys.modules, "watchfiles", Silent)
    replace_private(monkeypatch, "rescan period of directories", 0.05)
    replace_private(monkeypatch, "lack of directory watches", lacks)
    async with owning() as owned:
        source = await owned.spawn(DirectoryWatch(tmp_path, polling=False, interval=0.01))
        (tmp_path / "one").touch()
        await told(owned, ADDED, tmp_path / "one")
        await eventually(lambda: asked == 1)
        lacking = True
        (tmp_path / "two").touch()
        await told(owned, ADDED, tmp_path / "two")
        assert (await owned.node.inspect_meta(source))["backend"] == "watchfiles"

        # A directory needs a further watch.
        (tmp_path / "three").mkdir()
        await told(owned, ADDED, tmp_path / "three")
        await until_backend(owned, source, "polling")
        (tmp_path / "three" / "four").touch()
        await told(owned, ADDED, tmp_path / "three" / "four")


async def until_backend(owned: Owned, source: Any, wanted: str) -> None:
    while (await owned.node.inspect_meta(source))["backend"] != wanted:  # noqa: ASYNC110
        await trio.sleep(0.005)


LIMITED = """
import sys
from ergo_py.meta.files.inotify import lacks_watches
print(lacks_watches())
with open("/proc/sys/user/max_inotify_watches", "w") as limit:
    limit.write("0")
print(lacks_watches())
"""


def test_the_system_tells_whether_inotify_watches_are_left() -> None:
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", LIMITED],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no user namespace with a limit of its own: {done.stderr.splitlines()[-1:]}")

    assert done.stdout.split() == ["False", "True"]


def test_without_inotify_no_watches_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (
        object(),
        type("Exhausted", (), {"inotify_init1": lambda *_: -1, "inotify_add_watch": None})(),
    ):
        monkeypatch.setattr("ctypes.CDLL", lambda *_, found=library, **__: found)
        assert not lacks_watches()


async def test_a_path_that_is_no_directory_fails_the_spawn(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    async with owning() as owned:
        with pytest.raises(InitError, match="no such directory"):
            await owned.spawn(DirectoryWatch(tmp_path / "missing"))
        with pytest.raises(InitError, match="no such directory"):
            await owned.spawn(DirectoryWatch(file))


@pytest.mark.parametrize(
    "options",
    [
        {"path": 7},
        {"path": os.fsencode("x")},
        {"path": "x", "interval": 0},
        {"path": "x", "receiver": 7},
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        DirectoryWatch(**options)
