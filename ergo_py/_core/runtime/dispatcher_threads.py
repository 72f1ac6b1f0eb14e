"""`DispatcherThreads`: the threads in which plain callbacks run. A `ThreadGroup` for each
process with a thread of its own, and for each name that processes share. `LoopPin`: the CPU of the
thread in which all other callbacks run.
"""

import os
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Final

import outcome

from .. import sources
from ..vocabulary.dispatchers import Dispatcher, Threads
from ..vocabulary.errors import BadInputError, NodeStoppedError, NotAllowedError
from .bridge import (
    Bridge,
    MainThread,
    ReaderThread,
    Thread,
    ThreadLocal,
    get_ident,
    is_main_thread,
    stack_of,
    take_next,
)
from .thread_fairness import ThreadFairness
from .thread_parent import ThreadHost, ThreadParent

__all__ = [
    "DispatcherThreads",
    "Job",
    "Lender",
    "LoopPin",
    "ThreadGroup",
    "allowed_cpus",
    "callback_here",
    "job_here",
    "pin_thread",
]

_DEPTH: Final = 16
"""Callbacks that may wait for each other in a thread. Each has its frames on the stack of the
thread, and a crash of the last is told in the traceback of each.
"""
_STALE: Final = 16
"""Entries of lent jobs that a queue keeps before it is searched for them."""


class _Here(ThreadLocal):
    """What a thread of a dispatcher does now. In all other threads, nothing."""

    group: "ThreadGroup | None" = None
    job: "Job | None" = None
    parent: ThreadParent | None = None
    """The record of the thread, for ``trio.from_thread``."""

    def join(self, group: "ThreadGroup | None", parent: ThreadParent | None) -> None:
        """Note that this thread belongs to a group, or to none."""
        self.group = group
        self.parent = parent

    def begin(self, job: "Job | None") -> None:
        """Note the job that this thread runs."""
        self.job = job


_here: Final = _Here()


def job_here(bridge: Bridge) -> "Job | None":
    """The job that this thread runs, if it is a thread of a dispatcher of that node."""
    group = _here.group
    return None if group is None or not group.belongs_to(bridge) else _here.job


def check_main_thread() -> None:
    """Raise NotAllowedError unless this is the main thread, and outside of all callbacks."""
    if not is_main_thread():
        raise NotAllowedError(
            "run_main() is for the main thread of the program, and this is another thread; for a "
            'thread that is not the main thread, write dispatcher=Threads("name")'
        )
    if _here.group is not None:
        raise NotAllowedError(
            "the main thread is in run_main() already: this is a callback that runs there"
        )


def callback_here(bridge: Bridge) -> ThreadHost | None:
    """The callback of a process that runs in this thread, if it is a thread of a dispatcher of that
    node. It must wait by means of its `ThreadHost.run`: its thread may have to run other callbacks
    meanwhile.
    """
    job = job_here(bridge)
    host = None if job is None else job.host
    return host if host is not None and host.is_callback else None


class Job:
    """A callback that is to run in a thread. The thread and the loop compete for its only ticket:
    the thread takes it to run the job, the loop to withdraw it.
    """

    __slots__ = (
        *("_finished", "_is_withdrawn", "_tickets", "function"),
        *("host", "ident", "lender", "outcome", "owner"),
    )

    def __init__(
        self,
        function: Callable[[], Any],
        finished: Callable[[], None],
        owner: Any = None,
        host: ThreadHost | None = None,
    ) -> None:
        self.function: Final = function
        self.host: ThreadHost | None = host
        """Serves ``trio.from_thread`` in the callback."""
        self.owner: Final = owner
        """The process that the callback belongs to."""
        self.lender: Lender | None = None
        """The last callback whose thread was asked to run the job meanwhile. No other thread runs
        it.
        """
        self._finished = finished
        self._is_withdrawn = False
        # A list, because list.pop() is atomic: the ticket cannot be taken twice.
        self._tickets = [None]
        self.ident: int = 0
        """The thread that runs the job; 0 before and after."""
        self.outcome: outcome.Outcome[Any] | None = None
        """The result or exception of the callback, once it is done."""

    def withdraw(self) -> bool:
        """Withdraw the job. False if it has begun. On the loop."""
        if not self._take():
            return False
        self._is_withdrawn = True
        return True

    def refuse(self, error: Exception) -> None:
        """End the job with an error, unless it has begun. On the loop."""
        if self._take():
            self.outcome = outcome.Error(error)
            self._finished()

    def run(self, bridge: Bridge) -> None:
        """Run the job in this thread. Messages that the callback sends reach the loop before the
        notice that it is done.
        """
        if not self._take():
            return
        self.ident = get_ident()
        result = outcome.capture(self.function)
        self.ident = 0
        # Before the notice: the loop may look at the outcome before that job of the bridge runs, to
        # tell whether the thread is free.
        self.outcome = result
        try:
            bridge.post(self._finished)
        except NodeStoppedError:
            # The node has stopped and abandoned the job: no task waits for it.
            return

    @property
    def has_begun(self) -> bool:
        """Whether a thread has begun to run it, or it was withdrawn."""
        return not self._tickets

    @property
    def is_over(self) -> bool:
        """Whether it is done, or was withdrawn."""
        return self.outcome is not None or self._is_withdrawn

    def stack(self) -> str:
        """The present call stack of the job's thread; empty if it is not running."""
        return stack_of(self.ident) if self.ident else ""

    def _take(self) -> bool:
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True


