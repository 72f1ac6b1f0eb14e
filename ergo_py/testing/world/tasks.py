"""`WorldOrder`: the order of the tasks of a world; `TaskOwners`: the nodes that tasks belong to."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from random import Random
from typing import Any, Final

import trio
from trio.lowlevel import Task, current_task

from ..._core.runtime.abandonable import frames_of
from ..._core.runtime.bridge import get_ident

__all__ = [
    "THREAD",
    "TaskOwners",
    "TasksOfTest",
    "WorldOrder",
    "describe_tasks",
    "lift_shields",
    "tasks_of_run",
]

_CONTEXT: Final[Any] = trio._core._run.GLOBAL_RUN_CONTEXT
THREAD: Final = ": thread"
"""The end of the name of a system task that runs a thread of a node."""
_ENDED: Final = 1000
"""Owners of ended tasks that are forgotten at once, as many as those that are kept, or more."""


class TaskOwners:
    """Tells the node that a task belongs to, by the nurseries around it."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}
        """The known owners by the numbers of tasks, which trio does not use again; an empty name
        for tasks of the world itself. Each deadline asks for its owner, and a table of weak
        references took three times as long.
        """
        self._forget_at = _ENDED
        """The number of owners at which those of ended tasks are forgotten."""
        self._system: dict[str, str] = {}
        self._threads: dict[int, str] = {}
        """The nodes of threads, by the numbers of the operating system."""

    def __len__(self) -> int:
        return len(self._owners)

    def add_node(self, name: str) -> None:
        """Know the system tasks of a node by their names."""
        for suffix in ("", ": stop", ": going down", THREAD):
            self._system[f"node {name}{suffix}"] = name

    def add_task(self, task: Task, node: str) -> None:
        """Let a task, and all tasks below it, belong to a node."""
        self._owners[task._counter] = node

    @contextmanager
    def acting_as(self, node: str) -> Iterator[None]:
        """Let the present task belong to a node inside the block: a client of the node has its
        clock, and stops with its program.
        """
        task = current_task()
        before = self.of(task)
        self._owners[task._counter] = node
        try:
            yield
        finally:
            self._owners[task._counter] = before

    def add_thread(self, ident: int, node: str) -> None:
        """Let a thread belong to a node."""
        self._threads[ident] = node

    def remove_thread(self, ident: int) -> None:
        """Forget a thread that ends."""
        del self._threads[ident]

    def of_present_task(self) -> str:
        """The name of the node that the running task, or the running thread, belongs to; empty
        between two tasks.
        """
        task = getattr(_CONTEXT, "task", None)
        return self._threads.get(get_ident(), "") if task is None else self.of(task)

    def is_system_task(self, task: Task, node: str) -> bool:
        """Whether it is a system task of a node."""
        return self._system.get(task.name) == node

    def of(self, task: Task) -> str:
        """The name of the node that a task belongs to; empty for a task of the world."""
        found = self._owners.get(task._counter)
        if found is None:
            nursery = task.parent_nursery
            if task.name in self._system:
                found = self._system[task.name]
            elif nursery is None:
                found = ""
            else:
                found = self.of(nursery.parent_task)
            if len(self._owners) >= self._forget_at:
                self._forget_ended()
            self._owners[task._counter] = found
        return found

    def _forget_ended(self) -> None:
        # Not by an instrument that trio tells of each end: a world would run with one, and nodes
        # without a world run without.
        known, self._owners = self._owners, {}
        for task in tasks_of_run():
            if task._counter in known:
                self._owners[task._counter] = known[task._counter]
        self._forget_at = 2 * len(self._owners) + _ENDED


