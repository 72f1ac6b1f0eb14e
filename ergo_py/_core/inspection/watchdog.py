"""``Watchdog``: a thread that reports a blocked event loop, with the process and the callback that
block it.

The watchdog costs a healthy loop nothing: from time to time it checks whether the loop is in its
I/O wait. If not, it asks the loop for a sign of life. If none arrives in time, it reads the loop's
stack, and finds the process and the callback there. A starved loop, which is ready but gets no
processor time, has the same stack. The scheduling counters of the thread tell the two cases apart.
"""

import re
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from types import FrameType
from typing import Final, NamedTuple

import trio

from ..metas.meta import Meta
from ..metas.reader import Reader
from ..processes.process import Process
from ..runtime.bridge import Bridge
from ..tables.callbacks import process_of
from ..vocabulary.errors import NodeStoppedError
from ..vocabulary.info import BlockedReport
from ..vocabulary.text import shown
from .loop_delays import LoopDelays

__all__ = [
    "RunTimes",
    "Watchdog",
    "frames_from",
    "look_at_loop",
    "of_program",
    "process_in",
    "run_times",
    "waits_for_io",
    "was_starved",
]

_STACK_LIMIT: Final = 50
_ON_THE_WAY: Final = ("ergo_py._core.", "trio.", "outcome.")
_KERNEL_USES: Final = frozenset({"structlog", "traceback", "linecache"})
_FRAMEWORK: Final = (str(Path(__file__).parents[2]), str(Path(trio.__file__).parent))
"""The folders with the code of ergo_py and trio."""


class Watchdog:
    """Reports each blockage of the loop that is longer than ``threshold`` seconds, once for each
    blockage.
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
        """A further check to run each time."""
        self._stop = threading.Event()
        self._alive = threading.Event()
        self.asked: float | None = None
        """Since when the watchdog has been waiting for a sign of life, on ``perf_counter``'s clock;
        None if it is not waiting.
        """
        self.delays = LoopDelays()
        """How long the loop took to answer, each time that the watchdog looked."""
        self._thread = threading.Thread(target=self._watch, name="ergo-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and join it: the thread never blocks for longer than a moment."""
        self._stop.set()
        self._alive.set()
        self._thread.join(1.0)

    def _watch(self) -> None:
        pause = self._threshold / 2
        while not self._stop.wait(pause):
            if self._look is not None:
                self._look()
            frame = self._frame()
            if frame is None or waits_for_io(frame):
                self.delays.add(0.0)
                continue
            self._alive.clear()
            # `stop` may have come since the pause, and its sign is cleared now: the loop that joins
            # this thread would not answer for a second.
            if self._stop.is_set():
                return
            before = run_times(self._bridge.loop_thread)
            self.asked = asked = perf_counter()
            try:
                self._bridge.post(self._alive.set)
            except NodeStoppedError:  # the node has stopped
                return
            if self._comes_to_life():
                self.delays.add(perf_counter() - asked)
                self.asked = None
                continue
            try:
                self._tell(before, asked)
            except Exception:  # a listener raised: still report the next blockage
                pass
            # A single report for each blockage: wait until the loop moves again.
            self._alive.wait()
            self.delays.add(perf_counter() - asked)
            self.asked = None

    def _comes_to_life(self) -> bool:
        began = perf_counter()
        if self._alive.wait(self._threshold):
            return True
        # If this thread overslept as well, the whole program stood still (SIGSTOP, a paused
        # machine), and the loop has not had a chance yet: wait once more. Only once: a callback
        # that holds the GIL delays this thread, too.
        return perf_counter() - began > 2 * self._threshold and self._alive.wait(self._threshold)

    def _tell(self, before: "RunTimes | None", asked: float) -> None:
        frame = self._frame()
        if frame is None or self._alive.is_set():
            return
        seconds = perf_counter() - asked
        try:
            report = _describe(frame, seconds)
        except Exception as error:  # the loop's stack changes while this thread reads it
            why = f"the stack could not be read: {shown(error)}\n"
            report = BlockedReport(seconds, None, None, None, None, None, why)
        starved = was_starved(before, run_times(self._bridge.loop_thread))
        self._report(replace(report, starved=True, advice=None) if starved else report)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._bridge.loop_thread)


def look_at_loop(bridge: Bridge, seconds: float) -> BlockedReport | None:
    """Report which process is blocking the loop now, after ``seconds`` seconds. None if the loop is
    not blocked. From any thread.
    """
    frame = sys._current_frames().get(bridge.loop_thread)
    return None if frame is None or waits_for_io(frame) else _describe(frame, seconds)


