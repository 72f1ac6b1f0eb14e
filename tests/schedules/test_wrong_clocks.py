"""Jobs by clocks that are wrong, and are set: behind, ahead, not set at all; before, while and
after a job runs; with and without stored last runs.

The times of these tests are hours since 8:30. The job is due at each full hour: at 0.5, 1.5 and so
on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, Cron, Job, Scheduler, open_node
from ergo_py.entities import Entities, LastRuns, MemoryStore
from tests.actors import LogKeeper
from tests.entities.bank import run_virtual

START = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)
ONCE, SKIP, ALL = Job.MissedRuns.ONCE, Job.MissedRuns.SKIP, Job.MissedRuns.ALL
HOURLY = Cron("0 * * * *")
DAILY = Cron("0 11 * * *")  # at 2.5
YEARS = 24.0 * 3650


@dataclass(frozen=True)
class Life:
    """A program from one hour to another. Its clock is ``ahead`` by so many hours, or has begun in
    1970 with the program (None), and is set to the right time at the hour ``set_at``.
    """

    begin: float
    end: float
    ahead: float | None = 0.0
    set_at: float = 1e9

    def now(self, hour: float) -> datetime:
        if hour >= self.set_at:
            return START + timedelta(hours=hour)
        if self.ahead is None:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour - self.begin)
        return START + timedelta(hours=hour + self.ahead)


@dataclass
class World:
    """Programs with the same store, each after the other."""

    job: dict[str, Any]
    stores: bool = True
    seconds: float = 0.0
    runs: list[float] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def live(self, lives: Sequence[Life], monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the programs."""
        run_virtual(lambda: self._live(lives, monkeypatch))
        self.told = [record.event for record in self.log]

    async def _live(self, lives: Sequence[Life], monkeypatch: pytest.MonkeyPatch) -> None:
        store, world = MemoryStore(), self
        self.began = trio.current_time()

        def tell_time() -> float:
            return life.now(world.hour()).timestamp()

        clock = SimpleNamespace(time=tell_time)
        monkeypatch.setattr("ergo_py.schedules.scheduler.time", clock)
        for life in lives:
            await self.sleep_until(life.begin)
            async with open_node("schedule@test", log_output="none", watchdog=None) as node:
                node.add_logger(await node.spawn(LogKeeper, self.log), "warning")
                jobs = [
                    Job("job", function=self.work, **{"overlap": Job.Overlap.ALLOW, **self.job})
                ]
                entities = Entities.spec(store, [LastRuns], now=trio.current_time)
                last_runs = LastRuns if self.stores else None
                await node.supervise(
                    [
                        ChildSpec("entities", entities),
                        ChildSpec("schedule", Scheduler.spec(jobs, last_runs=last_runs)),
                    ]
                )
                await self.sleep_until(life.end)

    def hour(self) -> float:
        return (trio.current_time() - self.began) / 3600.0

    async def sleep_until(self, hour: float) -> None:
        await trio.sleep_until(self.began + hour * 3600.0)

    async def work(self) -> None:
        self.runs.append(round(self.hour(), 1))
        await trio.sleep(self.seconds)


