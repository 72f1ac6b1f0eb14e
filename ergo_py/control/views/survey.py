"""`Survey`: sums over all processes of a node, and windows of rows about some of them."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import attrgetter
from time import perf_counter
from typing import Any, Final

from ..._core.metas.meta import Meta
from ..._core.processes.process import Process, processes_of
from ..._core.tables.callbacks import Callbacks
from ..._core.tables.pending_calls import Caller
from ..node_access import kernel_of
from .slices import in_slices

__all__ = ["SORTS", "Chosen", "Survey", "Window"]

Row = dict[str, Any]
Key = float | str

SORTS: Final = (
    "id",
    "name",
    "behaviour",
    "state",
    "mailbox",
    "messages",
    "sent",
    "rate",
    "load",
    "time",
    "born",
)
"""The columns that a window can be sorted by."""
_SORTED: Final = 1000
"""Entries that are sorted at a time."""
_MOSTLY_ZERO: Final = ("id", "born", "mailbox", "rate", "load")
"""Sorts that need no look at the processes that did nothing."""
_CALLBACKS: Final = attrgetter("callbacks")
_BEHAVIOURS: Final = 30
"""Behaviours with sums of their own; the others are summed."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the table of all processes."""

    sort: str = "id"
    down: bool = False
    """Highest first."""
    find: str = ""
    """A part of a name or of a behaviour, or a whole number."""
    begin: int = 0
    limit: int = 60


class _Entries:
    """The processes that a window may show."""

    def __init__(self, window: Window, living: "Sequence[Process | Meta]") -> None:
        self.window = window
        self._living = living
        self._find = window.find
        self._sort = window.sort
        self._is_numeric = window.sort not in ("name", "behaviour", "state")
        self.wants_all = bool(window.find) or window.sort not in _MOSTLY_ZERO
        """Whether also the processes that did nothing since the last look must be offered."""
        self._sign = -1 if window.down and self._is_numeric else 1
        self._active: list[tuple[Key, int, Process | Meta]] = []
        """The processes whose key is not zero."""
        self._rest: list[Process | Meta] = []
        """The others, if all are offered."""
        self.waiting = 0
        self.rate = 0.0

    def offer(self, process: Process | Meta, figures: "_Figures") -> None:
        """Take a process, if it fits."""
        find = self._find
        if find and not (
            find in (process.name or "")
            or find in process.callbacks.behaviour
            or find == str(figures.number)
        ):
            return
        self.waiting += figures.mailbox
        self.rate += figures.rate
        match self._sort:
            case "id" | "born":
                key: Key = 0
            case "name":
                key = process.name or ""
            case "behaviour":
                key = process.callbacks.behaviour
            case "state":
                key = process.state.value
            case sort:
                key = getattr(figures, sort) * self._sign
        if key or not self._is_numeric:
            self._active.append((key, figures.number, process))
        elif self.wants_all:
            self._rest.append(process)

    @property
    def count(self) -> int:
        """How many processes fit."""
        return len(self._active) + len(self._rest) if self.wants_all else len(self._living)

    def chosen(self) -> "list[Process | Meta]":
        """The processes of the window, in order."""
        window, is_numeric = self.window, self._is_numeric
        begin, limit = window.begin, window.limit
        if self._sort in ("id", "born") and window.down:
            rest = self._rest if self.wants_all else self._living
            end = len(rest) - begin
            return list(rest[max(0, end - limit) : max(0, end)])[::-1]
        count = len(self._active)
        if is_numeric and not window.down:
            # The lowest first: those whose key is zero come before the others.
            zeros = self.count - count
            found = self._zeros(begin, limit)
            return found + self._sorted(max(0, begin - zeros), limit - len(found))
        found = self._sorted(begin, limit)
        return found + self._zeros(max(0, begin - count), limit - len(found))

    def _sorted(self, begin: int, limit: int) -> "list[Process | Meta]":
        if limit <= 0 or begin >= len(self._active):
            return []
        down = self.window.down and not self._is_numeric
        pieces = [sorted(piece, reverse=down) for piece in in_slices(self._active, _SORTED)]
        merged = iter(pieces[0]) if len(pieces) == 1 else merge(*pieces, reverse=down)
        for piece in in_slices(range(begin)):
            for _ in islice(merged, len(piece)):
                pass
        return [process for _, _, process in islice(merged, limit)]

    def _zeros(self, begin: int, limit: int) -> "list[Process | Meta]":
        if self.wants_all:
            return self._rest[begin : begin + limit]
        if not self._active:
            return list(self._living[begin : begin + limit])
        if limit <= 0:
            return []
        busy = {number for _, number, _ in self._active}
        found: list[Process | Meta] = []
        for piece in in_slices(self._living):
            idle = [process for process in piece if process.id.number not in busy]
            found += idle[begin : begin + limit - len(found)]
            begin = max(0, begin - len(idle))
            if len(found) >= limit:
                break
        return found


