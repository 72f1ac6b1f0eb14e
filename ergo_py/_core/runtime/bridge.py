"""The one door between threads and the loop.

A thread appends what it wants done and looks at a flag: only the first of a batch wakes the loop,
which takes the flag down before it looks at the queue, so nothing can fall between. That costs a
thread under half a microsecond, where a wake-up for each message would cost twenty times as much.
"""

import os
import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

import outcome
import trio
from trio._threads import PARENT_TASK_DATA
from trio.lowlevel import Task, TrioToken, enable_ki_protection, wait_readable

from ..vocabulary.errors import NodeStoppedError, NotAllowedError

__all__ = [
    "Bridge",
    "Lock",
    "Parker",
    "ReaderThread",
    "bells",
    "get_ident",
    "stack_of",
    "task_waiting_for_thread",
    "thread_names",
    "wait_in_slices",
]

T = TypeVar("T")
Lock = threading.Lock
_NO_BELL: Final = -1
_TURN: Final = 256
"""How many jobs of threads are done before others on the loop get a turn."""
_SLICE: Final = 0.2
"""Seconds that the main thread blocks at a time."""
Job = tuple[Callable[..., object], tuple[Any, ...]]


class Parker(Generic[T]):
    """Where a thread waits for one value from the loop. A raw lock, because a Condition costs ten
    times as much.
    """

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self.value: T | None = None

    def settle(self, value: T) -> None:
        """Give the value; only the first one counts."""
        if self._lock.locked():
            self.value = value
            self._lock.release()

    def wait(self, timeout: float | None) -> bool:
        """Block this thread until there is a value. False if none came in time. Ctrl-C ends the
        wait, in the main thread.
        """
        return wait_in_slices(self._take, timeout)

    def _take(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


def wait_in_slices(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Have ``wait(seconds)`` block this thread until it says True, or until the time is over; False
    then.

    Python runs the handlers of signals in the main thread, between two of its steps. One that comes
    just before that thread blocks does not wake it, so it comes up for air now and then. Other
    threads wait in one go.
    """
    if get_ident() != threading.main_thread().ident:
        return wait(-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
    end = inf if timeout is None else monotonic() + timeout
    while not wait(max(0.0, min(_SLICE, end - monotonic()))):
        if monotonic() >= end:
            return False
    return True


class Bridge:
    """Carries work from any thread to the loop of one node, in order for each thread."""

    __slots__ = (
        "__weakref__",
        "_armed",
        "_bell",
        "_closed",
        "_edge",
        "_inbox",
        "_node",
        "_on_error",
        "_token",
        "_when_forked",
        "_why",
        "lock",
        "loop_thread",
    )

    def __init__(
        self, node: str, token: TrioToken, on_error: Callable[[BaseException], None]
    ) -> None:
        self._node = node
        self._token = token
        self._on_error = on_error
        self._inbox: deque[Job] = deque()
        self._armed = False
        self._bell = _NO_BELL
        self._closed = False
        self._why = ""
        self._when_forked: Callable[[], None] | None = None
        # Held where the flag changes, once for each batch. Reentrant, because a signal handler may
        # post in the middle of it.
        self._edge = threading.RLock()
        self.lock = threading.Lock()
        """Guards the few counts that a thread and the loop both change."""
        self.loop_thread = get_ident()
        _bridges.add(self)

    @property
    def pending(self) -> int:
        """How many jobs threads have handed over that are not done yet."""
        return len(self._inbox)

    def on_loop(self) -> bool:
        """Say whether this is the thread the node lives in."""
        return get_ident() == self.loop_thread

    def refuse_on_loop(self, verb: str, instead: str) -> None:
        """Raise :class:`NotAllowedError` if a verb that blocks is used where it would block the
        loop.
        """
        if self.on_loop():
            raise NotAllowedError(
                f"{verb} would block the event loop it waits for; write {instead} instead"
            )

    def check_open(self) -> None:
        """Raise :class:`NodeStoppedError` if nothing is carried any more."""
        if self._closed:
            raise NodeStoppedError(self._node, self._why)

    def post(self, job: Callable[..., object], *args: Any) -> None:
        """Have ``job(*args)`` run on the loop soon. From any thread; never blocks. What is accepted
        is run.

        Raises:
            NodeStoppedError: the node has stopped, its loop is over, or this is a forked copy of
                the program.
        """
        if self._closed:
            raise NodeStoppedError(self._node, self._why)
        # Append first, look then: the loop takes the flag down first and looks then.
        self._inbox.append((job, args))
        if not self._armed:
            self._arm()

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function on the loop and wait, in this thread, for its result."""
        if get_ident() == self.loop_thread:
            return function(*args)
        parker: Parker[outcome.Outcome[T]] = Parker()
        self.post(lambda: parker.settle(outcome.capture(function, *args)))
        parker.wait(None)
        # What is accepted is run, and capture() keeps whatever comes of it.
        assert parker.value is not None
        return parker.value.unwrap()

    def do(self, job: Callable[..., object], *args: Any) -> None:
        """Have ``job(*args)`` run on the loop: now, if this is the loop's thread, else soon."""
        if self.on_loop():
            job(*args)
        else:
            self.post(job, *args)

    def catch_up(self) -> None:
        """Do, on the loop, what threads have handed over so far: it comes before whatever is done
        next.
        """
        for _ in range(0, len(self._inbox), _TURN):
            self._drain()

    def hang_bell(self) -> None:
        """Take a descriptor for :meth:`serve`, if there is one to be had."""
        try:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except (AttributeError, OSError):  # not a Linux, or no descriptor left
            pass

    @enable_ki_protection
    async def serve(self) -> None:
        """Wait for threads until the bridge is closed.

        While this runs, a batch wakes the loop through a descriptor of its own: a write and a read,
        where trio's door for everybody takes a lock, a socket and a look at two queues. Where there
        is none to be had, that door is used.
        """
        bell = self._bell
        if bell == _NO_BELL:
            return
        try:
            while not self._closed:
                await wait_readable(bell)
                # Before the flag comes down: a ring that comes after that is one of the next batch,
                # and stays.
                os.eventfd_read(bell)
                self._drain()
        finally:
            # Threads ring under this lock, so none of them writes to a number that belongs to
            # somebody else by then.
            with self._edge:
                self._bell = _NO_BELL
                os.close(bell)
            # Also if there is nothing: a ring that nobody takes any more would leave the flag up
            # for good.
            self._drain()

    def close(self) -> None:
        """Do what was accepted before, and refuse the rest."""
        with self._edge:
            self._closed = True
            self._ring()
        self._drain()

    def when_forked(self, mark_dead: Callable[[], None]) -> None:
        """Have ``mark_dead`` called in a forked copy of the program, where the node is no more."""
        self._when_forked = mark_dead

    def forked(self) -> None:
        """Be closed: this is the copy, without the loop. Locks may have been copied while they were
        held.
        """
        self._closed = True
        self._why = "this program was forked from the one the node lives in"
        self.loop_thread = 0
        if self._when_forked is not None:
            self._when_forked()

    def _arm(self) -> None:
        # The flag goes up only after the loop has promised to come: who sees it up may rely on
        # that.
        with self._edge:
            self.check_open()
            if self._armed:
                return
            try:
                if not self._ring():
                    self._token.run_sync_soon(self._drain)
            except trio.RunFinishedError:
                self._closed = True
                self._why = "its event loop is over"
                raise NodeStoppedError(self._node, self._why) from None
            self._armed = True

    def _ring(self) -> bool:
        if self._bell < 0:
            return False
        os.eventfd_write(self._bell, 1)
        return True

    def _drain(self) -> None:
        with self._edge:
            self._armed = False
        inbox = self._inbox
        while inbox:
            # So many at a time, so that threads in a hurry cannot keep the loop here.
            for _ in range(min(_TURN, len(inbox))):
                if not inbox:  # one of the jobs has caught up with the rest
                    break
                job, args = inbox.popleft()
                try:
                    job(*args)
                except BaseException as error:
                    # An exception that leaves a run_sync_soon callback takes the whole run down.
                    self._on_error(error)
            if inbox:
                try:
                    self._arm()
                except NodeStoppedError:  # there is no other turn: all of it now
                    continue
            return


_bridges: Final[WeakSet[Bridge]] = WeakSet()


def bells() -> int:
    """How many bridges of this thread's loop wait at a descriptor of their own, which only threads
    write to.
    """
    me = get_ident()
    return sum(
        1 for bridge in tuple(_bridges) if bridge.loop_thread == me and bridge._bell != _NO_BELL
    )


def _mark_dead_in_copy() -> None:
    for bridge in tuple(_bridges):
        bridge.forked()


if hasattr(os, "register_at_fork"):  # pragma: no branch - only Windows has none, and no fork either
    os.register_at_fork(after_in_child=_mark_dead_in_copy)


_STACK: Final = 1792 * 1024
"""Bytes of stack for a reader thread. It changes address space only, and thousands of readers
should fit; but Python's own limit of recursion must be reached first. On a third of this it is not:
a recursion by way of C then ends the whole program. And it is less than the two mebibytes that some
systems would back with one huge page, each of which is real memory.
"""
_starting = threading.Lock()


class ReaderThread:
    """An OS thread that runs blocking code, and whose end is told to the loop. A daemon: it never
    keeps a program alive.
    """

    __slots__ = ("_thread", "ident", "name", "native_id")

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.ident = 0
        self.native_id = 0
        self._thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)

    def start(self) -> None:
        """Start it with a small stack. The size is a setting of the whole program, so it is put
        back at once.

        Raises:
            RuntimeError: the system has no thread to give.
        """
        with _starting:
            before = threading.stack_size()
            try:
                threading.stack_size(_STACK)
            except (ValueError, RuntimeError):  # not a size that this platform takes
                pass
            try:
                self._thread.start()
            finally:
                threading.stack_size(before)
        self.ident = self._thread.ident or 0

    def stack(self) -> str:
        """What it is doing at this moment."""
        return stack_of(self.ident)

    def _run(self, body: Callable[[], None]) -> None:
        self.ident = get_ident()
        self.native_id = threading.get_native_id()
        try:
            # The name that ps and top show; at most 15 characters there. Not a file of Python's,
            # which takes longer to make.
            comm = os.open(f"/proc/self/task/{self.native_id}/comm", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(comm, _short(self.name).encode())
            finally:
                os.close(comm)
        except OSError:  # no such file system here: the name inside Python is all there is
            pass
        body()


def task_waiting_for_thread() -> Task | None:
    """The task that waits for this thread in ``trio.to_thread.run_sync``; None if none does."""
    # trio keeps it there, for each of its worker threads, while that is at work.
    register = getattr(PARENT_TASK_DATA, "task_register", None)
    return None if register is None else register[0]


def thread_names() -> dict[int, str]:
    """The names of the threads of this program."""
    return {
        thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None
    }


def stack_of(ident: int, limit: int = 20) -> str:
    """What a thread is doing at this moment: its innermost frames, newest last."""
    frame = sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)[-limit:]) if frame is not None else ""


def _short(name: str) -> str:
    """At most 15 characters, which must leave the number at the end: names that differ in nothing
    are of no use.
    """
    kind, _, number = name.rpartition("-")
    return f"{kind[: 14 - len(number)]}-{number}"[:15]
