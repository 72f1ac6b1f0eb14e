"""Following a path: driven step by step, and compared with the written lines."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergo_py.meta.files.followed_file import FollowedFile, FollowedFiles
from ergo_py.meta.parsing.cutter import MessageCutter
from ergo_py.meta.parsing.lines import Text
from tests.support import open_descriptors

ROTATED, TRUNCATED = object(), object()


@pytest.fixture
def now() -> list[float]:
    """The time, for the test to set."""
    return [0.0]


@dataclass
class Rig:
    """A writer that rotates, and a reader that looks."""

    path: Path
    now: list[float]
    files: FollowedFiles = field(default_factory=FollowedFiles)
    generation: int = 0
    number: int = 0
    written: list[str] = field(default_factory=list)
    read: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file = self.path.open("ab", buffering=0)

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            self.written.append(str(self.number))
            self.file.write(b"%d\n" % self.number)

    def write_half(self) -> None:
        """The output of a buffer that is full in the middle of a line."""
        self.number += 1
        self.written.append(f"{self.number}.{self.number}")
        self.file.write(b"%d." % self.number)
        self.look_and_read()
        self.file.write(b"%d\n" % self.number)

    def rotate(self) -> None:
        self.generation += 1
        self.path.rename(f"{self.path}.{self.generation}")
        # The writer has not noticed yet.
        self.write()
        self.file.close()
        self.file = self.path.open("ab", buffering=0)
        self.look()

    def look(self) -> None:
        if not self.files.has_newest(os.stat(self.path)):
            cutter = MessageCutter(Text(), lambda line, is_whole: line, bytes)
            self.files.add(
                FollowedFile(
                    str(self.path), cutter, lambda: self.now[0], follow=True, from_end=False
                )
            )

    def look_and_read(self, linger: float = 1.0) -> None:
        self.look()
        self.read += self.files.read(linger, ROTATED, TRUNCATED)

    @property
    def lines(self) -> list[object]:
        return [piece for piece in self.read if isinstance(piece, str)]

    def close(self) -> None:
        self.file.close()
        self.files.close()


@pytest.fixture
def rig(tmp_path: Path, now: list[float]) -> Iterator[Rig]:
    rig = Rig(tmp_path / "log", now)
    yield rig
    rig.close()


def test_files_rotated_between_two_reads_are_all_read_in_order(rig: Rig, now: list[float]) -> None:
    rig.look()
    for _ in range(4):
        rig.write(3)
        rig.rotate()
        now[0] += 100

    rig.look_and_read()
    rig.look_and_read()

    assert rig.lines == rig.written
    assert rig.read.count(ROTATED) == rig.files.rotations == 4


def test_lines_written_during_the_measurement_are_read_in_order(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.look()
    rig.rotate()
    middle = rig.path.open("ab", buffering=0)
    second = rig.files.newest()
    rig.rotate()
    measure = second.size

    def size() -> int:
        found = measure()
        monkeypatch.undo()
        # Its writer goes on, and only then to the newest file.
        middle.write(b"earlier\n")
        rig.file.write(b"later\n")
        return found

    monkeypatch.setattr(second, "size", size)
    rig.look_and_read()
    rig.look_and_read()

    assert rig.lines[-2:] == ["earlier", "later"]
    middle.close()


def test_a_rotated_file_is_closed_only_after_a_quiet_time(rig: Rig, now: list[float]) -> None:
    rig.look_and_read()
    rig.write()
    now[0] = 1000.0
    late = rig.path.open("ab", buffering=0)
    rig.rotate()
    rig.look_and_read()
    assert len(rig.files) == 2

    now[0] += 0.9
    late.write(b"late\n")
    rig.look_and_read()
    now[0] += 0.9
    late.write(b"later")
    rig.look_and_read()
    assert len(rig.files) == 2

    now[0] += 1.1
    rig.look_and_read()
    assert len(rig.files) == 1
    assert rig.lines[-2:] == ["late", "later"]
    late.close()


def test_a_truncated_file_is_read_from_its_start_and_half_a_line_is_kept(rig: Rig) -> None:
    rig.write(5)
    rig.file.write(b"half")
    rig.look_and_read()

    rig.file.truncate(0)
    rig.look_and_read()
    rig.file.write(b"new\n")
    rig.look_and_read()

    assert rig.read == ["1", "2", "3", "4", "5", "half", TRUNCATED, "new"]
    assert rig.files.truncations == 1


def test_a_truncated_file_that_has_grown_past_the_old_place_is_noticed(rig: Rig) -> None:
    rig.write(5)
    rig.look_and_read()

    rig.file.truncate(0)
    rig.file.write(b"".join(b"new %d\n" % number for number in range(20)))
    rig.look_and_read()

    assert rig.read == [
        "1",
        "2",
        "3",
        "4",
        "5",
        TRUNCATED,
        *(f"new {number}" for number in range(20)),
    ]
    assert rig.files.truncations == 1


def test_a_file_rewritten_with_the_same_size_is_noticed(rig: Rig) -> None:
    rig.write(5)
    rig.look_and_read()

    rig.file.truncate(0)
    rig.file.write(b"5\n4\n3\n2\n1\n")
    os.utime(rig.path, (1, 1))
    rig.look_and_read()

    assert rig.lines == ["1", "2", "3", "4", "5", "5", "4", "3", "2", "1"]


def test_a_file_followed_from_its_end_and_rewritten_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n" * 100)
    files = FollowedFiles()
    cutter = MessageCutter(Text(), lambda line, is_whole: line, bytes)
    files.add(FollowedFile(str(path), cutter, lambda: 0.0, follow=True, from_end=True))
    assert list(files.read(1.0, ROTATED, TRUNCATED)) == []

    path.write_bytes(b"new\n" * 101)

    assert list(files.read(1.0, ROTATED, TRUNCATED)) == [TRUNCATED, *["new"] * 101]
    files.close()


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="there is no /proc here")
def test_a_file_that_has_no_size_but_can_be_read_is_read_once() -> None:
    files = FollowedFiles()
    cutter = MessageCutter(Text(), lambda line, is_whole: line, bytes)
    files.add(FollowedFile("/proc/meminfo", cutter, lambda: 0.0, follow=True, from_end=False))

    first = list(files.read(1.0, ROTATED, TRUNCATED))
    rest = [list(files.read(1.0, ROTATED, TRUNCATED)) for _ in range(3)]

    assert str(first[0]).startswith("MemTotal:")
    # It may have grown by a few letters meanwhile, and is not read again.
    assert not any("MemTotal" in str(line) for lines in rest for line in lines)
    assert files.truncations == 0
    files.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOMEM])
@pytest.mark.parametrize("verb", ["read", "fstat", "pread"])
def test_a_temporary_error_loses_neither_a_line_nor_the_position(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    rig.write(3)
    rig.look_and_read()
    rig.write(3)
    fd, real = rig.files.newest().fd, getattr(os, verb)

    def failing(asked: int, *arguments: Any) -> Any:
        if asked == fd:
            raise OSError(number, os.strerror(number))
        return real(asked, *arguments)

    with monkeypatch.context() as broken:
        broken.setattr(os, verb, failing)
        rig.look_and_read()
        error = rig.files.error()
    rig.look_and_read()

    assert rig.lines == rig.written
    assert error is not None
    assert error.errno == number
    assert rig.files.error() is None


def test_an_error_of_a_file_that_is_not_followed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    cutter = MessageCutter(Text(), lambda line, is_whole: line, bytes)
    file = FollowedFile(str(path), cutter, lambda: 0.0, follow=False, from_end=False)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="I/O error"):
        broken.setattr(os, "read", fail)
        file.read()
    file.close()


def test_a_file_added_after_the_close_is_closed_at_once(rig: Rig) -> None:
    before = open_descriptors()
    rig.look()
    rig.files.close()

    rig.look()

    assert len(rig.files) == 0
    assert open_descriptors() <= before


STEPS = st.lists(
    st.sampled_from(["write", "write", "write half", "rotate", "look", "read", "read", "wait"]),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_every_line_is_read_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, now: list[float], steps: list[str]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("following") / "log", now)
    # A file that is missed altogether is no mistake, so each file is looked at before it is rotated
    # away.
    rig.look()

    for step in [*steps, "read", "read"]:
        match step:
            case "write":
                rig.write()
            case "write half":
                rig.write_half()
            case "rotate":
                rig.rotate()
            case "look":
                rig.look()
            case "read":
                rig.look_and_read()
            case "wait":
                now[0] += 10
    rig.close()

    assert rig.lines == rig.written
    assert rig.files.rotations == rig.generation
