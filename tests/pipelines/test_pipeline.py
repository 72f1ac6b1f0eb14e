"""Pipelines: each item is acknowledged after the sink, within the bound, or given up."""

from enum import StrEnum
from math import inf
from time import perf_counter
from typing import Any, ClassVar

import pytest
import trio

from ergo_py import Actor, Backoff, BadInputError, ChildSpec, Node, Reject
from ergo_py.pipelines import (
    Batch,
    Item,
    Pipeline,
    Retry,
    Sink,
    Source,
    SQLiteQueue,
    Stage,
    ToActor,
)
from ergo_py.pipelines.lanes import Lanes
from ergo_py.telemetry.figures import read_figures
from ergo_py.telemetry.metrics import families_of
from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world
from tests.pipelines.broker import (
    QUICK,
    Broker,
    BrokerSource,
    Collect,
    in_virtual_time,
    running,
    until,
)
from tests.support import process_of, running_node


class Double(Stage):
    def handle(self, item: Item) -> object:
        return 2 * item.body


class Impatient(Double):
    def __init__(self, stuck_after: Any) -> None:
        self.stuck_after = stuck_after


class Stumble(Stage):
    """Raises for some bodies, as often as it is told, and keeps the order of its tries."""

    def __init__(self, **failures: int) -> None:
        self.left = {int(body[1:]): count for body, count in failures.items()}
        self.tried: list[int] = []

    def handle(self, item: Item) -> object:
        self.tried.append(item.body)
        if self.left.get(item.body, 0) > 0:
            self.left[item.body] -= 1
            raise ValueError(item.body)
        return item.body


class Refuse(Collect):
    """Raises for a batch with one of some bodies, as often as it is told."""

    def __init__(self, bad: dict[int, int], **options: Any) -> None:
        super().__init__(**options)
        self.bad = bad
        self.openings: list[str] = []
        self.tries = 0

    async def open(self) -> None:
        self.openings.append("open")

    async def close(self) -> None:
        self.openings.append("close")

    async def handle_batch(self, items: list[Item]) -> None:
        await self.gate.wait()
        self.tries += 1
        for item in items:
            if self.bad.get(item.body, 0) > 0:
                self.bad[item.body] -= 1
                raise OSError(f"no {item.body}")
        self.batches.append([item.body for item in items])


class Graveyard(Actor):
    """Answers the calls with poison items."""

    def __init__(self) -> None:
        self.items: list[tuple[int, str]] = []
        graveyards.append(self)

    def handle_call(self, request: Item, caller: object) -> None:
        self.items.append((request.body, str(request.error)))


graveyards: list[Graveyard] = []


@in_virtual_time
async def test_items_pass_the_stages_and_are_acknowledged_in_a_single_thread() -> None:
    broker, sink = Broker(*range(10)), Collect()

    async with running(broker, Double(), sink) as node:
        await until(lambda: broker.is_done)
        figures = await node.inspect("jobs")

    assert sorted(sink.bodies) == [2 * number for number in range(10)]
    assert sorted(broker.acknowledged) == [*range(10)]
    assert len(broker.threads) == 1
    assert broker.openings == broker.closings == 1
    assert {name: figures[name] for name in ("taken", "open", "acknowledged", "failed")} == {
        "taken": "10",
        "open": "0",
        "acknowledged": "10",
        "failed": "0",
    }
    assert figures["source"] == "open"


@in_virtual_time
async def test_metrics_have_the_counters_of_each_pipeline() -> None:
    broker, sink = Broker(1, 2, 3), Refuse({2: 1000})

    async with running(broker, sink) as node:
        await until(lambda: broker.is_done)
        samples = {
            (family.metric.name, dict(sample.labels).get("what")): sample.value
            for family in families_of(read_figures(node))
            if "pipeline" in family.metric.labels
            for sample in family.samples
            if ("pipeline", "jobs") in sample.labels
        }

    assert samples.pop(("ergo_pipeline_delay_seconds", None)) is not None
    assert samples == {
        ("ergo_pipeline_open", None): 0,
        ("ergo_pipeline_waiting", None): 0,
        ("ergo_pipeline_items", "taken"): 3,
        ("ergo_pipeline_items", "acknowledged"): 2,
        ("ergo_pipeline_items", "failed"): 1,
        ("ergo_pipeline_items", "redelivered"): 0,
        ("ergo_pipeline_items", "retried"): 6,
    }


