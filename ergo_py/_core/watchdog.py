"""Who is blocking the loop, and where: a thread that looks at the loop from outside.

It costs a healthy loop nothing: it only looks, now and then, whether the loop sits in its I/O wait. If it does not, it asks for a
sign of life, and if none comes in time it reads the loop's stack, where it finds the process and the callback.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from time import perf_counter
from types import CodeType, FrameType
from typing import Final

from . import ending, metareading, metaserving, serving
from .bridge import Bridge
from .errors import NodeStoppedError
from .info import BlockedReport
from .metalife import Meta
from .process import Process

__all__ = ["Watchdog", "look_at_loop"]

_STACK_LIMIT: Final = 50


class Watchdog:
    """Reports each time the loop has been blocked for longer than ``threshold`` seconds, once for each time."""

    def __init__(self, bridge: Bridge, threshold: float, report: Callable[[BlockedReport], None]) -> None:
        self._bridge = bridge
        self._threshold = threshold
        self._report = report
        self._stop = threading.Event()
        self._alive = threading.Event()
        self.asked: float | None = None
        """Since when, on ``perf_counter``'s clock, it waits for a sign of life; None while all is well."""
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
            frame = self._frame()
            if frame is None or _waits_for_io(frame):
                continue
            self._alive.clear()
            self.asked = asked = perf_counter()
            try:
                self._bridge.post(self._alive.set)
            except NodeStoppedError:  # there is nothing left to watch
                return
            if self._alive.wait(self._threshold):
                self.asked = None
                continue
            frame = self._frame()
            if frame is not None and not self._alive.is_set():
                self._report(_describe(frame, perf_counter() - asked))
            # Once for each time: nothing more until the loop moves again.
            self._alive.wait()
            self.asked = None

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._bridge.loop_thread)


def look_at_loop(bridge: Bridge, seconds: float) -> BlockedReport | None:
    """Who keeps the loop from running at this moment, for ``seconds`` already. From any thread; None if nobody does."""
    frame = sys._current_frames().get(bridge.loop_thread)
    return None if frame is None or _waits_for_io(frame) else _describe(frame, seconds)


def _waits_for_io(frame: FrameType) -> bool:
    return frame.f_code.co_name == "get_events" and frame.f_globals.get("__name__", "").startswith("trio.")


_IN_CALLBACK: Final[frozenset[CodeType]] = frozenset(
    {
        serving.serve.__code__,
        serving._handle_other.__code__,
        serving.answer_now.__code__,
        ending.finish.__code__,
        ending._end_asleep.__code__,
        Process._initialise.__code__,
        Process._wait_for_init.__code__,
        metaserving._handle.__code__,
        metaserving._inspect.__code__,
        metareading._read_in_task.__code__,
        Meta.callback.__code__,
    }
)


def _describe(frame: FrameType, seconds: float) -> BlockedReport:
    process, callback = _process_in(frame)
    stack = "".join(traceback.format_stack(frame, _STACK_LIMIT))
    if process is None:
        return BlockedReport(seconds, None, None, None, None, None, stack)
    handling = None if callback == "start" else process.handling
    return BlockedReport(
        seconds,
        process.id,
        process.name,
        process.callbacks.behaviour,
        callback or process.current_callback(),
        None if handling is None else type(handling[3]).__qualname__,
        stack,
    )


def _process_in(frame: FrameType | None) -> tuple[Process | Meta | None, str | None]:
    """The innermost process or meta-process on the stack: one may be answering another's call on the spot.

    With it ``start``, if it is the reader of a meta-process, which runs beside the callback that is in progress.
    """
    while frame is not None:
        if frame.f_code in _IN_CALLBACK:
            names = frame.f_locals
            found: Process | Meta = names.get("process") or names.get("meta") or names["self"]
            return found, "start" if frame.f_code is metareading._read_in_task.__code__ else None
        frame = frame.f_back
    return None, None
