"""`Job`: what runs at times of the calendar, and how a scheduler plans it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.text import text_of
from ..tasks.function import Work
from .cron import Cron

__all__ = ["RELEASED", "STEP", "Batch", "Job", "JobInfo", "PlannedJob"]

_MOST: Final = 1000
"""Missed runs that are counted singly; the rest is dropped."""
STEP: Final = timedelta(hours=1)
"""How far the clock may step back before jobs are planned again. Up to this step a job keeps its
plan, so that no run is repeated; after a longer step it would rest too long.
"""
RELEASED: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""A moment before the first release. A clock that shows an earlier time is not set: a board without
a battery starts in 1970.
"""


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


class PlannedJob:
    """A job of a scheduler, and its runs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.known: list[datetime] = [] if job.since is None else [job.since]
        """The last runs of earlier programs, until a run of this program is later."""
        self.begun: datetime | None = None
        """When this program began with the job."""
        self.ran: datetime | None = None
        """Up to which moment this program has run the job."""
        self.queue: deque[datetime | None] = deque()
        """The times of runs that wait for the previous run; None for one without a time."""
        self.runs: int = 0
        self.skipped: int = 0
        self.failed: int = 0
        self.last_failure: str | None = None

    @property
    def queues(self) -> bool:
        """Does a run wait for the previous run?"""
        return self.job.to is None and self.job.overlap is Job.Overlap.QUEUE

    def plan(self, now: datetime, clock: float, delay: float) -> bool:
        """Set the next run: after the last run, or else after the beginning. ``clock`` is the clock
        of the node, which is never set. False if a last run in the future is ignored.
        """
        if self.begun is None:
            self.begun = now
        past = [moment for moment in self.known if moment <= now + STEP]
        base = max(past, default=self.begun)
        due = self._next_after(base)
        # Runs up to then are settled: a later program can miss those after it.
        self.settled = base if self.ran is None or due < self.ran else max(base, self.ran)
        self._set(now, clock, due, delay)
        return len(past) == len(self.known)

    def _set(self, now: datetime, clock: float, due: datetime, delay: float) -> None:
        self.made, self.made_at = now, clock
        self.due = due
        self.delay = delay
        self.fire: datetime = due.astimezone(UTC) + timedelta(seconds=delay)
        self.later = [moment for moment in self.known if moment > now + STEP]

    def _next_after(self, moment: datetime) -> datetime:
        due = self.job.cron.next_after(moment)
        if self.begun is not None and self.ran is not None and self.begun < due <= self.ran:
            due = self.job.cron.next_after(self.ran)  # this program has run what was due meanwhile
        return due

    def is_ahead(self, now: datetime) -> bool:
        """Was the clock set back since the plan was made?"""
        return self.made > now + STEP and self.due > now

    def begin_again(self) -> None:
        """Forget the moments of a clock that was ahead."""
        self.begun = self.ran = None

    def was_behind(self, now: datetime, clock: float) -> bool:
        """Was the clock set forward since the plan was made, and showed a wrong time before: one
        before the first release, or before a last run that is past now? A machine that slept looks
        the same but for that. If the clock has reached a last run by itself, the run was of a clock
        that was ahead, and counts no more.
        """
        is_set = self._step(now, clock) > STEP
        if is_set and self.made < RELEASED:
            return True
        reached = [moment for moment in self.later if moment <= now]
        if reached and not is_set:
            self.known = [moment for moment in self.known if moment not in reached]
            self.later = [moment for moment in self.later if moment not in reached]
        return is_set and bool(reached)

    def move(self, now: datetime, clock: float) -> None:
        """Let the moments of this program follow the clock, which was behind."""
        step = self._step(now, clock)
        assert self.begun is not None
        self.begun += step
        if self.ran is not None:
            self.ran += step
        self.queue = deque(due and due + step for due in self.queue)

    def _step(self, now: datetime, clock: float) -> timedelta:
        return now - self.made - timedelta(seconds=clock - self.made_at)

    def batch(self, now: datetime, clock: float, *, is_running: bool) -> "Batch":
        """The runs that are due."""
        job = self.job
        dues, following = [self.due], self._next_after(self.due)
        while following <= now and len(dues) < _MOST:
            dues.append(following)
            following = self._next_after(following)
        if following <= now:
            following = job.cron.next_after(now)
        if job.missed is Job.MissedRuns.ALL:
            chosen = dues
        else:
            is_late = (now - dues[-1]).total_seconds() - self.delay > job.grace
            chosen = [] if job.missed is Job.MissedRuns.SKIP and is_late else dues[-1:]
        must_wait = self.queues and (is_running or bool(self.queue))
        return Batch(self, now, clock, chosen, len(dues) - len(chosen), following, must_wait)

    def settle(self, batch: "Batch", delay: float) -> None:
        """Go on to the time after a batch of runs."""
        self.ran = self.settled = batch.now
        self.known = [moment for moment in self.known if moment > batch.now + STEP]
        self.skipped += batch.dropped
        self._set(batch.now, batch.clock, batch.following, delay)

    def wait(self, due: datetime | None) -> None:
        """Let a run wait for the previous run."""
        if len(self.queue) < _MOST:
            self.queue.append(due)
        else:
            self.count_skipped()

    def count_run(self) -> None:
        """Count a run that begins, or a message that is sent."""
        self.runs += 1

    def count_skipped(self) -> None:
        """Count a run that is dropped."""
        self.skipped += 1

    def fail(self, error: BaseException) -> None:
        """Count a failure."""
        self.failed += 1
        self.last_failure = f"{type(error).__name__}: {text_of(error)}"

    def info(self, running: int) -> JobInfo:
        """The state of the job."""
        return JobInfo(
            self.job.name,
            self.due,
            running,
            self.runs,
            self.skipped,
            self.failed,
            self.last_failure,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The runs of a job that are due."""

    planned: PlannedJob
    now: datetime
    clock: float
    """The clock of the node at that moment."""
    dues: list[datetime]
    """Those that run."""
    dropped: int
    following: datetime
    """The time after them."""
    must_wait: bool
    """A run is in progress, and these wait for it."""

    def moment(self) -> float:
        """The moment up to which runs are settled when the first of these begins."""
        waits = self.planned.queues and len(self.dues) > 1
        return (self.dues[0] if waits else self.now).timestamp()


show_public_names(__name__)
show_members(Job)