class Lender:
    """A callback that waits in a thread of several processes. If all these threads wait, they run
    the callbacks of the processes that are waited for: otherwise they would wait forever.
    """

    __slots__ = ("_awaited", "_jobs", "_taken", "depth", "owner")

    def __init__(
        self, owner: object, awaited: Callable[[], Iterator[Any]], waiting: Job | None = None
    ) -> None:
        self.owner: Final = owner
        self._awaited = awaited
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._taken: list[Job] = []
        below = None if waiting is None else waiting.lender
        self.depth: int = 1 if below is None else below.depth + 1
        """The number of callbacks that wait in the thread up to this one."""

    def awaited(self) -> Iterator[Any]:
        """The processes that the callback waits for: the next, the process that the next waits for,
        and so on, except its own. On the loop.
        """
        return (process for process in self._awaited() if process is not self.owner)

    @property
    def is_on_top(self) -> bool:
        """Whether the thread has no job above this callback. On the loop."""
        self._taken = [job for job in self._taken if job.lender is self and not job.is_over]
        return not self._taken

    def take(self, job: Job) -> None:
        """Have the thread run a job of such a process."""
        job.lender = self
        self._taken.append(job)
        self._jobs.put(job)

    def end(self) -> None:
        """The wait is over, once the jobs that the thread has got are done."""
        self._jobs.put(None)

    def next_job(self) -> Job | None:
        """Wait for a job; None at the end of the wait. In the thread."""
        sources.threads.give_way(lambda: not self._jobs.empty(), None)
        return take_next(self._jobs)


