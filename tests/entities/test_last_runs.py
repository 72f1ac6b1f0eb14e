"""A scheduler that remembers its last runs: restarts, missed runs and failures of the store, by
virtual time.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, ChildSpec, Cron, InitError, Job, Node, Scheduler, ask, open_node
from ergo_py.entities import Entities, EntityStoreError, LastRuns, MemoryStore
from ergo_py.entities.stores.store import Write
from tests.actors import LogKeeper

from .bank import run_virtual

START = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)
HOUR = 3600.0


class Program:
    """Programs, each after the other, with the same store. The time goes on between them."""

    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore()
        self.runs: list[float] = []
        self.log: list[Any] = []
        self.seconds = 0.0
        self.is_real = False
        self.jobs = [Job("hourly", Cron("0 * * * *"), self.work, **options)]
        self.passed = 0.0

    async def work(self) -> None:
        """Note the hours since the start."""
        self.runs.append(round((self.passed + trio.current_time() - self.began) / HOUR, 2))
        await trio.sleep(self.seconds)

    @asynccontextmanager
    async def life(self, hours: float, *, down: float = 0.0) -> AsyncIterator[Node]:
        """A program that runs so long, and is down afterwards."""
        self.began = trio.current_time()
        start = START + timedelta(seconds=self.passed)
        async with open_node("schedule@test", log_output="none", watchdog=None) as node:
            node.add_logger(await node.spawn(LogKeeper, self.log), "warning")
            entities = Entities.spec(self.store, [LastRuns], now=trio.current_time)
            schedule = Scheduler.spec(
                self.jobs, last_runs=LastRuns, start=None if self.is_real else start
            )
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
            async with program.life(0.24):
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


def test_a_last_run_in_the_future_is_ignored_with_a_warning_and_replaced() -> None:
    async def test() -> None:
        program = Program()
        program.passed = 87_600 * HOUR  # the clock is ten years ahead
        async with program.life(2.0):
            pass
        program.passed = 0.0
        program.runs.clear()
        async with program.life(2.0):
            pass
        assert program.runs == [0.5, 1.5]
        [warning] = program.log
        assert "last runs in the future are ignored" in warning.event
        assert warning.fields["jobs"] == "hourly"
        async with program.life(1.0):
            pass
        assert program.runs == [0.5, 1.5, 2.5]
        assert program.log == [warning]

    run_virtual(test)


@pytest.mark.parametrize("back, expected", [(0.75, [1.5]), (2.0, [-0.5, 0.5])])
def test_a_clock_that_is_a_little_behind_after_a_restart_repeats_no_run(
    back: float, expected: list[float]
) -> None:
    async def test() -> None:
        program = Program()
        async with program.life(0.75):
            pass
        assert program.runs == [0.5]
        program.runs.clear()
        program.passed -= back * HOUR
        async with program.life(2.0):
            pass
        assert program.runs == expected
        assert len(program.log) == (back > 1.0)

    run_virtual(test)


def test_a_clock_that_is_behind_until_it_is_set_repeats_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = timedelta()

    def now() -> float:
        return (START + ahead).timestamp() + trio.current_time()

    async def test() -> None:
        nonlocal ahead
        began = trio.current_time()
        program = Program()
        async with program.life(2.0):
            pass
        assert program.runs == [0.5, 1.5]
        monkeypatch.setattr("ergo_py.schedules.scheduler.time", SimpleNamespace(time=now))
        # At the start of the second program the clock is five days behind, at 8:35.
        ahead = timedelta(days=-5, hours=-2, minutes=5, seconds=-began)
        program.is_real = True
        async with program.life(0.7):
            await trio.sleep(300)
            ahead = timedelta(minutes=5, seconds=-began)
        assert program.runs == [0.5, 1.5, 2.42]

    run_virtual(test)


@pytest.mark.parametrize("missed, total", [(Job.MissedRuns.ALL, 9), (Job.MissedRuns.ONCE, 1)])
def test_runs_that_wait_in_a_queue_are_not_lost_by_restarts(
    missed: Job.MissedRuns, total: int
) -> None:
    async def test() -> None:
        program = Program(missed=missed, overlap=Job.Overlap.QUEUE)
        program.seconds = 600.0
        async with program.life(0.1, down=9.0):
            pass
        # Each program begins two runs, and is gone before the second has ended.
        for _ in range(6):
            async with program.life(0.25):
                pass
        # No run begins twice, and none is left out: 9 were missed, and 2 were due since then.
        assert len(program.runs) == total + 2

    run_virtual(test)


def test_a_store_that_is_away_at_the_start_makes_jobs_late() -> None:
    async def test() -> None:
        program = Program()

        async def fail(_addresses: object) -> None:
            if trio.current_time() - program.began < 0.1 * HOUR:
                raise EntityStoreError("the store is away")

        program.passed = 0.45 * HOUR
        program.store.before_load = fail
        async with program.life(2.0) as node:
            assert [job.runs for job in await node.call("schedule", ask(Scheduler.jobs))] == [0]
        assert program.runs == [0.55, 1.5]

    run_virtual(test)


def test_a_scheduler_that_restarts_while_the_store_is_away_ends_no_program() -> None:
    async def test() -> None:
        program = Program()
        is_away = False

        async def fail(*_given: object) -> None:
            if is_away:
                raise EntityStoreError("the store is away")

        program.store.before_load = program.store.before_commit = fail
        async with program.life(2.0) as node:
            await trio.sleep(0.6 * HOUR)
            is_away = True
            for _ in range(3):
                node.kill("schedule")
                await trio.sleep(60)
            assert node.whereis("schedule") is not None
            is_away = False
        # Each start of the scheduler begins at 8:30 again.
        assert program.runs[0] == 0.5
        assert len(program.runs) == 2

    run_virtual(test)


def test_a_scheduler_without_entities_is_refused() -> None:
    async def test() -> None:
        async with open_node("schedule@test", log_output="none", watchdog=None) as node:
            with pytest.raises(InitError, match="this node keeps no LastRuns entities"):
                await node.spawn(Scheduler.spec([], last_runs=LastRuns), name="schedule")

    run_virtual(test)


@pytest.mark.parametrize("seconds", [6.0, 150.0])
def test_a_slow_store_delays_jobs_and_leaves_out_none(seconds: float) -> None:
    async def test() -> None:
        program = Program()

        async def slow(_number: int, _writes: Sequence[Write]) -> None:
            await trio.sleep(seconds)

        async with program.life(2.0) as node:
            program.store.before_commit = slow
            await trio.sleep(0.5 * HOUR + 1.0)
            # The scheduler answers meanwhile.
            assert await node.call("schedule", ask(Scheduler.jobs), timeout=0.5)
        late = seconds / HOUR
        assert (
            program.runs
            == [round(0.5 + late, 2), round(1.5 + late, 2), round(2.5 + late, 2)][
                : len(program.runs)
            ]
        )
        assert len(program.runs) >= 2
        told = {record.event for record in program.log}
        expected = "the store of the last runs has not answered yet; jobs wait"
        assert (expected in told) == (seconds > 60.0)

    run_virtual(test)


@pytest.mark.parametrize("is_added", [False, True], ids=["removed", "added again"])
def test_a_job_that_is_removed_is_forgotten(is_added: bool) -> None:
    async def test() -> None:
        program = Program(missed=Job.MissedRuns.ALL, overlap=Job.Overlap.ALLOW)
        async with program.life(1.0, down=20.0) as node:
            await trio.sleep(0.6 * HOUR)
            assert await node.call("schedule", ask(Scheduler.remove, "hourly"))
            if is_added:
                await node.call("schedule", ask(Scheduler.add, program.jobs[0]))
        program.passed += 0.6 * HOUR
        program.runs.clear()
        async with program.life(0.1):
            pass
        assert len(program.runs) == (20 if is_added else 0)

    run_virtual(test)


@pytest.mark.parametrize("overlap", [Job.Overlap.ALLOW, Job.Overlap.QUEUE])
def test_a_job_that_is_removed_while_its_run_is_noted_does_not_run(overlap: Job.Overlap) -> None:
    async def test() -> None:
        program = Program(overlap=overlap)
        program.seconds = 1.2 * HOUR  # with a queue, the second run waits until 1.7 h

        async def slow(_number: int, _writes: Sequence[Write]) -> None:
            await trio.sleep(60)

        async with program.life(1.0, down=20.0) as node:
            await trio.sleep((1.6 if overlap is Job.Overlap.QUEUE else 1.2) * HOUR)
            program.store.before_commit = slow
            due = 1.7 if overlap is Job.Overlap.QUEUE else 1.5
            await trio.sleep_until(program.began + due * HOUR + 30.0)
            assert await node.call("schedule", ask(Scheduler.remove, "hourly"))
        assert program.runs == [0.5]
        program.store.before_commit = None
        program.passed += 1.7 * HOUR
        async with program.life(0.1):
            pass
        assert program.runs == [0.5]

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


def test_a_scheduler_without_a_name_is_refused() -> None:
    async def test() -> None:
        async with Program().life(0.0) as node:
            with pytest.raises(InitError, match="a scheduler with a name") as caught:
                await node.spawn(Scheduler.spec(last_runs=LastRuns))
        assert isinstance(caught.value.__cause__, BadInputError)

    run_virtual(test)


def test_a_wrong_class_is_refused() -> None:
    wrong: Any = "LastRuns"
    with pytest.raises(ValueError, match=r"the class ergo_py\.entities\.LastRuns"):
        Scheduler([], last_runs=wrong)
