"""Rows about processes as JSON values: `ps_row` for lists of processes, `RowFormat` for views. Read
from any thread and without the loop, which may be blocked.
"""

import os
import sys
import time
import traceback
from time import perf_counter
from typing import Any, Final

from .._core.inspection.census import (
    Row,
    entity_of,
    is_suspended,
    message_type_of,
    parent_of,
    read_row,
)
from .._core.metas.meta import Meta
from .._core.processes.process import Process

__all__ = ["RowFormat", "ps_row"]

JSONRow = dict[str, Any]

_OFTEN_NONE: Final = ("name", "callback", "message_type")


def _facts(process: Process | Meta, row: Row) -> JSONRow:
    parent = parent_of(process)
    facts: JSONRow = {
        "id": row.number,
        "kind": "process" if isinstance(process, Process) else "meta",
        "name": process.name or entity_of(process),
        "behaviour": process.callbacks.behaviour,
        "state": "suspended" if is_suspended(process) else process.state.value,
        "mailbox": row.mailbox,
        "messages": row.messages,
        "sent": row.sent,
        "time": row.time,
        "callback": process.current_callback(),
        "message_type": message_type_of(process),
        "parent": 0 if parent is None else parent.id.number,
        "rate": round(row.rate, 1),
        "load": round(row.load, 4),
        "worst": round(row.worst, 4),
    }
    if isinstance(process, Meta):
        thread = process.reader.thread
        facts["reader"] = "thread" if process.reader.has_thread else "task"
        facts["backlog"] = len(process.outbox)
        facts["thread"] = None if thread is None else thread.name
    return facts


def ps_row(process: Process | Meta, row: Row, *, threads: bool = False) -> JSONRow:
    """A row of ``ps``; with ``threads``, also the innermost frames of the process's thread."""
    facts = _facts(process, row)
    facts["uptime"] = perf_counter() - process.born
    thread = process.reader.thread if threads and isinstance(process, Meta) else None
    if thread is not None:
        facts |= {"thread_id": thread.native_id, "frames": _frames(thread.ident)}
    return facts


def _frames(ident: int) -> list[str]:
    """The three innermost frames of a thread, newest last, a line each."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return []
    return [
        f"{os.path.basename(entry.filename)}:{entry.lineno} in {entry.name}: {entry.line}"
        for entry in traceback.extract_stack(frame)[-3:]
    ]


class RowFormat:
    """The rows in the views of a client, which compares them with the rows before: their times are
    times of day, so that they do not change. Facts that are None are left out.
    """

    def __init__(self) -> None:
        self._wall = time.time() - perf_counter()
        """The wall clock at zero of the clock of processes."""

    def wall(self, moment: float, digits: int = 3) -> float:
        """The time of day of a moment on the clock of processes."""
        return round(moment + self._wall, digits)

    def of_process(self, process: Process | Meta) -> JSONRow:
        """A row about a process, without rates."""
        return self.of_row(process, read_row(process, perf_counter()))

    def of_row(self, process: Process | Meta, row: Row) -> JSONRow:
        """A row with the figures of a survey."""
        facts = _facts(process, row)
        for name in _OFTEN_NONE:
            if facts[name] is None:
                del facts[name]
        if facts.get("thread", "") is None:
            del facts["thread"]
        facts["time"], facts["born"] = round(row.time, 6), self.wall(process.born)
        return facts
