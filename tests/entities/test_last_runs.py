"""A scheduler that remembers its last runs: restarts, missed runs and failures of the store, by
virtual time.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, Cron, Job, Node, Scheduler, ask, open_node
from ergo_py.entities import Entities, EntityStoreError, LastRuns, MemoryStore
from ergo_py.entities.stores.store import Write

from .bank import run_virtual

START = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)
HOUR = 3600.0


class Program:
    """Programs, each after the other, with the same store. The time goes on between them."""

    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore()
        self.runs: list[float] = []
        self.jobs = [Job("hourly", Cron("0 * * * *"), self.work, **options)]
        self.passed = 0.0

    async def work(self) -> None:
        """Note the hours since the start."""
        self.runs.append(round((self.passed + trio.current_time() - self.began) / HOUR, 2))

    @asynccontextmanager
    async def life(self, hours: float, *, down: float = 0.0) -> AsyncIterator[Node]:
        """A program that runs so long, and is down afterwards."""
        self.began = trio.current_time()
        start = START + timedelta(seconds=self.passed)
        async with open_node("schedule@test", log_level="critical") as node:
            entities = Entities.spec(self.store, [LastRuns], now=trio.current_time)
            schedule = Scheduler.spec(self.jobs, last_runs=LastRuns, start=start)
            await node.supervise(
                [ChildSpec("entities", entities), ChildSpec("schedule", schedule)], intensity=100
            )
            yield node
            await trio.sleep(hours * HOUR)
        self.passed += (hours + down) * HOUR


@pytest.mark.parametrize(
    "missed, expected",
    [
        (Job.MissedRuns.ONCE, [0.5, 1.5, 6.0, 6.5]),
        (Job.MissedRuns.SKIP, [0.5, 1.5, 6.5]),
        (Job.MissedRuns.ALL, [0.5, 1.5, 6.0, 6.0, 6.0, 6.0, 6.5]),
    ],
)
def test_runs_that_a_restart_has_missed_follow_their_rule(
    missed: Job.MissedRuns, expected: list[float]
) -> None:
    async def test() -> None:
        program = Program(missed=missed, overlap=Job.Overlap.ALLOW)
        async with program.life(2.0, down=4.0):
            pass
        async with program.life(1.0):
            pass
        assert program.runs == expected

    run_virtual(test)


def test_no_run_is_repeated_after_a_restart() -> None:
    async def test() -> None:
        program = Program()
        for _ in range(12):
            async with program.life(0.25):
                pass
        assert program.runs == [0.5, 1.5, 2.5]

    run_virtual(test)


def test_a_run_before_which_the_first_program_has_ended_is_missed() -> None:
    async def test() -> None:
        program = Program()
        async with program.life(0.1, down=1.0):
            pass
        async with program.life(0.1):
            pass
        assert program.runs == [1.1]

    run_virtual(test)


def test_a_run_that_is_noted_when_the_program_ends_is_not_repeated() -> None:
    async def test() -> None:
        program = Program()

        async def stop(number: int, _writes: Sequence[Write]) -> None:
            if number == 2:  # the first is that of the new job
                await trio.sleep_forever()

        program.store.after_commit = stop
        with trio.move_on_after(0.6 * HOUR):
            async with program.life(2.0):
                pass
        program.store.after_commit = None
        await program.store.close()
        assert program.runs == []
        program.passed = 0.6 * HOUR
        async with program.life(1.0):
            pass
        assert program.runs == [1.5]

    run_virtual(test)


def test_jobs_wait_while_the_store_fails_and_run_once() -> None:
    async def test() -> None:
        program = Program()

        async def fail(_number: int, _writes: Sequence[Write]) -> None:
            if 0.4 * HOUR < trio.current_time() - program.began < 0.7 * HOUR:
                raise EntityStoreError("the disk is full")

        async with program.life(2.0):
            program.store.before_commit = fail
        assert program.runs == [0.7, 1.5]

    run_virtual(test)


def test_a_job_that_is_added_later_is_remembered() -> None:
    async def test() -> None:
        program = Program()
        jobs, program.jobs = program.jobs, []
        async with program.life(0.1, down=2.0) as node:
            await node.call("schedule", ask(Scheduler.add, jobs[0]))
        program.jobs = jobs
        async with program.life(0.1):
            pass
        assert program.runs == [2.1]

    run_virtual(test)


def test_a_wrong_class_is_refused() -> None:
    wrong: Any = "LastRuns"
    with pytest.raises(ValueError, match=r"the class ergo_py\.entities\.LastRuns"):
        Scheduler([], last_runs=wrong)
