"""`Scheduler`: an actor that runs jobs at times of the calendar."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from .._core.tables.timers import Timer
from .._core.vocabulary.errors import BadInputError, ErgoError, Reject, TaskEndedError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.reasons import Crashed
from .._core.vocabulary.text import text_of
from ..actor import Actor
from ..entity_handles import EntityHandle
from ..methods import exposed
from ..tasks.function import Work
from ..tasks.handle import Task, TaskResult
from .cron import Cron
from .run_notes import KnownRuns, NoteRuns

__all__ = ["Job", "JobInfo", "Scheduler"]

_LOOK: Final = 60.0
"""Seconds after which the scheduler looks at the clock again, which a person may have set."""
_RETRY: Final = 1.0
"""Seconds after which the scheduler tries again to note a run that the store could not keep."""
_MOST: Final = 1000
"""Missed runs that are counted singly; the rest is dropped."""


@dataclass(frozen=True, slots=True)
class Job:
    """A function that runs as a task, or a message that is sent, at times of the calendar.

    ``Job("report", Cron("0 9 * * mon-fri"), write_report, ("daily",))`` calls
    ``write_report("daily")``: async on the loop, plain in a thread. ``Job("tick", Cron("@hourly"),
    to="collector", message="tick")`` sends a message.
    """

    class MissedRuns(Enum):
        """The fate of runs that are due while the scheduler could not run: the machine slept,
        or the program was down (``Job(since=…)``).
        """

        ONCE = "once"
        """All missed runs together cause a single run, at once."""
        SKIP = "skip"
        """A run that is more than ``grace`` seconds late is dropped."""
        ALL = "all"
        """Each missed run runs."""

    class Overlap(Enum):
        """The fate of a run that is due while the previous run is still in progress."""

        SKIP = "skip"
        """It is dropped, and counted."""
        QUEUE = "queue"
        """It runs after the previous run."""
        REPLACE = "replace"
        """The previous run is cancelled."""
        ALLOW = "allow"
        """Both run."""

    name: str
    cron: Cron
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    to: Target | None = None
    """The receiver of ``message``, instead of a function."""
    message: Any = None
    jitter: float = 0.0
    """Each run is delayed by a random time of at most so many seconds, so that many programs do not
    act at the same moment.
    """
    missed: MissedRuns = MissedRuns.ONCE
    grace: float = 60.0
    """How many seconds late a run may be before it counts as missed."""
    overlap: Overlap = Overlap.SKIP
    timeout: float | None = None
    """Seconds that a run of the function may take."""
    since: datetime | None = None
    """The time of the last run, if the program keeps it: runs since then were missed."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.cron, Cron):
            raise BadInputError("Job(cron)", self.cron, 'Cron("*/5 9-17 * * mon-fri", timezone)')
        if (self.function is None) == (self.to is None):
            raise BadInputError(
                f"Job({self.name!r}, …)",
                self.function,
                "a function to run, or to=address and message=…; not both",
            )
        if self.function is not None:
            Work(
                self.function,
                None,
                f"Job({self.name!r}, function)",
                f"Job({self.name!r}, cron, fetch, (url,))",
            )
        if not isinstance(self.args, tuple):
            raise BadInputError("Job(args)", self.args, "a tuple of arguments: ('daily',)")
        check_number("Job(jitter)", self.jitter, least=0.0)
        check_number("Job(grace)", self.grace, least=0.0)
        if self.timeout is not None:
            check_number("Job(timeout)", self.timeout, least=0.0)
        if not isinstance(self.missed, Job.MissedRuns):
            raise BadInputError("Job(missed)", self.missed, "a member of Job.MissedRuns")
        if not isinstance(self.overlap, Job.Overlap):
            raise BadInputError("Job(overlap)", self.overlap, "a member of Job.Overlap")
        if self.since is not None and (
            not isinstance(self.since, datetime) or self.since.tzinfo is None
        ):
            raise BadInputError("Job(since)", self.since, "a datetime with a time zone, or None")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The state of a job of a :class:`Scheduler`."""

    name: str
    next_run: datetime
    """In the time zone of its schedule, without jitter."""
    running: int
    runs: int
    """How many runs were started, or messages sent."""
    skipped: int
    """How many runs were missed, or overlapped and were dropped."""
    failed: int
    last_failure: str | None


class _Planned:
    """A job of a scheduler, and its runs."""

    def __init__(self, job: Job, due: datetime, delay: float) -> None:
        self.job = job
        self.tasks: list[Task[Any]] = []
        self.queued = self.runs = self.skipped = self.failed = 0
        self.last_failure: str | None = None
        self.plan(due, delay)

    def plan(self, due: datetime, delay: float) -> None:
        """Set the next run."""
        self.due = due
        self.delay = delay
        self.fire = due.astimezone(UTC) + timedelta(seconds=delay)

    def try_again(self, moment: datetime) -> None:
        """Try the run again at a later moment."""
        self.fire = moment

    def info(self) -> JobInfo:
        return JobInfo(
            self.job.name,
            self.due,
            len(self.tasks),
            self.runs,
            self.skipped,
            self.failed,
            self.last_failure,
        )


class Scheduler(Actor):
    """An actor that runs jobs at times of the calendar.

    Start it as any process, best under a supervisor: ``ChildSpec("schedule", Scheduler, jobs)``.
    The functions of jobs are tasks below it, so they end with it. A job that fails is logged,
    counted, and runs again at its next time.

    Args:
        jobs: its jobs; ``await node.call("schedule", ask(Scheduler.add, job))`` adds others.
        start: the time of day at the start, instead of that of the system: for tests by virtual
            time.
        seed: makes the jitter the same in each run, for tests.
        last_runs: ``ergo_py.entities.LastRuns``, if `Entities` on this node keep it: the scheduler
            remembers its last runs there, under its name. Runs that were due while the program was
            down follow the rule ``missed`` of their job, and no run is repeated: it is noted before
            it begins. While the store fails, no job runs; they are late then.

    Raises:
        BadInputError: two jobs have the same name, or an argument has a wrong type.
    """

    def __init__(
        self,
        jobs: Sequence[Job] = (),
        *,
        start: datetime | None = None,
        seed: int | None = None,
        last_runs: type[Actor] | None = None,
    ) -> None:
        if last_runs is not None and not (
            isinstance(last_runs, type) and issubclass(last_runs, Actor)
        ):
            raise BadInputError(
                "Scheduler(last_runs)", last_runs, "the class ergo_py.entities.LastRuns, or None"
            )
        if start is not None and (not isinstance(start, datetime) or start.tzinfo is None):
            raise BadInputError("Scheduler(start)", start, "a datetime with a time zone, or None")
        if not isinstance(jobs, Iterable):
            raise BadInputError("Scheduler(jobs)", jobs, "a list of jobs: `[Job(…), Job(…)]`")
        self._given = list(jobs)
        names = [_checked(job).name for job in self._given]
        if len(set(names)) != len(names):
            raise BadInputError("Scheduler(jobs)", names, "jobs with different names")
        self._start = start
        self._random = None if seed is None else random.Random(seed)
        self._planned: dict[str, _Planned] = {}
        self._born = 0.0
        self._timer: Timer | None = None
        self._last_runs = last_runs
        self._settled: dict[str, float] = {}
        """The moments up to which the runs of jobs are settled, as far as they are stored."""

    async def init(self) -> None:
        """Plan the first runs."""
        self._born = self._process.kernel.clock.now()
        if self._last_runs is not None:
            self._settled.update(await self._notes(self._last_runs).call(KnownRuns()))
        for job in self._given:
            self._plan(job)
        await self._note_new_jobs()
        self._arm()

    def _notes(self, last_runs: type[Actor]) -> EntityHandle:
        return self.entity(last_runs, self._process.name or "scheduler")

    async def _note(self, moments: dict[str, float]) -> None:
        """Store the moments up to which the runs of jobs are settled.

        Raises:
            ErgoError: the store has failed, and may have them.
        """
        if self._last_runs is not None and moments:
            await self._notes(self._last_runs).call(NoteRuns(moments))
            self._settled.update(moments)

    async def _note_new_jobs(self) -> None:
        """Note when a job was first planned: runs from then on can be missed."""
        if self._last_runs is None:
            return
        now = self._now().timestamp()
        new = {name: now for name in self._planned if name not in self._settled}
        await self._note(new)

    # -- verbs for other processes -----------------------------------------------------------------

    @exposed
    def add(self, job: Job) -> JobInfo:
        """Add a job, or replace the job of that name, whose runs in progress continue."""
        planned = self._plan(_rejecting(job))
        self._arm()
        if self._last_runs is not None:
            self.send(self.pid, _WAKE)  # to note it
        return planned.info()

    @exposed
    def remove(self, name: str) -> bool:
        """Remove a job; its runs in progress continue. False if there is no such job."""
        found = self._planned.pop(name, None) is not None
        self._settled.pop(name, None)
        self._arm()
        return found

    @exposed
    def run_now(self, name: str) -> None:
        """Run a job now, besides its schedule. Its rule for overlapping runs holds."""
        planned = self._planned.get(name)
        if planned is None:
            known = ", ".join(self._planned) or "none"
            raise Reject(LookupError(f"there is no job {name!r}; there are {known}"))
        self._run(planned)

    @exposed
    def jobs(self) -> list[JobInfo]:
        """The state of all jobs, the next run first."""
        return sorted(
            (planned.info() for planned in self._planned.values()), key=lambda info: info.next_run
        )

    # -- callbacks ---------------------------------------------------------------------------------

    async def handle_message(self, message: object, sender: object) -> None:
        """Run the jobs that are due, or take the result of a run."""
        if isinstance(message, TaskResult):
            self._take(message)
        elif message is _WAKE:
            await self._run_all_due()
            self._arm()
        else:
            self._process.count_unhandled()
            self.log.warning("unhandled message", message_type=type(message).__qualname__)

    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        """The next run of each job."""
        return {info.name: info.next_run.isoformat() for info in self.jobs()}

    # -- runs --------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        if self._start is None:
            return datetime.now(UTC)
        passed = self._process.kernel.clock.now() - self._born
        return self._start.astimezone(UTC) + timedelta(seconds=passed)

    async def _run_all_due(self) -> None:
        now = self._now()
        due = [planned for planned in self._planned.values() if planned.fire <= now]
        try:
            await self._note_new_jobs()
            # Before they run: a run that is in progress when the program ends is not repeated.
            await self._note({planned.job.name: now.timestamp() for planned in due})
        except ErgoError as error:
            self.log.error("the last runs cannot be stored; jobs wait", why=str(error))
            for planned in due:
                planned.try_again(now + timedelta(seconds=_RETRY))
            return
        for planned in due:
            if self._planned.get(planned.job.name) is planned:
                self._run_due(planned, now)

    def _plan(self, job: Job) -> _Planned:
        settled = self._settled.get(job.name)
        since = job.since
        if settled is not None:
            known = datetime.fromtimestamp(settled, UTC)
            since = known if since is None else max(since, known)
        due = job.cron.next_after(since or self._now())
        planned = self._planned[job.name] = _Planned(job, due, self._delay(job))
        return planned

    def _delay(self, job: Job) -> float:
        if self._random is None:
            return job.jitter * self._process.kernel.chance("schedules").fraction()
        return self._random.uniform(0.0, job.jitter) if job.jitter else 0.0

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._planned:
            first = min(planned.fire for planned in self._planned.values())
            seconds = max(0.0, (first - self._now()).total_seconds())
            self._timer = self.send_after(min(seconds, _LOOK), self.pid, _WAKE)

    def _run_due(self, planned: _Planned, now: datetime) -> None:
        job = planned.job
        dues, following = [planned.due], job.cron.next_after(planned.due)
        while following <= now and len(dues) < _MOST:
            dues.append(following)
            following = job.cron.next_after(following)
        if following <= now:
            following = job.cron.next_after(now)
        if job.missed is Job.MissedRuns.ALL:
            chosen = dues
        else:
            is_late = (now - dues[-1]).total_seconds() - planned.delay > job.grace
            chosen = [] if job.missed is Job.MissedRuns.SKIP and is_late else dues[-1:]
        planned.skipped += len(dues) - len(chosen)
        planned.plan(following, self._delay(job))
        for _ in chosen:
            self._run(planned)

    def _run(self, planned: _Planned) -> None:
        job = planned.job
        if job.to is not None:
            planned.runs += 1
            self.send(job.to, job.message)
            return
        if planned.tasks:
            match job.overlap:
                case Job.Overlap.SKIP:
                    planned.skipped += 1
                    return
                case Job.Overlap.QUEUE:
                    if planned.queued < _MOST:
                        planned.queued += 1
                    else:
                        planned.skipped += 1
                    return
                case Job.Overlap.REPLACE:
                    for task in planned.tasks:
                        task.cancel()
        self._begin(planned)

    def _begin(self, planned: _Planned) -> None:
        job = planned.job
        assert job.function is not None
        planned.runs += 1
        planned.tasks.append(
            self.run_task(
                job.function, *job.args, name=job.name, timeout=job.timeout, reply_to=self.pid
            )
        )

    def _take(self, result: TaskResult[Any]) -> None:
        error = result.error
        if error is not None and not isinstance(error, TaskEndedError):
            self.log.error(
                "a scheduled job failed", job=result.name, exception=Crashed(error).traceback
            )
        for planned in self._planned.values():
            if any(task.pid == result.pid for task in planned.tasks):
                planned.tasks = [task for task in planned.tasks if task.pid != result.pid]
                if error is not None and not isinstance(error, TaskEndedError):
                    planned.failed += 1
                    planned.last_failure = f"{type(error).__name__}: {text_of(error)}"
                if planned.queued and not planned.tasks:
                    planned.queued -= 1
                    self._begin(planned)


_WAKE: Final = object()
"""The message with which the scheduler wakes itself."""


def _checked(job: object) -> Job:
    if not isinstance(job, Job):
        raise BadInputError("Scheduler(jobs)", job, 'Job("report", Cron("@daily"), function)')
    return job


def _rejecting(job: object) -> Job:
    try:
        return _checked(job)
    except BadInputError as error:
        raise Reject(error) from None


show_public_names(__name__)
show_members(Job)