# The scheduler looks at the clock once a minute: a clock that was set at 0.65 is seen before 0.7.
ROWS: list[tuple[str, list[Life], dict[Job.MissedRuns, list[float]]]] = [
    (
        "not set, and set before the first run",
        [Life(0.0, 2.0, None, 0.3)],
        {ALL: [0.5, 1.5], ONCE: [0.5, 1.5], SKIP: [0.5, 1.5]},
    ),
    (
        "not set, and set after a run was due",
        [Life(0.0, 2.0, None, 0.68)],
        {ALL: [0.7, 1.5], ONCE: [0.7, 1.5], SKIP: [1.5]},
    ),
    (
        "not set, and set after a run by 1970",  # which counts for that of 0.5
        [Life(0.0, 2.0, None, 1.18)],
        {ALL: [1.0, 1.5], ONCE: [1.0, 1.5], SKIP: [1.0, 1.5]},
    ),
    (
        "not set, and set after a run by 1970 and a run that was due",
        [Life(0.0, 3.0, None, 1.68)],
        {ALL: [1.0, 1.7, 2.5], ONCE: [1.0, 1.7, 2.5], SKIP: [1.0, 2.5]},
    ),
    (
        "never set",
        [Life(0.0, 1.2, None), Life(1.2, 2.4, None)],
        {ALL: [1.0, 2.2], ONCE: [1.0, 2.2], SKIP: [1.0, 2.2]},
    ),
    (
        "right, down, not set, and set before a run",
        [Life(0.0, 2.0), Life(5.0, 6.0, None, 5.18)],
        {
            ALL: [0.5, 1.5, 5.2, 5.2, 5.2, 5.5],
            ONCE: [0.5, 1.5, 5.2, 5.5],
            SKIP: [0.5, 1.5, 5.5],
        },
    ),
    (
        "right, down, not set, and set after a run by 1970",
        [Life(0.0, 2.0), Life(5.0, 7.0, None, 6.18)],
        {
            ALL: [0.5, 1.5, 6.0, 6.2, 6.2, 6.2, 6.5],
            ONCE: [0.5, 1.5, 6.0, 6.2, 6.5],
            SKIP: [0.5, 1.5, 6.0, 6.5],
        },
    ),
    (
        "right, not set without a pause, and set after a run by 1970",
        [Life(0.0, 2.0), Life(2.0, 4.0, None, 3.18)],
        {
            ALL: [0.5, 1.5, 3.0, 3.5],
            ONCE: [0.5, 1.5, 3.0, 3.5],
            SKIP: [0.5, 1.5, 3.0, 3.5],
        },
    ),
    (
        "right, never set, right: the store has kept the last run",
        [Life(0.0, 2.0), Life(2.0, 3.2, None), Life(3.2, 4.0)],
        {
            ALL: [0.5, 1.5, 3.0, 3.2, 3.5],
            ONCE: [0.5, 1.5, 3.0, 3.2, 3.5],
            SKIP: [0.5, 1.5, 3.0, 3.5],
        },
    ),
    (
        "not set, set, right: what ran by 1970 is stored",
        [Life(0.0, 1.2, None, 1.18), Life(1.4, 2.0)],
        {ALL: [1.0, 1.5], ONCE: [1.0, 1.5], SKIP: [1.0, 1.5]},
    ),
    (
        "right, days behind, and set before a run",
        [Life(0.0, 2.0), Life(5.0, 6.0, -120.0, 5.18)],
        {
            ALL: [0.5, 1.5, 5.2, 5.2, 5.2, 5.5],
            ONCE: [0.5, 1.5, 5.2, 5.5],
            SKIP: [0.5, 1.5, 5.5],
        },
    ),
    (
        "right, days behind, and set after a run",
        [Life(0.0, 2.0), Life(5.0, 7.0, -120.0, 6.18)],
        {
            ALL: [0.5, 1.5, 5.5, 6.2, 6.2, 6.2, 6.5],
            ONCE: [0.5, 1.5, 5.5, 6.2, 6.5],
            SKIP: [0.5, 1.5, 5.5, 6.5],
        },
    ),
    (
        "right, behind by less than an interval, and set",
        [Life(0.0, 2.0), Life(4.0, 6.0, -0.6, 4.88)],  # 3.5 is due at 4.1 by the clock
        {
            ALL: [0.5, 1.5, 4.0, 4.1, 4.9, 5.5],
            ONCE: [0.5, 1.5, 4.0, 4.1, 4.9, 5.5],
            SKIP: [0.5, 1.5, 4.1, 5.5],
        },
    ),
    (
        "ahead by years, set back before a run",
        [Life(0.0, 2.0, YEARS, 0.28), Life(2.2, 3.0)],
        {ALL: [0.5, 1.5, 2.5], ONCE: [0.5, 1.5, 2.5], SKIP: [0.5, 1.5, 2.5]},
    ),
    (
        "ahead by years, set back after a run",
        [Life(0.0, 2.0, YEARS, 0.68), Life(2.2, 3.0)],
        {ALL: [0.5, 1.5, 2.5], ONCE: [0.5, 1.5, 2.5], SKIP: [0.5, 1.5, 2.5]},
    ),
    (
        "ahead by years, right: no time is left out, and none caught up",
        [Life(0.0, 2.0, YEARS), Life(4.0, 5.0)],
        {ALL: [0.5, 1.5, 4.5], ONCE: [0.5, 1.5, 4.5], SKIP: [0.5, 1.5, 4.5]},
    ),
    (
        "ahead by hours, right: the clock reaches the time of the last run",
        [Life(0.0, 1.2, 3.0), Life(1.2, 6.0)],
        {
            ALL: [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
            ONCE: [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
            SKIP: [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
        },
    ),
    (
        "ahead by less than an interval, set back after a run: it is not repeated",
        [Life(0.0, 2.0, 0.6, 0.28)],
        {ALL: [1.5], ONCE: [1.5], SKIP: [1.5]},
    ),
    (
        "set forward by hours: as if the machine had slept",
        [Life(0.0, 1.0, -3.0, 0.28)],
        {ALL: [0.3, 0.3, 0.3, 0.5], ONCE: [0.3, 0.5], SKIP: [0.5]},
    ),
    (
        "set forward by less than an interval, over a run",
        [Life(0.0, 2.0, -0.3, 0.68)],
        {ALL: [0.7, 1.5], ONCE: [0.7, 1.5], SKIP: [1.5]},
    ),
    (
        "set forward by less than an interval, after a run",
        [Life(0.0, 2.0, -0.3, 0.98)],
        {ALL: [0.8, 1.5], ONCE: [0.8, 1.5], SKIP: [0.8, 1.5]},
    ),
]


@pytest.mark.parametrize(
    "lives, missed, runs",
    [
        pytest.param(lives, missed, runs, id=f"{name}-{missed.value}")
        for name, lives, rules in ROWS
        for missed, runs in rules.items()
    ],
)
def test_each_time_of_the_calendar_has_its_run_by_any_clock(
    lives: list[Life],
    missed: Job.MissedRuns,
    runs: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"cron": HOURLY, "missed": missed})
    world.live(lives, monkeypatch)
    assert world.runs == runs


def test_a_last_run_by_a_clock_that_was_ahead_costs_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"cron": DAILY})
    world.live([Life(0.0, 0.8, 2.0), Life(1.0, 3.0)], monkeypatch)
    assert world.runs == [0.5, 2.5]
    assert world.told == [
        "last runs in the future are ignored: the clock was wrong then, or is wrong now"
    ]


