"""`Family`: a metric with its samples. `families_of` makes the metrics of a node out of its
figures; every output (text, OpenTelemetry, prometheus_client) writes these.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ..web.request_figures import BOUNDS
from .figures import BehaviourFigures, Figures

__all__ = ["Family", "Histogram", "Sample", "families_of"]


class Histogram(NamedTuple):
    """Measurements by class."""

    bounds: tuple[float, ...]
    """The upper bounds of the classes but the last."""
    counts: tuple[int, ...]
    """The measurements in each class, one more than bounds."""
    total: float
    """The sum of all measurements."""


class Sample(NamedTuple):
    """A value of a metric."""

    labels: tuple[tuple[str, str], ...]
    value: float | Histogram


class Family(NamedTuple):
    """A metric: its samples differ in their labels."""

    name: str
    """Without the suffix ``_total`` of a counter."""
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    help: str
    unit: str
    """``seconds``, ``bytes`` or nothing; the name ends with it."""
    samples: list[Sample]
    of_program: bool = False
    """Whether it describes the whole program and not the node."""


_BY_BEHAVIOUR: Final[tuple[tuple[str, str, str, str, Callable[[BehaviourFigures], float]], ...]] = (
    ("ergo_processes", "gauge", "Living processes.", "", lambda each: each.processes),
    ("ergo_metas", "gauge", "Living meta-processes.", "", lambda each: each.metas),
    (
        "ergo_messages_handled",
        "counter",
        "Messages, calls and signals handled.",
        "",
        lambda each: each.handled,
    ),
    ("ergo_messages_sent", "counter", "Messages and calls sent.", "", lambda each: each.sent),
    ("ergo_mailbox_messages", "gauge", "Messages that wait.", "", lambda each: each.mailbox),
    (
        "ergo_mailbox_longest",
        "gauge",
        "Messages in the longest mailbox.",
        "",
        lambda each: each.longest,
    ),
    (
        "ergo_busy_seconds",
        "counter",
        "Seconds in callbacks, waits inside them included.",
        "seconds",
        lambda each: each.busy,
    ),
    (
        "ergo_crashed",
        "counter",
        "Crashes of processes and meta-processes.",
        "",
        lambda each: each.crashed,
    ),
)
_OF_PROCESSES: Final = frozenset({"ergo_processes", "ergo_busy_seconds"})
_OF_METAS: Final = frozenset({"ergo_metas"})


def families_of(figures: Figures) -> list[Family]:
    """The metrics of a node."""
    node = ("node", figures.node)

    def by(label: str, values: Mapping[str, float]) -> list[Sample]:
        return [Sample((node, (label, name)), value) for name, value in values.items()]

    def single(value: float) -> list[Sample]:
        return [Sample((node,), value)]

    families = [
        Family(
            name,
            kind,
            text,
            unit,
            [
                Sample((node, ("behaviour", behaviour)), read(each))
                for behaviour, each in figures.behaviours.items()
                if name not in (_OF_PROCESSES if each.is_meta else _OF_METAS)
                or read(each)  # ``other`` may have both
            ],
        )
        for name, kind, text, unit, read in _BY_BEHAVIOUR
    ]
    families += [
        Family("ergo_spawned", "counter", "Processes started.", "", single(figures.spawned)),
        Family(
            "ergo_restarts",
            "counter",
            "Restarts of children, by the name in the specification.",
            "",
            by("child", figures.restarts),
        ),
        Family(
            "ergo_dead_letters",
            "counter",
            "Messages that were not delivered, by cause.",
            "",
            by("why", figures.dead_letters),
        ),
        Family(
            "ergo_late_replies",
            "counter",
            "Answers to calls that had timed out or were cancelled.",
            "",
            single(figures.late_replies),
        ),
        Family(
            "ergo_calls_waiting",
            "gauge",
            "Processes that wait in a call.",
            "",
            single(figures.calls_waiting),
        ),
        Family("ergo_timers", "gauge", "Armed timers.", "", single(figures.timers)),
        Family(
            "ergo_loop_delay_seconds",
            "histogram",
            "Seconds that the event loop took to answer, measured by the watchdog.",
            "seconds",
            []
            if figures.loop_delay is None
            else [
                Sample(
                    (node,),
                    Histogram(
                        figures.loop_delay.bounds,
                        figures.loop_delay.counts,
                        figures.loop_delay.total,
                    ),
                )
            ],
        ),
        Family(
            "ergo_loop_blocked",
            "counter",
            "How often the event loop was blocked.",
            "",
            single(figures.times_blocked),
        ),
        Family(
            "ergo_threads",
            "gauge",
            "Threads of the node by kind; abandoned ones do not end.",
            "",
            by("kind", figures.threads),
        ),
        Family(
            "ergo_io_bytes",
            "counter",
            "Bytes moved, by the class of the server, connection or socket.",
            "bytes",
            [
                Sample((node, ("server", server), ("direction", direction)), count)
                for server, both in figures.traffic.items()
                for direction, count in zip(("in", "out"), both, strict=True)
            ],
        ),
        Family(
            "ergo_connections",
            "gauge",
            "Open connections and sockets, by the class of the server.",
            "",
            by("server", figures.connections),
        ),
        Family(
            "http_server_request_duration_seconds",
            "histogram",
            "Seconds from the head of a request to the end of its response.",
            "seconds",
            [
                Sample(
                    (node, ("method", method), ("route", route), ("status", status)),
                    Histogram(BOUNDS, counts, total),
                )
                for (method, route, status), (counts, total) in figures.requests.items()
            ],
        ),
        Family(
            "http_server_active_requests",
            "gauge",
            "HTTP requests under way.",
            "",
            [] if figures.active_requests is None else single(figures.active_requests),
        ),
        Family(
            "ergo_network_joined",
            "gauge",
            "1 while the node is a member of its network, 0 after it has left it.",
            "",
            [] if figures.network_joined is None else single(int(figures.network_joined)),
        ),
        Family(
            "ergo_log_lines_lost",
            "counter",
            "Lines of the log that no output accepted.",
            "",
            single(figures.log_lines_lost),
        ),
        Family(
            "ergo_uptime_seconds",
            "gauge",
            "Seconds since the node was opened.",
            "seconds",
            single(figures.uptime),
        ),
        Family(
            "process_cpu_seconds",
            "counter",
            "Processor time of the program.",
            "seconds",
            single(figures.cpu),
            of_program=True,
        ),
        Family(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory of the program.",
            "bytes",
            [] if figures.memory is None else single(figures.memory),
            of_program=True,
        ),
        Family(
            "ergo_gc_collections",
            "counter",
            "Runs of the garbage collector, by generation.",
            "",
            [
                Sample((node, ("generation", str(number))), count)
                for number, count in enumerate(figures.collections)
            ],
            of_program=True,
        ),
    ]
    return [
        each if each.samples else _bare(each, node) for each in families if _is_known(each, figures)
    ]


def _is_known(family: Family, figures: Figures) -> bool:
    """Whether the node can tell a metric at all."""
    if family.name == "ergo_loop_delay_seconds":
        return figures.loop_delay is not None
    if family.name == "ergo_network_joined":
        return figures.network_joined is not None
    return family.name != "process_resident_memory_bytes" or figures.memory is not None


def _bare(family: Family, node: tuple[str, str]) -> Family:
    """A metric without an event so far: a zero without further labels, since a rate or an alert
    misses the first event of a metric that does not exist before.
    """
    nothing = Histogram(BOUNDS, (0,) * (len(BOUNDS) + 1), 0.0) if family.kind == "histogram" else 0
    return family._replace(samples=[Sample((node,), nothing)])


def cumulative(histogram: Histogram) -> Iterable[tuple[str, int]]:
    """The measurements up to each bound, as Prometheus counts them; the bounds as text."""
    so_far = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        so_far += count
        yield repr(float(bound)), so_far
    yield "+Inf", so_far + histogram.counts[-1]
