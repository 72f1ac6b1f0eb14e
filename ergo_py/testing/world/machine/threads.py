"""`WorldThreads`: the threads of a world. Only a single thread runs at a time, while the loop waits
for it, so the seed decides the order of threads, too.

A thread runs until it would block: it gives way, and the loop goes on. A task of the node waits
until the thread is ready, sleeps for a drawn time, and lets the thread run again. So a thread stops
and crashes with its node.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from random import Random
from typing import Any, Final

import outcome
import trio
import trio._threads
from trio.lowlevel import checkpoint, spawn_system_task

from ...._core.runtime.bridge import get_ident, stack_of
from ..history import History
from ..outside import OutsideError
from ..tasks import THREAD, TaskOwners

__all__ = ["BlockedThreadError", "WorldThreads"]

_PATIENCE: Final = 5.0
"""Real seconds that a thread may run without giving way."""
_LONGEST: Final = 0.002
"""The longest time, in seconds of the world, until a thread that is ready runs."""
_ARRIVAL: Final = 3
"""Passes of the loop after which all that a thread has posted has arrived: a pass for the bell, for
the jobs, and for the tasks that they wake.
"""


class BlockedThreadError(OutsideError):
    """A thread of a world has not given way: it blocks in something that the world does not know,
    or computes for too long.
    """

    def __init__(self, thread: str, place: str, stack: str) -> None:
        self.thread = thread
        """The name of the thread."""
        self.stack = stack
        """The lines of code that it runs."""
        super().__init__(
            f"more than {_PATIENCE:g} real seconds in the thread {thread}, without a verb of "
            "ergo_py or time.sleep(…)",
            place,
        )

    def __str__(self) -> str:
        return f"{super().__str__()}. The thread stands at\n{self.stack}"


class _Abandoned(BaseException):
    """Ends the code of a thread that has crashed, or that its world has outlived."""


class _WorldThread:
    """A thread of a world."""

    def __init__(self, number: int, node: str, thread: threading.Thread, random: Random) -> None:
        self.number = number
        self.node = node
        self.thread = thread
        self.random = random
        self.turn = threading.Lock()
        """Released when the thread may run."""
        self.turn.acquire()
        self.way = threading.Lock()
        """Released when the thread has given way, or has ended."""
        self.way.acquire()
        self.is_ready: Callable[[], bool] = bool
        """Whether the thread can go on after its wait."""
        self.timeout: float | None = 0.0
        """Seconds after which it goes on all the same."""
        self.waits: trio.Event | None = None
        """Set when the thread is ready; None while it is not waiting."""
        self.is_over = self.is_crashed = False
        self.is_left = False
        """The thread is to end at its next wait: its world is over, or it did not give way."""

    @property
    def place(self) -> str:
        """The line of code that it runs."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Answer:
    """The queue in which a thread waits for the result of ``trio.from_thread``."""

    def __init__(self, threads: "WorldThreads", queue: SimpleQueue[Any]) -> None:
        self._threads = threads
        self._queue = queue
        self.put_nowait = queue.put_nowait

    def get(self) -> Any:
        self._threads.give_way(lambda: not self._queue.empty(), None)
        return self._queue.get()


