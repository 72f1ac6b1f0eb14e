"""The one door between threads and the loop.

A thread appends what it wants done and looks at a flag: only the first of a batch wakes the loop, which takes the flag down
before it looks at the queue, so nothing can fall between. That costs a thread under half a microsecond, where a wake-up for
each message would cost twenty times as much.
"""

import os
import threading
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import outcome
import trio
from trio.lowlevel import TrioToken

from .errors import NodeStoppedError, NotAllowedError
from .ids import PID, Alias
from .requests import Caller

__all__ = ["Bridge", "Parker", "ThreadCaller", "get_ident"]

T = TypeVar("T")
Job = tuple[Callable[..., object], tuple[Any, ...]]


class Parker(Generic[T]):
    """Where a thread waits for one value from the loop. A raw lock, because a Condition costs ten times as much."""

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
        """Block this thread until there is a value. False if none came in time."""
        return self._lock.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class ThreadCaller(Caller):
    """A call whose caller is an OS thread."""

    __slots__ = ("parker",)

    def __init__(self, pid: PID | Alias, number: int, to: object, request: object) -> None:
        super().__init__(pid, number, to, request)
        self.parker: Parker[None] = Parker()

    def awaken(self) -> None:
        self.parker.settle(None)


class Bridge:
    """Carries work from any thread to the loop of one node, in order for each thread."""

    __slots__ = ("_armed", "_closed", "_inbox", "_node", "_on_error", "_os_pid", "_token", "lock", "loop_thread")

    def __init__(self, node: str, token: TrioToken, on_error: Callable[[BaseException], None]) -> None:
        self._node = node
        self._token = token
        self._on_error = on_error
        self._inbox: deque[Job] = deque()
        self._armed = False
        self._closed = False
        self._os_pid = os.getpid()
        self.lock = threading.Lock()
        """Guards the few counts that a thread and the loop both change."""
        self.loop_thread = get_ident()

    def on_loop(self) -> bool:
        """Say whether this is the thread the node lives in."""
        return get_ident() == self.loop_thread

    def refuse_on_loop(self, verb: str, instead: str) -> None:
        """Raise :class:`NotAllowedError` if a verb that blocks is used where it would block the loop."""
        if self.on_loop():
            raise NotAllowedError(f"{verb} would block the event loop it waits for; write {instead} instead")

    def post(self, job: Callable[..., object], *args: Any) -> None:
        """Have ``job(*args)`` run on the loop soon. From any thread; never blocks.

        Raises:
            NodeStoppedError: the node has stopped, its loop is over, or this is a forked copy of the program.
        """
        if self._closed:
            raise NodeStoppedError(self._node)
        # Append first, look then: the loop takes the flag down first and looks then.
        self._inbox.append((job, args))
        if not self._armed:
            self._armed = True
            self._arm()
        elif self._closed:
            # Closed between the look and the append: what close() did not see is done here, where nothing listens.
            self._inbox.clear()
            raise NodeStoppedError(self._node)

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a plain function on the loop and wait, in this thread, for its result."""
        if self.on_loop():
            return function(*args)
        parker: Parker[outcome.Outcome[T]] = Parker()
        self.post(lambda: parker.settle(outcome.capture(function, *args)))
        parker.wait(None)
        if parker.value is None:
            raise NodeStoppedError(self._node)
        return parker.value.unwrap()

    def close(self) -> None:
        """Do what was accepted before, and refuse the rest."""
        self._closed = True
        self._drain()

    def _arm(self) -> None:
        if os.getpid() != self._os_pid:
            self._closed = True
            raise NodeStoppedError(self._node, "this program was forked from the one the node lives in")
        try:
            self._token.run_sync_soon(self._drain)
        except trio.RunFinishedError:
            self._closed = True
            raise NodeStoppedError(self._node, "its event loop is over") from None

    def _drain(self) -> None:
        self._armed = False
        inbox = self._inbox
        # Only what is there now, so that a thread in a hurry cannot keep the loop here.
        for _ in range(len(inbox)):
            job, args = inbox.popleft()
            try:
                job(*args)
            except BaseException as error:
                # An exception that leaves a run_sync_soon callback takes the whole run down.
                self._on_error(error)
