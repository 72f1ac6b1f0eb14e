"""Sockets, programs, threads, real sleeps and written files raise at their line in a world."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Actor
from ergo_py.testing import World
from ergo_py.testing.world.outside import OutsideError
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def failure_of(use: Callable[[], object]) -> Exception | None:
    async def test(world: World) -> None:
        use()

    return run_world(World(Plan(0)), test)


def connect() -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    "use, thing",
    [
        (connect, "a connection"),
        (lambda: socket.getaddrinfo("localhost", 80), "the address"),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "another program"),
        (lambda: threading.Thread(target=print).start(), "a thread"),
        (lambda: time.sleep(0.001), "real time"),
        (lambda: os.system("true"), "another program"),
    ],
)
def test_an_entrance_raises_at_its_line(use: Callable[[], object], thing: str) -> None:
    failure = failure_of(use)

    assert isinstance(failure, OutsideError)
    assert thing in str(failure)
    assert failure.place.startswith(f"{__file__}:")


def test_a_written_file_raises_and_a_file_that_is_read_does_not(tmp_path: Path) -> None:
    path = tmp_path / "notes"

    assert isinstance(failure_of(lambda: path.write_text("x")), OutsideError)
    assert not path.exists()
    path.write_text("x")
    assert failure_of(path.read_bytes) is None


def test_a_process_that_swallows_the_error_does_not_hide_it() -> None:
    class Sleepy(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            time.sleep(0.001)

    async def test(world: World) -> None:
        (a,) = await world.start(1)
        pid = await a.node.spawn(Sleepy)
        a.node.send(pid, "sleep")
        await trio.sleep(1)

    failure = run_world(World(Plan(0)), test)

    assert isinstance(failure, OutsideError)
    assert "time.sleep" not in failure.place
    assert failure.place.startswith(f"{__file__}:")


def test_after_a_world_and_in_other_threads_all_is_allowed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await trio.sleep(1)

    assert run_world(World(Plan(0)), test) is None
    time.sleep(0)
    (tmp_path / "notes").write_text("x")
