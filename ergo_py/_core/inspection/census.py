"""`Census`: reads the figures of every process and meta-process of a node, in a single pass in
slices, from any thread. `Row`: the figures of a process, for every reader: snapshots, control
socket, observer page, metrics.
"""

import os
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

from ..kernel import Kernel
from ..metas.meta import Meta
from ..processes.process import Process, processes_of
from ..tables.pending_calls import Caller
from .thread_slices import in_slices

__all__ = [
    "Census",
    "Counted",
    "Living",
    "Row",
    "Slice",
    "copy_tables",
    "count_living",
    "entity_of",
    "is_suspended",
    "list_living",
    "message_type_of",
    "parent_of",
    "read_row",
    "resident_memory",
]

T = TypeVar("T")

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Row:
    """The figures of a process or meta-process. It does not hold the process: a census remembers
    rows after their processes have ended. A census changes its rows in place: a new object for
    each process of each pass would take longer than the rest of the pass.
    """

    __slots__ = (
        *("idle_at", "is_calling", "load", "mailbox", "messages", "number", "rate", "sent"),
        *("time", "worst"),
    )

    def __init__(
        self,
        number: int,
        mailbox: int = 0,
        messages: int = 0,
        sent: int = 0,
        time: float = 0.0,
        is_calling: bool = False,
    ) -> None:
        self.number = number
        self.mailbox = mailbox
        """Messages that wait."""
        self.messages = messages
        """Messages handled."""
        self.sent = sent
        """Messages sent."""
        self.time = time
        """Seconds in callbacks, waits inside them included; 0 for a meta-process."""
        self.is_calling = is_calling
        """Whether it waits in a call."""
        self.rate: float = 0.0
        """Messages handled a second, between the last two passes of the census."""
        self.load: float = 0.0
        """The part of its time spent in callbacks, between the last two passes of the census."""
        self.worst: float = 0.0
        """The highest load between two passes of the census so far."""
        self.idle_at = -1
        """Its messages, if the last pass found it without messages, call, rate and load; else
        -1.
        """


Counted = tuple[Process | Meta, Row]
"""A process with its figures."""


def read_row(process: Process | Meta, now: float) -> Row:
    """The figures of a single process at present, without rates."""
    number, mailbox, messages = process.id.number, len(process.mailbox), process.handled
    if isinstance(process, Meta):
        return Row(number, mailbox, messages, process.messages_out())
    time, is_calling = process.turn.time(now), isinstance(process.waiting, Caller)
    return Row(number, mailbox, messages, process.sent, time, is_calling)


def is_suspended(process: Process | Meta) -> bool:
    """Whether ``suspend`` has stopped the process."""
    watch = process.kernel.watches.get(process.id) if isinstance(process, Process) else None
    return watch is not None and bool(watch.suspended)


def message_type_of(process: Process | Meta) -> str | None:
    """The type of the message that the process handles now."""
    handling = process.handling
    return None if handling is None else type(handling[3]).__qualname__


def entity_of(process: Process | Meta) -> str | None:
    """The kind and key of the entity that the process belongs to; None for other processes."""
    slot = process.slot if isinstance(process, Process) else None
    return slot.name if slot is not None and slot.is_of_entity else None


def parent_of(process: Process | Meta) -> Process | Meta | None:
    """The parent of the process; None is the node."""
    return process.owner if isinstance(process, Meta) else process.parent


class Living(NamedTuple):
    """The processes and meta-processes that are alive."""

    processes: list[Process]
    metas: list[Meta]

    def all(self) -> list[Process | Meta]:
        """The processes, and then the meta-processes."""
        return [*self.processes, *self.metas]


def list_living(kernel: Kernel) -> Living:
    """All processes and meta-processes. From any thread: copying a dict's values is atomic."""
    processes, holders = copy_tables(kernel)
    return Living(processes, [each for each in holders if isinstance(each, Meta)])


def count_living(kernel: Kernel) -> tuple[int, int]:
    """The numbers of meta-processes, and of processes that wait in a call."""
    processes, metas = list_living(kernel)
    return len(metas), sum(1 for each in processes if isinstance(each.waiting, Caller))


def copy_tables(kernel: Kernel) -> tuple[list[Process], list[object]]:
    """All processes, and the holders of all aliases."""
    router = kernel.router
    return list(processes_of(router).values()), list(router.registry.aliases.values())


class Slice(NamedTuple):
    """Some of the processes of a pass. The rows are in lists of their own: a pair for each process
    of each pass would cost a tenth of the pass.
    """

    living: Sequence[Process | Meta]
    rows: list[Row]
    """The rows of all these; none unless the pass reads everything."""
    changed: Sequence[Process | Meta]
    """Those that did something in the last two passes, or have messages."""
    changed_rows: list[Row]
    messages: int
    """Messages that all of them have handled."""


