"""`measure_flow`: counts the messages along the edges between some processes, for a while."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from ..._core.inspection.state import ask, observe, stop_observing
from ..._core.kernel import Kernel
from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.verbs.node import Node
from ..._core.verbs.node_access import kernel_of
from ..._core.vocabulary.errors import ErgoError
from ..._core.vocabulary.ids import EventName

__all__ = ["measure_flow"]

Edge = tuple[int, int | str]

_PERIOD: Final = 0.25
_MOST_EDGES: Final = 1000
"""Different edges of a report; further messages are counted, but not shown."""
_LATER: Final = frozenset({"send_after", "send_every"})
"""Verbs that send at another time; the receiver reports such a message."""


class _Counts:
    def __init__(self, kernel: Kernel, watched: frozenset[int]) -> None:
        self._kernel = kernel
        self._watched = watched
        self._edges: Counter[Edge] = Counter()
        self.messages = 0

    def add(self, sender: object, receiver: object, *, is_report_of_sender: bool) -> None:
        """Count a message, unless its receiver reports it as well."""
        start, end = self._number(sender), self._number(receiver)
        if is_report_of_sender and end in self._watched:
            return
        self.messages += 1
        edge = (start if isinstance(start, int) else 0), end
        if edge in self._edges or len(self._edges) < _MOST_EDGES:
            self._edges[edge] += 1

    def _number(self, address: Any) -> int | str:
        if isinstance(address, int):
            return address
        if isinstance(address, EventName):
            return address.name
        number = getattr(address, "number", None)
        if number is not None and address.node == self._kernel.pid.node:
            return int(number)
        try:
            found = self._kernel.router.resolve(address)
        except ErgoError:
            return 0
        return found.id.number if isinstance(found, Process | Meta) else 0

    def take(self) -> list[list[int | str]]:
        """The edges with their messages since the last report."""
        edges, self._edges = self._edges, Counter()
        return [[start, end, count] for (start, end), count in edges.items()]


class _Sensor:
    """Reports the messages of a process."""

    wants_sends = True

    def __init__(self, counts: _Counts, process: Process) -> None:
        self._counts = counts
        self._number = process.id.number

    def note(
        self,
        callback: str,
        message: object,
        sender: object,
        seconds: float,
        error: BaseException | None,
        sent: int,
    ) -> None:
        if callback.startswith(("handle_message", "handle_call", "handle_event")):
            self._counts.add(sender, self._number, is_report_of_sender=False)

    def note_sent(self, verb: str, to: object, message: object) -> None:
        if verb not in _LATER:
            # A reply is handled by no callback, so that only its sender reports it.
            is_reply = verb.startswith("reply")
            self._counts.add(self._number, to, is_report_of_sender=not is_reply)

    def over(self) -> None:
        pass


async def measure_flow(
    node: Node,
    processes: Sequence[Process],
    seconds: float,
    tell: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    """Count the messages of some processes, and tell four times a second. On the loop. A process
    that is busy for longer than five seconds, or that ends, is left out.
    """
    kernel = kernel_of(node)
    counts = _Counts(kernel, frozenset(process.id.number for process in processes))
    sensors = [(process, _Sensor(counts, process)) for process in processes]
    told = 0

    async def attach(process: Process, sensor: _Sensor) -> None:
        try:
            await ask(kernel, node.pid, process, process.id, "flow", observe(sensor), 5.0)
        except ErgoError:
            return

    try:
        async with trio.open_nursery() as nursery:
            for process, sensor in sensors:
                nursery.start_soon(attach, process, sensor)
            end, last = trio.current_time() + seconds, trio.current_time()
            while trio.current_time() < end:
                await trio.sleep(min(_PERIOD, max(0.0, end - trio.current_time())))
                now = trio.current_time()
                edges, told = counts.take(), counts.messages
                tell({"at": time.time(), "seconds": round(now - last, 3), "edges": edges})
                last = now
            nursery.cancel_scope.cancel()
    finally:
        for process, sensor in sensors:
            stop_observing(process, sensor)
    return {"messages": told}
