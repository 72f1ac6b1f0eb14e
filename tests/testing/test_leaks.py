"""Threads, descriptors and programs that were not there before are named."""

import errno
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from ergo_py.testing import no_leaks
from ergo_py.testing.leaks import LeakError, take_inventory
from tests.support import needs_proc


async def work_in_a_worker() -> None:
    await trio.to_thread.run_sync(int)


def test_a_block_without_leaks_passes(tmp_path: Path) -> None:
    def work() -> None:
        with socket.socket() as sock, open(tmp_path / "file", "w", encoding="utf-8"):
            sock.bind(("127.0.0.1", 0))

    with no_leaks():
        thread = threading.Thread(target=work)
        thread.start()
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        trio.run(work_in_a_worker)
        thread.join()


def test_a_thread_that_is_left_is_named() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")

    with (
        pytest.raises(LeakError, match="thread 'forgotten' is left") as failure,
        no_leaks(grace=0.05),
    ):
        thread.start()
    end.set()
    thread.join()

    assert len(failure.value.left) == 1


@needs_proc
def test_a_socket_a_pipe_and_a_file_that_are_left_are_named(tmp_path: Path) -> None:
    left = ExitStack()

    with left, pytest.raises(LeakError) as failure, no_leaks(grace=0.05):
        left.enter_context(socket.socket())
        left.enter_context(open(tmp_path / "left open", "w", encoding="utf-8"))  # noqa: SIM115
        for end in os.pipe():
            left.callback(os.close, end)

    text = str(failure.value)
    assert "is left: socket:" in text
    assert text.count("is left: pipe:") == 2
    assert "left open" in text
    assert len(failure.value.left) == 4


def test_a_reused_descriptor_number_counts_as_another_descriptor() -> None:
    first, left = socket.socket(), ExitStack()
    number = first.fileno()

    with left, pytest.raises(LeakError) as failure, no_leaks(grace=0.05):
        first.close()
        second = left.enter_context(socket.socket())
        assert second.fileno() == number

    assert f"descriptor {number} is left" in str(failure.value)


@needs_proc
def test_a_child_program_that_is_left_is_named() -> None:
    left = ExitStack()

    with (
        left,
        pytest.raises(LeakError, match=r"child program \d+ is left: .*os\.read\(0, 1\)"),
        no_leaks(grace=0.05),
    ):
        program = [sys.executable, "-S", "-c", "import os; os.read(0, 1)"]
        child = left.enter_context(subprocess.Popen(program, stdin=subprocess.PIPE))
        left.callback(child.kill)


def test_a_thread_that_ends_within_the_grace_is_no_leak() -> None:
    with no_leaks(grace=10):
        thread = threading.Thread(target=threading.Event().wait, args=(0.1,))
        thread.start()

    assert not thread.is_alive()


def test_a_garbage_cycle_is_no_leak() -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.ends = os.pipe()

        def __del__(self) -> None:
            for end in self.ends:
                os.close(end)

    with no_leaks(grace=0):
        Holder()


def test_a_failure_of_the_block_itself_hides_leaks() -> None:
    left = ExitStack()

    with left, pytest.raises(ZeroDivisionError), no_leaks(grace=0):
        left.enter_context(socket.socket())
        raise ZeroDivisionError


async def test_the_async_check_waits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=True)
    pauses: list[float] = []

    def end_the_thread(seconds: float) -> None:
        pauses.append(seconds)
        release.set()
        thread.join()

    before = take_inventory()
    thread.start()
    at_once = before.left()
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", end_the_thread)
        later = await before.left_after(600)

    assert len(at_once) == 1
    assert later == []
    assert len(pauses) == 1


@pytest.mark.parametrize("limit", [256, resource.RLIM_INFINITY])
def test_descriptors_are_found_where_the_system_has_no_list_of_them(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    def missing(path: str) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    monkeypatch.setattr(os, "listdir", missing)
    monkeypatch.setattr(os, "readlink", missing)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    pair: list[socket.socket] = []
    with pytest.raises(LeakError, match="descriptor"), no_leaks(grace=0.0):
        pair += socket.socketpair()
    for sock in pair:
        sock.close()
