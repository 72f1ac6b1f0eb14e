"""Snapshots as text for people: tables that fit the terminal, durations and sizes one can read at a
glance.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from .._core.vocabulary.text import printable

__all__ = [
    "Crash",
    "Table",
    "clock",
    "crash",
    "duration",
    "fit",
    "narrowed",
    "pairs",
    "process_table",
    "stack_text",
    "table",
    "table_text",
]


def duration(seconds: float) -> str:
    """Seconds, in the unit that suits."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
    if seconds < 86400:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}m"
    return f"{int(seconds // 86400)}d{int(seconds % 86400 // 3600):02d}h"


def clock(at: float) -> str:
    """A moment, as of today's date and zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def fit(text: str, width: int) -> str:
    """Cut a line that is too long."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


@dataclass(frozen=True, slots=True)
class Table:
    """What a table says, before anybody has decided how it looks. No cell can move the cursor."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    """The columns that stand to the right: numbers."""
    below: tuple[tuple[str, ...], ...] = ()
    """Lines that stand below each row."""
    sorted_by: str | None = None
    """The column that the rows are sorted by, if somebody chose it."""
    spare: tuple[str, ...] = ()
    """The columns that are left out first where there is no room."""

    def shown_heads(self) -> list[str]:
        """The heads, with a mark at the one that decides the order."""
        return [f"{head}↓" if head == self.sorted_by else head for head in self.heads]

    def widths(self) -> list[int]:
        """How many characters each column needs."""
        return [
            max([len(head), *(len(row[index]) for row in self.rows)])
            for index, head in enumerate(self.shown_heads())
        ]


def table(heads: str, rows: Iterable[Sequence[object]], *, right: str = "") -> Table:
    """A table whose columns are the words in ``heads``; those in ``right`` stand to the right."""
    return Table(
        tuple(heads.split()),
        tuple(tuple(printable(str(cell)) for cell in row) for row in rows),
        frozenset(right.split()),
    )


def narrowed(table: Table, width: int) -> Table:
    """The table without the columns for which there is no room. The last one can be cut, so it
    needs little.
    """
    spare = [head for head in table.spare if head != table.sorted_by]
    while spare and sum(size + 2 for size in table.widths()[:-1]) + _LEAST > width:
        left_out = table.heads.index(spare.pop(0))
        heads, *rows = (row[:left_out] + row[left_out + 1 :] for row in (table.heads, *table.rows))
        table = replace(table, heads=heads, rows=tuple(rows))
    return table


def table_text(table: Table, width: int = 0) -> str:
    """Columns as wide as they must be. A ``width`` leaves columns out, and cuts the lines that are
    still too long.
    """
    if width:
        table = narrowed(table, width)
    heads, widths = table.shown_heads(), table.widths()
    lines = []
    for number, row in enumerate((heads, *table.rows)):
        cells = [
            cell.rjust(size) if head in table.right else cell.ljust(size)
            for cell, size, head in zip(row, widths, table.heads, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
        if number and table.below:
            lines += [f"        {line}" for line in table.below[number - 1]]
    return "\n".join(fit(line, width) if width else line for line in lines)


def pairs(these: Mapping[str, object]) -> str:
    """One line for each name and value."""
    size = max((len(str(key)) for key in these), default=0)
    return "\n".join(
        f"{printable(str(key)).rjust(size)}  {printable(str(value))}"
        for key, value in these.items()
    )


_LEAST: Final = 12
"""Characters for the last column."""
_SPARE: Final = ("UP", "HANDLED", "STATE", "TIME", "LOAD", "BEHAVIOUR")
_COLUMNS: Final = {"id": "ID", "mailbox": "MAIL", "rate": "MSG/S", "load": "LOAD", "time": "TIME"}
"""The column for each thing that rows can be sorted by."""


def process_table(
    rows: Sequence[dict[str, Any]], *, threads: bool = False, rates: bool = False, sort: str = "id"
) -> Table:
    """What ``ps`` shows."""
    cells = [
        (
            row["id"],
            row["name"] or "-",
            row["behaviour"],
            row["state"],
            row["mailbox"],
            row["messages"],
            *([f"{row['rate']:.0f}", f"{row['load']:.0%}"] if rates else []),
            duration(row["time"]) if row["kind"] == "process" else "-",
            duration(row["uptime"]),
            _doing(row, threads),
        )
        for row in rows
    ]
    made = table(
        f"ID NAME BEHAVIOUR STATE MAIL HANDLED {'MSG/S LOAD ' if rates else ''}TIME UP DOING",
        cells,
        right="ID MAIL HANDLED MSG/S LOAD TIME UP",
    )
    below = tuple(tuple(map(printable, row.get("frames", ()))) for row in rows) if threads else ()
    return replace(
        made, below=below, sorted_by=None if sort == "id" else _COLUMNS[sort], spare=_SPARE
    )


def _doing(row: dict[str, Any], threads: bool) -> str:
    words = []
    if row["callback"]:
        words.append(row["callback"] + (f"({row['message_type']})" if row["message_type"] else ""))
    if row["kind"] == "meta":
        words.append(f"of {row['parent']}")
        if row["thread"]:
            words.append(
                f"thread {row['thread']}"
                + (f" ({row['thread_id']})" if threads and row.get("thread_id") else "")
            )
        if row["backlog"]:
            words.append(f"{row['backlog']} behind")
    return ", ".join(words)


def stack_text(error: Any) -> str:
    """Where a loop is blocked, if an error of a node says so; without the frames of the scheduler,
    which tell nobody anything.
    """
    report = error.more.get("report")
    if not report:
        return ""
    lines = [printable(line) for line in report["stack"].split("\n")]
    last = max(
        (number for number, line in enumerate(lines) if line.endswith("in unrolled_run")),
        default=-2,
    )
    return "\n".join(lines[last + 2 :]).rstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class Crash:
    """What is told about one that failed."""

    who: str
    reason: str
    facts: tuple[str, ...]
    traceback: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.who}: {self.reason}",
                *(f"    {line}" for line in (*self.facts, *self.traceback)),
            )
        )


def crash(one: Any) -> Crash:
    """What is known of a process that failed: an obituary, or the same as it came over a control
    socket.
    """
    facts = (
        one
        if isinstance(one, dict)
        else {name: getattr(one, name) for name in (*_FACTS, "traceback")}
    )
    called = f" {facts['name']}" if facts["name"] else ""
    pid = facts["pid"] if isinstance(facts["pid"], int) else facts["pid"].number
    lines = []
    if facts["callback"]:
        of = f" of {facts['message_type']}" if facts["message_type"] else ""
        lines.append(f"in {facts['callback']}{of}")
    told = [f"lived {duration(facts['uptime'])}", f"{facts['handled']} handled"]
    if facts["left"]:
        told.append(
            f"{facts['left']} not handled: {', '.join(facts['waiting'])}"
            + (", …" if facts["left"] > len(facts["waiting"]) else "")
        )
    if facts["recent"]:
        told.append(f"the last were {', '.join(facts['recent'])}")
    if facts["restarts"]:
        told.append(f"{facts['restarts']} restart{'s' if facts['restarts'] > 1 else ''} before")
    lines.append(", ".join(told))
    return Crash(
        printable(f"{clock(facts['at'])}  {pid}{called} {facts['behaviour']}"),
        printable(str(facts["reason"])),
        tuple(map(printable, lines)),
        tuple(map(printable, facts["traceback"].splitlines())),
    )


_FACTS = (
    "pid",
    "name",
    "behaviour",
    "reason",
    "at",
    "uptime",
    "handled",
    "callback",
    "message_type",
    "waiting",
    "left",
    "recent",
    "restarts",
)