def waits_for_io(frame: FrameType) -> bool:
    """Whether the loop's innermost frame waits for input and output: the loop has nothing to do."""
    return frame.f_code.co_name == "get_events" and frame.f_globals.get("__name__", "").startswith(
        "trio."
    )


# -- blocked, or starved ---------------------------------------------------------------------------


class RunTimes(NamedTuple):
    """Scheduling counters of a thread at a moment; times in seconds."""

    at: float
    ran: float
    """How long the thread ran on a processor."""
    queued: float
    """How long the thread was ready to run while other threads or programs had the processors."""
    waits: int
    """How often the thread waited. A thread that waits for the GIL wakes every switch interval to
    try again.
    """
    others_ran: float
    """How long the other threads of this program ran on a processor."""


def run_times(ident: int) -> RunTimes | None:
    """Read the counters of a thread of this program; None if the system has none."""
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
    ):  # no /proc, the thread has ended, or the kernel has no counters
        return None
    return RunTimes(perf_counter(), ran, queued, waits, process_time() - ran)


def was_starved(before: RunTimes | None, after: RunTimes | None) -> bool:
    """Say whether the thread wanted to run for most of the interval, but could not.

    A callback that sleeps or waits releases the GIL and wakes seldom. A callback that computes has
    a processor.
    """
    if before is None or after is None:
        return False
    at, _, queued, waits, others_ran = (
        later - earlier for earlier, later in zip(before, after, strict=True)
    )
    # On a busy machine a waiting thread tries to take the GIL less often than every interval.
    wants_lock = waits * sys.getswitchinterval() * 4 >= at
    return queued + (others_ran if wants_lock else 0.0) > at / 2


def of_program(stack: str) -> str:
    """The frames of a report that belong to the program, for the log; all frames if none do."""
    entries = re.split(r'^(?=  File ")', stack, flags=re.MULTILINE)
    # The frames of the program before the loop are those of its start.
    loop = max((at for at, each in enumerate(entries) if "in unrolled_run\n" in each), default=-1)
    kept = [
        each
        for each in entries[loop + 1 :]
        if not each.removeprefix('  File "').startswith(_FRAMEWORK)
    ]
    return "".join(kept) or stack


# -- the process on the stack ----------------------------------------------------------------------


def _describe(frame: FrameType, seconds: float) -> BlockedReport:
    # Collect the frames first: the loop moves on, and the frame of a generator that has yielded has
    # no `f_back`.
    frames = frames_from(frame)
    process, served_in = process_in(frames)
    stack = "".join(traceback.format_stack(frame, _STACK_LIMIT))
    if process is None or served_in is None:
        return BlockedReport(seconds, None, None, None, None, None, stack)
    from .blocking_advice import advice_for  # noqa: PLC0415 - most loops never block

    callback = handling = None
    if served_in.f_code is Reader.read.__code__:
        # The reader of a meta-process runs beside the callback in progress.
        callback = "start"
    elif _is_in_behaviour(frames, served_in):
        callback, handling = process.current_callback(), process.handling
    return BlockedReport(
        seconds,
        process.id,
        process.name,
        process.callbacks.behaviour,
        callback,
        None if handling is None else type(handling[3]).__qualname__,
        stack,
        advice=None if callback is None else advice_for(of_program(stack)),
    )


def frames_from(frame: FrameType | None) -> list[FrameType]:
    """The frames of a stack, innermost first."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def process_in(frames: list[FrameType]) -> tuple[Process | Meta | None, FrameType | None]:
    """Find the innermost process or meta-process on the stack, and the frame that calls its
    callbacks.

    Innermost, since a process may be answering the call of another process inline.
    """
    for frame in frames:
        found: Process | Meta | None = process_of(frame)
        if found is not None:
            return found, frame
    return None, None


def _is_in_behaviour(frames: list[FrameType], served_in: FrameType) -> bool:
    """Say whether the behaviour's callback is running, rather than kernel code before or
    after it.
    """
    inner = frames[: frames.index(served_in)]
    modules = [frame.f_globals.get("__name__") or "" for frame in inner]
    # The outermost frame below the kernel's own: a callback, or a library that the kernel uses.
    called = next((name for name in reversed(modules) if not name.startswith(_ON_THE_WAY)), None)
    return called is not None and called.partition(".")[0] not in _KERNEL_USES
