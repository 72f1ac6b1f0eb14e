"""`Figures`: the counters of a node at a moment, summed by behaviour. `read_figures` reads them
from any thread, also while the event loop is blocked.

Nothing is counted for it on the way of a message: a process counts its messages anyway, and adds
its sums to those of its behaviour when it ends.
"""

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from time import perf_counter, process_time
from typing import Any, Final
from weakref import WeakKeyDictionary

from .._core.inspection.census import Census, Row, Slice, copy_tables, resident_memory
from .._core.inspection.loop_delays import BOUNDS
from .._core.kernel import Kernel
from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.runtime.bridge import Lock
from .._core.tables.callbacks import Callbacks
from .._core.tables.ended_totals import MOST_LABELS, OTHER, Ledger
from .._core.verbs.node import Node
from .._core.verbs.node_access import check_node, figures_of, kernel_of, watchdog_of
from .._core.vocabulary.messages import Why
from .._core.vocabulary.public_names import show_public_names
from ..entity_handles import EntityFigures, entity_figures
from ..pipelines.pipeline import Pipeline, PipelineFigures
from ..web.request_figures import find_request_figures

__all__ = ["BehaviourFigures", "Figures", "LoopDelay", "read_figures"]

_CALLBACKS: Final = attrgetter("callbacks")


@dataclass(slots=True)
class BehaviourFigures:
    """The sums of a behaviour. Those of messages, busy seconds and crashes include the processes
    that have ended, and never fall.
    """

    processes: int = 0
    """Living processes."""
    metas: int = 0
    """Living meta-processes."""
    handled: int = 0
    """Messages handled."""
    sent: int = 0
    """Messages sent."""
    busy: float = 0.0
    """Seconds in callbacks, waits inside them included."""
    crashed: int = 0
    mailbox: int = 0
    """Messages that wait now."""
    longest: int = 0
    """Messages in the longest mailbox now."""
    is_meta: bool = False
    """Whether it is a behaviour of meta-processes."""


@dataclass(frozen=True, slots=True)
class LoopDelay:
    """A histogram of the seconds that the loop took to answer, as the watchdog measures them twice
    in each of its thresholds.
    """

    bounds: tuple[float, ...]
    """The upper bounds of the classes but the last, in seconds."""
    counts: tuple[int, ...]
    """The measurements in each class, one more than bounds."""
    total: float
    """The sum of all measurements, in seconds."""


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """The event loop of a node, and what waits for it."""

    delay: LoopDelay | None
    """None without a watchdog."""
    times_blocked: int
    """How often the watchdog found the loop blocked."""
    calls_waiting: int
    """Processes that wait in a call."""
    timers: int
    """Timers that are armed."""


@dataclass(frozen=True, slots=True)
class ProgramFigures:
    """The whole program, with all its nodes."""

    cpu: float
    """Seconds of processor time."""
    memory: int | None
    """Resident bytes; None where the system does not tell."""
    collections: tuple[int, ...]
    """Runs of the garbage collector, by generation."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The counters of a node at a moment."""

    node: str
    at: float
    """When they were read, as ``time.time()`` counts."""
    uptime: float
    """Seconds since the node was opened."""
    behaviours: Mapping[str, BehaviourFigures]
    """By class name. At most 200; the rest is together under ``other``."""
    spawned: int
    """Processes started so far."""
    restarts: Mapping[str, int]
    """Restarts by the name in the child's specification. At most 200, and ``other``."""
    dead_letters: Mapping[str, int]
    """By cause: the names of :class:`Why`, in small letters; zeros included."""
    late_replies: int
    """Answers to calls that had timed out or were cancelled."""
    loop: LoopFigures
    threads: Mapping[str, int]
    """By kind: reader, dispatcher, worker, task; ``abandoned`` counts all so far."""
    traffic: Mapping[str, tuple[int, int]]
    """Bytes received and sent, by the class of the server, connection or socket."""
    connections: Mapping[str, int]
    """Open connections and sockets, likewise."""
    active_requests: int | None
    """HTTP requests under way; None without a ``WebServer(metrics=True)``."""
    requests: Mapping[tuple[str, str, str], tuple[tuple[int, ...], float]]
    """The durations of HTTP requests by method, route and status: the count of each class, and the
    sum in seconds.
    """
    entities: EntityFigures
    """The entities of the node; zeros if it keeps none."""
    pipelines: Mapping[str, PipelineFigures]
    """The pipelines by their names; those without a name are left out."""
    network_joined: bool | None
    """Whether the node is a member of its network; None without a network."""
    log_lines_lost: int
    """Log lines that could not be written."""
    program: ProgramFigures

    @property
    def processes(self) -> int:
        """Living processes of all behaviours."""
        return sum(each.processes for each in self.behaviours.values())

    @property
    def metas(self) -> int:
        """Living meta-processes of all behaviours."""
        return sum(each.metas for each in self.behaviours.values())

    @property
    def handled(self) -> int:
        """Messages that all behaviours have handled."""
        return sum(each.handled for each in self.behaviours.values())

    @property
    def mailbox(self) -> int:
        """Messages that wait in all mailboxes."""
        return sum(each.mailbox for each in self.behaviours.values())