@in_virtual_time
async def test_facts_have_the_rate_of_the_last_seconds_and_the_items_in_each_step() -> None:
    broker, sink = Broker(*range(20)), Collect()
    sink.shut()

    async with running(broker, Stumble(n3=1, n5=99), sink, poison=Collect()) as node:
        jobs = process_of(node, node.whereis("jobs")).behaviour
        assert isinstance(jobs, Pipeline)
        # The items 3 and 5 wait a second for their second try.
        full = [("Stumble", 2, 2), ("Collect", 18, 0), ("poison", 0, 0)]
        await until(lambda: steps_of(jobs) == full)
        assert (jobs.pipeline_facts()["rate"], jobs.pipeline_facts()["lost"]) == (0.0, "")
        sink.gate.set()
        await until(lambda: broker.is_done)
        await trio.sleep(1.0)
        facts = jobs.pipeline_facts()
        await trio.sleep(11.0)
        later = jobs.pipeline_facts()

    assert (facts["rate"], facts["retried"], facts["failed"]) == (2.0, 3, 1)
    assert steps_of(jobs) == [("Stumble", 0, 3), ("Collect", 0, 0), ("poison", 0, 0)]
    assert later["rate"] == 0.0


def steps_of(pipeline: Pipeline) -> list[tuple[object, ...]]:
    steps: Any = pipeline.pipeline_facts()["steps"]
    return [(step["name"], step["inside"], step["retried"]) for step in steps]


@in_virtual_time
async def test_nothing_is_acknowledged_before_the_sink_has_returned() -> None:
    broker, sink = Broker(1, 2, 3), Collect()
    sink.shut()

    async with running(broker, sink):
        await trio.sleep(5)
        before = list(broker.acknowledged)
        sink.gate.set()
        await until(lambda: broker.is_done)

    assert before == []
    assert sorted(broker.acknowledged) == [1, 2, 3]


@pytest.mark.parametrize("most", [1, 7])
@in_virtual_time
async def test_a_slow_sink_slows_the_source_at_the_bound(most: int) -> None:
    broker, sink = Broker(*range(50)), Collect(batch=3)
    sink.shut()

    async with running(broker, Double().times(2), sink, most_unacknowledged=most) as node:
        await trio.sleep(5)
        assert len(broker.delivered) == most
        assert (await node.inspect("jobs"))["open"] == str(most)
        sink.gate.set()
        await until(lambda: broker.is_done)

    assert broker.most == most


@in_virtual_time
async def test_an_acknowledgement_under_way_counts_as_open() -> None:
    broker, sink = Broker(1, 2, 3), Collect()
    broker.faults["ack"] = 3

    async with running(broker, sink, most_unacknowledged=1):
        await until(lambda: len(sink.bodies) == 1)
        await until(lambda: broker.is_done)

    assert broker.most == 1


@in_virtual_time
async def test_items_of_a_key_keep_their_order_across_retries_and_other_keys_go_on() -> None:
    broker, sink = Broker(*range(12), key=lambda number: number % 3), Collect()
    stage = Stumble(n0=2, n4=1)

    async with running(broker, stage.times(2), sink):
        await until(lambda: 2 in sink.bodies)
        assert 0 not in sink.bodies
        await until(lambda: broker.is_done)

    for key in range(3):
        assert [body for body in sink.bodies if body % 3 == key] == [*range(key, 12, 3)]
    assert sorted(stage.tried) == sorted([*range(12), 0, 0, 4])


@in_virtual_time
async def test_items_behind_an_item_of_their_key_that_is_given_up_go_on_in_order() -> None:
    broker, sink = Broker(*range(6), key=lambda _: "same"), Collect()

    async with running(broker, Stumble(n0=1, n3=1), sink, retry=Retry(0, Backoff(1.0, 1.0))):
        await until(lambda: broker.is_done)

    assert sink.bodies == [1, 2, 4, 5]
    assert broker.failed == [(0, "0"), (3, "3")]


