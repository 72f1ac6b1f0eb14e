"""Snapshots as text for people: tables that fit the terminal, durations and sizes one can read at a glance."""

import time
from collections.abc import Sequence
from typing import Any

__all__ = ["clock", "crash_text", "duration", "fit", "pairs", "printable", "process_table", "stack_text", "table"]


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


def printable(text: str) -> str:
    """What may go to a terminal: names and messages come from anybody, and must not move the cursor."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def fit(text: str, width: int) -> str:
    """Cut a line that is too long."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", width: int = 0) -> str:
    """Columns as wide as they must be; those named in ``right`` stand to the right. A ``width`` cuts the lines."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max([len(head), *(len(row[index]) for row in rows)]) for index, head in enumerate(heads)]
    lines = []
    for row in (heads, *rows):
        cells = [
            cell.rjust(size) if head in right.split() else cell.ljust(size)
            for cell, size, head in zip(row, widths, heads, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        lines.append(fit(line, width) if width else line)
    return "\n".join(lines)


def pairs(these: dict[str, Any]) -> str:
    """One line for each name and value."""
    size = max((len(str(key)) for key in these), default=0)
    return "\n".join(f"{printable(str(key)).rjust(size)}  {printable(str(value))}" for key, value in these.items())


def process_table(rows: Sequence[dict[str, Any]], *, threads: bool = False, rates: bool = False, width: int = 0) -> str:
    """What ``ps`` shows."""
    heads = [
        "ID",
        "NAME",
        "BEHAVIOUR",
        "STATE",
        "MAIL",
        "HANDLED",
        *(["MSG/S", "LOAD"] if rates else []),
        "TIME",
        "UP",
        "DOING",
    ]
    cells = [
        [
            str(row["id"]),
            row["name"] or "-",
            row["behaviour"],
            row["state"],
            str(row["mailbox"]),
            str(row["messages"]),
            *([f"{row['rate']:.0f}", f"{row['load']:.0%}"] if rates else []),
            duration(row["time"]) if row["kind"] == "process" else "-",
            duration(row["uptime"]),
            _doing(row, threads),
        ]
        for row in rows
    ]
    lines = table(heads, cells, right="ID MAIL HANDLED MSG/S LOAD TIME UP", width=width).splitlines()
    if not threads:
        return "\n".join(lines)
    shown = [lines[0]]
    for line, row in zip(lines[1:], rows, strict=True):
        shown.append(line)
        shown += [
            f"        {fit(printable(frame), width - 8) if width else printable(frame)}"
            for frame in row.get("frames", ())
        ]
    return "\n".join(shown)


def _doing(row: dict[str, Any], threads: bool) -> str:
    words = []
    if row["callback"]:
        words.append(row["callback"] + (f"({row['message_type']})" if row["message_type"] else ""))
    if row["kind"] == "meta":
        words.append(f"of {row['parent']}")
        if row["thread"]:
            words.append(
                f"thread {row['thread']}" + (f" ({row['thread_id']})" if threads and row.get("thread_id") else "")
            )
        if row["backlog"]:
            words.append(f"{row['backlog']} behind")
    return ", ".join(words)


def stack_text(error: Any) -> str:
    """Where a loop is blocked, if an error of a node says so; without the frames of the scheduler, which tell nobody anything."""
    report = error.more.get("report")
    if not report:
        return ""
    lines = report["stack"].splitlines()
    last = max((number for number, line in enumerate(lines) if line.endswith("in unrolled_run")), default=-2)
    return "\n".join(lines[last + 2 :]) + "\n"


def crash_text(one: Any) -> str:
    """What is known of a process that failed: an obituary, or the same as it came over a control socket."""
    facts = one if isinstance(one, dict) else {name: getattr(one, name) for name in (*_FACTS, "traceback")}
    called = f" {facts['name']}" if facts["name"] else ""
    pid = facts["pid"] if isinstance(facts["pid"], int) else facts["pid"].number
    lines = [f"{clock(facts['at'])}  {pid}{called} {facts['behaviour']}: {printable(str(facts['reason']))}"]
    if facts["callback"]:
        of = f" of {facts['message_type']}" if facts["message_type"] else ""
        lines.append(f"    in {facts['callback']}{of}")
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
    lines.append(f"    {', '.join(told)}")
    lines += [f"    {printable(line)}" for line in facts["traceback"].splitlines()]
    return "\n".join(lines)


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
