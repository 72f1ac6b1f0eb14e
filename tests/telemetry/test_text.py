"""The text formats, read by the parsers of prometheus_client, and the page that serves them."""

import json
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric as ParsedMetric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from ergo_py import Actor, BadInputError, Why, open_node
from ergo_py.blocking import open_node as open_blocking_node
from ergo_py.meta import TCPServer
from ergo_py.telemetry import MetricsPage, read_figures, render_metrics
from ergo_py.telemetry.metrics import Family, Histogram, Metric, Sample
from ergo_py.telemetry.text import OPEN_METRICS, PROMETHEUS, write_open_metrics, write_prometheus
from ergo_py.web import Route
from tests.actors import Puppet, Recorder
from tests.support import kernel_of, running_node
from tests.web.rig import get, serving

# The parser of OpenMetrics comes without types.
read_open: Callable[[str], Iterable[ParsedMetric]] = parse_open
read_plain: Callable[[str], Iterable[ParsedMetric]] = parse_plain
WANTS_OPEN = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5"


class Owner(Actor):
    async def init(self) -> None:
        await self.spawn_meta(TCPServer())

    def handle_message(self, message: object, sender: object) -> None:
        raise ValueError("told to")


def values(metrics: Iterable[ParsedMetric]) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample, by its name and the values of its labels but the node."""
    return {
        (sample.name, tuple(text for label, text in sample.labels.items() if label != "node")): (
            sample.value
        )
        for metric in metrics
        for sample in metric.samples
    }


async def test_both_formats_are_read_by_the_parsers_of_prometheus_client() -> None:
    async with running_node("shop@localhost", watchdog=0.5) as node:
        recorder, owner = await node.spawn(Recorder), await node.spawn(Owner)
        node.send(recorder, 1)
        node.send(recorder, 2)
        node.send(owner, "crash")
        await node.wait_ended(owner)
        node.send(owner, "too late")

        plain_type, plain = await trio.to_thread.run_sync(render_metrics, node)
        open_type, opened = await trio.to_thread.run_sync(render_metrics, node, WANTS_OPEN)

        assert (plain_type, open_type) == (PROMETHEUS, OPEN_METRICS)
        for found in (values(read_plain(plain.decode())), values(read_open(opened.decode()))):
            assert found["ergo_messages_handled_total", ("Recorder",)] == 2
            assert found["ergo_processes", ("Recorder",)] == 1
            assert found["ergo_processes", ("Owner",)] == 0
            assert found["ergo_crashed_total", ("Owner",)] == 1
            assert found["ergo_dead_letters_total", ("no_process",)] == 1
            assert found["ergo_spawned_total", ()] == 2
            assert ("ergo_io_bytes_total", ("TCPServer", "in")) not in found
            assert found["ergo_threads", ("reader",)] >= 0
            assert ("ergo_loop_delay_seconds_bucket", ("+Inf",)) in found
            assert found["process_cpu_seconds_total", ()] > 0
        assert b'node="shop@localhost"' in plain


NASTY = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    labels=st.lists(NASTY, min_size=1, max_size=3),
    number=st.one_of(st.integers(0, 2**60), st.floats(0, 1e300)),
    counts=st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_any_label_and_any_number_is_read_back(
    labels: list[str], number: float, counts: list[int]
) -> None:
    named = tuple((f"label{at}", text) for at, text in enumerate(labels))

    def family(name: str, kind: str, text: str, unit: str, value: float | Histogram) -> Family:
        return Family(Metric(name, kind, text, unit, lambda _: None), [Sample(named, value)])

    families = [
        family("a", "counter", 'A "help"\nwith \\ lines.', "", number),
        family("b_seconds", "gauge", "", "seconds", number),
        family("c", "histogram", "c", "", Histogram((0.5, 1), tuple(counts), 4.5)),
    ]
    for metrics in (
        [*read_plain(write_prometheus(families))],
        [*read_open(write_open_metrics(families))],
    ):
        first, second, third = metrics
        assert first.samples[0].labels == dict(named)
        assert [float(each.samples[0].value) for each in (first, second)] == [float(number)] * 2
        buckets = [each for each in third.samples if each.name == "c_bucket"]
        assert [each.value for each in buckets] == [
            counts[0],
            counts[0] + counts[1],
            sum(counts),
        ]
        assert [float(each.labels["le"]) for each in buckets] == [0.5, 1.0, float("inf")]


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
async def test_a_name_that_is_no_valid_text_costs_these_characters_only(accept: str) -> None:
    async with running_node("shop@localhost") as node:
        kernel_of(node).lifetimes.past.count_restart("file \ud800")
        _, body = await trio.to_thread.run_sync(render_metrics, node, accept)

    assert b'ergo_restarts_total{node="shop@localhost",child="file ?"} 1\n' in body


@pytest.mark.parametrize(
    "accept, wanted",
    [
        ("", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("application/openmetrics-text", OPEN_METRICS),
        ("Application/OpenMetrics-Text; version=1.0.0", OPEN_METRICS),
        ("application/openmetrics-text;q=0", PROMETHEUS),
        ("application/openmetrics-text;q=0.000,*/*", PROMETHEUS),
        ("text/plain, application/openmetrics-text;q=0.05", OPEN_METRICS),
        (";;,,;q=", PROMETHEUS),
    ],
)
async def test_the_header_accept_chooses_the_format(accept: str, wanted: str) -> None:
    async with running_node() as node:
        assert render_metrics(node, accept)[0] == wanted


async def test_scrapes_within_a_second_get_the_same_figures() -> None:
    async with running_node() as node:
        first = render_metrics(node)
        await node.spawn(Recorder)

        assert render_metrics(node) == first
        read_figures(node)  # a reader that wants new figures
        assert render_metrics(node) != first


async def test_a_route_serves_the_metrics() -> None:
    async with serving() as outer:
        routes = [Route("/metrics", to=MetricsPage(outer.node))]
        async with serving(routes=routes) as served:
            reply = await served.ask(get("/metrics"))
            opened = await served.ask(get("/metrics", f"Accept: {WANTS_OPEN}"))
            posted = await served.ask(get("/metrics", method="DELETE"))
            headed = await served.ask(get("/metrics", method="HEAD"))

            assert (reply.status, reply.headers["content-type"]) == (200, PROMETHEUS)
            assert values(read_plain(reply.body.decode()))["ergo_metas", ("WebServer",)] == 1
            assert opened.headers["content-type"] == OPEN_METRICS
            assert opened.body.endswith(b"# EOF\n")
            assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")
            assert (headed.status, headed.body) == (200, b"")


async def test_a_blocked_loop_is_scraped_from_a_thread() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        found: list[bytes] = []
        done = threading.Event()

        def scrape() -> None:
            found.append(render_metrics(node)[1])
            done.set()

        def block(_: Puppet) -> bool:
            threading.Thread(target=scrape).start()
            return done.wait(30)

        assert await node.call(pid, block)
        assert values(read_plain(found[0].decode()))["ergo_processes", ("Puppet",)] == 1


def test_the_node_of_a_blocking_program_is_scraped() -> None:
    with open_blocking_node("shop@localhost", log_output="none") as node:
        node.spawn(Recorder)

        assert (
            values(read_plain(render_metrics(node)[1].decode()))["ergo_processes", ("Recorder",)]
            == 1
        )


@pytest.mark.counted
@pytest.mark.parametrize("wrong", [None, "shop@localhost", 5])
def test_another_value_than_a_node_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInputError, match="an open node"):
        MetricsPage(wrong)
    with pytest.raises(BadInputError, match="an open node"):
        render_metrics(wrong)


async def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "grafana.json"
    dashboard = json.loads(page.read_text(encoding="utf-8"))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:ergo|http|process)_[a-z_]+(?=\{)", target["expr"])
    }
    async with serving(metrics=True) as served:
        pid = await served.node.spawn(Owner)
        await served.ask(get())
        served.node.send(pid, "crash")
        served.node.send("nowhere", 1)
        read_figures(served.node)
        text = render_metrics(served.node)[1].decode()
    known = {metric.name for metric in read_plain(text)}
    samples = {sample.name for metric in read_plain(text) for sample in metric.samples}

    assert len(asked) > 15
    assert asked - samples - known == {"ergo_restarts_total", "ergo_loop_delay_seconds_bucket"} - (
        samples | known
    )


# -- before the first event ------------------------------------------------------------------------


def names_of_dashboard() -> set[str]:
    text = (Path(__file__).parents[2] / "docs" / "grafana.json").read_text(encoding="utf-8")
    return set(re.findall(r"\b(?:ergo|http_server|process)_[a-z_]+", text)) - {"ergo_py"}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
async def test_all_names_of_the_dashboard_have_data_at_a_fresh_node(accept: str) -> None:
    async with open_node("fresh@localhost", log_output="none") as node:
        _, body = await trio.to_thread.run_sync(render_metrics, node, accept)
        present = {line.partition("{")[0] for line in body.decode().splitlines() if line[0] != "#"}

        assert names_of_dashboard() - present == set()


@pytest.mark.counted
async def test_dead_letters_are_zero_for_each_cause_before_the_first() -> None:
    async with running_node() as node:
        _, body = await trio.to_thread.run_sync(render_metrics, node, "")
        lines = body.decode().splitlines()
        for why in Why:
            label = f'ergo_dead_letters_total{{node="{node.name}",why="{why.name.lower()}"}} '
            assert [line for line in lines if line.startswith(label)] == [f"{label}0"]
        assert f'ergo_restarts_total{{node="{node.name}"}} 0' in lines
        assert f'http_server_request_duration_seconds_count{{node="{node.name}"}} 0' in lines


async def test_a_metric_that_the_node_cannot_tell_is_missing() -> None:
    async with running_node(watchdog=None) as node:
        _, body = await trio.to_thread.run_sync(render_metrics, node, "")
        assert b"ergo_loop_delay_seconds" not in body
