"""`look`: the activity of the other threads of this program and of its child programs.

Two looks with a short real pause between them tell activity from sleep. On Linux a thread counts as
quiet if it sleeps at both looks and has not run between them; a thread that was woken but has not
run yet is not asleep. The processor time alone does not tell: a virtual machine subtracts the time
that its host has taken from it, so that a thread may run and be charged nothing. Elsewhere, and
without /proc, it counts as quiet if it stands at the same instruction at both looks. No look can
see bytes in transit inside the operating system or the network, nor data that another machine is
about to send.
"""

import os
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from dis import opname
from typing import Final

import trio

from .._core.runtime.bridge import ReaderThread
from .._core.runtime.dispatcher_threads import Job

__all__ = ["Look", "children", "is_idle_worker", "look", "other_threads", "stirring"]

_ASLEEP: Final = frozenset("SITtZXx")
_ENDED: Final = frozenset("ZXx")
"""The states of a program that has ended and that this program has not waited for."""
_TASKS: Final = "/proc/self/task"
_JOB: Final = Job.run.__code__


@dataclass(frozen=True, slots=True)
class _Seen:
    name: str
    mark: object
    """Differs between two looks if the thread or program has run."""
    awake: bool
    serves: bool = False
    """It never acts by itself: an idle worker of trio, a helper thread unknown to Python, or a
    program that has ended.
    """


@dataclass(frozen=True, slots=True)
class Look:
    """The threads and child programs at a moment."""

    seen: dict[object, _Seen]
    working: dict[int, str]
    """Worker threads with a job, asleep or not, by their number: those of trio, and those that run
    callbacks.
    """

    @property
    def alone(self) -> bool:
        """Whether no thread or child program could act by itself, except the thread that looks."""
        return not self.working and all(seen.serves for seen in self.seen.values())


def look(ignore: Collection[str] = ()) -> Look:
    """Look at all threads except this thread, and at the child programs. Threads whose names are in
    ``ignore`` are left out.
    """
    seen: dict[object, _Seen] = {}
    working: dict[int, str] = {}
    for thread in other_threads():
        if thread.name in ignore:
            continue
        idle = _idle_worker(thread)
        if idle is False or _in_callback(thread):
            working[thread.ident or 0] = thread.name
        else:
            mark, awake = _pulse(thread)
            if idle and _is_guest():
                # In guest mode it waits for I/O on behalf of our loop between our steps.
                mark = None
            seen[thread] = _Seen(f"thread {thread.name}", mark, awake, bool(idle))
    known = {thread.native_id for thread in threading.enumerate()}
    for task in _tasks():
        if task not in known:
            ran, state = _ran(~task << 3 | 6, f"{_TASKS}/{task}"), _state(f"{_TASKS}/{task}/stat")
            seen["task", task] = _Seen(
                f"thread {task}, not one of Python's", ran, state not in _ASLEEP, serves=True
            )
    for pid, name in children().items():
        state, ran = _state(f"/proc/{pid}/stat"), _ran(~pid << 3 | 2, f"/proc/{pid}")
        seen[pid] = _Seen(
            f"program {name} ({pid})", ran, state not in _ASLEEP, serves=state in _ENDED
        )
    return Look(seen, working)


def stirring(before: Look, after: Look) -> list[str]:
    """The threads and programs that ran between two looks, or were about to; empty if all were
    quiet.
    """
    busy = [
        seen.name
        for key, seen in after.seen.items()
        if seen.awake or key not in before.seen or before.seen[key].mark != seen.mark
    ]
    # A thread that has ended may have sent a last message.
    return busy + [
        seen.name for key, seen in before.seen.items() if key not in after.seen and not seen.serves
    ]


def other_threads() -> list[threading.Thread]:
    """All living threads that Python knows, except this thread."""
    me = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not me and thread.is_alive()]