class ThreadGroup:
    """A few threads that share a queue of jobs, first come first served."""

    __slots__ = (
        *(
            "_at_work",
            "_bridge",
            "_is_left",
            "_jobs",
            "_lenders",
            "_stale",
            "dispatcher",
        ),
        *("lends", "members", "threads"),
    )

    def __init__(
        self, bridge: Bridge, dispatcher: Dispatcher, names: list[str], warn: Callable[[str], None]
    ) -> None:
        """Without names its thread is the main thread, which comes by itself: `work_here`."""
        self._bridge = bridge
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._at_work: dict[int, Job | None] = {}
        """By the threads."""
        self._stale = 0
        """At most so many entries of the queue are of lent jobs. For the loop."""
        self.dispatcher = dispatcher
        self.members = 0
        """The number of processes that use these threads."""
        self._is_left = False
        """Whether the main thread runs no jobs any more. For the loop."""
        self.lends: bool = getattr(dispatcher, "name", None) is not None
        """Whether several processes share the threads."""
        self._lenders: list[Lender] = []
        """The callbacks that wait in the threads, the last of them on top of its stack. For the
        loop.
        """
        cpu = getattr(dispatcher, "cpu", None)
        self.threads: list[ReaderThread | MainThread] = [
            ReaderThread(name, lambda: self._work(cpu, warn)) for name in names
        ] or [MainThread()]
        try:
            for thread in self.threads:
                thread.start()
        except BaseException:
            # The threads that have started end at once.
            self.dismiss()
            raise

    def belongs_to(self, bridge: Bridge) -> bool:
        """Say whether it is a group of the node with that bridge."""
        return self._bridge is bridge

    def put(self, job: Job) -> None:
        """Queue a job. On the loop."""
        lender = next(
            (each for each in self._lending() if job.owner in self._served_by(each)), None
        )
        if self._is_left:
            job.refuse(_left())
        elif lender is not None:
            lender.take(job)
        else:
            self._jobs.put(job)

    # -- threads of several processes --------------------------------------------------------------

    def begin_wait(self, lender: Lender) -> None:
        """A callback in a thread waits. On the loop, as the next four."""
        if self.lends:
            self._lenders.append(lender)
            # It may be the last thread that could have run the jobs that others wait for.
            self.lend()

    def end_wait(self, lender: Lender) -> None:
        """It waits no longer."""
        if self.lends:
            self._lenders.remove(lender)

    def lend(self) -> None:
        """Run the jobs of the processes that the callbacks in the threads wait for, if they were
        queued before all threads waited.
        """
        for lender in self._lending():
            for process in self._served_by(lender):
                if getattr(process, "thread_group", None) is self:
                    self._hand_over(lender, process.job)

    def lend_to(self, job: Job | None) -> bool:
        """Run the job of a process that the callback in the only thread is about to wait for. False
        if the thread is busy, or too many callbacks wait in it.
        """
        lending = self._lending() if len(self.threads) == 1 else []
        for lender in lending:
            self._hand_over(lender, job)
        return bool(lending)

    def _lending(self) -> list[Lender]:
        """The callbacks that have their threads run others now."""
        return [each for each in self._tops() if each.depth < _DEPTH]

    def _tops(self) -> list[Lender]:
        """The last callback of each thread, if all threads wait. A single thread may run a job
        above it.
        """
        size, lenders = len(self.threads), self._lenders
        if size == 1 or len(lenders) < size:
            return lenders[-1:] if size == 1 else []
        tops = [each for each in lenders if each.is_on_top]
        return tops if len(tops) >= size else []

    def _served_by(self, lender: Lender) -> list[Any]:
        """The processes that a callback waits for, up to the first that waits in one of the threads
        itself: that thread serves the others. Were they served here, the callback would have to
        wait for them even when it has its answer, in a ring that no process can see.
        """
        served: list[Any] = []
        for process in lender.awaited():
            served.append(process)
            if any(each.owner is process for each in self._lenders):
                break
        return served

    def _hand_over(self, lender: Lender, job: Job | None) -> None:
        # The job stays in the queue, too, since a search would cost as much as the queue is long.
        # Its only ticket keeps it from running twice.
        if job is None or job.has_begun or job.lender is lender:
            return
        lender.take(job)
        self._stale += 1
        if self._stale > max(_STALE, self._jobs.qsize() // 2):
            # As many jobs were lent as are looked at here, so each pays for two. All threads wait
            # inside a job, and take no job of the queue meanwhile.
            self._stale = 0
            for queued in [self._jobs.get() for _ in range(self._jobs.qsize())]:
                if queued is None or queued.lender is None:
                    self._jobs.put(queued)

    def serve(self, lender: Lender, waiting: Job) -> None:
        """Run jobs inside the job that waits, until its wait is over. In the thread."""
        parent = _here.parent
        assert parent is not None
        while (job := lender.next_job()) is not None:
            # A job may have been lent on to another callback of the thread meanwhile: it runs
            # there.
            if job.lender is lender:
                self._run(job, parent, waiting)
            del job

    # -- work --------------------------------------------------------------------------------------

    def is_wanted(self) -> bool:
        """Say whether a job waits for a thread. From any thread."""
        return not self._jobs.empty()

    def holder(self, begun: Job | None = None) -> Any:
        """The process that occupies the only thread now, or of several threads that in which a job
        has begun; None if the thread is free. If several threads all wait, the process that is
        about to wait as one too many in its thread.
        """
        if len(self.threads) == 1:
            jobs = list(self._at_work.values())
        elif begun is not None and begun.ident:
            jobs = [self._at_work.get(begun.ident)]
        else:
            deep = [each for each in self._tops() if each.depth >= _DEPTH]
            return next((each.owner for each in deep[::-1] if not any(each.awaited())), None)
        job = jobs[0] if jobs else None
        return None if job is None or job.outcome is not None else job.owner

    def dismiss(self) -> None:
        """Let each thread end after its present job."""
        for _ in self.threads:
            self._jobs.put(None)

    def be_left(self) -> None:
        """Refuse the jobs that wait for the main thread, and all later jobs: it does not come back.
        On the loop.
        """
        self._is_left = True
        while self.is_wanted():
            job = self._jobs.get()
            if job is not None:
                job.refuse(_left())

    def _work(self, cpu: int | None, warn: Callable[[str], None]) -> None:
        if cpu is not None:
            pin_thread(cpu, warn)
        parent = ThreadParent(self._bridge)
        parent.enter()
        self._take_jobs(parent)

    def work_here(self) -> None:
        """Run the jobs in this thread, the main thread, until the group is dismissed."""
        parent = ThreadParent(self._bridge)
        parent.run(self._take_jobs, parent)

    def _take_jobs(self, parent: ThreadParent) -> None:
        _here.join(self, parent)
        try:
            while (job := self._next_job()) is not None:
                if job.lender is None:
                    self._run(job, parent, None)
                # Drop the reference: the job must not stay alive while this thread waits.
                del job
        finally:
            _here.join(None, None)

    def _run(self, job: Job, parent: ThreadParent, waiting: Job | None) -> None:
        thread = get_ident()
        self._at_work[thread] = job
        _here.begin(job)
        parent.serve(job.host)
        job.run(self._bridge)
        _here.begin(waiting)
        # The job below goes on in this thread: the holder of the thread is its process again, also
        # for the text of a deadlock.
        self._at_work[thread] = waiting
        parent.serve(None if waiting is None else waiting.host)

    def _next_job(self) -> Job | None:
        sources.threads.give_way(self.is_wanted, None)
        return take_next(self._jobs)


def _left() -> NotAllowedError:
    return NotAllowedError(
        "an exception has ended run_main(), so the main thread runs no callback of Threads.MAIN"
    )


def pin_thread(cpu: int, warn: Callable[[str], None]) -> None:
    """Pin this thread to a CPU, where the platform supports it."""
    if not hasattr(os, "sched_setaffinity"):
        warn("this platform has no CPU affinity")
        return
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        warn(str(error))


class LoopPin:
    """The CPU of the thread of an event loop. The nodes of a loop share it.

    Linux lets a new thread inherit the CPUs of the thread that starts it. So while a loop is
    pinned, ``Thread.start`` lends its thread all CPUs for a moment: the threads of the node, of
    trio and of libraries inherit no pin, and neither do the programs that these threads start.
    """

    __slots__ = ("_users", "before", "cpu")

    def __init__(self, cpu: int) -> None:
        self.cpu = cpu
        self.before = os.sched_getaffinity(0)
        """The CPUs of the thread without the pin."""
        self._users = 0

    @staticmethod
    def hold(cpu: int) -> str:
        """Pin this thread, of an event loop, for another node. Returns why that is impossible; an
        empty text if it is done.

        Raises:
            BadInputError: this program may not use that CPU, or a node of the loop uses another.
        """
        if not hasattr(os, "sched_setaffinity"):
            return "this platform has no CPU affinity"
        if cpu not in (allowed := allowed_cpus()):
            listed = ", ".join(map(str, sorted(allowed)))
            raise BadInputError("cpu", cpu, f"one of the CPUs that this program may use: {listed}")
        # LoopPin reads the CPUs before the pin: they are given back at the end, and lent to threads
        # that start.
        pin = _pins.get(get_ident()) or LoopPin(cpu)
        if pin.cpu != cpu:
            raise BadInputError("cpu", cpu, f"{pin.cpu}, the CPU of another node of this loop")
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError as error:
            return str(error)
        pin._users += 1
        if not _pins:
            # The function of now: another library may have wrapped it.
            setattr(Thread, "start", _unpinned(Thread.start))  # noqa: B010 - while a loop is pinned
        _pins[get_ident()] = pin
        return ""

    @staticmethod
    def release() -> None:
        """Let this thread use all its CPUs again, once no node of the loop needs the pin."""
        pin = _pins[get_ident()]
        pin._users -= 1
        if not pin._users:
            del _pins[get_ident()]
            os.sched_setaffinity(0, pin.before)
        plain = getattr(Thread.start, _PLAIN, None)
        if not _pins and plain is not None:  # else another library has wrapped it since
            setattr(Thread, "start", plain)  # noqa: B010 - see hold()


_pins: Final[dict[int, LoopPin]] = {}
"""By the threads of the loops."""
_PLAIN: Final = "__started_by__"
"""The attribute of the function that stands for ``Thread.start``: the function itself."""


def _unpinned(start: Callable[[Thread], None]) -> Callable[[Thread], None]:
    """Wrap ``Thread.start`` for the time in which a loop is pinned."""

    def start_unpinned(thread: Thread) -> None:
        pin = _pins.get(get_ident())
        if pin is None:
            start(thread)
            return
        os.sched_setaffinity(0, pin.before)
        try:
            start(thread)
        finally:
            os.sched_setaffinity(0, {pin.cpu})

    setattr(start_unpinned, _PLAIN, start)
    return start_unpinned


def allowed_cpus() -> set[int]:
    """The CPUs that this thread may use, but for the pin of its loop. Only where the platform has
    CPU affinity.
    """
    pin = _pins.get(get_ident())
    return os.sched_getaffinity(0) if pin is None else pin.before


class DispatcherThreads:
    """The thread groups of a node. A group exists while a process uses it."""

    __slots__ = ("_thread_fairness", "_bridge", "_shared", "_warn", "threads")

    def __init__(
        self,
        bridge: Bridge,
        thread_fairness: ThreadFairness,
        warn: Callable[[Dispatcher, str], None],
    ) -> None:
        self._bridge = bridge
        self._thread_fairness = thread_fairness
        self._warn = warn
        self._shared: dict[str, ThreadGroup] = {}
        self.threads: int = 0
        """The number of threads in all groups."""

    def check(self, dispatcher: Dispatcher) -> None:
        """Refuse threads with the name of existing, different threads, and the main thread while it
        serves no callbacks.

        Raises:
            BadInputError: the name is in use with other settings. The text shows them.
            NotAllowedError: the main thread is not in ``run_main``.
        """
        thread_group = self._shared.get(getattr(dispatcher, "name", None) or "")
        if thread_group is None and dispatcher == Threads.MAIN:
            raise NotAllowedError(
                "dispatcher=Threads.MAIN: this node runs in the main thread, and so do the plain "
                "callbacks of LOOP; write dispatcher=LOOP, or open the node with "
                "ergo_py.blocking.open_node(...), which runs in another thread"
                if self._bridge.is_in_main_thread()
                else "dispatcher=Threads.MAIN: the main thread runs no callbacks; it does so in "
                "node.run_main(start) of ergo_py.blocking: start this process in `start`, or later"
            )
        if thread_group is not None and thread_group.dispatcher != dispatcher:
            raise BadInputError(
                "dispatcher",
                dispatcher,
                f"{thread_group.dispatcher!r}, which exists and is used by {thread_group.members}",
            )

    def join(self, dispatcher: Dispatcher, number: int) -> ThreadGroup:
        """The thread group for another process. ``number`` names a thread of its own."""
        self.check(dispatcher)
        assert isinstance(dispatcher, Threads), dispatcher
        key = dispatcher.name
        thread_group = None if key is None else self._shared.get(key)
        if thread_group is None:
            names = [f"process-{number}"]
            if key is not None:
                names = [f"{key}-{index}" for index in range(1, dispatcher.size + 1)]
            thread_group = ThreadGroup(
                self._bridge, dispatcher, names, lambda why: self._warn(dispatcher, why)
            )
            if key is not None:
                self._shared[key] = thread_group
            self._count(thread_group)
        else:
            thread_group.members += 1
        return thread_group

    def _count(self, thread_group: ThreadGroup) -> None:
        """Count a new group with its first member."""
        thread_group.members = 1
        self.threads += len(thread_group.threads)
        for _ in thread_group.threads:
            # A busy loop must not starve these threads.
            self._thread_fairness.watch()

    def join_main(self) -> ThreadGroup:
        """The group of ``Threads.MAIN``. The main thread calls `ThreadGroup.work_here` next."""
        name = Threads.MAIN.name
        assert name is not None
        group = ThreadGroup(self._bridge, Threads.MAIN, [], lambda _why: None)
        self._shared[name] = group
        self._count(group)
        return group

    def dismiss_main(self) -> None:
        """Let the main thread go on: the node is down."""
        group = self._shared.pop(Threads.MAIN.name or "", None)
        if group is not None:
            group.dismiss()

    def leave_main(self, group: ThreadGroup) -> None:
        """Go on without the main thread: an exception has ended its work, and the node is not down.
        The processes that use it end without their callbacks.
        """
        self._shared.pop(Threads.MAIN.name or "", None)
        group.be_left()
        self.leave(group)

    def leave(self, thread_group: ThreadGroup) -> None:
        """Remove a process from a group. After the last process the threads end."""
        thread_group.members -= 1
        if thread_group.members:
            return
        self._shared = {
            key: group for key, group in self._shared.items() if group is not thread_group
        }
        thread_group.dismiss()
        self.threads -= len(thread_group.threads)
        for _ in thread_group.threads:
            self._thread_fairness.unwatch()