class TasksOfTest:
    """The tasks of the test itself, without those of its nodes and faults."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None
        """That of the nodes and faults, in the main task; None until the world runs."""
        self._steps: dict[int, int] = {}
        """The steps of each task at the last check."""

    def begin(self, nursery: trio.Nursery) -> None:
        """The main task has opened the nursery of the nodes and faults, and runs the test."""
        self.nursery = nursery

    def stands_still(self) -> bool:
        """Whether none of them has made a step since the last check, and none has a deadline.
        Nodes that are connected always have deadlines.
        """
        tasks = self.tasks()
        before, self._steps = self._steps, {}
        if any(task._cancel_status.effective_deadline() < inf for task in tasks):
            return False
        self._steps = {task._counter: task._schedule_points for task in tasks}
        return self._steps == before

    def tasks(self) -> list[Any]:
        """The tasks."""
        found = [] if self.nursery is None else [self.nursery.parent_task]
        for task in found:
            for nursery in task.child_nurseries:
                if nursery is not self.nursery:
                    found.extend(nursery.child_tasks)
        return found


class WorldOrder(Random):
    """The order of the tasks of a world. Tasks of a program that is stopped do not run."""

    def __init__(
        self,
        seed: int,
        is_shuffled: bool,
        owners: TaskOwners,
        begin_pass: Callable[[list[Task]], None],
    ) -> None:
        super().__init__(seed)
        self._is_shuffled = is_shuffled
        self._owners = owners
        self._begin_pass = begin_pass
        self._held: dict[str, list[Task]] = {}
        """The tasks of stopped programs that are ready to run."""
        self._batch: list[Task] = []
        """The tasks that are left of the present pass of the loop: trio's own list."""

    def shuffle(self, x: Any) -> None:
        """Called by trio with the tasks of a pass of its loop."""
        self._batch = x
        if self._held:
            self._hold(x)
        self._begin_pass(x)
        if self._is_shuffled:
            # shuffle() of the base draws bits until they fit: it takes twice as long.
            random = self.random
            for last in range(len(x) - 1, 0, -1):
                other = int(random() * (last + 1))
                x[last], x[other] = x[other], x[last]

    def _hold(self, batch: list[Task]) -> None:
        ready: list[Task] = []
        for task in batch:
            held = self._held.get(self._owners.of(task))
            (ready if held is None else held).append(task)
        batch[:] = ready

    def pause(self, node: str) -> None:
        """Stop the program of a node."""
        self._held.setdefault(node, [])

    def resume(self, node: str) -> None:
        """Let the program of a node continue."""
        held = self._held.pop(node, [])
        runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        runner.runq.extend(held)

    def drop(self, gone: Collection[Task]) -> None:
        """Do not run these tasks any more."""
        runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        queue = runner.runq
        for _ in range(len(queue)):  # not queue.clear(), which begins a pass
            task = queue.popleft()
            if task not in gone:
                queue.append(task)
        for tasks in (self._batch, *self._held.values()):
            tasks[:] = [task for task in tasks if task not in gone]

    def is_paused(self, node: str) -> bool:
        """Whether the program of a node is stopped."""
        return node in self._held


def tasks_of_run() -> list[Task]:
    """The tasks of the run."""
    runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    return list(runner.tasks)


def describe_tasks(tasks: Iterable[Task]) -> list[str]:
    """Tasks that wait or are about to run, each with the line of its code."""
    found = []
    for task in sorted(tasks, key=lambda each: each._counter):
        frames = [
            frame
            for frame in frames_of(task)
            if not frame.f_globals.get("__name__", "").startswith("trio")
        ]
        if frames:
            code, line = frames[-1].f_code, frames[-1].f_lineno
            found.append(f"{task.name}: {code.co_filename}:{line} in {code.co_name}")
    return found


def lift_shields() -> bool:
    """Let a cancellation reach all tasks of the run. False if no task was shielded from it."""
    runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    found = False
    for task in sorted(runner.tasks, key=lambda each: each._counter):
        status = task._cancel_status
        while status is not None:
            if status._scope.shield:
                status._scope.shield = False
                found = True
            status = status._parent
    return found
