"""Who is blocking the loop, and where: a thread that looks at the loop from outside.

It costs a healthy loop nothing: it only looks, now and then, whether the loop sits in its I/O wait.
If it does not, it asks for a sign of life, and if none comes in time it reads the loop's stack,
where it finds the process and the callback. A loop that is not blocked but gets no time to run
looks the same on the stack; what the system counts for the thread tells them apart.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time
from types import FrameType
from typing import Final, NamedTuple

from ..metas.meta import Meta
from ..metas.reader import read
from ..processes.process import Process
from ..runtime.bridge import Bridge
from ..tables.callbacks import process_of
from ..vocabulary.errors import NodeStoppedError
from ..vocabulary.info import BlockedReport
from ..vocabulary.text import shown

__all__ = ["RunTimes", "Watchdog", "look_at_loop", "run_times", "was_starved"]

_STACK_LIMIT: Final = 50
_ON_THE_WAY: Final = ("ergo_py._core.", "trio.", "outcome.")
_KERNEL_USES: Final = frozenset({"structlog", "traceback", "linecache"})


class Watchdog:
    """Reports each time the loop has been blocked for longer than ``threshold`` seconds, once for
    each time.
    """

    def __init__(
        self,
        bridge: Bridge,
        threshold: float,
        report: Callable[[BlockedReport], None],
        look: Callable[[], None] | None = None,
    ) -> None:
        self._bridge = bridge
        self._threshold = threshold
        self._report = report
        self._look = look
        """What else is looked at each time."""
        self._stop = threading.Event()
        self._alive = threading.Event()
        self.asked: float | None = None
        """Since when, on ``perf_counter``'s clock, it waits for a sign of life; None while all is
        well.
        """
        self._thread = threading.Thread(target=self._watch, name="ergo-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it: it never holds anything for longer than a moment."""
        self._stop.set()
        self._alive.set()
        self._thread.join(1.0)

    def _watch(self) -> None:
        pause = self._threshold / 2
        while not self._stop.wait(pause):
            if self._look is not None:
                self._look()
            frame = self._frame()
            if frame is None or _waits_for_io(frame):
                continue
            self._alive.clear()
            before = run_times(self._bridge.loop_thread)
            self.asked = asked = perf_counter()
            try:
                self._bridge.post(self._alive.set)
            except NodeStoppedError:  # there is nothing left to watch
                return
            if self._comes_to_life():
                self.asked = None
                continue
            try:
                self._tell(before, asked)
            except Exception:  # of a listener's: the next blockage is reported all the same
                pass
            # Once for each time: nothing more until the loop moves again.
            self._alive.wait()
            self.asked = None

    def _comes_to_life(self) -> bool:
        began = perf_counter()
        if self._alive.wait(self._threshold):
            return True
        # If this thread overslept as well, the whole program stood still (SIGSTOP, a machine that
        # was paused), and the loop has had no chance yet. Once: a callback that keeps the
        # interpreter's lock keeps this thread waiting, too.
        return perf_counter() - began > 2 * self._threshold and self._alive.wait(self._threshold)

    def _tell(self, before: "RunTimes | None", asked: float) -> None:
        frame = self._frame()
        if frame is None or self._alive.is_set():
            return
        seconds = perf_counter() - asked
        try:
            report = _describe(frame, seconds)
        except Exception as error:  # the stack moves while it is read
            why = f"the stack could not be read: {shown(error)}\n"
            report = BlockedReport(seconds, None, None, None, None, None, why)
        starved = was_starved(before, run_times(self._bridge.loop_thread))
        self._report(replace(report, starved=True) if starved else report)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._bridge.loop_thread)


def look_at_loop(bridge: Bridge, seconds: float) -> BlockedReport | None:
    """Who keeps the loop from running at this moment, for ``seconds`` already. From any thread;
    None if nobody does.
    """
    frame = sys._current_frames().get(bridge.loop_thread)
    return None if frame is None or _waits_for_io(frame) else _describe(frame, seconds)