class Census:
    """Passes over all processes and meta-processes. It remembers their figures for the rates of the
    next pass, and holds no process between two passes.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        """The figures of each process at the last pass."""
        self._before = 0.0
        """When the last pass but one began; 0 if there was none."""
        self._began = 0.0
        """When the last pass began."""
        self.elapsed = 0.0
        """Seconds between the last two passes; 0 in the first."""
        self.sent = 0
        """Messages sent between the last two passes."""
        self._pauses = True
        """Whether the pass pauses: it does in other threads than the loop's."""

    @property
    def remembered(self) -> int:
        """How many processes it remembers."""
        return len(self._rows)

    def read_again(self, process: Process | Meta) -> Row:
        """The figures of a process of the last pass at present, with the rates of that pass."""
        row, known = read_row(process, perf_counter()), self._rows.get(process.id.number)
        if known is not None:
            row.rate, row.load, row.worst = known.rate, known.load, known.worst
        return row

    def begin(
        self, kernel: Kernel, tables: tuple[list[Process], list[object]] | None = None
    ) -> Living:
        """Begin a pass over the present processes, or over those of a copy of the tables."""
        self._pauses = not kernel.router.bridge.on_loop()
        processes, holders = copy_tables(kernel) if tables is None else tables
        living = Living(
            processes,
            [meta for some in self._slices(holders) for meta in some if isinstance(meta, Meta)],
        )
        self._before, self._began = self._began, perf_counter()
        self.elapsed = self._began - self._before if self._before else 0.0
        self.sent = 0
        if len(self._rows) > 2 * (len(living.processes) + len(living.metas)) + 1000:
            self._forget(living)
        return living

    def slices(self, living: Living, *, everything: bool) -> Iterator[Slice]:
        """The rest of the pass. With ``everything``, also the rows of the processes that did
        nothing since the last pass.
        """
        for processes in self._slices(living.processes):
            yield self._read_processes(processes, everything)
        for metas in self._slices(living.metas):
            rows = [
                self._note(
                    meta,
                    self._rows.get(meta.id.number),
                    len(meta.mailbox),
                    meta.handled,
                    meta.messages_out(),
                    0.0,
                    False,
                )
                for meta in metas
            ]
            yield Slice(metas, rows, metas, rows, sum(row.messages for row in rows))

    def _slices(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        return in_slices(items) if self._pauses else iter([items] if items else ())

    def _read_processes(self, processes: Sequence[Process], everything: bool) -> Slice:
        known, now = self._rows, perf_counter()
        messages = 0
        rows: list[Row] = []
        changed: list[Process] = []
        changed_rows: list[Row] = []
        for process in processes:
            turn = process.turn
            handled, woken = turn.handled, turn.woken
            messages += handled
            row = known.get(process.id.number)
            # Most processes did nothing since the last pass, so this test is short. A background
            # task sends without a message to its process.
            if (
                row is None
                or row.idle_at != handled
                or woken
                or process.main
                or (everything and row.sent != process.sent)
            ):
                time = turn.running_time
                if woken and now > woken:
                    time += now - woken
                box = process.mailbox
                waiting = len(box) if process.main or box.ahead or box.log else 0
                is_calling = process.waiting is not None and isinstance(process.waiting, Caller)
                row = self._note(process, row, waiting, handled, process.sent, time, is_calling)
                changed.append(process)
                changed_rows.append(row)
            if everything:
                rows.append(row)
        return Slice(processes, rows, changed, changed_rows, messages)

    def _note(
        self,
        process: Process | Meta,
        row: Row | None,
        mailbox: int,
        messages: int,
        sent: int,
        time: float,
        is_calling: bool,
    ) -> Row:
        """Bring the row of a process up to date, with its rates since the last pass."""
        elapsed = self.elapsed
        if row is None:
            number = process.id.number
            is_new = elapsed and process.born >= self._before
            row = Row(number) if is_new else Row(number, 0, messages, sent, time)
            self._rows[number] = row
        row.rate = row.load = 0.0
        if elapsed:
            if messages > row.messages:
                row.rate = (messages - row.messages) / elapsed
            if time > row.time:
                load = (time - row.time) / elapsed
                row.load = min(1.0, load)
                row.worst = max(row.worst, row.load)
            if sent > row.sent:
                self.sent += sent - row.sent
        row.mailbox = mailbox
        row.messages = messages
        row.sent = sent
        row.time = time
        row.is_calling = is_calling
        is_idle = not (mailbox or is_calling or row.rate or row.load)
        row.idle_at = messages if is_idle else -1
        return row

    def _forget(self, living: Living) -> None:
        """Forget the processes that have ended."""
        kept: dict[int, Row] = {}
        for some in self._slices(living.all()):
            for process in some:
                row = self._rows.get(process.id.number)
                if row is not None:
                    kept[row.number] = row
        self._rows = kept


def resident_memory() -> int | None:
    """The resident memory of the program in bytes; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):  # another system
        return None
