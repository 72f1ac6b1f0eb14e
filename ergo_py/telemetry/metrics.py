"""`METRICS`: the table of all metrics. The pages of Prometheus and OpenMetrics, the collector of
prometheus_client, the instruments of OpenTelemetry and the documentation are made of its rows.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ..pipelines.pipeline import PipelineFigures
from ..web.request_figures import BOUNDS
from .figures import BehaviourFigures, Figures

__all__ = [
    "METRICS",
    "Family",
    "Histogram",
    "Metric",
    "Sample",
    "cumulative",
    "families_of",
    "read_family",
]


class Histogram(NamedTuple):
    """Measurements by class."""

    bounds: tuple[float, ...]
    """The upper bounds of the classes but the last."""
    counts: tuple[int, ...]
    """The measurements in each class, one more than bounds."""
    total: float
    """The sum of all measurements."""


Value = float | Histogram
Values = Iterable[tuple[tuple[str, ...], Value]]
"""Values, each with the values of its labels."""


class Metric(NamedTuple):
    """A metric of a node."""

    name: str
    """Without the suffix ``_total`` of a counter."""
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    help: str
    unit: str
    """``seconds``, ``bytes`` or nothing; the name ends with it."""
    read: Callable[[Figures], Values | None]
    """Its values; None if the node cannot tell them at all."""
    labels: tuple[str, ...] = ()
    """Its labels besides ``node``."""
    otel: str | None = None
    """The name of OpenTelemetry; None for histograms, of which it has none that can be observed."""
    of_program: bool = False
    """Whether it describes the whole program and not the node."""

    @property
    def sample_name(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _single(read: Callable[[Figures], float | None]) -> Callable[[Figures], Values | None]:
    """A value without further labels; None if the node cannot tell it."""

    def values(figures: Figures) -> Values | None:
        value = read(figures)
        return None if value is None else [((), value)]

    return values


def _by_label(read: Callable[[Figures], Mapping[str, float]]) -> Callable[[Figures], Values]:
    return lambda figures: [((label,), value) for label, value in read(figures).items()]


def _by_behaviour(
    read: Callable[[BehaviourFigures], float], *, of_processes: bool = True, of_metas: bool = True
) -> Callable[[Figures], Values]:
    """A value of each behaviour that has it; the behaviour ``other`` may stand for both kinds."""

    def values(figures: Figures) -> Values:
        for name, each in figures.behaviours.items():
            if (of_metas if each.is_meta else of_processes) or read(each):
                yield (name,), read(each)

    return values


def _by_pipeline(read: Callable[[PipelineFigures], float]) -> Callable[[Figures], Values]:
    return lambda figures: [((name,), read(each)) for name, each in figures.pipelines.items()]


def _pipeline_items(figures: Figures) -> Values:
    for name, each in figures.pipelines.items():
        yield (name, "taken"), each.taken
        yield (name, "acknowledged"), each.acknowledged
        yield (name, "failed"), each.failed
        yield (name, "redelivered"), each.redelivered
        yield (name, "retried"), each.retried


def _loop_delay(figures: Figures) -> Values | None:
    delay = figures.loop.delay
    return None if delay is None else [((), Histogram(delay.bounds, delay.counts, delay.total))]


def _io_bytes(figures: Figures) -> Values:
    for server, (received, sent) in figures.traffic.items():
        yield (server, "in"), received
        yield (server, "out"), sent


def _requests(figures: Figures) -> Values:
    for labels, (counts, total) in figures.requests.items():
        yield labels, Histogram(BOUNDS, counts, total)


METRICS: Final = (
    Metric(
        "ergo_processes",
        "gauge",
        "Living processes.",
        "",
        _by_behaviour(lambda each: each.processes, of_metas=False),
        ("behaviour",),
        "ergo.process.count",
    ),
    Metric(
        "ergo_metas",
        "gauge",
        "Living meta-processes.",
        "",
        _by_behaviour(lambda each: each.metas, of_processes=False),
        ("behaviour",),
        "ergo.meta.count",
    ),
    Metric(
        "ergo_messages_handled",
        "counter",
        "Messages, calls and signals handled.",
        "",
        _by_behaviour(lambda each: each.handled),
        ("behaviour",),
        "ergo.messages.handled",
    ),
    Metric(
        "ergo_messages_sent",
        "counter",
        "Messages and calls sent.",
        "",
        _by_behaviour(lambda each: each.sent),
        ("behaviour",),
        "ergo.messages.sent",
    ),
    Metric(
        "ergo_mailbox_messages",
        "gauge",
        "Messages that wait.",
        "",
        _by_behaviour(lambda each: each.mailbox),
        ("behaviour",),
        "ergo.mailbox.messages",
    ),
    Metric(
        "ergo_mailbox_longest",
        "gauge",
        "Messages in the longest mailbox.",
        "",
        _by_behaviour(lambda each: each.longest),
        ("behaviour",),
        "ergo.mailbox.longest",
    ),
    Metric(
        "ergo_busy_seconds",
        "counter",
        "Seconds in callbacks, waits inside them included.",
        "seconds",
        _by_behaviour(lambda each: each.busy, of_metas=False),
        ("behaviour",),
        "ergo.process.busy",
    ),
    Metric(
        "ergo_crashed",
        "counter",
        "Crashes of processes and meta-processes.",
        "",
        _by_behaviour(lambda each: each.crashed),
        ("behaviour",),
        "ergo.process.crashed",
    ),
    Metric(
        "ergo_spawned",
        "counter",
        "Processes started.",
        "",
        _single(lambda figures: figures.spawned),
        otel="ergo.process.spawned",
    ),
    Metric(
        "ergo_restarts",
        "counter",
        "Restarts of children, by the name in the specification.",
        "",
        _by_label(lambda figures: figures.restarts),
        ("child",),
        "ergo.process.restarts",
    ),
    Metric(
        "ergo_dead_letters",
        "counter",
        "Messages that were not delivered, by cause.",
        "",
        _by_label(lambda figures: figures.dead_letters),
        ("why",),
        "ergo.dead_letters",
    ),
    Metric(
        "ergo_late_replies",
        "counter",
        "Answers to calls that had timed out or were cancelled.",
        "",
        _single(lambda figures: figures.late_replies),
        otel="ergo.late_replies",
    ),
    Metric(
        "ergo_calls_waiting",
        "gauge",
        "Processes that wait in a call.",
        "",
        _single(lambda figures: figures.loop.calls_waiting),
        otel="ergo.calls.waiting",
    ),
    Metric(
        "ergo_timers",
        "gauge",
        "Armed timers.",
        "",
        _single(lambda figures: figures.loop.timers),
        otel="ergo.timers",
    ),
    Metric(
        "ergo_loop_delay_seconds",
        "histogram",
        "Seconds that the event loop took to answer, measured by the watchdog.",
        "seconds",
        _loop_delay,
    ),
    Metric(
        "ergo_loop_blocked",
        "counter",
        "How often the event loop was blocked.",
        "",
        _single(lambda figures: figures.loop.times_blocked),
        otel="ergo.loop.blocked",
    ),
    Metric(
        "ergo_threads",
        "gauge",
        "Threads of the node by kind; abandoned ones do not end.",
        "",
        _by_label(lambda figures: figures.threads),
        ("kind",),
        "ergo.thread.count",
    ),
    Metric(
        "ergo_io_bytes",
        "counter",
        "Bytes moved, by the class of the server, connection or socket.",
        "bytes",
        _io_bytes,
        ("server", "direction"),
        "ergo.io",
    ),
    Metric(
        "ergo_connections",
        "gauge",
        "Open connections and sockets, by the class of the server.",
        "",
        _by_label(lambda figures: figures.connections),
        ("server",),
        "ergo.connections",
    ),
    Metric(
        "http_server_request_duration_seconds",
        "histogram",
        "Seconds from the head of a request to the end of its response.",
        "seconds",
        _requests,
        ("method", "route", "status"),
    ),
    Metric(
        "http_server_active_requests",
        "gauge",
        "HTTP requests under way.",
        "",
        _single(lambda figures: figures.active_requests or 0),
        otel="http.server.active_requests",
    ),
    Metric(
        "ergo_entities_awake",
        "gauge",
        "Entities that are awake.",
        "",
        _single(lambda figures: figures.entities.awake),
        otel="ergo.entities.awake",
    ),
    Metric(
        "ergo_entities_held",
        "gauge",
        "Replies and messages of entities that wait for commits.",
        "",
        _single(lambda figures: figures.entities.held),
        otel="ergo.entities.held",
    ),
    Metric(
        "ergo_entities_owed",
        "gauge",
        "Messages that entities owe to each other and to themselves now.",
        "",
        _single(lambda figures: figures.entities.owed),
        otel="ergo.entities.owed",
    ),
    Metric(
        "ergo_entities_commits",
        "counter",
        "Commits of the stores of entities.",
        "",
        _single(lambda figures: figures.entities.commits),
        otel="ergo.entities.commits",
    ),
    Metric(
        "ergo_entities_written",
        "counter",
        "Rows of entities that these commits have written.",
        "",
        _single(lambda figures: figures.entities.versions),
        otel="ergo.entities.written",
    ),
    Metric(
        "ergo_entities_commit_seconds",
        "counter",
        "Time that these commits have taken.",
        "seconds",
        _single(lambda figures: figures.entities.seconds),
        otel="ergo.entities.commit.time",
    ),
    Metric(
        "ergo_entities_wakings",
        "counter",
        "Entities that have woken up, each time.",
        "",
        _single(lambda figures: figures.entities.wakings),
        otel="ergo.entities.wakings",
    ),
    Metric(
        "ergo_entities_sleeps",
        "counter",
        "Entities that were put to sleep, each time.",
        "",
        _single(lambda figures: figures.entities.sleeps),
        otel="ergo.entities.sleeps",
    ),
    Metric(
        "ergo_entities_store_failures",
        "counter",
        "Reads and commits of entities that failed.",
        "",
        _single(lambda figures: figures.entities.failures),
        otel="ergo.entities.store_failures",
    ),
    Metric(
        "ergo_entities_parked",
        "counter",
        "Messages of entities that were parked after too many attempts.",
        "",
        _single(lambda figures: figures.entities.parked),
        otel="ergo.entities.parked",
    ),
    Metric(
        "ergo_pipeline_open",
        "gauge",
        "Items of a pipeline that are taken and not acknowledged.",
        "",
        _by_pipeline(lambda figures: figures.open),
        ("pipeline",),
        "ergo.pipeline.open",
    ),
    Metric(
        "ergo_pipeline_waiting",
        "gauge",
        "Calls to a pipeline that wait beyond its bound.",
        "",
        _by_pipeline(lambda figures: figures.waiting),
        ("pipeline",),
        "ergo.pipeline.waiting",
    ),
    Metric(
        "ergo_pipeline_items",
        "counter",
        "Items of a pipeline since its start: taken, acknowledged, failed, redelivered, retried.",
        "",
        _pipeline_items,
        ("pipeline", "what"),
        "ergo.pipeline.items",
    ),
    Metric(
        "ergo_pipeline_delay_seconds",
        "gauge",
        "Seconds from the take of the last item of a pipeline to its end.",
        "seconds",
        _by_pipeline(lambda figures: figures.delay),
        ("pipeline",),
        "ergo.pipeline.delay",
    ),
    Metric(
        "ergo_network_joined",
        "gauge",
        "1 while the node is a member of its network, 0 after it has left it.",
        "",
        _single(
            lambda figures: None if figures.network_joined is None else int(figures.network_joined)
        ),
        otel="ergo.network.joined",
    ),
    Metric(
        "ergo_log_lines_lost",
        "counter",
        "Lines of the log that no output accepted.",
        "",
        _single(lambda figures: figures.log_lines_lost),
        otel="ergo.log.lines_lost",
    ),
    Metric(
        "ergo_uptime_seconds",
        "gauge",
        "Seconds since the node was opened.",
        "seconds",
        _single(lambda figures: figures.uptime),
        otel="ergo.uptime",
    ),
    Metric(
        "process_cpu_seconds",
        "counter",
        "Processor time of the program.",
        "seconds",
        _single(lambda figures: figures.program.cpu),
        otel="process.cpu.time",
        of_program=True,
    ),
    Metric(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory of the program.",
        "bytes",
        _single(lambda figures: figures.program.memory),
        otel="process.memory.usage",
        of_program=True,
    ),
    Metric(
        "ergo_gc_collections",
        "counter",
        "Runs of the garbage collector, by generation.",
        "",
        lambda figures: [((str(n),), count) for n, count in enumerate(figures.program.collections)],
        ("generation",),
        "cpython.gc.collections",
        of_program=True,
    ),
)
"""All metrics, in the order of the page."""


class Sample(NamedTuple):
    """A value of a metric."""

    labels: tuple[tuple[str, str], ...]
    value: Value


class Family(NamedTuple):
    """A metric with its samples, which differ in their labels."""

    metric: Metric
    samples: list[Sample]


def read_family(metric: Metric, figures: Figures) -> Family | None:
    """A metric with its samples; None if the node cannot tell it."""
    values = metric.read(figures)
    if values is None:
        return None
    node = ("node", figures.node)
    samples = [
        Sample((node, *zip(metric.labels, labels, strict=True)), value) for labels, value in values
    ]
    if not samples:
        # Without an event so far: a zero without further labels, since a rate or an alert misses
        # the first event of a metric that does not exist before.
        empty = Histogram(BOUNDS, (0,) * (len(BOUNDS) + 1), 0.0)
        samples = [Sample((node,), empty if metric.kind == "histogram" else 0)]
    return Family(metric, samples)


def families_of(figures: Figures) -> list[Family]:
    """All metrics that the node can tell."""
    found = (read_family(metric, figures) for metric in METRICS)
    return [family for family in found if family is not None]


def cumulative(histogram: Histogram) -> Iterable[tuple[str, int]]:
    """The measurements up to each bound, as Prometheus counts them; the bounds as text."""
    so_far = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        so_far += count
        yield repr(float(bound)), so_far
    yield "+Inf", so_far + histogram.counts[-1]
