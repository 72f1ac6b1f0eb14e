"""`register`, `instrument`: the metrics of a node for programs that have a registry of
prometheus_client, or a meter provider of OpenTelemetry.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from .._core.verbs.node_access import check_node
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import show_public_names
from .families import Family, Histogram, cumulative, families_of
from .figures import read_figures

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client.registry import CollectorRegistry

__all__ = ["instrument", "register"]

_MAX_AGE: Final = 1.0
_NAMES: Final = {
    "ergo_processes": "ergo.process.count",
    "ergo_metas": "ergo.meta.count",
    "ergo_messages_handled": "ergo.messages.handled",
    "ergo_messages_sent": "ergo.messages.sent",
    "ergo_mailbox_messages": "ergo.mailbox.messages",
    "ergo_mailbox_longest": "ergo.mailbox.longest",
    "ergo_busy_seconds": "ergo.process.busy",
    "ergo_crashed": "ergo.process.crashed",
    "ergo_spawned": "ergo.process.spawned",
    "ergo_restarts": "ergo.process.restarts",
    "ergo_dead_letters": "ergo.dead_letters",
    "ergo_late_replies": "ergo.late_replies",
    "ergo_calls_waiting": "ergo.calls.waiting",
    "ergo_timers": "ergo.timers",
    "ergo_loop_blocked": "ergo.loop.blocked",
    "ergo_threads": "ergo.thread.count",
    "ergo_io_bytes": "ergo.io",
    "ergo_connections": "ergo.connections",
    "ergo_network_joined": "ergo.network.joined",
    "ergo_log_lines_lost": "ergo.log.lines_lost",
    "ergo_uptime_seconds": "ergo.uptime",
    "http_server_active_requests": "http.server.active_requests",
    "process_cpu_seconds": "process.cpu.time",
    "process_resident_memory_bytes": "process.memory.usage",
    "ergo_gc_collections": "cpython.gc.collections",
}
"""The names of OpenTelemetry. Histograms are missing: it has none that can be observed."""
_GAUGES: Final = frozenset(
    {
        "ergo_processes",
        "ergo_metas",
        "ergo_mailbox_messages",
        "ergo_mailbox_longest",
        "ergo_calls_waiting",
        "ergo_timers",
        "ergo_threads",
        "ergo_connections",
        "ergo_network_joined",
        "ergo_uptime_seconds",
        "http_server_active_requests",
        "process_resident_memory_bytes",
    }
)
_WITH_UNIT: Final = {
    "ergo_busy_seconds": "s",
    "ergo_io_bytes": "By",
    "ergo_uptime_seconds": "s",
    "process_cpu_seconds": "s",
    "process_resident_memory_bytes": "By",
}


def register(node: Any, registry: "CollectorRegistry | None" = None) -> Any:
    """Add the metrics of a node to a registry of prometheus_client, beside those of the program.

    For example::

        collector = register(node)
        print(prometheus_client.generate_latest().decode())
        prometheus_client.REGISTRY.unregister(collector)

    Processor time and memory of the program are not among them: prometheus_client has its own.

    Args:
        node: a node of this program.
        registry: the registry; None for the default one.

    Returns:
        The collector, for ``registry.unregister``.

    Raises:
        BadInputError: the value is no open node, or the package ``prometheus_client`` is missing.
    """
    found = check_node("register(node)", node)
    try:
        from prometheus_client import REGISTRY  # noqa: PLC0415 - the program may not have it
        from prometheus_client.core import Metric  # noqa: PLC0415
    except ImportError as error:
        raise BadInputError(
            "register(node)", node, "the package prometheus_client: pip install prometheus-client"
        ) from error
    collector = _Collector(found, Metric)
    (REGISTRY if registry is None else registry).register(collector)
    return collector


class _Collector:
    """Reads the figures at each scrape. It has the interface of a collector of
    prometheus_client.
    """

    def __init__(self, node: Any, metric: Callable[[str, str, str, str], Any]) -> None:
        self._node = node
        self._metric = metric

    def describe(self) -> list[Any]:
        """Nothing: so the names are not read before the first scrape."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics of the node."""
        for family in families_of(read_figures(self._node, _MAX_AGE)):
            if not family.of_program:
                yield self._metric_of(family)

    def _metric_of(self, family: Family) -> Any:
        metric = self._metric(family.name, family.help, family.kind, family.unit)
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        for labels, value in family.samples:
            named = dict(labels)
            if isinstance(value, Histogram):
                for bound, count in cumulative(value):
                    metric.add_sample(f"{name}_bucket", {**named, "le": bound}, count)
                metric.add_sample(f"{name}_sum", named, value.total)
                metric.add_sample(f"{name}_count", named, sum(value.counts))
            else:
                metric.add_sample(name, named, value)
        return metric


def instrument(node: Any, provider: "MeterProvider | None" = None) -> None:
    """Let a meter of OpenTelemetry observe the metrics of a node, under the names of OpenTelemetry,
    such as ``ergo.messages.handled``. Histograms are not among them.

    For example::

        instrument(node, MeterProvider([PeriodicExportingMetricReader(exporter)]))

    Args:
        node: a node of this program.
        provider: the ``MeterProvider``; None for the global one.

    Raises:
        BadInputError: the value is no open node, or the package ``opentelemetry-api`` is missing:
            ``pip install 'ergo_py[otel]'``.
    """
    found = check_node("instrument(node)", node)
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise BadInputError(
            "instrument(node)",
            node,
            "the package opentelemetry-api: pip install 'ergo_py[otel]'",
        ) from error
    meter = metrics.get_meter("ergo_py", meter_provider=provider)
    for family, name in _NAMES.items():
        make = (
            meter.create_observable_gauge if family in _GAUGES else meter.create_observable_counter
        )
        make(
            name,
            callbacks=[_observer(found, family, metrics.Observation)],
            unit=_WITH_UNIT.get(family, "1"),
        )


def _observer(
    node: Any, name: str, observation: Callable[[float, dict[str, str]], Any]
) -> Callable[[Any], Iterable[Any]]:
    def observe(_options: Any) -> Iterable[Any]:
        return [
            observation(sample.value, dict(sample.labels))
            for family in families_of(read_figures(node, _MAX_AGE))
            if family.name == name
            for sample in family.samples
            if not isinstance(sample.value, Histogram)
        ]

    return observe


show_public_names(__name__)
