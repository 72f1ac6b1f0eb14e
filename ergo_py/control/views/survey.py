"""`Survey`: sums over all processes of a node, and windows of rows about some of them."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from ..._core.inspection.census import Census, Counted, Row, entity_of
from ..._core.inspection.thread_slices import in_slices, pause
from ..._core.kernel import Kernel
from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.tables.callbacks import Callbacks
from ..rows import RowFormat

__all__ = ["SORTS", "Chosen", "Survey", "Window"]

Key = float | str

_FIGURES: Final[dict[str, Callable[[Row], float]]] = {
    name: attrgetter(name)
    for name in ("mailbox", "messages", "sent", "rate", "load", "worst", "time")
}
"""The figures that a window can be sorted by."""
_TEXTS: Final[dict[str, Callable[[Process | Meta], str]]] = {
    "name": lambda process: process.name or entity_of(process) or "",
    "behaviour": lambda process: process.callbacks.behaviour,
    "state": lambda process: process.state.value,
}
"""The texts that a window can be sorted by."""
SORTS: Final = ("id", "born", *_TEXTS, *_FIGURES)
"""The columns that a window can be sorted by."""
_SORTED: Final = 500
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

    def __init__(self, window: Window, living: Sequence[Process | Meta]) -> None:
        self._window = window
        self._living = living
        self._figure = _FIGURES.get(window.sort)
        """The key of a process, if it is a number that the census reads."""
        self._text = _TEXTS.get(window.sort)
        """The key of a process, if it is a text."""
        self.wants_all = bool(window.find) or window.sort not in _MOSTLY_ZERO
        """Whether also the processes that did nothing since the last look must be offered."""
        self._sign = -1 if window.down else 1
        self._active: list[tuple[Key, int, Process | Meta]] = []
        """The processes whose key is not zero."""
        self._rest: list[Process | Meta] = []
        """The others, if all are offered."""
        self._mailbox = 0
        self._rate = 0.0

    def offer(self, processes: Sequence[Process | Meta], rows: list[Row]) -> None:
        """Take the processes that fit, in the order of their numbers."""
        find, figure, text, sign = self._window.find, self._figure, self._text, self._sign
        if find:
            fitting = [
                (process, row)
                for process, row in zip(processes, rows, strict=True)
                if find in (process.name or entity_of(process) or "")
                or find in process.callbacks.behaviour
                or find == str(row.number)
            ]
            processes, rows = [each[0] for each in fitting], [each[1] for each in fitting]
        if self.wants_all:
            self._mailbox += sum([row.mailbox for row in rows])
            self._rate += sum([row.rate for row in rows])
        if text is not None:
            self._active += [
                (text(process), row.number, process)
                for process, row in zip(processes, rows, strict=True)
            ]
            return
        rest = processes
        if figure is not None:
            values = list(map(figure, rows))
            self._active += [
                (value * sign, process.id.number, process)
                for value, process in zip(values, processes, strict=True)
                if value
            ]
            rest = [each for value, each in zip(values, processes, strict=True) if not value]
        if self.wants_all:
            self._rest += rest

    @property
    def _count(self) -> int:
        """How many processes fit."""
        return len(self._active) + len(self._rest) if self.wants_all else len(self._living)

    def choose(self, everything: "_Sum") -> "Chosen":
        """The processes of the window, and sums over all that fit."""
        return Chosen(
            self._processes(),
            self._window.begin,
            self._count,
            len(self._living),
            self._mailbox if self.wants_all else everything.mailbox,
            round(self._rate if self.wants_all else everything.rate, 1),
        )

    def _processes(self) -> Sequence[Process | Meta]:
        window, is_numeric = self._window, self._text is None
        begin, limit = window.begin, window.limit
        if window.sort in ("id", "born") and window.down:
            end = self._count - begin
            return self._zeros(max(0, end - limit), min(limit, max(0, end)))[::-1]
        count = len(self._active)
        if is_numeric and not window.down:
            # The lowest first: those whose key is zero come before the others.
            zeros = self._count - count
            found = self._zeros(begin, limit)
            return found + self._sorted(max(0, begin - zeros), limit - len(found))
        found = self._sorted(begin, limit)
        return found + self._zeros(max(0, begin - count), limit - len(found))

    def _sorted(self, begin: int, limit: int) -> list[Process | Meta]:
        if limit <= 0 or begin >= len(self._active):
            return []
        down = self._window.down and self._text is not None
        chunks = [sorted(some, reverse=down) for some in in_slices(self._active, _SORTED, _SORTED)]
        pause()
        merged = iter(chunks[0]) if len(chunks) == 1 else merge(*chunks, reverse=down)
        for some in in_slices(range(begin)):
            for _ in islice(merged, len(some)):
                pass
        return [process for _, _, process in islice(merged, limit)]

    def _zeros(self, begin: int, limit: int) -> list[Process | Meta]:
        """The processes whose key is zero, from the ``begin``-th."""
        if self.wants_all or not self._active:
            rest = self._rest if self.wants_all else self._living
            return list(rest[begin : begin + max(0, limit)])
        active: set[int] = set()
        for entries in in_slices(self._active):
            active.update(number for _, number, _ in entries)
        found: list[Process | Meta] = []
        for some in in_slices(self._living):
            idle = [process for process in some if process.id.number not in active]
            found += idle[begin : begin + max(0, limit - len(found))]
            begin = max(0, begin - len(idle))
            if len(found) >= limit:
                break
        return found


class _Sum:
    """The sums of a behaviour."""

    __slots__ = ("count", "load", "mailbox", "rate")

    def __init__(self) -> None:
        self.count = 0
        self.mailbox = 0
        self.rate = 0.0
        self.load = 0.0

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

    processes: Sequence[Process | Meta]
    begin: int
    found: int
    alive: int
    mailbox: int
    rate: float


class Survey:
    """Looks at all processes and meta-processes with a census, from any thread, and keeps the rates
    for the next look.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._census = Census()
        self._kernel = kernel
        self._cpu = 0.0
        self._busy = 0.0

    @property
    def remembered(self) -> int:
        """How many processes it remembers."""
        return self._census.remembered

    def rows(self, chosen: Chosen, size: int = 25) -> Iterator[Counted]:
        """The processes of a window with their present figures, in slices, and their rates in the
        last look.
        """
        pause()
        for some in in_slices(chosen.processes, size):
            for process in some:
                yield process, self._census.read_again(process)

    def window_json(self, chosen: Chosen, row_format: RowFormat) -> dict[str, Any]:
        """A window as JSON values, its rows by their numbers."""
        return {
            "order": [process.id.number for process in chosen.processes],
            "rows": {
                str(row.number): row_format.of_row(each, row) for each, row in self.rows(chosen)
            },
            "from": chosen.begin,
            "found": chosen.found,
            "alive": chosen.alive,
            "mailbox": chosen.mailbox,
            "rate": chosen.rate,
        }

    def look(self, windows: Sequence[Window] = ()) -> tuple[dict[str, Any], list[Chosen]]:
        """The sums, and the processes of each window."""
        census = self._census
        living = census.begin(self._kernel)
        everything = living.all()
        tables = [_Entries(window, everything) for window in windows]
        counts: Counter[Callbacks] = Counter()
        sums: dict[str, _Sum] = {}
        messages = longest = calls = 0
        pause()
        for part in census.slices(living, everything=any(table.wants_all for table in tables)):
            counts.update(map(_CALLBACKS, part.living))
            messages += part.messages
            for process, row in zip(part.changed, part.changed_rows, strict=True):
                behaviour = process.callbacks.behaviour
                total = sums.get(behaviour)
                if total is None:
                    total = sums[behaviour] = _Sum()
                mailbox = row.mailbox
                total.mailbox += mailbox
                total.rate += row.rate
                total.load += row.load
                if mailbox > longest:
                    longest = mailbox
                calls += row.is_calling
            for table in tables:
                if table.wants_all:
                    table.offer(part.living, part.rows)
                else:
                    table.offer(part.changed, part.changed_rows)
        whole = _Sum()
        for each in sums.values():
            whole.add_all(each)
        for callbacks, count in counts.items():
            sums.setdefault(callbacks.behaviour, _Sum()).count += count
        totals = {
            "processes": len(living.processes),
            "metas": len(living.metas),
            "mailbox": whole.mailbox,
            "longest": longest,
            "messages": messages,
            "calls_waiting": calls,
            "behaviours": _most_active(sums),
            **self._rates(whole.rate),
        }
        return totals, [table.choose(whole) for table in tables]

    def _rates(self, rate: float) -> dict[str, float | None]:
        """The rates of all processes together. They are None in the first look."""
        cpu, busy, elapsed = (
            time.process_time(),
            _loop_time(self._kernel.router.loop_thread),
            self._census.elapsed,
        )
        since_cpu, since_busy = cpu - self._cpu, busy - self._busy
        self._cpu, self._busy = cpu, busy
        if not elapsed:
            return dict.fromkeys(("rate", "sent_rate", "cpu", "busy"))
        return {
            "rate": round(rate, 1),
            "sent_rate": round(self._census.sent / elapsed, 1),
            "cpu": round(since_cpu / elapsed, 4),
            "busy": round(min(1.0, since_busy / elapsed), 4),
        }


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