class _Figures:
    """The figures of a process at a survey."""

    __slots__ = ("load", "mailbox", "messages", "number", "rate", "sent", "time")

    number: int
    mailbox: int
    messages: int
    sent: int
    time: float
    rate: float
    load: float


class _Sum:
    """The sums of a behaviour."""

    __slots__ = ("count", "load", "mailbox", "rate")

    def __init__(self) -> None:
        self.count = 0
        self.mailbox = 0
        self.rate = 0.0
        self.load = 0.0

    def add(self, figures: _Figures) -> None:
        """Add a process, which is counted elsewhere."""
        self.mailbox += figures.mailbox
        self.rate += figures.rate
        self.load += figures.load

    def add_all(self, other: "_Sum") -> None:
        """Add the sums of another behaviour."""
        self.count += other.count
        self.mailbox += other.mailbox
        self.rate += other.rate
        self.load += other.load

    def as_json(self) -> dict[str, Any]:
        """The sums as JSON values."""
        return {
            "count": self.count,
            "mailbox": self.mailbox,
            "rate": round(self.rate, 1),
            "load": round(self.load, 4),
        }


@dataclass(frozen=True, slots=True)
class Chosen:
    """The processes of a window, and sums over all that fit."""

    processes: list[Process | Meta]
    begin: int
    found: int
    alive: int
    mailbox: int
    rate: float
    rates: dict[int, tuple[float, float]]

    def rates_of(self, process: Process | Meta) -> dict[str, float]:
        """The messages a second and the load of a process."""
        rate, load = self.rates.get(process.id.number, (0.0, 0.0))
        return {"rate": round(rate, 1), "load": round(load, 4)}


