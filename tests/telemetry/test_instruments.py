"""The metrics of a node in a registry of prometheus_client, and in a meter of OpenTelemetry."""

import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from trio.testing import wait_all_tasks_blocked

from ergo_py import BadInputError
from ergo_py.telemetry import instrument, register
from ergo_py.telemetry.metrics import METRICS
from tests.actors import Recorder
from tests.support import running_node


async def test_a_registry_of_prometheus_client_has_the_metrics_of_the_node() -> None:
    registry = CollectorRegistry()
    async with running_node("shop@localhost", watchdog=0.5) as node:
        pid = await node.spawn(Recorder)
        node.send(pid, 1)
        await wait_all_tasks_blocked()
        collector = register(node, registry)
        labels = {"node": "shop@localhost", "behaviour": "Recorder"}

        assert registry.get_sample_value("ergo_messages_handled_total", labels) == 1
        text = generate_latest(registry).decode()
        assert 'ergo_processes{behaviour="Recorder",node="shop@localhost"} 1.0' in text
        assert "ergo_loop_delay_seconds_bucket" in text
        assert "process_cpu_seconds" not in text
        registry.unregister(collector)
        assert registry.get_sample_value("ergo_messages_handled_total", labels) is None


async def test_a_meter_of_opentelemetry_observes_the_metrics_of_the_node() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with running_node("shop@localhost") as node:
        pid = await node.spawn(Recorder)
        for number in range(3):
            node.send(pid, number)
        await wait_all_tasks_blocked()
        instrument(node, provider)
        data = reader.get_metrics_data()
    provider.shutdown()

    assert data is not None
    found: dict[str, tuple[str | None, list[Any]]] = {
        metric.name: (metric.unit, list(metric.data.data_points))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (handled,) = found["ergo.messages.handled"][1]
    assert handled.value == 3
    assert dict(handled.attributes or {}) == {"node": "shop@localhost", "behaviour": "Recorder"}
    assert found["ergo.process.busy"][0] == "s"
    missing = {"ergo.network.joined"}  # the node has no network
    assert {metric.otel for metric in METRICS} - {*found, None} == missing


@pytest.mark.parametrize(
    "function, module, extra",
    [(register, "prometheus_client", "prometheus-client"), (instrument, "opentelemetry", "otel")],
)
async def test_a_missing_package_or_node_is_named(
    function: Any, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInputError, match="an open node"):
        function("shop@localhost")
    async with running_node() as node:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(BadInputError, match=extra):
            function(node)
