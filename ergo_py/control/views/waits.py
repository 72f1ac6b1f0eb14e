"""`Waits`: which process waits for which, since when, and the cycles among them."""

import time
from time import perf_counter
from typing import Any

from ..._core.inspection.census import entity_of
from ..._core.metas.meta import Meta
from ..._core.processes.process import Process, processes_of
from ..._core.tables.pending_calls import Caller, present
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import kernel_of
from ..._core.vocabulary.states import State
from .slices import in_slices, read_again

__all__ = ["Waits", "callee_of", "cycles_of"]

_HOUR = 3600.0


def callee_of(waiting: object) -> Process | Meta | None:
    """The process that has to act before a waiting process continues; None if there is none."""
    if isinstance(waiting, Caller):
        waiting = None if waiting.settled else present(waiting.callee)
    return waiting if isinstance(waiting, Process | Meta) else None


class Waits:
    """Looks for waiting processes. It remembers when it first saw each wait."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._since: dict[tuple[int, int], float] = {}
        self._wall = time.time() - perf_counter()
        """The wall clock at zero of the clock of processes."""

    def look(self, limit: int) -> dict[str, Any]:
        """The waits, at most ``limit``, and the cycles; in slices, from any thread."""
        now = round(time.time(), 3)
        since: dict[tuple[int, int], float] = {}
        found: list[dict[str, Any]] = []
        next_of: dict[int, int] = {}
        count = 0
        router = kernel_of(self._node).router
        for some in in_slices(list(processes_of(router).values())):
            for process in some:
                waiting = process.waiting
                if waiting is None or (callee := callee_of(waiting)) is None:
                    continue
                count += 1
                number = process.id.number
                next_of[number] = callee.id.number
                key = number, getattr(waiting, "number", 0)
                since[key] = self._since.get(key) or _began(process, self._wall) or now
                if len(found) < limit:
                    found.append(_described(process, callee, waiting, since[key]))
        self._since = since
        return {
            "waits": sorted(found, key=lambda wait: wait["since"]),
            "rings": cycles_of(next_of),
            "deadlocks": self._deadlocks(now),
            "left_out": count - len(found),
        }

    def _deadlocks(self, now: float) -> list[dict[str, Any]]:
        router = kernel_of(self._node).router
        return [
            {
                "at": round(at, 3),
                "ring": [getattr(each, "number", None) for each in ring],
                "names": [str(each) for each in names],
                "request": request,
            }
            for at, ring, names, request in read_again(lambda: list(router.deadlocks))
            if now - at <= _HOUR
        ]


def _began(process: Process, wall: float) -> float | None:
    """When the process began to wait, if it notes that: it does in calls."""
    history: list[Any] = process.history[-2:]
    return round(history[1] + wall, 3) if history[:1] == [State.WAIT_RESPONSE] else None


def _described(
    process: Process, callee: Process | Meta, waiting: Any, since: float
) -> dict[str, Any]:
    is_call = isinstance(waiting, Caller)
    request = waiting.request if is_call else None
    return {
        "from": process.id.number,
        "from_name": process.name or entity_of(process),
        "from_behaviour": process.callbacks.behaviour,
        "to": callee.id.number,
        "to_name": callee.name or entity_of(callee),
        "to_behaviour": callee.callbacks.behaviour,
        "request": type(request).__qualname__ if is_call else None,
        "since": since,
        "deferred": is_call and waiting.deferred,
    }


def cycles_of(next_of: dict[int, int]) -> list[list[int]]:
    """The cycles of a graph in which each node has at most one successor. Each begins and ends with
    its lowest number.
    """
    cycles: list[list[int]] = []
    done: set[int] = set()
    for start in next_of:
        path: dict[int, None] = {}
        current = start
        while current in next_of and current not in done and current not in path:
            path[current] = None
            current = next_of[current]
        if current in path:
            numbers = list(path)
            ring = numbers[numbers.index(current) :]
            lowest = ring.index(min(ring))
            cycles.append([*ring[lowest:], *ring[:lowest], ring[lowest]])
        done.update(path)
    return cycles