class _Look:
    """A single look at all processes."""

    def __init__(
        self,
        seen: dict[int, tuple[int, float, int]],
        before: float,
        living: "Sequence[Process | Meta]",
        windows: Sequence[Window],
    ) -> None:
        self._seen = seen
        self._before = before
        self.living = living
        self.tables = [_Entries(window, living) for window in windows]
        self._tables_of_all = [table for table in self.tables if table.wants_all]
        self.began = perf_counter()
        self.elapsed = self.began - before if before else 0.0
        self.everything = _Sum()
        self.rates: dict[int, tuple[float, float]] = {}
        """Messages a second and load of the processes that did something."""
        self._counts: Counter[Callbacks] = Counter()
        self._sums: dict[str, _Sum] = {}
        self._messages = self._longest = self._calls = self._sent = 0
        self._figures = _Figures()

    def read_processes(self, processes: Sequence[Process]) -> None:
        """Read some processes. Most did nothing since the last look, so this is fast for them."""
        seen, for_all, now = self._seen, self._tables_of_all, perf_counter()
        self._counts.update(map(_CALLBACKS, processes))
        messages = 0
        for process in processes:
            turn = process.turn
            handled = turn.handled
            messages += handled
            number = process.id.number
            then = seen.get(number)
            if then is not None and then[0] == handled and not turn.woken and not process.main:
                if for_all:
                    self._offer_idle(process, number, then)
                continue
            figures, box, woken = self._figures, process.mailbox, turn.woken
            figures.number = number
            figures.messages = handled
            figures.sent = process.sent
            figures.time = turn.running_time + (now - woken if woken else 0.0)
            figures.mailbox = len(box)
            if process.waiting is not None and isinstance(process.waiting, Caller):
                self._calls += 1
            self._take(process, then)
        self._messages += messages

    def _offer_idle(self, process: Process, number: int, then: tuple[int, float, int]) -> None:
        figures = self._figures
        figures.number = number
        figures.messages, figures.time, figures.sent = then
        figures.mailbox = 0
        figures.rate = figures.load = 0.0
        for table in self._tables_of_all:
            table.offer(process, figures)

    def read_metas(self, metas: Sequence[Meta]) -> None:
        """Read some meta-processes."""
        figures = self._figures
        self._counts.update(map(_CALLBACKS, metas))
        for meta in metas:
            figures.number = meta.id.number
            figures.messages = meta.handled
            figures.sent = meta.messages_out()
            figures.time = 0.0
            figures.mailbox = len(meta.mailbox)
            self._messages += figures.messages
            self._take(meta, self._seen.get(figures.number))

    def _take(self, process: Process | Meta, then: tuple[int, float, int] | None) -> None:
        figures, elapsed = self._figures, self.elapsed
        self._seen[figures.number] = (figures.messages, figures.time, figures.sent)
        figures.rate = figures.load = 0.0
        if elapsed:
            if then is None and process.born >= self._before:
                then = (0, 0.0, 0)
            if then is not None:
                figures.rate = max(0, figures.messages - then[0]) / elapsed
                figures.load = max(0.0, min(1.0, (figures.time - then[1]) / elapsed))
                self._sent += max(0, figures.sent - then[2])
                if figures.rate or figures.load:
                    self.rates[figures.number] = (figures.rate, figures.load)
        self._longest = max(self._longest, figures.mailbox)
        behaviour = process.callbacks.behaviour
        found = self._sums.get(behaviour)
        if found is None:
            found = self._sums[behaviour] = _Sum()
        found.add(figures)
        self.everything.add(figures)
        for table in self.tables:
            table.offer(process, figures)

    def choose(self, table: _Entries) -> Chosen:
        """The processes of a window."""
        of_fitting = table if table.wants_all else None
        return Chosen(
            table.chosen(),
            table.window.begin,
            table.count,
            len(self.living),
            self.everything.mailbox if of_fitting is None else of_fitting.waiting,
            round(self.everything.rate if of_fitting is None else of_fitting.rate, 1),
            self.rates,
        )

    def totals(self) -> dict[str, Any]:
        """The sums over all processes. Rates are None in the first look."""
        everything = self.everything
        for callbacks, count in self._counts.items():
            self._sums.setdefault(callbacks.behaviour, _Sum()).count += count
        return {
            "mailbox": everything.mailbox,
            "longest": self._longest,
            "messages": self._messages,
            "rate": round(everything.rate, 1) if self.elapsed else None,
            "sent_rate": round(self._sent / self.elapsed, 1) if self.elapsed else None,
            "calls_waiting": self._calls,
            "behaviours": _most_active(self._sums),
        }