def read_figures(node: object, max_age: float = 0.0) -> Figures:
    """Read the counters of a node. From any thread; on the loop, use a thread, since this takes
    about a millisecond for each thousand processes, and pauses in between.

    Args:
        node: a node of this program.
        max_age: the last result will do if it is at most so many seconds old.

    Raises:
        BadInputError: the value is no open node.
    """
    found = check_node("read_figures(node)", node)
    return _readings(kernel_of(found)).read(found, max_age)


@dataclass(slots=True)
class _Readings:
    """What is kept from one reading of a node to the next. All readers of the node share it."""

    lock: Any = field(default_factory=Lock)
    census: Census = field(default_factory=Census)
    last: Figures | None = None
    last_at: float = 0.0
    highest: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    """The highest sums so far of each behaviour: handled, sent, busy."""
    warned: set[str] = field(default_factory=set)
    """The kinds of labels of which the log has said that there are too many."""

    def read(self, node: Node, max_age: float) -> Figures:
        with self.lock:
            now = perf_counter()
            if self.last is None or now - self.last_at > max_age:
                self.last = self._read(node, kernel_of(node))
                self.last_at = now
            return self.last

    def _read(self, node: Node, kernel: Kernel) -> Figures:
        router, past = kernel.router, kernel.lifetimes.past
        tables, ledger = past.read(lambda: copy_tables(kernel))
        sums = _Sums(ledger)
        living = self.census.begin(kernel, tables)
        for part in self.census.slices(living, everything=True):
            sums.add(part)
        behaviours: dict[str, BehaviourFigures] = {}
        for name, found in sums.rows.items():
            _merge(behaviours.setdefault(past.label(name), BehaviourFigures()), found)
        traffic, connections = _label_servers(kernel, ledger, sums)
        for name, each in behaviours.items():
            self._keep_highest(name, each)
        self._warn(kernel, behaviours=behaviours, children=ledger.restarts, servers=traffic)
        watchdog, requests = watchdog_of(node), find_request_figures(kernel)
        info = figures_of(node, len(living.metas), sums.calls_waiting)
        return Figures(
            node=info.name,
            at=time.time(),
            uptime=info.uptime,
            behaviours=behaviours,
            spawned=info.spawned,
            restarts=ledger.restarts,
            dead_letters={why.name.lower(): info.dead_letters.get(why, 0) for why in Why},
            late_replies=info.late_replies,
            loop=LoopFigures(
                delay=None if watchdog is None else LoopDelay(BOUNDS, *watchdog.delays.read()),
                times_blocked=info.times_blocked,
                calls_waiting=info.calls_in_flight,
                timers=info.timers,
            ),
            threads={
                "reader": info.reader_threads,
                "dispatcher": info.dispatcher_threads,
                "worker": kernel.workers.borrowed_tokens,
                "task": kernel.task_threads.borrowed_tokens,
                "abandoned": info.threads_abandoned,
            },
            traffic=traffic,
            connections=connections,
            active_requests=None if requests is None else requests.active,
            requests={} if requests is None else requests.read(),
            entities=entity_figures(node),
            pipelines={
                process.name: process.behaviour_itself.figures()
                for process in living.processes
                if process.name is not None and isinstance(process.behaviour_itself, Pipeline)
            },
            network_joined=None if router.remote is None else not router.remote.why_left,
            log_lines_lost=info.log_lines_lost,
            program=ProgramFigures(
                cpu=process_time(),
                memory=resident_memory(),
                collections=tuple(each["collections"] for each in gc.get_stats()),
            ),
        )

    def _warn(self, kernel: Kernel, **labels: Mapping[str, object]) -> None:
        """Log once for each kind of labels that there are too many of them."""
        for kind, found in labels.items():
            if OTHER in found and kind not in self.warned:
                self.warned.add(kind)
                kernel.logger.warning(
                    f"metrics have more than {MOST_LABELS} {kind}; the rest is counted together",
                    label=OTHER,
                    advice="give those that are made at run time the same name",
                )

    def _keep_highest(self, name: str, found: BehaviourFigures) -> None:
        """Let no sum fall: a process takes a message that it postpones out of its sum again, and
        the loop may be between two steps of ending a turn.
        """
        handled, sent, busy = self.highest.get(name, (0, 0, 0.0))
        found.handled = max(found.handled, handled)
        found.sent = max(found.sent, sent)
        found.busy = max(found.busy, busy)
        self.highest[name] = found.handled, found.sent, found.busy


