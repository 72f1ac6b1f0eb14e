"""A common suite for every bridge: each bridge starts, works, waits, stops and ends alike, and
leaves nothing behind.
"""

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Alias, Crashed, Custom, Killed, Normal
from tests.meta.owner import Owned, eventually, owning
from tests.meta.rigs import MARK, RIGS, Rig, WatchRig
from tests.support import open_descriptors

BACKLOG = 8
PATIENT, SOON = 60.0, 25.0
"""Seconds in which a bridge that does not end would be given up, and in which it must have ended,
on a busy machine too.
"""


@pytest.fixture(params=RIGS, ids=lambda rig: rig.__name__)
def rig(request: pytest.FixtureRequest, short_path: Path) -> Rig:
    if request.param is WatchRig and find_spec("watchfiles") is None:
        pytest.skip("the extra watch is not installed")
    made: Rig = request.param(short_path)
    return made


# -- resources that may not be left ----------------------------------------------------------------


def programs() -> set[int]:
    """The programs that this program has started, ended programs without a collected status
    included; and the programs that a rig's program started.
    """
    if not os.path.isdir("/proc"):
        return set()
    found = set()
    (_, born) = _parent_and_start(os.getpid())
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent, start = _parent_and_start(pid)
            # Tests ask again and again, and most programs of a machine are older than this program.
            if start >= born and (
                parent == os.getpid() or MARK.encode() in _read(f"/proc/{pid}/environ")
            ):
                found.add(pid)
        except OSError:
            continue
    return found


def _parent_and_start(pid: int) -> tuple[int, int]:
    """The parent of a program, and the time of its start in ticks since the boot."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def threads() -> set[str]:
    # trio keeps a worker thread for ten seconds after its last job, and calls it by this name then.
    return {
        thread.name
        for thread in threading.enumerate()
        if not thread.name.startswith("Trio thread ")
    }


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


@dataclass(frozen=True)
class Everything:
    """The present resources, to be compared with the earlier resources: less is no harm, since an
    earlier test's remains may go at any time.
    """

    threads: set[str] = field(default_factory=threads)
    tasks: int = field(default_factory=tasks)
    descriptors: set[tuple[int, str]] = field(default_factory=open_descriptors)
    programs: set[int] = field(default_factory=programs)

    def more_than(self, before: "Everything") -> list[object]:
        new = [
            *(self.threads - before.threads),
            *(self.descriptors - before.descriptors),
            *(self.programs - before.programs),
        ]
        return [
            *new,
            *([f"{self.tasks - before.tasks} tasks"] if self.tasks > before.tasks else []),
        ]


@asynccontextmanager
async def bridged(rig: Rig, **options: Any) -> AsyncIterator[tuple[Owned, Alias]]:
    """A bridge that runs; when everything is over nothing of it is left: no thread, no task, no
    descriptor, no child.
    """
    before = Everything()
    async with owning() as owned:
        rig.node = owned.node
        try:
            rig.alias = await owned.spawn_for(rig.make, **options)
            await rig.started()
            yield owned, rig.alias
        except BaseException:
            rig.close()
            raise
    report = owned.node.exit_report
    rig.close()
    assert report is not None
    assert report.abandoned == ()
    with trio.move_on_after(20):
        await eventually(lambda: not Everything().more_than(before))
    assert Everything().more_than(before) == []


async def heard(owned: Owned, rig: Rig, count: int) -> None:
    if rig.traffic is not None:
        for _ in range(count):
            await owned.until(rig.traffic)


# -- the suite -------------------------------------------------------------------------------------


async def test_a_started_meta_process_can_be_inspected(rig: Rig) -> None:
    async with bridged(rig) as (owned, alias):
        shown = await owned.node.inspect_meta(alias)
        info = owned.node.meta_info(alias)

        assert shown
        assert all(isinstance(key, str) and isinstance(value, str) for key, value in shown.items())
        assert (info.reader == "thread") == (info.thread is not None)
        assert alias in owned.node.metas()


async def test_a_meta_process_sends_messages_about_external_events(rig: Rig) -> None:
    async with bridged(rig) as (owned, alias):
        for _ in range(3):
            await heard(owned, rig, await rig.stir(20))

        assert alias in owned.node.metas()


@pytest.fixture
def sending_rig(rig: Rig) -> Rig:
    # pytest-trio drops the reason of a skip inside an asynchronous test; a fixture keeps it.
    if rig.traffic is None:
        pytest.skip("it only answers, and its callers wait for the answers")
    return rig


async def test_a_meta_process_waits_for_a_slow_receiver_and_still_answers(sending_rig: Rig) -> None:
    rig = sending_rig
    async with bridged(rig, backlog=BACKLOG) as (owned, alias):
        go_on = await owned.hold()
        count = await rig.stir(200)
        await trio.sleep(0.05)
        queued = await owned.filled(1)
        shown = await owned.node.inspect_meta(alias)
        go_on()
        await heard(owned, rig, count if rig.is_lossless else 1)

        # A further message may be the mark that says when a message was handled.
        assert queued <= BACKLOG + 1
        assert shown
        assert owned.node.meta_info(alias).backlog_dropped == 0


async def test_a_meta_process_ends_with_the_reason_of_an_exit(rig: Rig) -> None:
    async with bridged(rig, stop_timeout=PATIENT) as (owned, alias):
        await rig.stir(5)

        with trio.fail_after(SOON):
            owned.node.send_exit(alias, "enough")
            assert await owned.down() == Custom("enough")

        assert owned.node.metas() == []


async def test_an_exit_ends_a_meta_process_with_a_blocked_receiver(rig: Rig) -> None:
    async with bridged(rig, backlog=BACKLOG, stop_timeout=5.0) as (owned, alias):
        go_on = await owned.hold()
        if rig.traffic is not None:
            await rig.stir(200)

        with trio.fail_after(SOON):
            owned.node.send_exit(alias, "enough")
            await eventually(lambda: owned.node.metas() == [])
        go_on()


async def test_a_meta_process_ends_with_its_owner(rig: Rig) -> None:
    async with bridged(rig, stop_timeout=PATIENT) as (owned, _alias):
        await rig.stir(5)

        with trio.fail_after(SOON):
            owned.node.send_exit(owned.spawner, "the owner goes")
            await owned.node.wait_ended(owned.spawner)

        assert owned.node.metas() == []


async def test_a_killed_meta_process_ends_at_once(rig: Rig) -> None:
    async with bridged(rig, stop_timeout=PATIENT) as (owned, alias):
        await rig.stir(5)

        with trio.fail_after(SOON):
            owned.node.kill(alias)
            assert await owned.down() == Killed()


async def test_a_meta_process_does_not_delay_the_stop_of_its_node(rig: Rig) -> None:
    async with bridged(rig) as (owned, _alias):
        await rig.stir(5)

    report = owned.node.exit_report
    assert report is not None
    assert report.killed == ()
    assert report.seconds < SOON


async def test_a_meta_process_ends_or_lives_on_when_its_resource_is_gone(rig: Rig) -> None:
    async with bridged(rig) as (owned, alias):
        await heard(owned, rig, min(1, await rig.stir(1)))

        rig.lose()

        if rig.ends_when_lost:
            assert isinstance(await owned.down(), Normal | Crashed)
            assert owned.node.metas() == []
        else:
            await trio.sleep(0.02)
            assert await owned.node.inspect_meta(alias)
            owned.node.send_exit(alias)
            await owned.down()
