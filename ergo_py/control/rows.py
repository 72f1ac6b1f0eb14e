"""Rows about every process and meta-process, read from any thread and without the loop, which may
be blocked.
"""

import os
import sys
import time
import traceback
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from .._core.metas.meta import Meta
from .._core.processes.process import Process, processes_of
from .node_access import kernel_of

__all__ = ["Row", "list_processes", "list_rows", "remember", "row_of", "stamp"]

Row = dict[str, Any]

Before = Mapping[int, tuple[float, int, float]]


def list_processes(node: Any) -> list[Process | Meta]:
    """Every process and meta-process. Copying a dict's values is atomic: no other thread can
    interrupt it.
    """
    router = kernel_of(node).router
    metas = [found for found in list(router.registry.aliases.values()) if isinstance(found, Meta)]
    return [*list(processes_of(router).values()), *metas]


def list_rows(node: Any, *, threads: bool = False, before: Before | None = None) -> list[Row]:
    """A row per process and meta-process; with ``before``, also the rates since then."""
    before = before or {}
    return [
        {**row, **_rates(row, before)}
        for row in (row_of(process, threads=threads) for process in list_processes(node))
    ]


def _rates(row: Row, before: Before) -> Row:
    now, then = perf_counter(), before.get(row["id"])
    if then is None or now <= then[0]:
        return {"rate": 0.0, "load": 0.0}
    return {
        "rate": (row["messages"] - then[1]) / (now - then[0]),
        "load": max(0.0, min(1.0, (row["time"] - then[2]) / (now - then[0]))),
    }


def row_of(process: Process | Meta, *, threads: bool = False) -> Row:
    """A row about a process; with ``threads``, also the innermost frames of its thread."""
    handling, now = process.handling, perf_counter()
    watch = process.kernel.watches.get(process.id) if isinstance(process, Process) else None
    row: Row = {
        "id": process.id.number,
        "kind": "process" if isinstance(process, Process) else "meta",
        "name": None if isinstance(process, Meta) else process.name,
        "behaviour": process.callbacks.behaviour,
        "state": process.state.value if watch is None or not watch.suspended else "suspended",
        "mailbox": len(process.mailbox),
        "messages": process.handled,
        "sent": process.messages_out() if isinstance(process, Meta) else process.sent,
        "time": 0.0 if isinstance(process, Meta) else process.turn.time(now),
        "uptime": now - process.born,
        "callback": process.current_callback(),
        "message_type": None if handling is None else type(handling[3]).__qualname__,
        "parent": _parent(process),
    }
    if isinstance(process, Meta):
        thread = process.reader.thread
        row["reader"] = "thread" if process.reader.has_thread else "task"
        row["backlog"] = len(process.outbox)
        row["thread"] = None if thread is None else thread.name
        if threads and thread is not None:
            row["thread_id"] = thread.native_id
            row["frames"] = _frames(thread.ident)
    return row


def _parent(process: Process | Meta) -> int:
    parent = process.owner if isinstance(process, Meta) else process.parent
    return 0 if parent is None else parent.id.number


def _frames(ident: int) -> list[str]:
    """The three innermost frames of a thread, newest last, a line each."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return []
    return [
        f"{os.path.basename(entry.filename)}:{entry.lineno} in {entry.name}: {entry.line}"
        for entry in traceback.extract_stack(frame)[-3:]
    ]


def remember(rows: list[Row]) -> dict[int, tuple[float, int, float]]:
    """The counters that the next rows are compared with."""
    now = perf_counter()
    return {row["id"]: (now, row["messages"], row["time"]) for row in rows}


def stamp() -> float:
    """The wall-clock time of a snapshot."""
    return time.time()
