"""`Survey`: sums over all processes of a node, and windows of rows about some of them."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
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
from .slices import in_slices, pause

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
_SORTED: Final = 500
"""Entries that are sorted at a time."""
_MOSTLY_ZERO: Final = ("id", "born", "mailbox", "rate", "load")
"""Sorts that need no look at the processes that did nothing."""
_Figures = tuple["Process | Meta", int, int, int, int, float, float, float]
"""A process at a survey: its number, mailbox, messages, sent messages, time, rate and load."""
_PLACES: Final = {"mailbox": 2, "messages": 3, "sent": 4, "time": 5, "rate": 6, "load": 7}
"""The places of the figures that a window can be sorted by."""
_TEXTS: Final[dict[str, Callable[["Process | Meta"], str]]] = {
    "name": lambda process: process.name or "",
    "behaviour": lambda process: process.callbacks.behaviour,
    "state": lambda process: process.state.value,
}
"""The texts that a window can be sorted by."""
_NEW: Final = (0, 0.0, 0)
"""A process that was born since the last look, as it was before."""
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
        self._place = _PLACES.get(window.sort)
        """The place of the key among the figures."""
        self._text = _TEXTS.get(window.sort)
        """The key of a process, if it is a text."""
        self._is_numeric = self._text is None
        self.wants_all = bool(window.find) or window.sort not in _MOSTLY_ZERO
        """Whether also the processes that did nothing since the last look must be offered."""
        self._sign = -1 if window.down and self._is_numeric else 1
        self._active: list[tuple[Key, int, Process | Meta]] = []
        """The processes whose key is not zero."""
        self._rest: list[Process | Meta] = []
        """The others, if all are offered."""
        self.waiting = 0
        self.rate = 0.0

    def offer(self, found: list[Any]) -> None:
        """Take the processes that fit, as `_Figures` in the order of their numbers."""
        find, place, text, sign = self._find, self._place, self._text, self._sign
        if find:
            found = [
                each
                for each in found
                if find in (each[0].name or "")
                or find in each[0].callbacks.behaviour
                or find == str(each[1])
            ]
        if self.wants_all:
            self.waiting += sum(each[2] for each in found)
            self.rate += sum(each[6] for each in found)
        if text is not None:
            self._active += [(text(each[0]), each[1], each[0]) for each in found]
        elif place is not None:
            self._active += [
                (each[place] * sign, each[1], each[0]) for each in found if each[place]
            ]
        if self.wants_all and text is None:
            self._rest += [each[0] for each in found if place is None or not each[place]]

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
        some = in_slices(self._active, _SORTED, _SORTED)
        pieces = [sorted(piece, reverse=down) for piece in some]
        pause()
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
        busy: set[int] = set()
        for some in in_slices(self._active):
            busy.update(number for _, number, _ in some)
        found: list[Process | Meta] = []
        for piece in in_slices(self._living):
            idle = [process for process in piece if process.id.number not in busy]
            found += idle[begin : begin + limit - len(found)]
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

    def add(self, mailbox: int, rate: float, load: float) -> None:
        """Add a process, which is counted elsewhere."""
        self.mailbox += mailbox
        self.rate += rate
        self.load += load

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
        self.rates: dict[int, tuple[float, float]] = {}
        """Messages a second and load of the processes that did something."""
        self._counts: Counter[Callbacks] = Counter()
        self._sums: dict[str, _Sum] = {}
        self._messages = self._longest = self._calls = self._sent = 0

    def read_processes(self, processes: Sequence[Process]) -> None:
        """Read some processes. Most did nothing since the last look, so this is fast for them."""
        seen, for_all, now = self._seen, bool(self._tables_of_all), perf_counter()
        self._counts.update(map(_CALLBACKS, processes))
        messages = 0
        changed: list[_Figures] = []
        listed: list[_Figures] = []
        for process in processes:
            turn = process.turn
            handled, woken, number = turn.handled, turn.woken, process.id.number
            messages += handled
            then = seen.get(number)
            if then is not None and then[0] == handled and not woken and not process.main:
                if for_all:
                    listed.append((process, number, 0, handled, then[2], then[1], 0.0, 0.0))
                continue
            spent = turn.running_time + (now - woken if woken else 0.0)
            box = process.mailbox
            waiting = len(box) if process.main or box.ahead or box.log else 0
            if process.waiting is not None and isinstance(process.waiting, Caller):
                self._calls += 1
            found = self._measure(process, number, waiting, handled, process.sent, spent, then)
            changed.append(found)
            if for_all:
                listed.append(found)
        self._messages += messages
        self._offer(changed, listed)

    def read_metas(self, metas: Sequence[Meta]) -> None:
        """Read some meta-processes."""
        self._counts.update(map(_CALLBACKS, metas))
        found: list[_Figures] = []
        for meta in metas:
            number, handled = meta.id.number, meta.handled
            self._messages += handled
            waiting, sent, then = len(meta.mailbox), meta.messages_out(), self._seen.get(number)
            found.append(self._measure(meta, number, waiting, handled, sent, 0.0, then))
        self._offer(found, found)

    def _offer(self, changed: list[_Figures], listed: list[_Figures]) -> None:
        for table in self.tables:
            table.offer(listed if table.wants_all else changed)

    def _measure(
        self,
        process: Process | Meta,
        number: int,
        mailbox: int,
        messages: int,
        sent: int,
        spent: float,
        then: tuple[int, float, int] | None,
    ) -> _Figures:
        """The figures of a process, with its rates since the last look; add them to the sums."""
        elapsed, rate, load = self.elapsed, 0.0, 0.0
        self._seen[number] = (messages, spent, sent)
        if elapsed:
            if then is None and process.born >= self._before:
                then = _NEW
            if then is not None:
                handled, busy, out = messages - then[0], spent - then[1], sent - then[2]
                if out > 0:
                    self._sent += out
                if handled > 0:
                    rate = handled / elapsed
                if busy > 0.0:
                    load = min(1.0, busy / elapsed)
                if rate or load:
                    self.rates[number] = (rate, load)
        if mailbox > self._longest:
            self._longest = mailbox
        behaviour = process.callbacks.behaviour
        total = self._sums.get(behaviour)
        if total is None:
            total = self._sums[behaviour] = _Sum()
        total.add(mailbox, rate, load)
        return (process, number, mailbox, messages, sent, spent, rate, load)

    def choose(self, table: _Entries) -> Chosen:
        """The processes of a window."""
        everything = self._everything()
        return Chosen(
            table.chosen(),
            table.window.begin,
            table.count,
            len(self.living),
            table.waiting if table.wants_all else everything.mailbox,
            round(table.rate if table.wants_all else everything.rate, 1),
            self.rates,
        )

    def _everything(self) -> _Sum:
        found = _Sum()
        for each in self._sums.values():
            found.add_all(each)
        return found

    def totals(self) -> dict[str, Any]:
        """The sums over all processes. Rates are None in the first look."""
        everything = self._everything()
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
        pause()
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
            self._forget(look.living)
        return totals, [look.choose(table) for table in look.tables]

    def _forget(self, living: "Sequence[Process | Meta]") -> None:
        """Forget the processes that have ended."""
        kept: dict[int, tuple[int, float, int]] = {}
        for piece in in_slices(living):
            for process in piece:
                number = process.id.number
                if number in self._seen:
                    kept[number] = self._seen[number]
        self._seen = kept

    def rows(self, chosen: Chosen) -> dict[str, Any]:
        """The rows of a window."""
        rows: dict[str, Row] = {}
        pause()
        for piece in in_slices(chosen.processes, 25):
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
