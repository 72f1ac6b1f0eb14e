"""Scheduled jobs by virtual time: times, jitter, missed and overlapping runs, failures."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import available_timezones

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import BadInputError, ChildSpec, Cron, InitError, Job, Node, Scheduler, ask
from ergo_py.schedules.job import JobInfo
from tests.actors import Failed, LogKeeper, Recorder
from tests.support import running_node

START = datetime(2026, 3, 2, 8, 59, 30, tzinfo=UTC)  # a Monday


class Notes:
    """Functions that note the times of their runs, in seconds after the start."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.cancelled = 0
        self.born = trio.current_time()

    async def work(self, seconds: float = 0.0) -> None:
        self.begun.append(round(trio.current_time() - self.born))
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        self.ended.append(round(trio.current_time() - self.born))


async def scheduled(node: Node, *jobs: Job, start: datetime = START) -> Any:
    return await node.spawn(Scheduler.spec(jobs, start=start, seed=1))


async def state(node: Node, pid: Any) -> JobInfo:
    [info] = await node.call(pid, ask(Scheduler.jobs))
    return info


async def test_a_function_runs_at_its_times(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e6) as node:
        notes = Notes()
        pid = await scheduled(node, Job("a", Cron("0 9,10 * * mon-fri"), notes.work))
        await trio.sleep(2 * 24 * 3600)
        info = await state(node, pid)

    assert notes.begun == [30, 3630, 86430, 90030]
    assert info.next_run == datetime(2026, 3, 4, 9, tzinfo=UTC)
    assert (info.runs, info.skipped, info.failed, info.running) == (4, 0, 0, 0)