class Latecomers(Stage):
    """Fails the first item once. Items of its key arrive before its second try, and during it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.tried: list[int] = []

    async def handle(self, item: Item) -> object:
        self.tried.append(item.body)
        if self.tried == [0]:
            self.broker.ready.append((1, False))
            raise ValueError(item.body)
        if item.body == 0:
            self.broker.ready.append((2, False))
            await trio.sleep(3.0)
        return item.body


@in_virtual_time
async def test_items_that_arrive_around_the_retry_of_their_key_stay_behind_it() -> None:
    broker, sink = Broker(0, key=lambda _: "same"), Collect()
    stage = Latecomers(broker)

    async with running(broker, stage, sink, retry=Retry(1, Backoff(5.0, 5.0))):
        await until(lambda: len(sink.bodies) == 3)

    assert sink.bodies == [0, 1, 2]
    assert stage.tried == [0, 0, 1, 2]


class Letter(StrEnum):
    C = "c"


class Sort(Stage):
    """Keeps the bodies of each copy, that is of each lane."""

    def __init__(self) -> None:
        self.lanes: list[list[int]] = []

    async def open(self) -> None:
        self.own: list[int] = []
        self.lanes.append(self.own)

    async def handle(self, item: Item) -> object:
        self.own.append(item.body)
        return item.body


@in_virtual_time
async def test_a_key_has_the_same_lane_in_every_program_and_equal_keys_share_theirs() -> None:
    keys: list[Any] = ["cyd", "eve", b"cyd", 8, 8.0, ("ada", 3), ("ada", 3.0), ("ada", None)]
    keys += [Letter.C, "c"]
    broker, sort = Broker(*range(len(keys)), key=keys.__getitem__), Sort()

    async with running(broker, sort.times(4)):
        await until(lambda: broker.is_done)

    # The lanes open in any order.
    assert sorted(sort.lanes) == [[0, 2, 7], [1, 5, 6], [3, 4], [8, 9]]


@in_virtual_time
async def test_a_key_that_cannot_be_computed_gives_up_its_item_only() -> None:
    broker, sink = Broker(0, 1), Collect()

    async with running(broker, Double().times(2, key=lambda item: 1 // item.body), sink):
        await until(lambda: broker.is_done)

    assert sink.bodies == [2]
    assert [number for number, _ in broker.failed] == [0]


@in_virtual_time
async def test_a_batch_that_fails_once_is_tried_again_and_acknowledged_once() -> None:
    broker, sink = Broker(1, 2, 3), Refuse({2: 1})

    async with running(broker, sink):
        await until(lambda: broker.is_done)

    assert sorted(sink.bodies) == [1, 2, 3]
    assert sorted(broker.acknowledged) == [1, 2, 3]
    assert sink.openings == ["open", "close", "open", "close"]


@in_virtual_time
async def test_a_poison_item_of_a_batch_goes_to_poison_with_its_error_and_others_pass() -> None:
    broker, sink = Broker(*range(8), key=lambda _: "same"), Refuse({5: 1000}, batch=8, within=1.0)

    async with running(broker, sink, poison="graveyard") as node:
        await node.spawn(Graveyard, name="graveyard")
        await until(lambda: broker.is_done)
        failed = (await node.inspect("jobs"))["failed"]

    assert sink.bodies == [0, 1, 2, 3, 4, 6, 7]
    assert graveyards.pop().items == [(5, "no 5")]
    assert sorted(broker.acknowledged) == [*range(8)]
    assert failed == "1"


@in_virtual_time
async def test_poison_has_the_item_as_it_was_taken_and_may_be_a_sink() -> None:
    broker, sink, dead = Broker(1, 2), Refuse({4: 1000}), Collect()

    async with running(broker, Double(), sink, poison=dead):
        await until(lambda: broker.is_done)

    assert (sink.bodies, dead.bodies) == ([2], [2])
    assert sorted(broker.acknowledged) == [1, 2]


@in_virtual_time
async def test_an_item_that_its_broker_marks_as_redelivered_has_all_its_tries() -> None:
    """A killed broker marks items that no pipeline has had."""
    broker, sink, dead = Broker(1), Refuse({1: QUICK.times}), Collect()
    broker.ready[0] = (1, True)

    async with running(broker, sink, poison=dead):
        await until(lambda: broker.is_done)

    assert (sink.bodies, dead.bodies) == ([1], [])


@in_virtual_time
async def test_an_item_goes_to_poison_untried_after_its_last_delivery() -> None:
    """An item that ends its program has no error, and no try that counts."""
    broker, sink, dead = Broker(1, 2, 3), Collect(), Collect()
    broker.ready.clear()
    broker.ready.extend([(1, 2), (2, 3), (3, 0)])
    limit = Retry(2, Backoff(1.0, 1.0), deliveries=3)

    async with running(broker, sink, poison=dead, retry=limit) as node:
        await until(lambda: broker.is_done)
        failed = (await node.inspect("jobs"))["failed"]

    assert (sink.bodies, dead.bodies, failed) == ([1, 3], [2], "1")
    assert sorted(broker.acknowledged) == [1, 2, 3]


@pytest.mark.parametrize("poison", [None, "nobody"])
@in_virtual_time
async def test_an_item_without_poison_is_left_to_the_broker_and_not_acknowledged(
    poison: str | None,
) -> None:
    broker, sink = Broker(1, 2), Refuse({2: 1000})

    async with running(broker, sink, poison=poison):
        await until(lambda: broker.is_done)

    assert broker.acknowledged == [1]
    assert broker.failed[0][0] == 2


@pytest.mark.parametrize("method", ["open", "take", "ack", "close"])
@in_virtual_time
async def test_a_source_that_fails_is_opened_again_and_loses_nothing(method: str) -> None:
    broker, sink = Broker(*range(5)), Collect()
    broker.faults[method] = 2

    async with running(broker, sink):
        await until(lambda: broker.is_done)

    assert {*sink.bodies} == {*range(5)}
    assert sorted(broker.acknowledged) == [*range(5)]
    # Doubles only where the broker has delivered again.
    assert len(sink.bodies) == 5 + broker.redelivered
    assert broker.openings == broker.closings == (1 if method == "close" else 3)


@in_virtual_time
async def test_a_failing_source_is_opened_with_growing_delays() -> None:
    broker = Broker(1)
    broker.faults["open"] = 4

    async with running(broker, Collect()) as node:
        await trio.sleep(0.5)
        assert (await node.inspect("jobs"))["source"] == "lost: BrokerSource: ConnectionError: open"
        for opening, later in (2, 1.0), (3, 2.0), (4, 4.0), (5, 4.0):
            assert broker.openings == opening - 1
            await trio.sleep(later)
            assert broker.openings == opening


class Absent(Collect):
    """Cannot be opened at first."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = [times]

    async def open(self) -> None:
        if self.left[0]:
            self.left[0] -= 1
            raise ConnectionError("absent")