@pytest.mark.parametrize("since", [None, START - timedelta(hours=2)], ids=["first", "since"])
@pytest.mark.parametrize("set_at, begin", [(0.28, []), (1.68, [1.0])])
def test_without_a_store_no_run_since_1970_is_caught_up(
    since: datetime | None, set_at: float, begin: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World({"cron": HOURLY, "missed": ALL, "since": since}, stores=False)
    world.live([Life(0.0, 3.0, None, set_at)], monkeypatch)
    at_once = round(set_at + 0.02, 1)
    before = [] if since is None else [at_once] * 2
    after = [0.5, 1.5, 2.5] if not begin else [at_once, 2.5]
    assert world.runs == begin + before + after
    assert [text.partition(":")[0] for text in world.told] == [
        "the clock of the system is not set",
        "the clock was set forward; jobs are planned again",
    ]


def test_runs_in_a_queue_are_stored_by_the_clock_that_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"cron": HOURLY, "missed": ALL, "overlap": Job.Overlap.QUEUE}, seconds=4000.0)
    # The run of 1.0 ends at 2.1, that of 2.0 at 3.2, and that of 3.0 waits when the clock is set.
    world.live([Life(0.0, 3.3, None, 3.08), Life(3.4, 4.0)], monkeypatch)
    assert world.runs == [1.0, 2.1, 3.2, 3.5]