_by_kernel: Final[WeakKeyDictionary[Kernel, _Readings]] = WeakKeyDictionary()
_making: Final = Lock()


def _readings(kernel: Kernel) -> _Readings:
    with _making:
        return _by_kernel.setdefault(kernel, _Readings())


class _Sums:
    """The sums of a reading, by behaviour as the processes name it."""

    def __init__(self, ledger: Ledger) -> None:
        self.rows: dict[str, BehaviourFigures] = {
            name: BehaviourFigures(
                handled=past.handled,
                sent=past.sent,
                busy=past.busy,
                crashed=past.crashed,
                is_meta=past.is_meta,
            )
            for name, past in ledger.behaviours.items()
        }
        self.traffic: dict[str, tuple[int, int, int]] = {}
        """Connections, bytes received and bytes sent, by server."""
        self.calls_waiting = 0

    def add(self, part: Slice) -> None:
        """Add processes, or meta-processes."""
        groups: dict[Callbacks, list[Row]] = {
            callbacks: [] for callbacks in set(map(_CALLBACKS, part.living))
        }
        for process, row in zip(part.living, part.rows, strict=True):
            groups[process.callbacks].append(row)
        is_meta = isinstance(part.living[0], Meta)
        for callbacks, rows in groups.items():
            sums = self.rows.setdefault(callbacks.behaviour, BehaviourFigures())
            sums.handled += sum([row.messages for row in rows])
            sums.sent += sum([row.sent for row in rows])
            sums.busy += sum([row.time for row in rows])
            active = [row for row in rows if row.idle_at < 0]
            sums.mailbox += sum([row.mailbox for row in active])
            sums.longest = max([sums.longest, *(row.mailbox for row in active)])
            self.calls_waiting += sum([row.is_calling for row in active])
            if is_meta:
                sums.metas += len(rows)
                sums.is_meta = True
            else:
                sums.processes += len(rows)
        for meta in part.living if is_meta else ():
            self._add_traffic(meta)

    def _add_traffic(self, meta: Process | Meta) -> None:
        traffic = meta.traffic() if isinstance(meta, Meta) else None
        if traffic is not None:
            server, received, sent = traffic
            before = self.traffic.get(server, (0, 0, 0))
            self.traffic[server] = before[0] + 1, before[1] + received, before[2] + sent


def _merge(into: BehaviourFigures, found: BehaviourFigures) -> None:
    into.processes += found.processes
    into.metas += found.metas
    into.handled += found.handled
    into.sent += found.sent
    into.busy += found.busy
    into.crashed += found.crashed
    into.mailbox += found.mailbox
    into.longest = max(into.longest, found.longest)
    into.is_meta = into.is_meta or found.is_meta


def _label_servers(
    kernel: Kernel, ledger: Ledger, sums: _Sums
) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """The traffic and the open connections of each server, with the ended connections."""
    traffic = dict(ledger.traffic)
    connections = dict.fromkeys(traffic, 0)
    for server, (count, received, sent) in sums.traffic.items():
        label = kernel.lifetimes.past.server_label(server)
        before = traffic.get(label, (0, 0))
        traffic[label] = before[0] + received, before[1] + sent
        connections[label] = connections.get(label, 0) + count
    return traffic, connections


show_public_names(__name__)