@in_virtual_time
async def test_a_sink_that_does_not_open_costs_its_items_no_tries() -> None:
    broker, sink = Broker(1), Absent(4)

    async with running(broker, sink, poison="nobody"):
        await until(lambda: broker.is_done)

    assert sink.bodies == [1]
    assert broker.failed == []


class Twice(Batch):
    """Doubles the bodies of a batch; refuses the body 3, and forgets a result of the body 5."""

    def __init__(self, size: int = 100, within: float = 0.0) -> None:
        super().__init__(size, within)
        self.batches: list[list[int]] = []

    async def handle_batch(self, items: list[Item]) -> list[object]:
        bodies = [item.body for item in items]
        self.batches.append(bodies)
        if 3 in bodies:
            raise ValueError("no 3")
        return [2 * body for body in bodies if body != 5]


class TwiceInThread(Batch):
    def handle_batch(self, items: list[Item]) -> list[object]:
        return [2 * item.body for item in items]


@in_virtual_time
async def test_a_stage_of_batches_passes_a_result_for_each_item_on() -> None:
    broker, twice, sink = Broker(0, 1, 2, 4, 6), Twice(2), Collect()

    async with running(broker, twice, TwiceInThread(), sink):
        await until(lambda: broker.is_done)

    assert twice.batches == [[0, 1], [2, 4], [6]]
    assert sink.bodies == [0, 4, 8, 16, 24]


class Outage(Collect):
    """Refuses 3; and when its batch was refused, it is away for the next single items."""

    away = 2

    async def handle_batch(self, items: list[Item]) -> None:
        if len(items) == 1 and Outage.away:
            Outage.away -= 1
            raise TimeoutError("the database is locked")
        if any(item.body == 3 for item in items):
            raise ValueError("refused")
        await super().handle_batch(items)