def is_idle_worker(thread: threading.Thread) -> bool:
    """Return whether it is an idle thread that trio keeps for ten seconds, for reuse."""
    return _idle_worker(thread) is True


def children() -> dict[int, str]:
    """The living child programs: their process ids and command lines. Empty where the system does
    not tell.
    """
    pids: list[int] = []
    told = False
    for task in _tasks():
        try:
            with open(f"{_TASKS}/{task}/children", encoding="utf-8") as listing:
                pids += map(int, listing.read().split())
            told = True
        except OSError:  # the thread has just ended, or this kernel has no such file
            pass
    return {
        pid: name
        for pid in (pids if told else _children_by_parent())
        if (name := _program(pid)) is not None
    }


def _tasks() -> list[int]:
    """The threads of this program, by their operating-system ids, including threads unknown to
    Python.
    """
    try:
        return [int(task) for task in os.listdir(_TASKS)]
    except OSError:
        return []


def _children_by_parent() -> list[int]:
    found = []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in filter(str.isdigit, entries):
        fields = _stat(f"/proc/{entry}/stat")
        if len(fields) > 1 and fields[1] == str(os.getpid()):
            found.append(int(entry))
    return found


def _program(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
    except OSError:  # the program has just ended
        return None
    return b" ".join(words).decode(errors="replace").strip() or name


def _pulse(thread: threading.Thread) -> tuple[object, bool]:
    """A value that changes whenever the thread runs, and whether the thread is awake."""
    number = thread.native_id or 0
    cpu, runs = _ran(~number << 3 | 6, f"{_TASKS}/{number}") if number else (None, "")
    if cpu is not None and (fields := _stat(f"{_TASKS}/{number}/stat")):
        return (cpu, runs), fields[0] not in _ASLEEP
    # Without a processor clock or /proc, the state is unknown: the clock alone does not tell a
    # runnable thread from a sleeping thread.
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return None, False
    # The interpreter preempts a thread only at these instructions, and after a call, which tells
    # nothing.
    stands_at = opname[frame.f_code.co_code[frame.f_lasti]]
    return (cpu, id(frame), frame.f_lasti), stands_at.startswith(
        ("JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME")
    )


def _ran(clock: int, directory: str) -> tuple[int | None, str]:
    """The processor time of a thread or program, and how often it, or the main thread of the
    program, has got a processor; empty where the system does not tell.
    """
    cpu = _cpu(clock)
    try:
        with open(f"{directory}/schedstat", encoding="utf-8") as file:
            return cpu, file.read().rpartition(" ")[2]
    except OSError:
        return cpu, ""


def _cpu(clock: int) -> int | None:
    # Linux derives the number of a thread's or program's processor clock from its id, as
    # clock_getcpuclockid(3) does. For an ended thread it returns an error;
    # time.pthread_getcpuclockid would crash.
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime_ns(clock)
    except OSError:  # the thread or program has ended
        return None


def _state(path: str) -> str:
    fields = _stat(path)
    return fields[0] if fields else "X"


def _stat(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _idle_worker(thread: threading.Thread) -> bool | None:
    """Whether a worker thread of trio is idle; None if the thread is not trio's.

    trio removes a worker from its idle set before it assigns a job, and adds it again before it
    delivers the result.
    """
    worker: object = getattr(getattr(thread, "_target", None), "__self__", None)
    cache = getattr(worker, "_thread_cache", None)
    return None if cache is None else worker in cache._idle_workers


def _in_callback(thread: threading.Thread) -> bool:
    """Whether it is a dispatcher thread that runs a callback of a process now."""
    if not isinstance(getattr(getattr(thread, "_target", None), "__self__", None), ReaderThread):
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is _JOB:
            return True
        frame = frame.f_back
    return False


def _is_guest() -> bool:
    runner = getattr(trio._core._run.GLOBAL_RUN_CONTEXT, "runner", None)
    return bool(getattr(runner, "is_guest", False))
