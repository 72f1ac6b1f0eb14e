"""Sockets, programs, threads, real sleeps and written files raise at their line in a world."""

import ast
import os
import random
import re
import secrets
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio

from ergo_py import Actor, Caller, ChildSpec, Cron, Job, Node, Scheduler, ask
from ergo_py.entities import Entities, Entity, MemoryStore
from ergo_py.testing import World
from ergo_py.testing.world.outside import EPOCH, OutsideError
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world

PACKAGE = Path(__file__).parents[3] / "ergo_py"


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
        (lambda: sqlite3.connect("/nowhere/world.db"), "a database in a file"),
    ],
)
def test_an_entrance_raises_at_its_line(use: Callable[[], object], thing: str) -> None:
    failure = failure_of(use)

    assert isinstance(failure, OutsideError)
    assert thing in str(failure)
    assert failure.place.startswith(f"{__file__}:")


def test_a_database_in_memory_is_part_of_the_world() -> None:
    assert failure_of(lambda: sqlite3.connect(":memory:").close()) is None


def test_random_bytes_of_the_system_follow_from_the_seed() -> None:
    """Numbers of orders by `uuid4` made another history in each run, as a WebSocket's keys did."""
    drawn: list[tuple[object, ...]] = []

    async def test(world: World) -> None:
        random.seed()
        mine = random.random(), Random().random()
        drawn.append((os.urandom(4), uuid.uuid4(), secrets.token_hex(), *mine))

    for seed in (1, 1, 2):
        assert run_world(World(Plan(seed)), test) is None

    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])
    assert secrets.token_hex() != secrets.token_hex()
    assert Random().random() != Random().random()


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


class Alarm(Entity[None]):
    def handle_call(self, request: float, caller: Caller) -> None:
        self.send_after(request, self.entity(Alarm, self.key), "ring", name="alarm")


def test_timers_of_entities_and_jobs_have_the_time_of_day_of_the_world() -> None:
    store = MemoryStore()

    async def start(node: Node) -> None:
        entities = Entities.spec(store, [Alarm])
        jobs = Scheduler.spec([Job("report", Cron("@hourly"), trio.lowlevel.checkpoint)])
        await node.supervise([ChildSpec("entities", entities), ChildSpec("jobs", jobs)])

    async def test(world: World) -> None:
        (a,) = await world.start(1, start)
        await trio.sleep(100)
        asked_at = world.clock.world_time()
        await a.node.entity(Alarm, "it").call(60.0)
        (due,) = await store.due(inf, 1)
        assert due.moment == pytest.approx(EPOCH + asked_at + 60.0, abs=1.0)
        (job,) = await a.node.call("jobs", ask(Scheduler.jobs))
        assert job.next_run == datetime.fromtimestamp(EPOCH, UTC) + timedelta(hours=1)

    failure = run_world(World(Plan(0)), test)

    assert failure is None, failure


MAYBE_CLOCK: Final = re.compile(r"\bfrom time import\b|\btime\.time\b|\.(now|today)\b")
"""Saves parsing the modules without any."""


def clocks_of_the_system(source: str) -> Iterator[int]:
    """The lines that read the time of day past the module ``time``, or keep its function."""
    if not MAYBE_CLOCK.search(source):
        return
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="time", names=names):
                if any(each.name == "time" for each in names):
                    yield node.lineno
            case ast.Attribute(value=ast.Name(id="time"), attr="time"):
                if id(node) not in called:
                    yield node.lineno
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "today"):
                yield node.lineno


@pytest.mark.parametrize(
    "source, lines",
    [
        ("from time import monotonic, time", [1]),
        ("from time import (\n    time,\n)", [1]),
        ("import time\nnow = time.time", [2]),
        ("at = datetime.now(UTC)", [1]),
        ("day = date.today()", [1]),
        ("import time\nat = time.time()", []),
        ("from time import monotonic", []),
    ],
)
def test_a_clock_that_a_world_does_not_replace_is_found(source: str, lines: list[int]) -> None:
    assert [*clocks_of_the_system(source)] == lines


def test_the_package_reads_the_time_of_day_where_a_world_replaces_it() -> None:
    """A function that was kept before the world began has the time of the system."""
    found = [
        f"{path.relative_to(PACKAGE).as_posix()}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in clocks_of_the_system(path.read_text(encoding="utf-8"))
        if not path.is_relative_to(PACKAGE / "testing")
    ]

    assert found == []
