"""Watching the callbacks and messages of one process: as a stream of entries, or added up."""

import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final

import trio

from ..kernel import Kernel
from ..tables.callbacks import CALLBACKS
from ..tables.pending_calls import Caller
from ..vocabulary.ids import PID, Alias, EventName, Target
from .callback_watch import CallbackObserver
from .state import show, stop_observing

if TYPE_CHECKING:
    from ..metas.meta import Meta
    from ..processes.process import Process

__all__ = ["CallbackStatistics", "Statistics", "Trace", "TraceEntry", "Tally", "count_meta"]

_BUFFER: Final = 1000
"""Entries that wait for whoever reads a trace; what comes beyond is counted and dropped."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One callback that has returned or raised, or one message that was sent."""

    at: float
    """When it ended or was sent, on ``time.time``'s clock."""
    callback: str
    """Of a message that was sent, the verb: ``send``, ``call``, ``reply``, ``publish`` …"""
    message_type: str | None
    """The type of the message; None if the callback is called with nothing."""
    message: str | None
    """The message as text; only if the trace was asked for contents."""
    sender: PID | Alias | object = None
    """Who sent or asked what the callback was called with."""
    seconds: float = 0.0
    """How long it took, waiting inside it included."""
    sent: int = 0
    """How many messages the process sent meanwhile."""
    error: str | None = None
    """What it raised."""
    to: Target | EventName | object = None
    """Of a message that was sent, whom it was sent to. None if this is a callback."""

    def __str__(self) -> str:
        clock = (
            time.strftime("%H:%M:%S", time.localtime(self.at)) + f".{int(self.at % 1 * 1000):03d}"
        )
        what = self.message or self.message_type or ""
        if self.to is not None:
            return f"{clock} {self.callback}({what}) to {self.to}"
        words = f"{clock} {self.callback}({what})" + (
            f" from {self.sender}" if self.sender is not None else ""
        )
        told = [f"{self.seconds * 1000:.3f} ms"]
        if self.sent:
            told.append(f"{self.sent} sent")
        if self.error is not None:
            told.append(f"raised {self.error}")
        return f"{words}: {', '.join(told)}"


