"""`Bridge`: the single entry from other threads to the event loop.

A thread appends a job and checks a flag: only the first job of a batch wakes the loop. The loop
clears the flag before it reads the queue, so no job can be missed. That costs a thread less than
half a microsecond; a wake-up per message would cost twenty times as much.
"""

import os
import select
import sys
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from math import ceil, inf
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any, Final, Generic, TypeVar
from weakref import ReferenceType, ref

import outcome
import trio
from trio.lowlevel import TrioToken, current_task, enable_ki_protection, wait_readable

from .. import sources
from ..vocabulary.errors import NodeStoppedError, NotAllowedError
from .parking import TrioTurns

__all__ = [
    "Bridge",
    "Lock",
    "MainThread",
    "Parker",
    "ReaderThread",
    "Thread",
    "ThreadLocal",
    "bells",
    "bells_ring",
    "bridge_in",
    "get_ident",
    "is_main_thread",
    "poll_in_thread",
    "stack_of",
    "take_next",
    "thread_names",
    "wait_in_slices",
]

T = TypeVar("T")
Lock = threading.Lock
Thread = threading.Thread
ThreadLocal = threading.local
_NO_BELL: Final = -1
# Not measured: at a microsecond for a job that only wakes a process, a quarter of a millisecond.
_TURN: Final = 256
"""Jobs of threads that run before other tasks on the loop get a turn."""
# Not measured: a Ctrl-C at the wrong moment takes this long to be noticed, and the waits of an idle
# main thread cost five wake-ups a second.
_SLICE: Final = 0.2
"""Seconds that the main thread blocks at a time."""
Job = tuple[Callable[..., object], tuple[Any, ...]]


