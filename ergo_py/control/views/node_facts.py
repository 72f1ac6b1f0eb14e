"""The facts of a node as a whole: a sample, its events, its applications, its last crashes and dead
letters.
"""

import os
import re
import resource
import sys
import sysconfig
import time
from functools import partial
from itertools import islice
from typing import Any, Final

from ..._core.inspection.census import resident_memory
from ..._core.inspection.watchdog import of_program
from ..._core.runtime.bridge import thread_names
from ..._core.tables.events import Event
from ..._core.tables.obituaries import Obituary
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import applications_of, figures_of, kernel_of
from ..._core.vocabulary.info import BlockedReport
from ..protocol import as_json
from .slices import read_again

__all__ = [
    "blocked_facts",
    "crashes_of",
    "dead_letters_of",
    "events_of",
    "list_applications",
    "node_sample",
]

_FRAME: Final = re.compile(r'  File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<name>.*)')
_LIBRARIES: Final = tuple({*sysconfig.get_paths().values()} - {sysconfig.get_path("data")})


def node_sample(
    node: Node, delay: float, blocked: BlockedReport | None, totals: dict[str, Any]
) -> dict[str, Any]:
    """The figures of a node: its own, and the totals of its processes."""
    kernel = kernel_of(node)
    info = read_again(lambda: figures_of(node, totals["metas"], totals["calls_waiting"]))
    return {
        "at": round(time.time(), 3),
        "uptime": round(info.uptime, 3),
        "stopping": kernel.stopping,
        "names": info.names,
        "timers": info.timers,
        "spawned": info.spawned,
        "crashed": info.crashed,
        "dead_letters": as_json(info.dead_letters),
        "late_replies": info.late_replies,
        "loop": {
            "delay": round(delay, 6),
            "blocked": None if blocked is None else blocked_facts(blocked),
            "times_blocked": info.times_blocked,
        },
        "memory": resident_memory() or _peak_memory(),
        "threads": len(thread_names()),
        "reader_threads": info.reader_threads,
        "dispatcher_threads": info.dispatcher_threads,
        "log_lines_lost": info.log_lines_lost,
        "nodes": None if (remote := kernel.router.remote) is None else read_again(remote.nodes),
        **totals,
    }


def _peak_memory() -> int:
    """The highest resident memory of the program so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def blocked_facts(report: BlockedReport) -> dict[str, Any]:
    """A report of a blocked loop, with the innermost line of the program's own code."""
    facts: dict[str, Any] = as_json(report)
    frames = list(_FRAME.finditer(of_program(report.stack)))
    # The line that a person can change: not in Python's own library, and not in a package.
    own = [each for each in frames if not each["file"].startswith(_LIBRARIES)]
    if frames:
        last = (own or frames)[-1]
        facts["where"] = f"{os.path.basename(last['file'])}:{last['line']} in {last['name']}"
        below = of_program(report.stack)[last.end() :].strip("\n").split("\n")
        facts["line"] = below[0].strip()
    return facts


def crashes_of(node: Node, count: int, everything: bool) -> list[dict[str, Any]]:
    """The last processes that failed, or that ended, newest last."""
    obituaries = kernel_of(node).lifetimes.obituaries
    found = read_again(lambda: obituaries.all(count) if everything else obituaries.failed(count))
    return [
        {
            **as_json(ended),
            "traceback": ended.traceback,
            "failed": ended.failed,
            "group": _group_of(ended),
        }
        for ended in found
    ]


def _group_of(ended: Obituary) -> str:
    """The same text for processes that ended in the same way: behaviour, callback, kind of reason
    and lines of code. The texts of their exceptions may differ.
    """
    kind = ": ".join(str(ended.reason).split(": ")[:2])
    places = [each[0] for each in _FRAME.finditer(ended.traceback)]
    return "\n".join([ended.behaviour, ended.callback or "", kind, *places])


def dead_letters_of(node: Node, count: int) -> dict[str, Any]:
    """The number of dead letters by cause, and the last ones, newest last."""
    letters = kernel_of(node).router.dead_letters
    return {
        "counts": as_json(read_again(lambda: dict(letters.counts))),
        "last": [
            {
                "sender": as_json(letter.sender),
                "target": str(letter.target),
                "message_type": letter.message_type,
                "why": as_json(letter.why),
                "at": letter.at,
                "number": letter.number,
            }
            for letter in read_again(lambda: letters.last(count))
        ],
    }


def events_of(node: Node, limit: int) -> dict[str, Any]:
    """The events of the node."""
    events = read_again(kernel_of(node).publisher.events.all)
    found = [read_again(partial(_of_event, event)) for event in islice(events, limit)]
    return {"events": found, "left_out": max(0, len(events) - limit)}


def _of_event(event: Event) -> dict[str, Any]:
    return {
        "name": event.name.name,
        "producer": event.producer.number,
        "published": event.published,
        "kept": len(event.recent),
        "open": event.open,
        "subscribers": len(event.subscribers),
        "lost": sum(each.dropped for each in event.subscribers.values()),
    }


def list_applications(node: Node) -> dict[str, Any]:
    """The loaded applications, in the order of their start."""
    return {"applications": as_json(read_again(applications_of(node).infos))}
