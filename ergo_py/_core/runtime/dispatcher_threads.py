"""The threads in which plain callbacks run: a thread_group for each pinned process, each pod and
each pool.
"""

import os
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import outcome

from ..vocabulary.dispatchers import Dispatcher, Pinned, Pod, ThreadPool
from ..vocabulary.errors import BadInputError, NodeStoppedError
from .bridge import Bridge, ReaderThread, get_ident, stack_of
from .thread_fairness import ThreadFairness

__all__ = ["ThreadGroup", "DispatcherThreads", "Job"]


class Job:
    """One callback that is to run in a thread. Who takes its only ticket, the thread or the loop,
    decides whether it runs.
    """

    __slots__ = ("_finished", "_tickets", "function", "ident", "outcome", "owner")

    def __init__(
        self, function: Callable[[], Any], finished: Callable[[], None], owner: Any = None
    ) -> None:
        self.function = function
        self.owner = owner
        """The process whose callback it is."""
        self._finished = finished
        # Taking an element from a list is one step, whoever else does it at the same time.
        self._tickets = [None]
        self.ident = 0
        """The thread it runs in; 0 before and after."""
        self.outcome: outcome.Outcome[Any] | None = None
        """What became of it, once it is done."""

    def withdraw(self) -> bool:
        """Take it back. False if it has begun."""
        return self._take()

    def run(self, bridge: Bridge) -> None:
        """Run it, in a thread. What it has sent comes to the loop before the news that it is done."""
        if not self._take():
            return
        self.ident = get_ident()
        result = outcome.capture(self.function)
        self.ident = 0
        self.outcome = result
        try:
            bridge.post(self._finished)
        except NodeStoppedError:
            # It was left behind, and nobody waits for it.
            return

    def stack(self) -> str:
        """What its thread is doing at this moment."""
        return stack_of(self.ident) if self.ident else ""

    def _take(self) -> bool:
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True


class ThreadGroup:
    """A few threads that take jobs from one queue, first come first served."""

    __slots__ = ("_at_work", "_bridge", "_jobs", "dispatcher", "members", "threads")

    def __init__(
        self, bridge: Bridge, dispatcher: Dispatcher, names: list[str], warn: Callable[[str], None]
    ) -> None:
        self._bridge = bridge
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._at_work: Job | None = None
        self.dispatcher = dispatcher
        self.members = 0
        """How many processes it works for."""
        cpu = getattr(dispatcher, "cpu", None)
        self.threads = [ReaderThread(name, lambda: self._work(cpu, warn)) for name in names]
        try:
            for thread in self.threads:
                thread.start()
        except BaseException:
            # Those that have started end at once.
            self.dismiss()
            raise

    def put(self, job: Job) -> None:
        """Have a job done when its turn comes."""
        self._jobs.put(job)

    def is_wanted(self) -> bool:
        """Say whether somebody waits for a thread. From any thread."""
        return not self._jobs.empty()

    def holder(self) -> Any:
        """The process that has the only thread at this moment; None if there are more threads, or
        nobody has it.
        """
        job = self._at_work
        return (
            None if job is None or job.outcome is not None or len(self.threads) > 1 else job.owner
        )

    def dismiss(self) -> None:
        """Let each thread end when it has done what it is at."""
        for _ in self.threads:
            self._jobs.put(None)

    def _work(self, cpu: int | None, warn: Callable[[str], None]) -> None:
        if cpu is not None:
            _stay_on(cpu, warn)
        while (job := self._jobs.get()) is not None:
            self._at_work = job
            job.run(self._bridge)
            # What it held must not live as long as this thread waits.
            self._at_work = None
            del job


def _stay_on(cpu: int, warn: Callable[[str], None]) -> None:
    """Keep this thread on one CPU, where the platform can do that."""
    if not hasattr(os, "sched_setaffinity"):
        warn("this platform has no CPU affinity")
        return
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        warn(str(error))


class DispatcherThreads:
    """The dispatcher_threads of a node. Each is there while a process uses it."""

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
        self._shared: dict[tuple[type, str], ThreadGroup] = {}
        self.threads = 0
        """How many threads all of them have."""

    def check(self, dispatcher: Dispatcher) -> None:
        """Refuse a pod or a pool that exists already and is another one.

        Raises:
            BadInputError: says what it is.
        """
        if isinstance(dispatcher, Pod | ThreadPool):
            thread_group = self._shared.get((type(dispatcher), dispatcher.name))
            if thread_group is not None and thread_group.dispatcher != dispatcher:
                raise BadInputError(
                    "dispatcher",
                    dispatcher,
                    f"{thread_group.dispatcher!r}, which exists and is used by "
                    f"{thread_group.members}",
                )

    def join(self, dispatcher: Dispatcher, number: int) -> ThreadGroup:
        """The thread_group for one more process; ``number`` is in the name of a thread of its own."""
        self.check(dispatcher)
        key = (
            None
            if isinstance(dispatcher, Pinned)
            else (type(dispatcher), getattr(dispatcher, "name", ""))
        )
        thread_group = None if key is None else self._shared.get(key)
        if thread_group is None:
            names = [f"pinned-{number}"]
            if isinstance(dispatcher, Pod):
                names = [f"{dispatcher.name}-pod"]
            elif isinstance(dispatcher, ThreadPool):
                names = [f"{dispatcher.name}-{one}" for one in range(1, dispatcher.size + 1)]
            thread_group = ThreadGroup(
                self._bridge, dispatcher, names, lambda why: self._warn(dispatcher, why)
            )
            if key is not None:
                self._shared[key] = thread_group
            self.threads += len(thread_group.threads)
            for _ in thread_group.threads:
                # A loop that is never idle must not starve them.
                self._thread_fairness.watch()
        thread_group.members += 1
        return thread_group

    def leave(self, thread_group: ThreadGroup) -> None:
        """One process less; the last one sends the threads home."""
        thread_group.members -= 1
        if thread_group.members:
            return
        self._shared = {key: one for key, one in self._shared.items() if one is not thread_group}
        thread_group.dismiss()
        self.threads -= len(thread_group.threads)
        for _ in thread_group.threads:
            self._thread_fairness.unwatch()