class Parker(Generic[T]):
    """A future for a thread: it blocks until the loop sets a value. A raw lock, because a Condition
    costs ten times as much.
    """

    __slots__ = ("_is_settled", "_lock", "value")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        # The lock cannot tell: the thread that was woken holds it again.
        self._is_settled = False
        self.value: T | None = None

    def settle(self, value: T) -> None:
        """Set the value. Only the first call counts."""
        if not self._is_settled:
            self._is_settled = True
            # Before the lock is released: the thread reads the value without any further step.
            self.value = value
            self._lock.release()

    def wait(self, timeout: float | None) -> bool:
        """Block this thread until the value is set. False after the timeout. In the main thread
        Ctrl-C ends the wait.
        """
        left = sources.threads.give_way(lambda: self._is_settled, timeout)
        return wait_in_slices(self._take, left)

    def _take(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


def wait_in_slices(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Call ``wait(seconds)``, which blocks this thread, until it returns True. False after the
    timeout.

    Python runs signal handlers in the main thread, between two bytecode instructions. A signal that
    arrives just before the main thread blocks does not wake it. So the main thread blocks in slices
    of `_SLICE` seconds. Other threads block once.
    """
    if not is_main_thread():
        return wait(-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
    end = inf if timeout is None else monotonic() + timeout
    while not wait(max(0.0, min(_SLICE, end - monotonic()))):
        if monotonic() >= end:
            return False
    return True


def take_next(queue: "SimpleQueue[T]") -> T:
    """Block this thread until the queue has an entry, and take the entry. In the main thread in
    slices, as `wait_in_slices`.
    """
    if not is_main_thread():
        return queue.get()
    while True:
        try:
            return queue.get(timeout=_SLICE)
        except Empty:
            continue


def is_main_thread() -> bool:
    """Say whether this is the main thread of the program."""
    return get_ident() == threading.main_thread().ident


def poll_in_thread(poll: "select.poll", timeout: float | None) -> list[tuple[int, int]]:
    """Block this thread until a descriptor is ready, for at most ``timeout`` seconds."""
    left = sources.threads.give_way(lambda: bool(poll.poll(0)), timeout)
    # Rounded up: a pause that ends early makes a loop around it spin.
    return poll.poll(None if left is None else ceil(min(left, 1e6) * 1000))


class Bridge:
    """Carries jobs from any thread to the loop of a node, in order for each thread."""

    __slots__ = (
        "__weakref__",
        "_armed",
        "_bell",
        "_closed",
        "_edge",
        "_node",
        "_on_error",
        "_token",
        "_when_forked",
        "_why",
        "lock",
        "loop_thread",
        "pending",
    )

    def __init__(
        self, node: str, token: TrioToken, on_error: Callable[[BaseException], None]
    ) -> None:
        self._node = node
        self._token = token
        self._on_error = on_error
        self.pending: deque[Job] = deque()
        """The jobs that threads have posted and that have not run yet. Public, since each process
        that ends checks whether it is empty. Only the methods of this class change it.
        """
        self._armed = False
        """The loop has been woken for the present batch and will drain the inbox."""
        self._bell = _NO_BELL
        """The eventfd that wakes `serve`."""
        self._closed = False
        self._why = ""
        self._when_forked: Callable[[], None] | None = None
        # Held while `_armed` or `_bell` changes, once per batch. Reentrant, because a signal
        # handler may call post() while its thread holds the lock.
        self._edge = threading.RLock()
        self.lock: threading.Lock = threading.Lock()
        """Guards the few counters that both threads and the loop change."""
        self.loop_thread: int = get_ident()
        _remember(self)

    def on_loop(self) -> bool:
        """Say whether this is the thread of the node's event loop."""
        return get_ident() == self.loop_thread

    def is_in_main_thread(self) -> bool:
        """Say whether the event loop runs in the main thread of the program. From any thread."""
        return self.loop_thread == threading.main_thread().ident

    def refuse_on_loop(self, verb: str, instead: str) -> None:
        """Raise :class:`NotAllowedError` if a blocking verb is called in the loop's own thread."""
        if self.on_loop():
            raise NotAllowedError(
                f"{verb} would block the event loop it waits for; write {instead} instead"
            )

    def check_open(self) -> None:
        """Raise :class:`NodeStoppedError` if the bridge is closed."""
        if self._closed:
            raise NodeStoppedError(self._node, self._why)

    def post(self, job: Callable[..., object], *args: object) -> None:
        """Schedule ``job(*args)`` on the loop. From any thread; never blocks. An accepted job is
        always run, and a refused one never.

        Raises:
            NodeStoppedError: the node has stopped, its loop has ended, or this is a forked copy of
                the program.
        """
        if self._closed:
            raise NodeStoppedError(self._node, self._why)
        # Append first, then check the flag; `_drain` clears the flag first, then reads the queue.
        # So either this thread sees the flag down and wakes the loop, or the loop sees the job.
        posted = (job, args)
        self.pending.append(posted)
        if not self._armed:
            try:
                self._arm()
            except NodeStoppedError:
                # An earlier wake-up may have run the job before the bridge was closed.
                if self._take_back(posted):
                    raise

    def undo(self, job: Callable[..., object], *args: object) -> None:
        """Schedule the end of what a posted job has begun, for a thread that gives up on it. A node
        that has stopped has ended it already: the thread keeps its own error.
        """
        with suppress(NodeStoppedError):
            self.post(job, *args)

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Run a plain function on the loop, and block this thread until it returns its result."""
        if get_ident() == self.loop_thread:
            return function(*args)
        parker: Parker[outcome.Outcome[T]] = Parker()
        self.post(lambda: parker.settle(outcome.capture(function, *args)))
        parker.wait(None)
        # An accepted job is always run, and capture() stores its result or exception.
        assert parker.value is not None
        return parker.value.unwrap()

    def do(self, job: Callable[..., object], *args: object) -> None:
        """Run ``job(*args)`` now in the loop's thread; from another thread schedule it."""
        if self.on_loop():
            job(*args)
        else:
            self.post(job, *args)

    def catch_up(self) -> None:
        """Run the jobs posted so far, on the loop, before the caller's next step."""
        # As many drains as the jobs of now need: a thread that posts on and on must not hold the
        # loop here.
        for _ in range(0, len(self.pending), _TURN):
            self._drain()

    def hang_bell(self) -> None:
        """Open an eventfd for :meth:`serve`, if the system provides it."""
        try:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except (AttributeError, OSError):  # not on Linux, or out of descriptors
            pass

    @enable_ki_protection
    async def serve(
        self, turns: TrioTurns, guard: AbstractContextManager[None, bool | None]
    ) -> None:
        """Run the jobs of threads until the bridge is closed. ``guard`` handles a failure: a
        coroutine around this one would cost each wake-up another frame.

        While this runs, a batch wakes the loop through an eventfd: a write and a read. trio's
        ``run_sync_soon`` takes a lock, a socket and two queues. Without an eventfd the bridge uses
        ``run_sync_soon``.
        """
        bell, task = self._bell, current_task()
        if bell == _NO_BELL:
            return
        with guard:
            try:
                while not self._closed:
                    await wait_readable(bell)
                    # Read before `_drain` clears the flag: a later ring belongs to the next batch,
                    # and must stay readable.
                    os.eventfd_read(bell)
                    # Several jobs of threads mostly wake several processes: then the steps run in
                    # this turn also beside other tasks, and connections write their answers after
                    # all of them.
                    is_root = turns.begin(task, len(self.pending) > 1)
                    self._drain()
                    if is_root:
                        turns.serve(task)
            finally:
                # Threads ring under this lock. So none of them writes to a descriptor number that
                # the system has reused.
                with self._edge:
                    self._bell = _NO_BELL
                    os.close(bell)
                # Drain even an empty inbox: after a ring that is no longer read, the flag would
                # stay up and no thread would wake the loop again.
                self._drain()

    def close(self, why: str = "") -> None:
        """Run the jobs accepted so far, and refuse all later jobs; ``why`` is for their errors."""
        with self._edge:
            self._closed = True
            # The first cause stays: the close that follows it knows less.
            self._why = self._why or why
            self._ring()
        self._run_rest()

    def when_forked(self, mark_dead: Callable[[], None]) -> None:
        """Call ``mark_dead`` in a forked copy of the program, where the node does not run."""
        self._when_forked = mark_dead

    def forked(self) -> None:
        """Close the bridge in a forked copy, which has no loop. Take no lock here: another thread
        may have held it at the fork.
        """
        self._closed = True
        self._why = "this program is a forked copy of the program that runs the node"
        self.loop_thread = 0
        if self._when_forked is not None:
            self._when_forked()

    def _arm(self) -> None:
        # Set the flag only after the wake-up has succeeded: a thread that sees the flag relies on
        # the loop to drain the inbox.
        with self._edge:
            # Inlined check_open() and _ring(): each wake-up of the loop by a thread pays for them.
            if self._closed:
                raise NodeStoppedError(self._node, self._why)
            if self._armed:
                return
            try:
                if self._bell >= 0:
                    os.eventfd_write(self._bell, 1)
                else:
                    self._token.run_sync_soon(self._drain)
            except trio.RunFinishedError:
                self._closed = True
                self._why = "its event loop has ended"
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
        inbox = self.pending
        # Bounded, so that busy threads cannot starve the other tasks on the loop.
        for _ in range(min(_TURN, len(inbox))):
            # A job has called catch_up() or close(), which ran the rest. What threads append to a
            # closed bridge is theirs to take back.
            if self._closed or not inbox:
                break
            job, args = inbox.popleft()
            try:
                job(*args)
            except BaseException as error:
                # An exception that leaves a run_sync_soon callback would end the trio run.
                self._on_error(error)
        if inbox and not self._closed:
            try:
                self._arm()
            except NodeStoppedError:  # no later turn comes
                self._run_rest()

    def _run_rest(self) -> None:
        # Each job is taken under the lock, since a thread whose job came too late may take it back
        # meanwhile: it is run or refused, and not both.
        while True:
            with self._edge:
                self._armed = False
                if not self.pending:
                    return
                job, args = self.pending.popleft()
            try:
                job(*args)
            except BaseException as error:
                self._on_error(error)

    def _take_back(self, posted: Job) -> bool:
        # By identity: messages have an `__eq__` of their own. By position: other threads append.
        with self._edge:
            for position in range(len(self.pending)):
                if self.pending[position] is posted:
                    del self.pending[position]
                    return True
            return False


_bridges: Final[dict[ReferenceType[Bridge], None]] = {}
"""Not a WeakSet, whose iterator costs more: a world looks at each jump of its clock."""


def _remember(bridge: Bridge) -> None:
    _bridges[ref(bridge, _forget)] = None


def _forget(gone: ReferenceType[Bridge]) -> None:
    del _bridges[gone]


def _all_bridges() -> list[Bridge]:
    found = [reference() for reference in tuple(_bridges)]
    return [bridge for bridge in found if bridge is not None]


def bridge_in(thread: int) -> Bridge | None:
    """The bridge to an open node whose loop runs in that thread; None if there is none."""
    found = [each for each in _all_bridges() if each.loop_thread == thread and not each._closed]
    return found[0] if found else None


def bells() -> int:
    """The number of bridges of this thread's loop that wait at an eventfd of their own, which only
    threads write to.
    """
    me = get_ident()
    return sum(
        1 for bridge in _all_bridges() if bridge.loop_thread == me and bridge._bell != _NO_BELL
    )


def bells_ring() -> bool:
    """Whether a thread has posted jobs to a bridge of this thread's loop, which have not run."""
    me = get_ident()
    for reference in tuple(_bridges):
        bridge = reference()
        if bridge is not None and bridge.pending and bridge.loop_thread == me:
            return True
    return False


def _mark_dead_in_copy() -> None:
    for bridge in _all_bridges():
        bridge.forked()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_mark_dead_in_copy)


_FRAMES: Final = 20
"""Frames of a thread that its stack shows: a report of a blocked loop is read by a person."""
_STACK: Final = 1792 * 1024
"""Bytes of stack for a reader thread. It costs address space only, and thousands of readers should
fit. Python's recursion limit must be reached first: on a third of this size a recursion through C
code overflows the stack and ends the whole program. It stays below two mebibytes, which some
systems would back with a huge page of real memory.
"""
_starting = threading.Lock()


class ReaderThread:
    """An OS thread that runs blocking code. A daemon thread: it never keeps the program alive."""

    __slots__ = ("_thread", "ident", "name", "native_id")

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name: str = name
        self.ident: int = 0
        self.native_id: int = 0
        self._thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)

    def start(self) -> None:
        """Start the thread with a small stack. The stack size is a setting of the whole program, so
        it is restored at once.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        with _starting:
            # Under a lock, since two threads that start would restore each other's size, and the
            # program would keep the small stack for its own threads.
            before = threading.stack_size()
            try:
                threading.stack_size(_STACK)
            except (ValueError, RuntimeError):  # the platform does not support this size
                pass
            try:
                sources.threads.start(self._thread)
            finally:
                threading.stack_size(before)
        self.ident = self._thread.ident or 0

    def stack(self) -> str:
        """The present call stack of the thread, formatted."""
        return stack_of(self.ident)

    def _run(self, body: Callable[[], None]) -> None:
        self.ident = get_ident()
        self.native_id = threading.get_native_id()
        try:
            # The name that ps and top show; at most 15 characters. os.open, since it is faster
            # than a Python file object.
            comm = os.open(f"/proc/self/task/{self.native_id}/comm", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(comm, _short(self.name).encode())
            finally:
                os.close(comm)
        except OSError:  # no /proc here: only Python knows the name
            pass
        body()


class MainThread:
    """The main thread of the program, as a thread of a dispatcher. It runs already."""

    __slots__ = ("ident", "name", "native_id")

    def __init__(self) -> None:
        main = threading.main_thread()
        self.name = main.name
        self.ident = main.ident or 0
        self.native_id = main.native_id or 0

    def start(self) -> None:
        """Do nothing."""


def thread_names() -> dict[int, str]:
    """The names of the threads of this program."""
    return {
        thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None
    }


def stack_of(ident: int) -> str:
    """The present call stack of a thread, formatted: its innermost frames, newest last."""
    frame = sys._current_frames().get(ident)
    frames: list[tuple[FrameType, int]] = []
    # The frames at once, and only those that are shown: CPython 3.11 crashed when the thread went
    # on while a slower loop followed its frames.
    while frame is not None and len(frames) < _FRAMES:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return "".join(traceback.StackSummary.extract(reversed(frames)).format())


def _short(name: str) -> str:
    """The name cut to 15 characters. The number at its end stays, since it tells threads apart."""
    kind, _, number = name.rpartition("-")
    return f"{kind[: 14 - len(number)]}-{number}"[:15]