@in_virtual_time
async def test_an_item_that_fails_in_another_way_than_its_batch_is_tried_again() -> None:
    Outage.away = 2
    broker, sink, dead = Broker(*range(4)), Outage(), Collect()

    async with running(broker, sink, poison=dead):
        await until(lambda: broker.is_done)

    assert sorted(sink.bodies) == [0, 1, 2]
    assert dead.bodies == [3]


@in_virtual_time
async def test_an_item_that_fails_its_batch_or_has_no_result_is_given_up_alone() -> None:
    broker, sink, dead = Broker(*range(7)), Collect(), Collect()

    async with running(broker, Twice(), sink, poison=dead):
        await until(lambda: broker.is_done)

    assert sorted(sink.bodies) == [0, 2, 4, 8, 12]
    assert sorted(dead.bodies) == [3, 5]
    assert sorted(broker.acknowledged) == [*range(7)]


@in_virtual_time
async def test_a_stage_of_batches_waits_for_a_full_batch_unless_the_pipeline_stops() -> None:
    broker, sink = Broker(1, 2), Collect()

    async with running(broker, Twice(10, 50.0), sink) as node:
        await until(lambda: len(broker.delivered) == 2)
        await trio.sleep(40)
        early = list(sink.bodies)
        assert await node.drain() == []

    assert (early, sink.bodies, broker.acknowledged) == ([], [2, 4], [1, 2])


@in_virtual_time
async def test_a_batch_is_full_or_has_waited_long_enough() -> None:
    broker, sink = Broker(*range(7), key=lambda _: 1), Collect(batch=5, within=3.0)

    async with running(broker, sink, most_unacknowledged=100):
        await until(lambda: len(sink.batches) == 1)
        await trio.sleep(2.5)
        assert sink.batches == [[0, 1, 2, 3, 4]]
        await until(lambda: broker.is_done)

    assert sink.batches == [[0, 1, 2, 3, 4], [5, 6]]


class Slow(Collect):
    async def handle_batch(self, items: list[Item]) -> None:
        self.batches.append([item.body for item in items])
        await trio.sleep(4.0)


@in_virtual_time
async def test_an_idle_lane_waits_for_news_after_another_has_taken_the_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments: list[float] = []
    wait = Lanes.wait

    async def noted(lanes: Lanes, until: float) -> bool:
        moments.append(until)
        return await wait(lanes, until)

    monkeypatch.setattr(Lanes, "wait", noted)
    broker, sink = Broker(1), Collect(batch=10, within=0.2)

    async with running(broker, sink.times(2)):
        await until(lambda: broker.is_done)
        await trio.sleep(1.0)
        assert moments[-2:] == [inf, inf]


class Alive(Collect):
    """Tells of each call while it is idle; the third raises."""

    calls: ClassVar[list[str]] = []

    async def open(self) -> None:
        self.calls.append("open")

    def keep_alive(self) -> None:
        self.calls.append("alive")
        if len(self.calls) == 4:
            raise ConnectionError("the broker has closed the connection")


@in_virtual_time
async def test_an_idle_sink_stays_alive_and_opens_again_if_its_connection_is_lost() -> None:
    Alive.calls.clear()
    broker = Broker()

    async with running(broker, Alive()):
        await until(lambda: len(Alive.calls) >= 6)

    assert Alive.calls[:6] == ["open", "alive", "alive", "alive", "open", "alive"]


@in_virtual_time
async def test_an_orderly_stop_finishes_and_acknowledges_the_open_items() -> None:
    broker, sink = Broker(*range(2)), Slow(batch=1)

    async with running(broker, sink):
        await until(lambda: len(broker.delivered) == 2)
        began = trio.current_time()

    # Longer than the limit of 5 s for other children.
    assert trio.current_time() - began > 6.0
    assert sorted(broker.acknowledged) == [0, 1]
    assert not broker.delivered


@in_virtual_time
async def test_a_stop_takes_no_more_items() -> None:
    broker, sink = Broker(*range(9)), Slow(batch=1)

    async with running(broker, sink, most_unacknowledged=1):
        await until(lambda: len(sink.bodies) == 1)

    assert broker.acknowledged == [0]
    assert len(broker.ready) == 8


@in_virtual_time
async def test_a_stop_does_not_wait_for_full_batches() -> None:
    broker, sink = Broker(1, 2), Collect(batch=5, within=1000.0)

    async with running(broker, sink):
        await until(lambda: len(broker.delivered) == 2)

    assert sorted(broker.acknowledged) == [1, 2]