class WorldThreads:
    """Starts and schedules the threads of a world."""

    def __init__(
        self, seed: int, owners: TaskOwners, history: History, fail: Callable[[OutsideError], None]
    ) -> None:
        self._seed = seed
        self._owners = owners
        self._history = history
        self._fail = fail
        self._start = threading.Thread.start
        self._send_message: Callable[..., Any] = trio._threads._send_message_to_trio
        self._threads: dict[int, _WorldThread] = {}
        """All threads that have not ended, by their numbers."""
        self._by_ident: dict[int, _WorldThread] = {}
        self._started = 0

    def __len__(self) -> int:
        return len(self._threads)

    @property
    def names(self) -> list[str]:
        """The threads that have not ended, each with its node, but those of crashed nodes."""
        return [
            f"{each.thread.name} of {each.node}"
            for each in self._threads.values()
            if not each.is_crashed
        ]

    def is_inside(self) -> bool:
        """Whether a thread of this world asks."""
        return get_ident() in self._by_ident

    # -- the source of threads ---------------------------------------------------------------------

    def start(self, thread: threading.Thread) -> None:
        """Start a thread for the node of the present task. It runs when its turn comes."""
        self._started += 1
        number, node = self._started, self._owners.of_present_task()
        made = _WorldThread(number, node, thread, Random(repr((self._seed, "thread", number))))
        run = thread.run
        vars(thread)["run"] = lambda: self._live(made, run)
        self._start(thread)
        self._threads[number] = made
        spawn_system_task(self._drive, made, name=f"node {node}{THREAD}")

    def start_thread_soon(
        self,
        function: Callable[[], Any],
        deliver: Callable[[outcome.Outcome[Any]], object],
        name: str | None = None,
    ) -> None:
        """Called by ``trio.to_thread``: run a function in a thread of its own."""

        def run() -> None:
            result = outcome.capture(function)
            with suppress(trio.RunFinishedError):
                deliver(result)

        self.start(threading.Thread(target=run, name=name or "trio worker", daemon=True))

    def send_message_to_trio(self, token: Any, message: Any) -> Any:
        """Called by ``trio.from_thread``: give way until the loop has run a function."""
        object.__setattr__(message, "queue", _Answer(self, message.queue))
        return self._send_message(token, message)

    def give_way(self, is_ready: Callable[[], bool], timeout: float | None) -> float | None:
        """Let the loop run until the thread is ready, or its time is over."""
        me = self._by_ident.get(get_ident())
        if me is None:
            return timeout
        me.is_ready, me.timeout = is_ready, timeout
        if not me.is_left:
            me.way.release()
            me.turn.acquire()
        if me.is_left:
            raise _Abandoned
        return 0.0

    def rest(self, _seconds: float) -> None:
        """Do nothing: the loop waits for each thread."""

    def sleep(self, seconds: float) -> None:
        """Stand in for ``time.sleep`` in a thread of this world."""
        self.give_way(bool, seconds)

    def _live(self, me: _WorldThread, run: Callable[[], None]) -> None:
        me.turn.acquire()
        ident = get_ident()
        self._by_ident[ident] = me
        self._owners.add_thread(ident, me.node)
        try:
            if not me.is_left:
                run()
        except _Abandoned:
            pass  # its node has crashed, and the thread has left its code
        except BaseException:
            # The loop that the code needs for its cleanup is over.
            if not me.is_left:
                raise
        finally:
            me.is_over = True
            self._owners.remove_thread(ident)
            del self._by_ident[ident], self._threads[me.number]
            me.way.release()

    # -- on the loop -------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Wake the tasks of threads that have become ready. Returns whether there are any."""
        found = False
        for each in self._threads.values():
            if each.waits is not None and each.is_ready():
                each.waits.set()
                each.waits = None
                found = True
        return found

    def crash(self, node: str) -> None:
        """Let the threads of a node that has crashed wait until the world is over."""
        for each in self._threads.values():
            if each.node == node:
                each.waits, each.is_crashed = None, True

    async def _drive(self, me: _WorldThread) -> None:
        """Let a thread run whenever it is ready, until it ends. In a task of its node."""
        while not me.is_over:
            await self._wait_for_turn(me)
            self._history.mix("thread", me.number)
            me.turn.release()
            if not me.way.acquire(timeout=_PATIENCE):
                me.is_left = True
                stack = stack_of(me.thread.ident or 0)
                self._fail(BlockedThreadError(me.thread.name, me.place, stack))
                return
            for _ in range(_ARRIVAL):
                await checkpoint()

    async def _wait_for_turn(self, me: _WorldThread) -> None:
        """Wait until a thread is ready, or its time is over, and for a drawn time. Another thread
        may have taken its job meanwhile.
        """
        end = inf if me.timeout is None else trio.current_time() + max(0.0, me.timeout)
        while True:
            if not me.is_ready():
                me.waits = event = trio.Event()
                with trio.move_on_at(end):
                    await event.wait()
                me.waits = None
            await trio.sleep(me.random.choice((0.0, me.random.uniform(0.0, _LONGEST))))
            if me.is_ready() or trio.current_time() >= end:
                return

    # -- after the run -----------------------------------------------------------------------------

    def bury(self) -> None:
        """End the threads that are left, when the run is over. Their cleanup runs now; it finds no
        loop, and its errors are dropped.
        """
        for each in list(self._threads.values()):
            is_blocked, each.is_left = each.is_left, True
            if not is_blocked:
                each.turn.release()
        for each in list(self._threads.values()):
            each.thread.join(_PATIENCE)