def _waits_for_io(frame: FrameType) -> bool:
    return frame.f_code.co_name == "get_events" and frame.f_globals.get("__name__", "").startswith(
        "trio."
    )


# -- blocked, or starved ---------------------------------------------------------------------------


class RunTimes(NamedTuple):
    """What the system has counted for a thread up to a moment; times in seconds."""

    at: float
    ran: float
    """How long it had a processor."""
    queued: float
    """How long it could have run, and other threads or programs had the processors."""
    waits: int
    """How often it waited for something. A thread that waits for the interpreter's lock looks for
    it every switch interval.
    """
    others_ran: float
    """How long the other threads of this program had a processor."""


def run_times(ident: int) -> RunTimes | None:
    """The times of a thread of this program; None where the system does not tell."""
    number = next(
        (thread.native_id for thread in threading.enumerate() if thread.ident == ident), None
    )
    try:
        with open(f"/proc/self/task/{number}/schedstat", "rb") as file:
            ran, queued = (int(figure) / 1e9 for figure in file.read().split()[:2])
        with open(f"/proc/self/task/{number}/status", "rb") as file:
            waits = int(file.read().partition(b"\nvoluntary_ctxt_switches:")[2].split()[0])
    except (
        OSError,
        ValueError,
        IndexError,
    ):  # no such file system, a thread that has gone, or a kernel that does not count
        return None
    return RunTimes(perf_counter(), ran, queued, waits, process_time() - ran)


def was_starved(before: RunTimes | None, after: RunTimes | None) -> bool:
    """Say whether, for most of the time between the two, a thread wanted to run and could not.

    A callback that sleeps or waits does so without the interpreter's lock, and wakes seldom; one
    that computes has a processor.
    """
    if before is None or after is None:
        return False
    at, _, queued, waits, others_ran = (
        later - earlier for earlier, later in zip(before, after, strict=True)
    )
    # On a busy machine it comes to look for the lock less often than every interval.
    wants_lock = waits * sys.getswitchinterval() * 4 >= at
    return queued + (others_ran if wants_lock else 0.0) > at / 2


# -- the process on the stack ----------------------------------------------------------------------


def _describe(frame: FrameType, seconds: float) -> BlockedReport:
    process, served_in = _process_in(frame)
    stack = "".join(traceback.format_stack(frame, _STACK_LIMIT))
    if process is None or served_in is None:
        return BlockedReport(seconds, None, None, None, None, None, stack)
    callback = handling = None
    if served_in.f_code is read.__code__:
        # The reader of a meta-process, which runs beside the callback that is in progress.
        callback = "start"
    elif _is_in_behaviour(frame, served_in):
        callback, handling = process.current_callback(), process.handling
    return BlockedReport(
        seconds,
        process.id,
        process.name,
        process.callbacks.behaviour,
        callback,
        None if handling is None else type(handling[3]).__qualname__,
        stack,
    )


def _process_in(frame: FrameType | None) -> tuple[Process | Meta | None, FrameType | None]:
    """The innermost process or meta-process on the stack, and the frame that calls its callbacks.

    The innermost: one may be answering another's call on the spot.
    """
    while frame is not None:
        found: Process | Meta | None = process_of(frame)
        if found is not None:
            return found, frame
        frame = frame.f_back
    return None, None


def _is_in_behaviour(frame: FrameType | None, served_in: FrameType) -> bool:
    """Say whether a callback runs, and not the kernel's own work before or after it."""
    modules: list[str] = []
    while frame is not None and frame is not served_in:
        modules.append(frame.f_globals.get("__name__") or "")
        frame = frame.f_back
    # The first that the kernel has called, of what is neither the kernel nor on the way to a
    # callback.
    called = next((name for name in reversed(modules) if not name.startswith(_ON_THE_WAY)), None)
    return called is not None and called.partition(".")[0] not in _KERNEL_USES
