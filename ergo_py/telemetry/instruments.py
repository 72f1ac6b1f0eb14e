"""`register`, `instrument`: the metrics of a node for programs that have a registry of
prometheus_client, or a meter provider of OpenTelemetry.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from .._core.verbs.node import Node
from .._core.verbs.node_access import check_node
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.public_names import name_for_annotations, show_public_names
from .figures import read_figures
from .metrics import (
    METRICS,
    Family,
    Histogram,
    Metric,
    cumulative,
    families_of,
    read_family,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client.registry import CollectorRegistry
else:
    name_for_annotations(
        __name__,
        {
            "opentelemetry.metrics": "MeterProvider",
            "prometheus_client.registry": "CollectorRegistry",
        },
    )

__all__ = ["instrument", "register"]

_MAX_AGE: Final = 1.0
_UNITS: Final = {"seconds": "s", "bytes": "By", "": "1"}
"""The units as OpenTelemetry writes them."""


def register(node: object, registry: "CollectorRegistry | None" = None) -> Any:
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

    def __init__(self, node: Node, metric: Callable[[str, str, str, str], Any]) -> None:
        self._node = node
        self._metric = metric

    def describe(self) -> list[Any]:
        """Nothing: so the names are not read before the first scrape."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics of the node."""
        for family in families_of(read_figures(self._node, _MAX_AGE)):
            if not family.metric.of_program:
                yield self._metric_of(family)

    def _metric_of(self, family: Family) -> object:
        found = family.metric
        metric = self._metric(found.name, found.help, found.kind, found.unit)
        name = found.sample_name
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


def instrument(node: object, provider: "MeterProvider | None" = None) -> None:
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
    for metric in METRICS:
        if metric.otel is not None:
            is_gauge = metric.kind == "gauge"
            make = meter.create_observable_gauge if is_gauge else meter.create_observable_counter
            make(
                metric.otel,
                callbacks=[_observer(found, metric, metrics.Observation)],
                unit=_UNITS[metric.unit],
                description=metric.help,
            )


def _observer(
    node: Node, metric: Metric, observation: Callable[[float, dict[str, str]], Any]
) -> Callable[[object], Iterable[Any]]:
    def observe(_options: object) -> Iterable[Any]:
        family = read_family(metric, read_figures(node, _MAX_AGE))
        return [
            observation(sample.value, dict(sample.labels))
            for sample in (() if family is None else family.samples)
            if not isinstance(sample.value, Histogram)
        ]

    return observe


show_public_names(__name__)
