"""`Scheduler`: an actor that runs jobs at times of the calendar."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from .._core.tables.timers import Timer
from .._core.vocabulary.errors import BadInputError, Reject, TaskEndedError
from .._core.vocabulary.messages import Response
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Crashed, is_a
from .._core.vocabulary.text import text_of
from ..actor import Actor
from ..entity_handles import EntityHandle
from ..methods import exposed
from ..tasks.handle import Task, TaskResult
from .job import RELEASED, Batch, Job, JobInfo, PlannedJob
from .run_notes import KnownRuns, NoteRuns

__all__ = ["Scheduler"]

_LOOK: Final = 60.0
"""Seconds after which the scheduler looks at the clock again, which a person may have set."""
_RETRY: Final = 1.0
"""Seconds after which the scheduler asks a store again that has failed."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """Runs that begin as soon as they are noted."""

    batches: list[Batch]
    heads: list[PlannedJob]
    """Jobs whose queue goes on."""
    notes: dict[str, float | None]


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
            it begins. While the store fails, or has not answered, no job runs; they are late then.

    Raises:
        BadInputError: two jobs have the same name, an argument has a wrong type, or the process has
            no name to store ``last_runs`` under.
        EntityKindUnknownError: the node does not keep ``last_runs``.
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
        self._planned: dict[str, PlannedJob] = {}
        self._born = 0.0
        self._timer: Timer | None = None
        self._running: dict[str, list[Task[Any]]] = {}
        """The runs in progress, by the names of jobs, also of jobs that were replaced or removed.
        """
        self._last_runs = last_runs
        self._store: EntityHandle | None = None
        self._settled: dict[str, float] = {}
        """The moments up to which the runs of jobs are settled, as far as they are stored."""
        self._forgotten: set[str] = set()
        """Jobs that were removed, and whose moments are still stored."""
        self._is_known = last_runs is None
        self._asked: float | None = None
        """When the scheduler asked the store, if there is no answer yet."""
        self._noting: _Turn | None = None
        """The runs that begin with the answer."""
        self._has_failed = False

    def init(self) -> None:
        """Plan the first runs."""
        self._born = self._process.kernel.clock.now()
        for job in self._given:
            self._planned[job.name] = PlannedJob(job)
        if self._is_unset(now := self._now()):
            self.log.warning(
                "the clock of the system is not set: jobs run by it, and are planned again when it "
                "is; until then no run is stored",
                now=now.isoformat(),
            )
        self._plan(self._planned.values())
        if self._last_runs is not None:
            if self._process.name is None:
                raise BadInputError(
                    "Scheduler(last_runs)",
                    self._last_runs,
                    "a scheduler with a name, under which its last runs are stored: "
                    'ChildSpec("schedule", Scheduler, …), or node.spawn(…, name="schedule")',
                )
            self._store = self.entity(self._last_runs, self._process.name)
        self._turn()

    # -- verbs for other processes -----------------------------------------------------------------

    @exposed
    def add(self, job: Job) -> JobInfo:
        """Add a job, or replace the job of that name, whose runs in progress continue, and count
        for the rule ``overlap`` of the new job.
        """
        planned = PlannedJob(_rejecting(job))
        if job.name in self._settled:
            self._learn(planned)
        self._planned[job.name] = planned
        self._plan([planned])
        self._turn()
        return self._info(planned)

    @exposed
    def remove(self, name: str) -> bool:
        """Remove a job, and forget its last run; its runs in progress continue. False if there is
        no such job.
        """
        found = self._planned.pop(name, None) is not None
        if found and self._store is not None:
            self._settled.pop(name, None)
            self._forgotten.add(name)
        self._turn()
        return found

    @exposed
    def run_now(self, name: str) -> None:
        """Run a job now, besides its schedule. Its rule for overlapping runs holds."""
        planned = self._planned.get(name)
        if planned is None:
            known = ", ".join(self._planned) or "none"
            raise Reject(LookupError(f"there is no job {name!r}; there are {known}"))
        self._run(planned, None)

    @exposed
    def jobs(self) -> list[JobInfo]:
        """The state of all jobs, the next run first."""
        return sorted(map(self._info, self._planned.values()), key=lambda info: info.next_run)

    def _info(self, planned: PlannedJob) -> JobInfo:
        return planned.info(len(self._running.get(planned.job.name, ())))

    # -- callbacks ---------------------------------------------------------------------------------

    def handle_message(self, message: object, sender: object) -> None:
        """Run the jobs that are due, or take the result of a run."""
        if isinstance(message, TaskResult):
            self._take(message)
        elif message is _WAKE:
            self._turn()
        else:
            self._process.count_unhandled()
            self.log.warning("unhandled message", message_type=type(message).__qualname__)

    def handle_response(self, response: Response) -> None:
        """Take the answer of the store."""
        turn, self._noting, self._asked = self._noting, None, None
        if response.error is not None:
            if not self._has_failed:
                self.log.error(
                    "the last runs cannot be stored; jobs wait", why=text_of(response.error)
                )
            self._has_failed = True
            self._arm()
            return
        self._has_failed = False
        if turn is None:
            self._is_known = True
            known: dict[str, float] = response.value
            self._settled.update(
                (name, moment) for name, moment in known.items() if name not in self._forgotten
            )
            stored = [each for each in self._planned.values() if each.job.name in self._settled]
            for planned in stored:
                self._learn(planned)
            self._plan(stored)
        else:
            self._take_notes(turn.notes)
            self._begin_all(turn)
        self._turn()

    def handle_inspect(self, *items: str) -> Mapping[str, str]:
        """The next run of each job."""
        return {info.name: info.next_run.isoformat() for info in self.jobs()}

    # -- runs --------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        if self._start is None:
            # Not `datetime.now`, which does not know the time of day of a world of the tests.
            return datetime.fromtimestamp(time.time(), UTC)
        passed = self._process.kernel.clock.now() - self._born
        return self._start.astimezone(UTC) + timedelta(seconds=passed)

    def _learn(self, planned: PlannedJob) -> None:
        planned.known.append(datetime.fromtimestamp(self._settled[planned.job.name], UTC))

    def _turn(self) -> None:
        """Begin the runs that are due. With a store, note them first: a run that is in progress
        when the program ends is not repeated.
        """
        if self._asked is None:
            self._follow_clock()
            if not self._is_known:
                self._ask(KnownRuns(), None)
            else:
                turn = self._next_turn()
                if turn.notes and self._store is not None:
                    self._ask(NoteRuns(turn.notes), turn)
                else:
                    self._has_failed = False
                    self._begin_all(turn)
        elif self._process.kernel.clock.now() - self._asked >= _LOOK:
            self.log.warning("the store of the last runs has not answered yet; jobs wait")
        self._arm()

    def _ask(self, request: KnownRuns | NoteRuns, turn: _Turn | None) -> None:
        assert self._store is not None
        self._asked, self._noting = self._process.kernel.clock.now(), turn
        # A slow store is no reason to ask it again, which would take as long.
        self._store.request(request, timeout=None)

    def _next_turn(self) -> _Turn:
        now, clock = self._now(), self._process.kernel.clock.now()
        self._forgotten -= self._planned.keys()
        notes: dict[str, float | None] = dict.fromkeys(self._forgotten)
        moments = dict[str, float]()
        heads, batches = list[PlannedJob](), list[Batch]()
        for name, planned in self._planned.items():
            if name not in self._settled:
                moments[name] = planned.settled.timestamp()  # runs from then on can be missed
            if planned.queue and not self._running.get(name):
                heads.append(planned)
                if (due := planned.queue[0]) is not None:
                    moments[name] = due.timestamp()
            if planned.fire <= now:
                batch = planned.batch(now, clock, is_running=bool(self._running.get(name)))
                batches.append(batch)
                if not batch.must_wait:
                    moments[name] = batch.moment()
        # The moments of a clock that is not set would hide the last run that is stored, and a later
        # program would catch up everything since then.
        if not self._is_unset(now):
            notes |= moments
        return _Turn(batches, heads, notes)

    def _take_notes(self, notes: dict[str, float | None]) -> None:
        for name, moment in notes.items():
            if moment is None:
                self._settled.pop(name, None)
                self._forgotten.discard(name)
            else:
                self._settled[name] = moment

    def _begin_all(self, turn: _Turn) -> None:
        for planned in turn.heads:
            if self._planned.get(planned.job.name) is planned:
                planned.queue.popleft()
                self._begin(planned)
        for batch in turn.batches:
            planned = batch.planned
            if self._planned.get(planned.job.name) is planned:
                planned.settle(batch, self._delay(planned.job))
                for number, due in enumerate(batch.dues):
                    if planned.queues and (batch.must_wait or number):
                        planned.wait(due)
                    else:
                        self._run(planned, due)

    def _follow_clock(self) -> None:
        """Plan the jobs again that were planned by another clock."""
        now, clock = self._now(), self._process.kernel.clock.now()
        ahead = [planned for planned in self._planned.values() if planned.is_ahead(now)]
        behind = [planned for planned in self._planned.values() if planned.was_behind(now, clock)]
        for planned in ahead:
            planned.begin_again()
        for planned in behind:
            planned.move(now, clock)
            # What this program has run is to be stored by the present clock.
            self._settled.pop(planned.job.name, None)
        for stale, direction in (ahead, "back"), (behind, "forward"):
            if stale:
                self._plan(stale, is_warned=True)
                self.log.warning(
                    f"the clock was set {direction}; jobs are planned again",
                    jobs=", ".join(planned.job.name for planned in stale),
                )

    def _plan(self, jobs: Iterable[PlannedJob], *, is_warned: bool = False) -> None:
        """Plan the next runs: after the last known run, or else from now on."""
        now, clock = self._now(), self._process.kernel.clock.now()
        ignored = [
            planned.job.name
            for planned in jobs
            if not planned.plan(now, clock, self._delay(planned.job))
        ]
        if ignored and not (is_warned or self._is_unset(now)):
            self.log.warning(
                "last runs in the future are ignored: the clock was wrong then, or is wrong now",
                jobs=", ".join(ignored),
                now=now.isoformat(),
            )

    def _is_unset(self, now: datetime) -> bool:
        """Does the clock of the system show a time that is past for sure?"""
        return self._start is None and now < RELEASED

    def _delay(self, job: Job) -> float:
        if self._random is None:
            return job.jitter * self._process.kernel.chance("schedules").fraction()
        return self._random.uniform(0.0, job.jitter) if job.jitter else 0.0

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asked is not None:
            seconds = _LOOK
        elif self._has_failed:
            seconds = _RETRY
        elif self._planned:
            first = min(planned.fire for planned in self._planned.values())
            seconds = min(max(0.0, (first - self._now()).total_seconds()), _LOOK)
        else:
            return
        self._timer = self.send_after(seconds, self.pid, _WAKE)

    def _run(self, planned: PlannedJob, due: datetime | None) -> None:
        job = planned.job
        if job.to is not None:
            planned.count_run()
            self.send(job.to, job.message)
            return
        running = self._running.get(job.name, ())
        if running or planned.queue:
            match job.overlap:
                case Job.Overlap.SKIP:
                    planned.count_skipped()
                    return
                case Job.Overlap.QUEUE:
                    planned.wait(due)
                    return
                case Job.Overlap.REPLACE:
                    for task in running:
                        task.cancel()
        self._begin(planned)

    def _begin(self, planned: PlannedJob) -> None:
        job = planned.job
        assert job.function is not None
        planned.count_run()
        self._running.setdefault(job.name, []).append(
            self.run_task(
                job.function, *job.args, name=job.name, timeout=job.timeout, reply_to=self.pid
            )
        )

    def _take(self, result: TaskResult[Any]) -> None:
        error, planned = result.error, self._planned.get(result.name)
        others = [task for task in self._running.pop(result.name, ()) if task.pid != result.pid]
        if others:
            self._running[result.name] = others
        if error is not None and not is_a(error, TaskEndedError):
            self.log.error(
                "a scheduled job failed", job=result.name, exception=Crashed(error).traceback
            )
            if planned is not None:
                planned.fail(error)
        if planned is not None and planned.queue:
            self._turn()


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
