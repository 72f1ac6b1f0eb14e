"""Snapshots as text: tables that fit the terminal, readable durations, crashes and stacks."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from .._core.vocabulary.text import printable
from .protocol import ControlError

__all__ = [
    "COLUMNS",
    "SORTS",
    "Crash",
    "Table",
    "blocked_text",
    "clock",
    "crash",
    "duration",
    "facts",
    "fit",
    "group_crashes",
    "narrowed",
    "pairs",
    "process_table",
    "stack_text",
    "table",
    "table_text",
]

SORTS: Final = ("id", "mailbox", "rate", "load", "worst", "time")
"""The sort keys of processes: number, queued messages, messages per second, share of time in
callbacks, total time in callbacks.
"""


def duration(seconds: float) -> str:
    """A duration in a readable unit."""
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
    """A wall-clock time, with date, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def fit(text: str, width: int) -> str:
    """Cut a line that is too long."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


@dataclass(frozen=True, slots=True)
class Table:
    """The content of a table, independent of its rendering. No cell can move the cursor."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    """Right-aligned columns: numbers."""
    below: tuple[tuple[str, ...], ...] = ()
    """Lines below each row."""
    sorted_by: str | None = None
    """The column that the user sorts by."""
    spare: tuple[str, ...] = ()
    """The columns to leave out first in a narrow terminal."""

    def shown_heads(self) -> list[str]:
        """The heads, with a mark at the sort column."""
        return [f"{head}↓" if head == self.sorted_by else head for head in self.heads]

    def widths(self) -> list[int]:
        """The width of each column in characters."""
        return [
            max([len(head), *(len(row[index]) for row in self.rows)])
            for index, head in enumerate(self.shown_heads())
        ]


def table(heads: str, rows: Iterable[Sequence[object]], *, right: str = "") -> Table:
    """A table whose columns are the words in ``heads``; those in ``right`` are right-aligned."""
    return Table(
        tuple(heads.split()),
        tuple(tuple(printable(str(cell)) for cell in row) for row in rows),
        frozenset(right.split()),
    )


def narrowed(table: Table, width: int) -> Table:
    """The table without the columns that do not fit. The last column may be cut, so it needs
    little.
    """
    spare = [head for head in table.spare if head != table.sorted_by]
    while spare and sum(size + 2 for size in table.widths()[:-1]) + _LEAST > width:
        left_out = table.heads.index(spare.pop(0))
        heads, *rows = (row[:left_out] + row[left_out + 1 :] for row in (table.heads, *table.rows))
        table = replace(table, heads=heads, rows=tuple(rows))
    return table


def table_text(table: Table, width: int = 0) -> str:
    """Render a table with minimal column widths. A ``width`` leaves columns out, and cuts the lines
    that are still too long.
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


def pairs(values: Mapping[str, object]) -> str:
    """A line for each name and value."""
    size = max((len(str(key)) for key in values), default=0)
    return "\n".join(
        f"{printable(str(key)).rjust(size)}  {printable(str(value))}"
        for key, value in values.items()
    )


_LEAST: Final = 12
"""Minimum characters of the last column."""
_SPARE: Final = ("UP", "HANDLED", "WORST", "STATE", "TIME", "LOAD", "BEHAVIOUR")
COLUMNS: Final = {
    "id": "ID",
    "mailbox": "MAIL",
    "rate": "MSG/S",
    "load": "LOAD",
    "worst": "WORST",
    "time": "TIME",
}
"""The column of each sort key."""