class Survey:
    """Looks at all processes and meta-processes, in slices, from any thread. It remembers what it
    saw, and computes rates at the next look.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._wall = time.time() - perf_counter()
        """The wall clock at zero of the clock of processes."""
        self._seen: dict[int, tuple[int, float, int]] = {}
        """Messages, time in callbacks and sent messages of each process at the last look."""
        self._at = 0.0
        self._cpu = 0.0
        self._busy = 0.0

    def wall(self, moment: float) -> float:
        """The time of day of a moment on the clock of processes."""
        return round(moment + self._wall, 3)

    @property
    def remembered(self) -> int:
        """How many processes it remembers."""
        return len(self._seen)

    def look(self, windows: Sequence[Window] = ()) -> tuple[dict[str, Any], list[Chosen]]:
        """The sums, and the processes of each window."""
        router = kernel_of(self._node).router
        processes = list(processes_of(router).values())
        metas = [
            holder
            for piece in in_slices(list(router.registry.aliases.values()))
            for holder in piece
            if isinstance(holder, Meta)
        ]
        look = _Look(self._seen, self._at, [*processes, *metas], windows)
        for piece in in_slices(processes):
            look.read_processes(piece)
        for meta_piece in in_slices(metas):
            look.read_metas(meta_piece)
        cpu, busy, elapsed = time.process_time(), _loop_time(router.loop_thread), look.elapsed
        totals = {
            "processes": len(processes),
            "metas": len(metas),
            **look.totals(),
            "cpu": round((cpu - self._cpu) / elapsed, 4) if elapsed else None,
            "busy": round(min(1.0, (busy - self._busy) / elapsed), 4) if elapsed else None,
        }
        self._at, self._cpu, self._busy = look.began, cpu, busy
        if len(self._seen) > 2 * len(look.living) + 1000:
            living = {process.id.number for process in look.living}
            self._seen = {number: then for number, then in self._seen.items() if number in living}
        return totals, [look.choose(table) for table in look.tables]

    def rows(self, chosen: Chosen) -> dict[str, Any]:
        """The rows of a window."""
        rows: dict[str, Row] = {}
        for piece in in_slices(chosen.processes, 50):
            for process in piece:
                rows[str(process.id.number)] = self.row(process, **chosen.rates_of(process))
        return {
            "order": [process.id.number for process in chosen.processes],
            "rows": rows,
            "from": chosen.begin,
            "found": chosen.found,
            "alive": chosen.alive,
            "mailbox": chosen.mailbox,
            "rate": chosen.rate,
        }

    def row(self, process: Process | Meta, rate: float = 0.0, load: float = 0.0) -> Row:
        """A row about a process. Fields that are None are left out."""
        handling = process.handling
        row: Row = {
            "id": process.id.number,
            "kind": "process" if isinstance(process, Process) else "meta",
            "behaviour": process.callbacks.behaviour,
            "state": process.state.value,
            "mailbox": len(process.mailbox),
            "messages": process.handled,
            "rate": rate,
            "load": load,
            "born": self.wall(process.born),
        }
        callback = process.current_callback()
        if callback is not None:
            row["callback"] = callback
        if handling is not None:
            row["message_type"] = type(handling[3]).__qualname__
        if isinstance(process, Meta):
            row["sent"] = process.messages_out()
            row["time"] = 0.0
            row["parent"] = process.owner.id.number
            row["reader"] = "thread" if process.reader.has_thread else "task"
            row["backlog"] = len(process.outbox)
            if process.reader.thread is not None:
                row["thread"] = process.reader.thread.name
            return row
        if process.name is not None:
            row["name"] = process.name
        watch = process.kernel.watches.get(process.id)
        if watch is not None and watch.suspended:
            row["state"] = "suspended"
        row["sent"] = process.sent
        row["time"] = round(process.turn.time(perf_counter()), 6)
        row["parent"] = 0 if process.parent is None else process.parent.id.number
        return row


def _loop_time(ident: int) -> float:
    """Seconds for which the loop's thread ran on a processor; 0 if the system does not tell."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    except (AttributeError, OSError):
        return 0.0


def _most_active(sums: dict[str, _Sum]) -> dict[str, Any]:
    ranked = sorted(sums.items(), key=lambda each: (-each[1].load, -each[1].count, each[0]))
    found = {name: total.as_json() for name, total in ranked[:_BEHAVIOURS]}
    if len(ranked) > _BEHAVIOURS:
        others = _Sum()
        for _, total in ranked[_BEHAVIOURS:]:
            others.add_all(total)
        found["other"] = others.as_json()
    return found
