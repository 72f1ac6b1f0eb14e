"""The table of metrics: each row is complete, and the documentation shows all of them."""

from ergo_py.telemetry import read_figures
from ergo_py.telemetry.metrics import METRICS, Histogram, families_of
from tests.actors import Recorder
from tests.pages import ROOT
from tests.support import running_node


def test_names_units_and_kinds_of_metrics_fit_together() -> None:
    for metric in METRICS:
        assert metric.kind in ("counter", "gauge", "histogram")
        assert metric.name.endswith(metric.unit)
        assert (metric.kind == "histogram") is (metric.otel is None)
    names = [metric.name for metric in METRICS]
    others = [metric.otel for metric in METRICS if metric.otel is not None]
    assert (len(set(names)), len(set(others))) == (len(names), len(others))


async def test_a_metric_that_the_node_cannot_tell_is_missing() -> None:
    async with running_node(watchdog=0.5) as node:
        await node.spawn(Recorder)
        figures = read_figures(node)
        present = {family.metric.name for family in families_of(figures)}
    async with running_node() as unwatched:
        without = {family.metric.name for family in families_of(read_figures(unwatched))}

    assert {metric.name for metric in METRICS} - present == {"ergo_network_joined"}
    assert present - without == {"ergo_loop_delay_seconds"}


async def test_a_metric_without_an_event_is_a_zero_without_further_labels() -> None:
    async with running_node() as node:
        families = {family.metric.name: family for family in families_of(read_figures(node))}

    (restarts,) = families["ergo_restarts"].samples
    assert restarts == ((("node", "test@localhost"),), 0)
    (requests,) = families["http_server_request_duration_seconds"].samples
    assert isinstance(requests.value, Histogram)
    assert (sum(requests.value.counts), requests.value.total) == (0, 0.0)


def test_the_documentation_has_the_table_of_metrics() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    rows = [
        f"| `{metric.sample_name}` | {metric.kind} | {', '.join(f'`{x}`' for x in metric.labels)} |"
        f" {metric.help} |".replace("|  |", "| |")
        for metric in METRICS
    ]

    table = "\n".join(
        ["| metric | kind | labels besides `node` | meaning |", "|---|---|---|---|", *rows]
    )
    assert table in page, f"docs/telemetry.md needs this table:\n\n{table}"