def process_table(
    rows: Sequence[dict[str, Any]], *, threads: bool = False, rates: bool = False, sort: str = "id"
) -> Table:
    """The table of ``ps``."""
    cells = [
        (
            row["id"],
            row["name"] or "-",
            row["behaviour"],
            row["state"],
            row["mailbox"],
            row["messages"],
            *(f"{row['rate']:.0f} {row['load']:.0%} {row['worst']:.0%}".split() if rates else ()),
            duration(row["time"]) if row["kind"] == "process" else "-",
            duration(row["uptime"]),
            _doing(row, threads),
        )
        for row in rows
    ]
    made = table(
        f"ID NAME BEHAVIOUR STATE MAIL HANDLED {'MSG/S LOAD WORST ' if rates else ''}TIME UP DOING",
        cells,
        right="ID MAIL HANDLED MSG/S LOAD WORST TIME UP",
    )
    below = tuple(tuple(map(printable, row.get("frames", ()))) for row in rows) if threads else ()
    return replace(
        made, below=below, sorted_by=None if sort == "id" else COLUMNS[sort], spare=_SPARE
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


def blocked_text(report: dict[str, Any]) -> str:
    """Describe the code that blocks the loop, in a line."""
    if report["process"] is None:
        culprit = "code outside processes"
    elif report["callback"] is None:
        culprit = f"the work for {report['behaviour']} before or after a callback"
    else:
        culprit = f"{report['behaviour']}.{report['callback']}"
    where = report["stack"].strip().splitlines()[-2:]
    # A node of an earlier version does not report starvation.
    fault = "GETS NO TIME TO RUN; it stands in" if report.get("starved") else "IS BLOCKED by"
    stack = " ".join(line.strip() for line in where)
    return printable(f"THE LOOP {fault} {culprit} for {report['seconds']:.1f} s: {stack}")


def facts(answer: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The answer to ``info`` as texts, and the stacks of its threads."""
    shown: dict[str, str] = {}
    stack = ""
    for key, value in answer.items():
        name = key.replace("_", " ")
        if key in ("stack", "handler_stack"):
            stack += f"{name}:\n{value}" if value else ""
        elif key == "phase" and value == "running":
            continue  # a child that is up; its state, such as sleep, tells more
        elif key == "history":
            shown[name] = " → ".join(state for state, _ in value)
        elif key == "last_blocked" and value:
            shown[name] = (
                blocked_text(value).removeprefix("THE LOOP IS BLOCKED ").removeprefix("THE LOOP ")
            )
        elif key in ("uptime", "running_time"):
            shown[name] = duration(value)
        elif isinstance(value, dict):
            shown[name] = ", ".join(f"{item} {entry}" for item, entry in value.items()) or "-"
        elif isinstance(value, list):
            shown[name] = ", ".join(map(str, value)) or "-"
        elif value is not None:
            shown[name] = str(value)
    return shown, stack


def stack_text(error: ControlError) -> str:
    """The stack of a blocked loop, if the error contains a report; without the frames of the
    scheduler, which help no reader.
    """
    report = error.more.get("report")
    if not isinstance(report, dict):
        return ""
    lines = [printable(line) for line in report["stack"].split("\n")]
    last = max(
        (number for number, line in enumerate(lines) if line.endswith("in unrolled_run")),
        default=-2,
    )
    return "\n".join(lines[last + 2 :]).rstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class Crash:
    """The text about a failed process, in parts."""

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


def group_crashes(obituaries: Iterable[dict[str, Any]]) -> list[Crash]:
    """Describe the newest of the processes that failed in the same way, with their number. Newest
    last.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in obituaries:
        # A node of an earlier version does not tell the group.
        group = str(each.get("group", each["pid"]))
        groups[group] = [*groups.pop(group, ()), each]
    return [crash(alike[-1], len(alike), alike[0]["at"]) for alike in groups.values()]


def crash(obituary: object, count: int = 1, since: float = 0.0) -> Crash:
    """Describe a failed process, from an obituary or its JSON form; and how many failed so since
    the first.
    """
    facts = (
        obituary
        if isinstance(obituary, dict)
        else {name: getattr(obituary, name) for name in (*_FACTS, "traceback")}
    )
    called = f" {facts['name']}" if facts["name"] else ""
    pid = facts["pid"] if isinstance(facts["pid"], int) else facts["pid"].number
    lines = [] if count == 1 else [f"{count} times since {clock(since)}; this is the last"]
    if facts["callback"]:
        of = f" of {facts['message_type']}" if facts["message_type"] else ""
        lines.append(f"in {facts['callback']}{of}")
    details = [f"lived {duration(facts['uptime'])}", f"{facts['handled']} handled"]
    if facts["left"]:
        details.append(
            f"{facts['left']} not handled: {', '.join(facts['waiting'])}"
            + (", …" if facts["left"] > len(facts["waiting"]) else "")
        )
    if facts["recent"]:
        details.append(f"the last were {', '.join(facts['recent'])}")
    if facts["restarts"]:
        details.append(f"{facts['restarts']} restart{'s' if facts['restarts'] > 1 else ''} before")
    lines.append(", ".join(details))
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