@in_virtual_time
async def test_a_stop_ends_in_time_and_leaves_unfinished_items_to_the_broker() -> None:
    broker, sink = Broker(1, 2), Collect()
    sink.shut()

    async with running(broker, sink):
        await until(lambda: len(broker.delivered) == 2)
        began = trio.current_time()

    assert 10.0 <= trio.current_time() - began < 12.0
    assert broker.acknowledged == []
    assert sorted(broker.delivered) == [1, 2]
    assert broker.closings == 1


@in_virtual_time
async def test_a_drain_of_the_node_tells_the_items_that_were_cut_off() -> None:
    broker, sink = Broker(1, 2), Collect()
    sink.shut()

    async with running(broker, sink) as node:
        await until(lambda: len(broker.delivered) == 2)
        cut = await node.drain(timeout=1.0)
        sink.gate.set()
        await until(lambda: broker.is_done)

    assert len(cut) == 1
    assert cut[0].endswith(": 2 cut off")


@in_virtual_time
async def test_a_killed_pipeline_loses_nothing_and_repeats_at_most_the_bound() -> None:
    broker, sink = Broker(*range(40)), Collect(batch=4)

    async with running(broker, sink, most_unacknowledged=6) as node:
        for handled in (5, 15, 25):
            await until(lambda handled=handled: len({*sink.bodies}) >= handled)  # type: ignore[misc]
            node.kill("jobs")
            await until(lambda: node.whereis("jobs") is not None)
        await until(lambda: broker.is_done)

    assert {*sink.bodies} == {*range(40)}
    assert sorted(broker.acknowledged) == [*range(40)]
    assert broker.redelivered <= 3 * 6
    assert len(sink.bodies) <= 40 + broker.redelivered


class Exploding(Stage):
    """Ends its thread, once."""

    def __init__(self) -> None:
        self.left = [1]

    def handle(self, item: Item) -> object:
        if self.left:
            self.left.pop()
            raise SystemExit
        return item.body


@in_virtual_time
async def test_a_stage_that_breaks_its_thread_restarts_the_pipeline_without_a_loss() -> None:
    broker, sink = Broker(1, 2, 3), Collect()

    async with running(broker, Exploding(), sink):
        await until(lambda: broker.is_done)

    assert {*sink.bodies} == {1, 2, 3}
    assert broker.openings == 2


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no text")


class UnreadableStage(Stage):
    """Raises an exception without a text for an item."""

    def handle(self, item: Item) -> object:
        if item.body == 2:
            raise UnreadableError
        return item.body


class UnreadableSink(Collect):
    """Raises an exception without a text at first."""

    async def handle_batch(self, items: list[Item]) -> None:
        if not self.batches:
            self.batches.append([])
            raise UnreadableError
        await super().handle_batch(items)


@in_virtual_time
async def test_an_error_without_a_text_fails_its_item_and_no_other() -> None:
    broker, sink, poison = Broker(1, 2, 3), UnreadableSink(), Collect()

    async with running(broker, UnreadableStage(), sink, poison=poison):
        await until(lambda: broker.is_done)

    assert broker.openings == 1
    assert sorted(sink.bodies) == [1, 3]
    assert poison.bodies == [2]


