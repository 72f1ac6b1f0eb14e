"""Files on pipes that can be woken: the same file with another bottom, which tells no lies."""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergo_py._core.metas.resources import Doorbell
from ergo_py._core.metas.wakeable_file import can_block, make_wakeable


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    bell = Doorbell()
    yield bell
    bell.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends; a test that takes over an end must not close it twice, so they are kept as
    duplicates.
    """
    read, write = os.pipe()
    yield os.dup(read), os.dup(write)
    os.close(read)
    os.close(write)


def read_all(file: Any) -> tuple[threading.Thread, list[Any]]:
    """Read a file to its end in a thread."""
    read: list[Any] = []
    thread = threading.Thread(target=lambda: read.extend(file))
    thread.start()
    return thread, read


@pytest.mark.parametrize(
    "mode, newline, lines",
    [
        ("r", None, ["one\n", "two\n", "thr"]),
        ("r", "", ["one\r\n", "two\n", "thr"]),
        ("rb", None, [b"one\r\n", b"two\n", b"thr"]),
    ],
)
def test_a_file_keeps_its_kind_its_lines_and_its_identity(
    bell: Doorbell, pipe: tuple[int, int], mode: str, newline: str | None, lines: list[Any]
) -> None:
    read, write = pipe
    os.write(write, b"one\r\ntwo\nthr")
    with os.fdopen(read, mode, newline=newline) as file:
        same = file

        assert make_wakeable(file, bell)
        thread, heard = read_all(file)
        bell.ring()
        thread.join(20)

        assert file is same
        # Bytes that are there when the bell rings may be read or not; all bytes that are read are
        # right.
        assert heard == lines[: len(heard)] or heard == lines
        assert (file.fileno(), file.isatty(), file.readable()) == (read, False, True)
    os.close(write)


def test_read_ahead_lines_come_first(bell: Doorbell, pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.write(write, b"one\ntwo\nthree\n")
    with os.fdopen(read) as file:
        first = file.readline()

        make_wakeable(file, bell)
        os.write(write, b"four\n")
        rest = [file.readline() for _ in range(3)]

        assert [first, *rest] == ["one\n", "two\n", "three\n", "four\n"]
    os.close(write)


def test_looking_at_read_ahead_data_does_not_block_on_an_empty_pipe(
    bell: Doorbell, pipe: tuple[int, int]
) -> None:
    read, write = pipe
    with os.fdopen(read, "rb") as file:
        make_wakeable(file, bell)
        os.write(write, b"x")

        assert file.read(1) == b"x"
        assert os.get_inheritable(read) is False
    os.close(write)


def test_the_end_of_the_last_writer_is_the_end_of_the_file(
    bell: Doorbell, pipe: tuple[int, int]
) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as file:
        make_wakeable(file, bell)
        os.write(write, b"all")
        os.close(write)

        assert file.read() == b"all"
    for fd in pipe:
        os.close(fd)


def test_writes_come_through_in_any_size_and_end_with_the_bell(
    bell: Doorbell, pipe: tuple[int, int]
) -> None:
    read, write = pipe
    file = os.fdopen(write, "wb")
    make_wakeable(file, bell)
    data = os.urandom(300_000)
    got = bytearray()

    def take() -> None:
        while len(got) < len(data):
            got.extend(os.read(read, 1000))

    thread = threading.Thread(target=take)
    thread.start()
    file.write(data)
    file.flush()
    thread.join(20)
    bell.ring()
    with pytest.raises(BrokenPipeError):
        file.write(data)
    file.close()

    assert got == data
    assert file.closed
    os.close(read)


def test_closing_the_file_closes_its_descriptor(bell: Doorbell, pipe: tuple[int, int]) -> None:
    read, write = pipe
    file = os.fdopen(read)
    make_wakeable(file, bell)

    file.close()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)


def test_files_without_a_buffer_or_a_descriptor_are_not_changed(
    bell: Doorbell, pipe: tuple[int, int]
) -> None:
    read, write = pipe
    with os.fdopen(read, "rb", buffering=0) as raw, os.fdopen(write, "wb"):
        assert not make_wakeable(raw, bell)
        assert not make_wakeable(io.StringIO(), bell)


def test_pipes_and_terminals_block_and_files_do_not(tmp_path: Path, pipe: tuple[int, int]) -> None:
    master, slave = os.openpty()
    with open(tmp_path / "file", "w", encoding="utf-8") as file:
        assert not can_block(file.fileno())
    assert can_block(pipe[0])
    assert can_block(slave)

    for fd in (*pipe, master, slave):
        os.close(fd)


def test_read_ahead_lines_come_first_and_the_file_keeps_its_name_and_mode(
    bell: Doorbell, pipe: tuple[int, int]
) -> None:
    read, write = pipe
    os.write(write, b"one\ntwo\n")
    with os.fdopen(read, "rb") as file:
        first = file.readline()
        before = (file.name, file.mode)

        assert make_wakeable(file, bell)
        second = file.readline()

        assert (first, second) == (b"one\n", b"two\n")
        assert (file.name, file.mode) == before
        file.raw.close()
        file.raw.close()
        assert file.raw.closed
