"""Lines for a collector of statsd: differences, tags, packets, and a collector that is away."""

import socket
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from ergo_py import Actor, BadInputError, LogRecord
from ergo_py.telemetry import StatsdReporter
from ergo_py.telemetry.families import Family, Histogram, Sample
from ergo_py.telemetry.statsd import StatsdLines
from tests.support import Recorder, running_node

NODE = ("node", "shop@localhost")


def lines_of(lines: StatsdLines, *families: Family) -> list[str]:
    return [line for packet in lines.packets([*families]) for line in packet.decode().splitlines()]


def counter(value: float, **labels: str) -> Family:
    return Family("ergo_sent", "counter", "", "", [Sample((NODE, *labels.items()), value)])


def test_a_counter_is_sent_as_the_difference_to_the_last_report() -> None:
    lines = StatsdLines("", (("env", "test"),))

    assert lines_of(lines, counter(5, behaviour="Till")) == [
        "ergo.sent:5|c|#node:shop@localhost,behaviour:Till,env:test"
    ]
    assert lines_of(lines, counter(5, behaviour="Till")) == []
    assert lines_of(lines, counter(7.5, behaviour="Till")) == [
        "ergo.sent:2.5|c|#node:shop@localhost,behaviour:Till,env:test"
    ]


def test_a_gauge_is_sent_as_it_is_and_a_histogram_as_its_new_mean() -> None:
    lines = StatsdLines("shop.", ())
    gauge = Family("ergo_timers", "gauge", "", "", [Sample((NODE,), 3)])

    def delays(counts: tuple[int, ...], total: float) -> Family:
        sample = Sample((NODE,), Histogram((0.1,), counts, total))
        return Family("ergo_loop_delay_seconds", "histogram", "", "", [sample])

    assert lines_of(lines, gauge, delays((2, 0), 0.1)) == [
        "shop.ergo.timers:3|g|#node:shop@localhost",
        "shop.ergo.loop_delay_seconds:0.05|g|#node:shop@localhost",
    ]
    assert lines_of(lines, gauge, delays((2, 0), 0.1)) == [
        "shop.ergo.timers:3|g|#node:shop@localhost"
    ]
    assert lines_of(lines, delays((2, 1), 1.1)) == [
        "shop.ergo.loop_delay_seconds:1|g|#node:shop@localhost"
    ]


@given(names=st.lists(st.text(max_size=60), max_size=200))
@example(names=["x" * 60] * 100)
def test_no_packet_is_too_long_and_no_name_breaks_a_line(names: list[str]) -> None:
    names = [*names, "no text \ud800"]  # such as of a file whose name is no valid UTF-8
    samples = [Sample((NODE, ("behaviour", name)), 1) for name in names]
    packets = StatsdLines("", ()).packets([Family("ergo_timers", "gauge", "", "", samples)])

    found = [line for packet in packets for line in packet.decode(errors="strict").split("\n")]
    assert len(found) == len(names)
    assert all(len(packet) <= 1400 for packet in packets)
    for line in found:
        value, kind, tags = line.split("|")
        assert (value, kind, tags.count(",")) == ("ergo.timers:1", "g", 1)


async def test_a_collector_gets_the_metrics() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind(("127.0.0.1", 0))
        collector.settimeout(30)
        async with running_node("shop@localhost") as node:
            await node.spawn(Recorder)
            await node.spawn(StatsdReporter, "127.0.0.1", collector.getsockname()[1], 0.02)
            data = await trio.to_thread.run_sync(collector.recv, 2000)

        assert b"ergo.processes:1|g|#node:shop@localhost,behaviour:Recorder\n" in data


class Listener(Actor):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def handle_log(self, record: LogRecord) -> None:
        self.lines.append(record.event)


async def test_an_unreachable_collector_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_host(*_given: object, **_options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "unknown host")

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    lines: list[str] = []
    async with running_node(limit=100) as node:
        node.add_logger(await node.spawn(Listener, lines), "warning")
        silent = await node.spawn(StatsdReporter, "127.0.0.1", port, 0.01)
        while node.process_info(silent).messages_in < 6:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.005)
        monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
        unknown = await node.spawn(StatsdReporter, "no-such-host.invalid", 8125, 0.01)
        while node.process_info(unknown).messages_in < 6 or not lines:  # noqa: ASYNC110
            await trio.sleep(0.005)

        assert node.info().processes == 3
        assert lines.count("the collector of statsd cannot be reached") == 1


@pytest.mark.parametrize(
    "options",
    [
        {"port": 0},
        {"port": "8125"},
        {"host": 5},
        {"every": 0},
        {"prefix": "a|b"},
        {"prefix": 5},
        {"tags": ["a:b"]},
        {"tags": {"shard": 1}},
        {"tags": {1: "shard"}},
    ],
)
def test_a_wrong_value_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        StatsdReporter(**options)
