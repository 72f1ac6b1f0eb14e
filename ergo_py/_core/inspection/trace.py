"""``Trace`` and ``Statistics``: the callbacks and messages of a process, as a stream of entries or
as sums.
"""

import time
from collections.abc import Awaitable, Callable, Collection
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final

import trio

from ..kernel import Kernel
from ..messaging.traces import current_ids
from ..tables.callbacks import CALLBACKS
from ..tables.pending_calls import Deadline
from ..vocabulary.ids import PID, Alias, EventName, Target
from ..vocabulary.late_methods import dataclass
from ..vocabulary.public_names import show_public_names
from .callback_watch import CallbackObserver
from .state import show, stop_observing

if TYPE_CHECKING:
    from ..metas.meta import Meta
    from ..processes.process import Process

__all__ = ["CallbackStatistics", "Statistics", "Trace", "TraceEntry", "Tally", "count_meta"]

_BUFFER: Final = 1000
"""How many unread entries a trace keeps. It drops and counts further entries."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """A callback that has returned or raised, or a message that was sent."""

    at: float
    """When the callback ended or the message was sent, on ``time.time``'s clock."""
    callback: str
    """The callback; for a sent message the verb: ``send``, ``call``, ``reply``, ``publish`` …"""
    message_type: str | None
    """The type of the message; None if the callback takes no message."""
    message: str | None
    """The message as text; None unless the trace shows contents."""
    sender: PID | Alias | object = None
    """The sender of the message or request that the callback handled."""
    seconds: float = 0.0
    """How long the callback took, including the time it waited."""
    sent: int = 0
    """How many messages the process sent during the callback."""
    error: str | None = None
    """The exception that the callback raised."""
    to: Target | EventName | object = None
    """The receiver of a sent message. None for a callback."""
    trace_id: str | None = None
    """The id of the sampled trace to which the callback belongs, in a traced node."""
    span_id: str | None = None
    """The id of the callback's span in that trace."""

    def __str__(self) -> str:
        clock = (
            time.strftime("%H:%M:%S", time.localtime(self.at)) + f".{int(self.at % 1 * 1000):03d}"
        )
        content = self.message or self.message_type or ""
        if self.to is not None:
            return f"{clock} {self.callback}({content}) to {self.to}{self._ids()}"
        words = f"{clock} {self.callback}({content})" + (
            f" from {self.sender}" if self.sender is not None else ""
        )
        facts = [f"{self.seconds * 1000:.3f} ms"]
        if self.sent:
            facts.append(f"{self.sent} sent")
        if self.error is not None:
            facts.append(f"raised {self.error}")
        return f"{words}: {', '.join(facts)}{self._ids()}"

    def _ids(self) -> str:
        return f" trace_id={self.trace_id} span_id={self.span_id}" if self.trace_id else ""


class Trace:
    """The callbacks and messages of a process as they happen: ``async with node.trace(pid) as
    trace: async for entry in trace``.

    A trace ends after a number of entries, after a number of seconds, or with the process.
    """

    wants_sends = True

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
        self._types = frozenset(
            kind if isinstance(kind, str) else kind.__qualname__ for kind in types
        )
        self._callbacks = frozenset(callbacks)
        self._contents = contents
        self._left = limit
        self._seconds = seconds
        self._process: Process | None = None
        self._alarm: Deadline | None = None
        self._entries, self._reader = trio.open_memory_channel[TraceEntry](_BUFFER)
        self.missed: int = 0
        """How many entries the trace dropped because its reader was too slow."""

    async def __aenter__(self) -> "Trace":
        process = self._find()
        await self._attach(process, self)
        self._process = process
        self._alarm = Deadline(self.over)
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
        """Record a callback that has ended."""
        if not self._is_wanted(callback, message):
            return
        problem = None if error is None else f"{type(error).__name__}"
        if error is not None and self._contents:
            problem = show(self._kernel, "error", error)
        kind, text = (None, None) if message is None else self._shown(message)
        ids = current_ids(self._kernel.tracing)
        self._tell(
            TraceEntry(
                time.time(), callback, kind, text, sender, seconds, sent, problem, None, *ids
            )
        )

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """Record a sent message."""
        if self._is_wanted(verb, message):
            trace_id, span_id = current_ids(self._kernel.tracing)
            self._tell(
                TraceEntry(
                    time.time(),
                    verb,
                    *self._shown(message),
                    to=to,
                    trace_id=trace_id,
                    span_id=span_id,
                )
            )

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
        except (
            trio.ClosedResourceError,
            trio.BrokenResourceError,
        ):  # the reader of the trace has left
            return
        self._left -= 1
        if self._left <= 0:
            self.over()

    def over(self) -> None:
        """End the trace: its time or its entries are used up, the process has ended, or the reader
        has left.
        """
        process, self._process = self._process, None
        if self._alarm is not None:
            self._alarm.abandon()
        if process is not None:
            stop_observing(process, self)
        self._entries.close()


@dataclass(frozen=True, slots=True)
class CallbackStatistics:
    """The sums for the messages of a type in a callback."""

    callback: str
    message_type: str | None
    count: int
    seconds: float
    """Total time in the callback, including the time it waited."""
    longest: float
    errors: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """The activity of a process or meta-process during an observation."""

    pid: PID | Alias
    seconds: float
    """How long the observation lasted."""
    messages_in: int
    messages_out: int
    busy: float | None
    """The share of that time spent in callbacks, including the time they waited. None for a
    meta-process, since its reader and its handler run side by side.
    """
    callbacks: tuple[CallbackStatistics, ...]
    """Ordered by total time, longest first. Empty for a meta-process, which is only counted."""
    ended: bool
    """Whether the process ended during the observation."""


_OF_MESSAGES: Final = frozenset(
    name
    for name, parameters in CALLBACKS.items()
    if {"message", "request", "response", "event"} & set(parameters)
)


class Tally:
    """An observer that adds up."""

    wants_sends = False

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._began = trio.current_time()
        self._sent = process.sent
        self._spent = process.turn.time(perf_counter())
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
        """Add a callback that has ended."""
        key = (callback, None if message is None else type(message).__qualname__)
        row = self._rows.setdefault(key, [0, 0.0, 0.0, 0])
        row[0] += 1
        row[1] += seconds
        row[2] = max(row[2], seconds)
        row[3] += error is not None

    def note_sent(self, verb: str, to: object, message: object) -> None:
        """Ignore a sent message: the process counts them itself."""

    def over(self) -> None:
        """The process has ended."""
        self.ended.set()

    def result(self) -> Statistics:
        """Return the sums so far."""
        process, seconds = self._process, trio.current_time() - self._began
        rows = [
            CallbackStatistics(callback, kind, int(count), total, longest, int(errors))
            for (callback, kind), (count, total, longest, errors) in self._rows.items()
        ]
        rows.sort(key=lambda row: row.seconds, reverse=True)
        # Not the sum of the rows: a callback in progress has no row yet.
        spent = process.turn.time(perf_counter()) - self._spent
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
    """Count the messages that a meta-process handles and sends. Does not observe its callbacks,
    since an observer would slow down their threads.
    """
    began, handled, sent = trio.current_time(), meta.handled, meta.messages_out()
    with trio.move_on_after(seconds):
        await meta.wait_gone()
    return Statistics(
        meta.id,
        trio.current_time() - began,
        meta.handled - handled,
        meta.messages_out() - sent,
        None,
        (),
        meta.ending.over,
    )


show_public_names(__name__)
