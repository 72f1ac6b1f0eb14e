"""Rows about everything alive, read from any thread without the help of the loop, which may be
blocked.
"""

import os
import sys
import time
import traceback
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from .._core.metas.meta import Meta
from .._core.processes.process import Process

__all__ = ["SORTS", "Row", "describe_threads", "list_rows", "remember", "stamp"]

Row = dict[str, Any]

SORTS: Final = ("id", "mailbox", "rate", "load", "time")
"""By number, by waiting messages, by messages per second, by share of the time in callbacks, by all
time in callbacks.
"""

Before = Mapping[int, tuple[float, int, float]]


def living(node: Any) -> list[Process | Meta]:
    """Every process and meta-process. Copying a dict's values is one step that no other thread can
    interrupt.
    """
    router = node._router
    metas = [one for one in list(router.registry.aliases.values()) if isinstance(one, Meta)]
    return [*list(router.processes.values()), *metas]


def list_rows(node: Any, *, threads: bool = False, before: Before | None = None) -> list[Row]:
    """One row for each process and meta-process; with ``before``, also what each did since then."""
    return [_row(one, threads, before or {}) for one in living(node)]


def _row(one: Process | Meta, threads: bool, before: Before) -> Row:
    handling, now = one.handling, perf_counter()
    watch = one.kernel.watches.get(one.id) if isinstance(one, Process) else None
    row: Row = {
        "id": one.id.number,
        "kind": "process" if isinstance(one, Process) else "meta",
        "name": None if isinstance(one, Meta) else one.name,
        "behaviour": one.callbacks.behaviour,
        "state": one.state.value if watch is None or not watch.suspended else "suspended",
        "mailbox": len(one.mailbox),
        "messages": one.handled,
        "sent": one.messages_out() if isinstance(one, Meta) else one.sent,
        "time": 0.0 if isinstance(one, Meta) else one.time_in_callbacks(now),
        "uptime": now - one.born,
        "callback": one.current_callback(),
        "message_type": None if handling is None else type(handling[3]).__qualname__,
        "parent": _parent(one),
    }
    if isinstance(one, Meta):
        row["reader"] = "thread" if one.has_thread else "task"
        row["backlog"] = len(one.outbox)
        row["thread"] = None if one.thread is None else one.thread.name
        if threads and one.thread is not None:
            row["thread_id"] = one.thread.native_id
            row["frames"] = _frames(one.thread.ident)
    then = before.get(one.id.number)
    if then is not None and now > then[0]:
        row["rate"] = (row["messages"] - then[1]) / (now - then[0])
        row["load"] = max(0.0, min(1.0, (row["time"] - then[2]) / (now - then[0])))
    else:
        row["rate"] = row["load"] = 0.0
    return row


def _parent(one: Process | Meta) -> int:
    parent = one.owner if isinstance(one, Meta) else one.parent
    return 0 if parent is None else parent.id.number


def _frames(ident: int) -> list[str]:
    """The innermost frames of a thread, newest last, one line each."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return []
    return [
        f"{os.path.basename(one.filename)}:{one.lineno} in {one.name}: {one.line}"
        for one in traceback.extract_stack(frame)[-3:]
    ]


def describe_threads(rows: list[Row]) -> list[Row]:
    """Only those whose reader is a thread."""
    return [row for row in rows if row.get("thread")]


def remember(rows: list[Row]) -> dict[int, tuple[float, int, float]]:
    """What the next rows are to be compared with."""
    now = perf_counter()
    return {row["id"]: (now, row["messages"], row["time"]) for row in rows}


def stamp() -> float:
    """When this was seen."""
    return time.time()