class Trace:
    """The callbacks and messages of one process as they happen: ``async with node.trace(pid) as
    trace: async for entry in trace``.

    It ends by itself: after so many entries, after so many seconds, or with the process.
    """

    hears_sending = True

    def __init__(
        self,
        kernel: Kernel,
        find: "Callable[[], Process]",
        attach: "Callable[[Process, CallbackObserver], Awaitable[None]]",
        *,
        types: Collection[type | str],
        callbacks: Collection[str],
        contents: bool,
        limit: int,
        seconds: float,
    ) -> None:
        self._kernel = kernel
        self._find = find
        self._attach = attach
        self._types = frozenset(one if isinstance(one, str) else one.__qualname__ for one in types)
        self._callbacks = frozenset(callbacks)
        self._contents = contents
        self._left = limit
        self._seconds = seconds
        self._process: Process | None = None
        self._alarm: _Alarm | None = None
        self._entries, self._reader = trio.open_memory_channel[TraceEntry](_BUFFER)
        self.missed = 0
        """Entries that were dropped because nobody read them."""

    async def __aenter__(self) -> "Trace":
        process = self._find()
        await self._attach(process, self)
        self._process = process
        self._alarm = _Alarm(process.id, next(self._kernel.router.references), self.over)
        self._kernel.clock.arm_call(self._alarm, self._seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over()
        self._reader.close()
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> "Trace":
        return self

    async def __anext__(self) -> TraceEntry:
        try:
            return await self._reader.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None

    def note(
        self,
        callback: str,
        message: object,
        sender: object,
        seconds: float,
        error: BaseException | None,
        sent: int,
    ) -> None:
        """A callback has ended."""
        if not self._is_wanted(callback, message):
            return
        problem = None if error is None else f"{type(error).__name__}"
        if error is not None and self._contents:
            problem = show(self._kernel, "error", error)
        kind, text = (None, None) if message is None else self._shown(message)
        self._tell(TraceEntry(time.time(), callback, kind, text, sender, seconds, sent, problem))

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """Something was sent."""
        if self._is_wanted(verb, message):
            self._tell(TraceEntry(time.time(), verb, *self._shown(message), to=to))

    def _is_wanted(self, callback: str, message: object) -> bool:
        return (not self._callbacks or callback in self._callbacks) and (
            not self._types or type(message).__qualname__ in self._types
        )

    def _shown(self, message: object) -> tuple[str, str | None]:
        return type(message).__qualname__, show(
            self._kernel, "message", message
        ) if self._contents else None

    def _tell(self, entry: TraceEntry) -> None:
        try:
            self._entries.send_nowait(entry)
        except trio.WouldBlock:
            self.missed += 1
        except (trio.ClosedResourceError, trio.BrokenResourceError):  # nobody reads any more
            return
        self._left -= 1
        if self._left <= 0:
            self.over()

    def over(self) -> None:
        """End: because of the time, the number of entries, the process, or whoever asked for it."""
        process, self._process = self._process, None
        if self._alarm is not None:
            self._alarm.abandon()
        if process is not None:
            stop_observing(process, self)
        self._entries.close()


class _Alarm(Caller):
    """A deadline on the node's clock that calls a function."""

    __slots__ = ("_ring",)

    def __init__(self, pid: PID, number: int, ring: Callable[[], None]) -> None:
        super().__init__(pid, number, pid, None)
        self._ring = ring

    def awaken(self) -> None:
        self._ring()


@dataclass(frozen=True, slots=True)
class CallbackStatistics:
    """What one callback did with messages of one type."""

    callback: str
    message_type: str | None
    count: int
    seconds: float
    """Altogether, waiting inside it included."""
    longest: float
    errors: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a process or meta-process did while it was watched."""

    pid: PID | Alias
    seconds: float
    """How long it was watched."""
    messages_in: int
    messages_out: int
    busy: float | None
    """The part of that time it spent in callbacks, waiting inside them included. None of a
    meta-process, which has two halves.
    """
    callbacks: tuple[CallbackStatistics, ...]
    """The ones that took most time first. None of a meta-process: it is only counted."""
    ended: bool
    """Whether it ended meanwhile."""


_OF_MESSAGES: Final = frozenset(
    name
    for name, parameters in CALLBACKS.items()
    if {"message", "request", "event"} & set(parameters)
)


class Tally:
    """An observer that adds up."""

    hears_sending = False

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._began = trio.current_time()
        self._sent = process.sent
        self._spent = process.time_in_callbacks(perf_counter())
        self._rows: dict[tuple[str, str | None], list[float]] = {}
        self.ended = trio.Event()

    def note(
        self,
        callback: str,
        message: object,
        sender: object,
        seconds: float,
        error: BaseException | None,
        sent: int,
    ) -> None:
        """A callback has ended."""
        key = (callback, None if message is None else type(message).__qualname__)
        row = self._rows.setdefault(key, [0, 0.0, 0.0, 0])
        row[0] += 1
        row[1] += seconds
        row[2] = max(row[2], seconds)
        row[3] += error is not None

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """Something was sent. The process counts that itself."""

    def over(self) -> None:
        """The process has ended."""
        self.ended.set()

    def result(self) -> Statistics:
        """The sums so far."""
        process, seconds = self._process, trio.current_time() - self._began
        rows = [
            CallbackStatistics(callback, kind, int(count), total, longest, int(errors))
            for (callback, kind), (count, total, longest, errors) in self._rows.items()
        ]
        rows.sort(key=lambda row: row.seconds, reverse=True)
        # Not the sum of the rows: a callback that is still in progress has none yet.
        spent = process.time_in_callbacks(perf_counter()) - self._spent
        busy = spent / seconds if seconds > 0 else 0.0
        return Statistics(
            process.id,
            seconds,
            sum(row.count for row in rows if row.callback in _OF_MESSAGES),
            process.sent - self._sent,
            min(1.0, busy),
            tuple(rows),
            self.ended.is_set(),
        )


async def count_meta(meta: "Meta", seconds: float) -> Statistics:
    """Count what a meta-process handles and sends. Its callbacks are left alone: they run in
    threads that nobody holds up.
    """
    began, handled, sent = trio.current_time(), meta.handled, meta.messages_out()
    with trio.move_on_after(seconds):
        await meta.gone.wait()
    return Statistics(
        meta.id,
        trio.current_time() - began,
        meta.handled - handled,
        meta.messages_out() - sent,
        None,
        (),
        meta.gone.is_set(),
    )
