"""`VirtualClock`: virtual time that waits for threads. It jumps only when the program is idle."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import perf_counter
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from .._core.runtime.bridge import bells
from .._core.vocabulary.options import check_number
from .threads import Look, look, stirring

__all__ = ["VirtualClock"]

_INSTANT: Final = 0.0001001
"""Real seconds to wait if no other thread or I/O could act. Not zero: tasks in
``wait_all_tasks_blocked(0)`` wake first.
"""
_LONGEST: Final = 0.05
"""Real seconds between two looks when there is no deadline to jump to."""
_ODD: Final = 1.0001
"""Makes the cushion of the clock differ from every other. ``wait_all_tasks_blocked(cushion)`` of
trio keeps its waiters sorted by cushion; when the loop has been idle for the smallest cushion, trio
wakes all tasks with exactly that cushion in the same step. A test that waits with the cushion of
the clock would wake together with it, and see the clock at work.
"""
_FAR: Final = 1e9


class VirtualClock(trio.abc.Clock):
    """A clock for ``trio.run(…, clock=VirtualClock())``: it stands still while any task or thread
    works, and then jumps to the next deadline.

    As trio's ``MockClock`` with ``autojump_threshold`` it makes sleeps and timeouts take no time.
    Unlike ``MockClock``, it does not jump while a reader thread, a worker thread, any other thread
    or a child program works, nor while a hand-over from a thread waits for the loop.

    Args:
        cushion: real seconds of idleness before a jump, if there are other threads, child programs,
            or tasks that wait for I/O. Without them the clock jumps at once.
        patience: real seconds to wait for a worker thread that sleeps inside its job. It may be
            waiting for this very clock.
    """

    def __init__(self, *, cushion: float = 0.002, patience: float = 5.0) -> None:
        check_number("cushion", cushion, least=0.0001)
        check_number("patience", patience, least=0.0)
        self._now = 0.0
        self._cushion = cushion * _ODD
        self._patience = patience
        self._holds = 0
        self._released: trio.Event | None = None
        self._waiting_since: dict[int, tuple[str, float]] = {}
        self.jumps: int = 0
        """How often the clock has jumped by itself."""

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now:g} s, {self.jumps} jumps>"

    def start_clock(self) -> None:
        """Called by trio when a run begins."""
        # No task can be started yet; the loop runs this callback first.
        trio.lowlevel.current_trio_token().run_sync_soon(self._begin)

    def current_time(self) -> float:
        """The time, in seconds since the clock was made."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio: the real time to wait for a deadline, unless time jumps meanwhile."""
        return 0.0 if deadline <= self._now else _FAR

    def jump(self, seconds: float) -> None:
        """Advance the time by hand."""
        check_number("seconds", seconds, least=0.0)
        self._now += seconds

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the clock from jumping by itself inside the block: for events outside this
        program.
        """
        self._holds += 1
        if self._released is None:
            self._released = trio.Event()
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._released.set()
                self._released = None

    def _begin(self) -> None:
        trio.lowlevel.spawn_system_task(self._drive, name="virtual clock")

    async def _drive(self) -> None:
        pause = self._cushion
        while True:
            while self._released is not None:
                await self._released.wait()
            before = look()
            quick = before.alone and not _tasks_wait_for_io()
            await wait_all_tasks_blocked(_INSTANT if quick and pause <= self._cushion else pause)
            after = look()
            if (
                self._released is not None
                or stirring(before, after)
                or (quick and _tasks_wait_for_io())
            ):
                continue
            if self._must_wait_for(after):
                continue
            statistics = trio.lowlevel.current_statistics()
            step = statistics.seconds_to_next_deadline
            if statistics.tasks_runnable:
                continue
            if 0 < step < inf:
                self._now += step
                self.jumps += 1
                pause = self._cushion
            elif step == inf:
                pause = min(2 * pause, _LONGEST)

    def _must_wait_for(self, seen: Look) -> bool:
        """Return whether a worker thread is at work whose patience is not used up."""
        now = perf_counter()
        since = self._waiting_since
        self._waiting_since = {
            number: since[number] if since.get(number, ("", 0.0))[0] == name else (name, now)
            for number, name in seen.working.items()
        }
        return any(now - began < self._patience for _, began in self._waiting_since.values())


def _tasks_wait_for_io() -> bool:
    statistics: Any = trio.lowlevel.current_statistics().io_statistics
    try:
        # Do not count the task through which threads wake the loop, nor the tasks of our nodes that
        # do the same.
        return bool(statistics.tasks_waiting_read + statistics.tasks_waiting_write > 1 + bells())
    except AttributeError:  # another operating system, whose statistics lack these fields
        return True