class Counter(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def handle_call(self, request: int, caller: object) -> int:
        if request == 13:
            raise Reject(ValueError("unlucky"))
        self.seen.append(request)
        return request + 100


@in_virtual_time
async def test_an_actor_is_a_stage_and_its_refusal_fails_the_item() -> None:
    broker, sink = Broker(12, 13, 14), Collect()

    async with running(broker, ToActor("counter").times(3), sink) as node:
        await node.spawn(Counter, name="counter")
        await until(lambda: broker.is_done)

    assert sorted(sink.bodies) == [112, 114]
    assert broker.failed == [(13, "unlucky")]


@in_virtual_time
async def test_an_actor_at_the_end_acknowledges_by_its_answer_and_may_be_absent() -> None:
    broker = Broker(1, 2, key=lambda _: 1)

    async with running(broker, ToActor("counter")) as node:
        await until(lambda: broker.delivered)
        await node.spawn(Counter, name="counter")
        await until(lambda: broker.is_done)

    assert broker.acknowledged == [1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pipeline("source", Collect()),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Pipeline(BrokerSource(Broker())),
        lambda: Pipeline(BrokerSource(Broker()), Collect(), Double()),
        lambda: Pipeline(BrokerSource(Broker()), "sink"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Pipeline(BrokerSource(Broker()), Collect(), most_unacknowledged=0),
        lambda: Pipeline(BrokerSource(Broker()), Collect(), retry=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Retry(-1, Backoff(1.0, 1.0)),
        lambda: Retry(1, Backoff(1.0, 1.0), deliveries=1),
        lambda: Pipeline(Source(), Sink(), retry=Retry(1, Backoff(1.0, 1.0), deliveries=2)),
        lambda: Retry(1, 2.0),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Double().times(0),
        lambda: Collect(batch=0),
        lambda: Pipeline(Impatient(-1)),
        lambda: Pipeline(Double(), Impatient("5")),
        lambda: Pipeline(Double(), poison=Impatient(0)),
        lambda: ToActor(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_arguments_are_refused(make: Any) -> None:
    with pytest.raises(BadInputError):
        make()


def test_a_broker_alone_is_a_source_without_an_end() -> None:
    with pytest.raises(BadInputError, match="a broker that comes first is the source"):
        Pipeline(SQLiteQueue("jobs.db", "jobs"))
    Pipeline(Double(), SQLiteQueue("jobs.db", "jobs"))


class Unfinished(Source, Stage, Sink):
    """Has none of the methods."""


class Misspelt(Sink):
    """Has its method under another name."""

    def handle_batches(self, items: list[Item]) -> None:
        raise AssertionError("nobody calls it")


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Pipeline(Unfinished(), Collect()), r"a class with the method `take`"),
        (lambda: Pipeline(BrokerSource(Broker()), Unfinished()), r"with the method `handle`"),
        (
            lambda: Pipeline(BrokerSource(Broker()), Misspelt()),
            r"with the method `handle_batch`; did you mean `handle_batches`\?",
        ),
        (
            lambda: Pipeline(BrokerSource(Broker()), Collect(), poison=Misspelt()),
            r"with the method `handle_batch`",
        ),
    ],
)
def test_a_part_without_its_method_is_refused_at_the_start(make: Any, text: str) -> None:
    """Each item would fail otherwise, and be acknowledged as poison."""
    with pytest.raises(BadInputError, match=text):
        make()


def test_a_part_without_its_method_names_the_method() -> None:
    part = Unfinished()

    with pytest.raises(NotImplementedError, match=r"Unfinished has no take\(self, most\)"):
        part.take(1)
    with pytest.raises(NotImplementedError, match=r"Unfinished has no ack\(self, items\)"):
        part.ack([])
    with pytest.raises(NotImplementedError, match=r"Unfinished has no handle\(self, item\)"):
        part.handle(Item(1))
    with pytest.raises(NotImplementedError, match=r"has no handle_batch\(self, items\)"):
        part.handle_batch([])


@in_virtual_time
async def test_a_pipeline_without_a_supervisor_works_as_any_process() -> None:
    broker, sink = Broker(1), Collect()

    async with running_node() as node:
        await node.spawn(Pipeline.spec(BrokerSource(broker), sink, retry=QUICK))
        await until(lambda: broker.is_done)

    assert sink.bodies == [1]


def test_a_pipeline_has_no_limit_for_its_end_but_its_own() -> None:
    spec = ChildSpec("jobs", Pipeline.spec(BrokerSource(Broker()), Collect()))

    assert spec.shutdown == spec.options.terminate_timeout == float("inf")


def test_a_seed_repeats_a_pipeline_on_a_machine_of_any_speed() -> None:
    def digest_of(seconds: float) -> str:
        class Work(Stage):
            def handle(self, item: Item) -> object:
                end = perf_counter() + seconds
                while perf_counter() < end:
                    pass
                return item.body

        async def test(world: World) -> None:
            broker, sink = Broker(*range(20)), Collect()

            async def start(node: Node) -> None:
                plan = Pipeline.spec(BrokerSource(broker), Work(), sink)
                await node.supervise([ChildSpec("jobs", plan)])

            await world.start(1, start)
            await until(lambda: broker.is_done)
            assert sorted(sink.bodies) == list(range(20))

        world = World(Plan(3))
        failure = run_world(world, test)
        assert failure is None, failure
        return world.history.digest

    assert digest_of(0.0) == digest_of(0.006)
