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

from ..._core.inspection.watchdog import of_program
from ..._core.runtime.bridge import thread_names
from ..._core.tables.events import Event
from ..._core.vocabulary.info import BlockedReport
from ..node_access import age_of, application_infos, blockages_of, kernel_of
from ..protocol import as_json
from .slices import read_again

__all__ = [
    "applications_of",
    "blocked_facts",
    "crashes_of",
    "dead_letters_of",
    "events_of",
    "node_sample",
]

_FRAME: Final = re.compile(r'  File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<name>.*)')
_LIBRARIES: Final = tuple({*sysconfig.get_paths().values()} - {sysconfig.get_path("data")})
_PAGE: Final = resource.getpagesize()


def node_sample(node: Any, delay: float, blocked: BlockedReport | None) -> dict[str, Any]:
    """The figures of a node that need no look at its processes."""
    kernel = kernel_of(node)
    router = kernel.router
    times, _ = blockages_of(node)
    return {
        "at": round(time.time(), 3),
        "uptime": round(age_of(node), 3),
        "stopping": kernel.stopping,
        "names": len(router.registry.names),
        "timers": len(kernel.clock.timers),
        "spawned": kernel.spawned,
        "crashed": kernel.crashed,
        "dead_letters": as_json(read_again(lambda: dict(router.dead_letters.counts))),
        "late_replies": kernel.calls.late_replies,
        "loop": {
            "delay": round(delay, 6),
            "blocked": None if blocked is None else blocked_facts(blocked),
            "times_blocked": times,
        },
        "memory": _memory(),
        "threads": len(thread_names()),
        "reader_threads": kernel.thread_fairness.readers,
        "dispatcher_threads": kernel.dispatcher_threads.threads,
        "log_lines_lost": kernel.log.lost,
        "nodes": None if (remote := router.remote) is None else read_again(remote.nodes),
    }


def _memory() -> int | None:
    """The resident memory of the program in bytes, if the system tells it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
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


def crashes_of(node: Any, count: int, everything: bool) -> list[dict[str, Any]]:
    """The last processes that failed, or that ended, newest last."""
    obituaries = kernel_of(node).obituaries
    found = read_again(lambda: obituaries.all(count) if everything else obituaries.failed(count))
    return [
        {**as_json(ended), "traceback": ended.traceback, "failed": ended.failed} for ended in found
    ]


def dead_letters_of(node: Any, count: int) -> dict[str, Any]:
    """The number of dead letters by cause, and the last ones, newest last."""
    letters = kernel_of(node).router.dead_letters
    return {
        "counts": as_json(read_again(lambda: dict(letters.counts))),
        "last": [
            {**as_json(letter), "target": str(letter.target)}
            for letter in read_again(lambda: letters.last(count))
        ],
    }


def events_of(node: Any, limit: int) -> dict[str, Any]:
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


def applications_of(node: Any) -> dict[str, Any]:
    """The loaded applications, in the order of their start."""
    return {"applications": as_json(read_again(lambda: application_infos(node)))}
