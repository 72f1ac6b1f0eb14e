"""`DispatcherThreads`: the threads in which plain callbacks run. A `ThreadGroup` for each
process with a thread of its own, and for each name that processes share.
"""

import os
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import outcome

from .. import sources
from ..vocabulary.dispatchers import Dispatcher, Threads
from ..vocabulary.errors import BadInputError, NodeStoppedError
from .bridge import Bridge, ReaderThread, get_ident, stack_of
from .thread_fairness import ThreadFairness
from .thread_parent import ThreadHost, ThreadParent

__all__ = ["ThreadGroup", "DispatcherThreads", "Job"]


class Job:
    """A callback that is to run in a thread. The thread and the loop compete for its only ticket:
    the thread takes it to run the job, the loop to withdraw it.
    """

    __slots__ = ("_finished", "_tickets", "function", "host", "ident", "outcome", "owner")

    def __init__(
        self,
        function: Callable[[], Any],
        finished: Callable[[], None],
        owner: Any = None,
        host: ThreadHost | None = None,
    ) -> None:
        self.function = function
        self.host = host
        """Serves ``trio.from_thread`` in the callback."""
        self.owner = owner
        """The process that the callback belongs to."""
        self._finished = finished
        # A list, because list.pop() is atomic: the ticket cannot be taken twice.
        self._tickets = [None]
        self.ident = 0
        """The thread that runs the job; 0 before and after."""
        self.outcome: outcome.Outcome[Any] | None = None
        """The result or exception of the callback, once it is done."""

    def withdraw(self) -> bool:
        """Withdraw the job. False if it has begun."""
        return self._take()

    def run(self, bridge: Bridge) -> None:
        """Run the job in this thread. Messages that the callback sends reach the loop before the
        notice that it is done.
        """
        if not self._take():
            return
        self.ident = get_ident()
        result = outcome.capture(self.function)
        self.ident = 0
        self.outcome = result
        try:
            bridge.post(self._finished)
        except NodeStoppedError:
            # The node has stopped and abandoned the job: no task waits for it.
            return

    def stack(self) -> str:
        """The present call stack of the job's thread; empty if it is not running."""
        return stack_of(self.ident) if self.ident else ""

    def _take(self) -> bool:
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True


class ThreadGroup:
    """A few threads that share a queue of jobs, first come first served."""

    __slots__ = ("_at_work", "_bridge", "_jobs", "dispatcher", "members", "threads")

    def __init__(
        self, bridge: Bridge, dispatcher: Dispatcher, names: list[str], warn: Callable[[str], None]
    ) -> None:
        self._bridge = bridge
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._at_work: Job | None = None
        self.dispatcher = dispatcher
        self.members = 0
        """The number of processes that use these threads."""
        cpu = getattr(dispatcher, "cpu", None)
        self.threads = [ReaderThread(name, lambda: self._work(cpu, warn)) for name in names]
        try:
            for thread in self.threads:
                thread.start()
        except BaseException:
            # The threads that have started end at once.
            self.dismiss()
            raise

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def is_wanted(self) -> bool:
        """Say whether a job waits for a thread. From any thread."""
        return not self._jobs.empty()

    def holder(self) -> Any:
        """The process that occupies the only thread now; None if the thread is free, or the group
        has several.
        """
        job = self._at_work
        return (
            None if job is None or job.outcome is not None or len(self.threads) > 1 else job.owner
        )

    def dismiss(self) -> None:
        """Let each thread end after its present job."""
        for _ in self.threads:
            self._jobs.put(None)

    def _work(self, cpu: int | None, warn: Callable[[str], None]) -> None:
        if cpu is not None:
            _stay_on(cpu, warn)
        parent = ThreadParent(self._bridge)
        parent.enter()
        while (job := self._next_job()) is not None:
            self._at_work = job
            parent.serve(job.host)
            job.run(self._bridge)
            # Drop the references: the job must not stay alive while this thread waits.
            self._at_work = None
            parent.serve(None)
            del job

    def _next_job(self) -> Job | None:
        sources.threads.give_way(self.is_wanted, None)
        return self._jobs.get()


def _stay_on(cpu: int, warn: Callable[[str], None]) -> None:
    """Pin this thread to a CPU, where the platform supports it."""
    if not hasattr(os, "sched_setaffinity"):
        warn("this platform has no CPU affinity")
        return
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        warn(str(error))


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
        self.threads = 0
        """The number of threads in all groups."""

    def check(self, dispatcher: Dispatcher) -> None:
        """Refuse threads with the name of existing, different threads.

        Raises:
            BadInputError: the name is in use with other settings. The text shows them.
        """
        thread_group = self._shared.get(getattr(dispatcher, "name", None) or "")
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
            self.threads += len(thread_group.threads)
            for _ in thread_group.threads:
                # A busy loop must not starve these threads.
                self._thread_fairness.watch()
        thread_group.members += 1
        return thread_group

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