async def test_a_message_is_sent_at_its_times(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node(limit=1e6) as node:
        await node.spawn(Recorder, heard, name="sink")
        await scheduled(node, Job("a", Cron("*/20 * * * * *"), to="sink", message="tick"))
        await trio.sleep(61)

    assert heard == ["tick"] * 3


@pytest.mark.skipif(not available_timezones(), reason="there is no database of time zones here")
async def test_a_time_zone_counts_through_the_clock_change(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e7) as node:
        notes = Notes()
        job = Job("a", Cron("30 2 * * *", "Europe/Berlin"), notes.work)
        await scheduled(node, job, start=datetime(2026, 3, 28, 0, 0, tzinfo=UTC))
        await trio.sleep(3 * 24 * 3600)

    hours = [seconds / 3600 for seconds in notes.begun]
    assert hours == [1.5, 25.5, 48.5]


async def test_jitter_delays_each_run_by_at_most_its_limit(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e6) as node:
        notes = Notes()
        await scheduled(node, Job("a", Cron("@hourly"), notes.work, jitter=600.0))
        await trio.sleep(24 * 3600)

    delays = [(seconds - 30) % 3600 for seconds in notes.begun]
    assert len(delays) == 24 or len(delays) == 23
    assert all(0 <= delay <= 600 for delay in delays)
    assert len(set(delays)) > 10


@pytest.mark.parametrize(
    "overlap, begun, cancelled",
    [
        (Job.Overlap.SKIP, [30, 150, 270], 0),
        (Job.Overlap.QUEUE, [30, 120, 210, 300], 0),
        (Job.Overlap.REPLACE, [30, 90, 150, 210, 270], 4),
        (Job.Overlap.ALLOW, [30, 90, 150, 210, 270], 0),
    ],
)
async def test_a_run_that_overlaps_follows_its_rule(
    overlap: Job.Overlap, begun: list[int], cancelled: int, autojump_clock: MockClock
) -> None:
    async with running_node(limit=1e6) as node:
        notes = Notes()
        job = Job("a", Cron("* * * * *"), notes.work, (90.0,), overlap=overlap)
        await scheduled(node, job)
        await trio.sleep(310)
        seen = notes.cancelled

    assert notes.begun == begun
    assert seen == cancelled


@pytest.mark.parametrize(
    "missed, runs, skipped",
    [(Job.MissedRuns.ONCE, 1, 3), (Job.MissedRuns.SKIP, 0, 4), (Job.MissedRuns.ALL, 4, 0)],
)
async def test_missed_runs_follow_their_rule(
    missed: Job.MissedRuns, runs: int, skipped: int, autojump_clock: MockClock
) -> None:
    heard: list[Any] = []
    async with running_node(limit=1e6) as node:
        await node.spawn(Recorder, heard, name="sink")
        job = Job(
            "a",
            Cron("@hourly"),
            to="sink",
            message="tick",
            missed=missed,
            since=START - timedelta(hours=4),
        )
        pid = await scheduled(node, job)
        await trio.sleep(1)
        info = await state(node, pid)

    assert (len(heard), info.skipped) == (runs, skipped)
    assert info.next_run == datetime(2026, 3, 2, 9, tzinfo=UTC)


async def test_very_many_missed_runs_are_bounded(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node(limit=1e6) as node:
        await node.spawn(Recorder, heard, name="sink")
        cron = Cron("* * * * * *")
        since = START - timedelta(days=1)
        job = Job("a", cron, to="sink", message=1, missed=Job.MissedRuns.ALL, since=since)
        pid = await scheduled(node, job)
        await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        info = await state(node, pid)

    assert len(heard) == 1000
    assert info.next_run == START + timedelta(seconds=1)


async def test_a_job_that_fails_is_counted_and_runs_again(autojump_clock: MockClock) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise Failed("on purpose")

    async def slow() -> None:
        await trio.sleep_forever()

    async with running_node(limit=1e6) as node:
        pid = await scheduled(
            node,
            Job("a", Cron("* * * * *"), fail, overlap=Job.Overlap.ALLOW),
            Job("b", Cron("@hourly"), slow, timeout=5.0),
        )
        for _ in range(3):
            await node.call(pid, ask(Scheduler.run_now, "a"))
        while True:
            infos = {info.name: info for info in await node.call(pid, ask(Scheduler.jobs))}
            if infos["a"].failed >= 3 and infos["b"].failed == 1:
                break
            await trio.sleep(1)

    assert infos["a"].last_failure == "Failed: on purpose"
    assert "took more than 5 s" in str(infos["b"].last_failure)


async def test_jobs_are_added_replaced_removed_and_run_now(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e6) as node:
        notes, others = Notes(), Notes()
        pid = await scheduled(node)
        await node.call(pid, ask(Scheduler.add, Job("a", Cron("@hourly"), notes.work)))
        await node.call(pid, ask(Scheduler.run_now, "a"))
        await trio.sleep(31)
        info = await node.call(pid, ask(Scheduler.add, Job("a", Cron("@daily"), others.work)))
        assert info.next_run == datetime(2026, 3, 3, tzinfo=UTC)
        assert await node.call(pid, ask(Scheduler.remove, "a"))
        assert not await node.call(pid, ask(Scheduler.remove, "a"))
        await trio.sleep(2 * 24 * 3600)
        with pytest.raises(LookupError, match="there is no job 'a'; there are none"):
            await node.call(pid, ask(Scheduler.run_now, "a"))
        wrong: Any = "job"
        with pytest.raises(BadInputError, match="Job"):
            await node.call(pid, ask(Scheduler.add, wrong))
        assert await node.inspect(pid) == {}

    assert (notes.begun, others.begun) == ([0, 30], [])


class SetClock:
    """The clock of the system, which someone sets: stands for the module ``time``."""

    ahead = timedelta()

    @classmethod
    def time(cls) -> float:
        return (START + cls.ahead).timestamp() + trio.current_time()


@pytest.mark.parametrize(
    "step, begun, warnings",
    [
        (timedelta(minutes=-30), [9030, 12630], 0),
        (timedelta(minutes=-90), [12630], 0),
        (timedelta(minutes=-130), [7830, 11430], 1),
        (timedelta(days=-30, minutes=-10), [7830, 11430], 1),
    ],
)
async def test_after_a_clock_was_set_back_jobs_run_by_it_and_a_short_step_repeats_none(
    step: timedelta,
    begun: list[int],
    warnings: int,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ergo_py.schedules.scheduler.time", SetClock)
    monkeypatch.setattr(SetClock, "ahead", timedelta(seconds=-trio.current_time()))
    log: list[Any] = []
    async with running_node(limit=1e6) as node:
        node.add_logger(await node.spawn(LogKeeper, log), "warning")
        notes = Notes()
        jobs = [Job(name, Cron("@hourly"), notes.work) for name in ("a", "b")]
        pid = await node.spawn(Scheduler.spec(jobs))
        await trio.sleep(7200)
        assert notes.begun == [30, 30, 3630, 3630]
        notes.begun.clear()
        monkeypatch.setattr(SetClock, "ahead", SetClock.ahead + step)
        await trio.sleep(7200)
        infos = await node.call(pid, ask(Scheduler.jobs))

    assert notes.begun == sorted(begun * 2)
    assert [info.skipped for info in infos] == [0, 0]
    assert [record.event for record in log] == [
        "the clock was set back; jobs are planned again"
    ] * warnings


async def test_a_clock_that_was_far_ahead_for_a_while_stops_no_job(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.schedules.scheduler.time", SetClock)
    monkeypatch.setattr(SetClock, "ahead", timedelta(seconds=-trio.current_time()))
    right = SetClock.ahead
    async with running_node(limit=1e6) as node:
        notes = Notes()
        await node.spawn(Scheduler.spec([Job("a", Cron("@hourly"), notes.work)]))
        await trio.sleep(10)
        monkeypatch.setattr(SetClock, "ahead", right + timedelta(days=3650))
        await trio.sleep(1000)  # the missed runs together cause a single run
        monkeypatch.setattr(SetClock, "ahead", right)
        await trio.sleep(7200)

    assert notes.begun[1:] == [3630, 7230]


@pytest.mark.parametrize("is_removed", [False, True], ids=["replaced", "removed and added"])
async def test_a_run_of_a_replaced_job_counts_as_the_previous_run(
    is_removed: bool, autojump_clock: MockClock
) -> None:
    async with running_node(limit=1e6) as node:
        notes = Notes()
        pid = await scheduled(node, Job("a", Cron("@hourly"), notes.work, (5400.0,)))
        await trio.sleep(60)
        if is_removed:
            await node.call(pid, ask(Scheduler.remove, "a"))
        await node.call(pid, ask(Scheduler.add, Job("a", Cron("5 * * * *"), notes.work, (1.0,))))
        assert (await state(node, pid)).running == 1
        await trio.sleep(7800)
        info = await state(node, pid)

    assert notes.begun == [30, 7530]
    assert (info.runs, info.skipped) == (1, 2)


async def test_runs_by_hand_wait_in_the_queue_which_has_a_limit(autojump_clock: MockClock) -> None:
    async with running_node(limit=1e6) as node:
        notes = Notes()
        job = Job("a", Cron("@yearly"), notes.work, (10.0,), overlap=Job.Overlap.QUEUE)
        pid = await scheduled(node, job)
        for _ in range(1003):
            await node.call(pid, ask(Scheduler.run_now, "a"))
        await trio.sleep(25)
        info = await state(node, pid)

    assert notes.begun == [0, 10, 20]
    assert (info.runs, info.skipped) == (3, 2)


async def test_a_failure_of_a_removed_job_is_logged(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(5)
        raise Failed("on purpose")

    log: list[Any] = []
    async with running_node(limit=1e6) as node:
        node.add_logger(await node.spawn(LogKeeper, log), "error")
        pid = await scheduled(node, Job("a", Cron("@yearly"), fail))
        await node.call(pid, ask(Scheduler.run_now, "a"))
        await node.call(pid, ask(Scheduler.remove, "a"))
        await trio.sleep(10)
        assert await node.call(pid, ask(Scheduler.jobs)) == []

    assert [record.event for record in log] == ["a scheduled job failed"]


async def test_runs_end_with_the_scheduler_and_a_supervisor_restarts_it() -> None:
    async with running_node() as node:
        notes = Notes()
        jobs = [Job("a", Cron("@yearly"), notes.work, (1000.0,))]
        await node.supervise([ChildSpec("schedule", Scheduler, jobs)])
        await node.call("schedule", ask(Scheduler.run_now, "a"))
        while not notes.begun:
            await trio.lowlevel.checkpoint()
        before = node.whereis("schedule")
        node.kill("schedule")
        while node.whereis("schedule") in (None, before):
            await trio.lowlevel.checkpoint()
        assert notes.cancelled == 1
        [info] = await node.call("schedule", ask(Scheduler.jobs))

    assert info.runs == 0


async def test_without_a_start_the_time_of_the_system_counts() -> None:
    async with running_node() as node:
        pid = await node.spawn(Scheduler, [Job("a", Cron("@yearly"), time.sleep, (0,))])
        info = await state(node, pid)
        node.send(pid, "unknown")

        assert info.next_run > datetime.now(UTC)
        assert info.next_run.month == 1
        assert (await node.inspect(pid))["a"] == info.next_run.isoformat()


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"name": ""}, "name"),
        ({"cron": "* * * * *"}, "Cron"),
        ({"function": None}, "not both"),
        ({"to": "sink"}, "not both"),
        ({"function": 5}, r"a function.*`Job\('a', cron, fetch, \(url,\)\)`"),
        ({"args": [1]}, "a tuple"),
        ({"jitter": -1}, "jitter"),
        ({"grace": "long"}, "grace"),
        ({"timeout": -1}, "timeout"),
        ({"missed": "once"}, "MissedRuns"),
        ({"overlap": "skip"}, "Overlap"),
        ({"since": START.replace(tzinfo=None)}, "time zone"),
    ],
)
def test_a_wrong_job_is_refused(wrong: Any, words: str) -> None:
    arguments: Any = {"name": "a", "cron": Cron("@daily"), "function": print, **wrong}
    with pytest.raises(BadInputError, match=words):
        Job(**arguments)


async def test_a_wrong_scheduler_is_refused() -> None:
    job = Job("a", Cron("@daily"), print)
    several: list[Any] = [[job, job], ["job"], job]
    async with running_node() as node:
        for arguments in several:
            with pytest.raises(InitError):
                await node.spawn(Scheduler, arguments)
        with pytest.raises(InitError, match="time zone"):
            await node.spawn(Scheduler.spec(start=START.replace(tzinfo=None)))
        assert node.processes() == []
