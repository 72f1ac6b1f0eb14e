"""The thread of a source, while no item may be taken."""

from typing import Any, ClassVar

import pytest

from ergo_py import Backoff, ChildSpec
from ergo_py.pipelines import Item, Pipeline
from tests.pipelines.broker import Broker, BrokerSource, Collect, in_virtual_time, until
from tests.support import running_node


class Beating(BrokerSource):
    """Its broker ends a connection that does not answer."""

    beats = 0

    def keep_alive(self) -> None:
        self.broker.fault("keep_alive")
        Beating.beats += 1


@in_virtual_time
async def test_a_source_at_its_bound_keeps_its_connection_alive_and_is_opened_again() -> None:
    broker, sink = Broker(1, 2), Collect()
    sink.shut()
    async with running_node(limit=1000.0) as node:
        plan = Pipeline.spec(Beating(broker), sink, most_unacknowledged=1, reopen=Backoff(1.0, 4.0))
        await node.supervise([ChildSpec("jobs", plan)])

        await until(lambda: Beating.beats >= 3)
        broker.faults["keep_alive"] = 1
        await until(lambda: broker.openings == 2)
        sink.gate.set()
        await until(lambda: broker.is_done)

    assert {*sink.bodies} == {1, 2}


class Greedy(Beating):
    """It takes more than it is asked for."""

    asked: ClassVar[list[int]] = []

    def take(self, most: int) -> list[Item]:
        Greedy.asked.append(most)
        return super().take(most + 2)


@in_virtual_time
async def test_a_source_that_has_taken_too_much_is_asked_for_nothing_until_there_is_room() -> None:
    """Some databases take a negative limit for none."""
    broker, sink = Broker(*range(9)), Collect()
    sink.shut()
    Beating.beats = 0
    async with running_node(limit=1000.0) as node:
        plan = Pipeline.spec(Greedy(broker), sink, most_unacknowledged=1)
        await node.supervise([ChildSpec("jobs", plan)])

        await until(lambda: Beating.beats >= 3 or len(Greedy.asked) > 1)
        asked = [*Greedy.asked]
        sink.gate.set()
        await until(lambda: broker.is_done)

    assert asked == [1]
    assert {*Greedy.asked} == {1}


class Careless(BrokerSource):
    """Its first answer is no list of items."""

    answers: ClassVar[list[Any]] = []

    def take(self, most: int) -> Any:
        return Careless.answers.pop() if Careless.answers else super().take(most)


@pytest.mark.parametrize("answer", [[b"raw"], (Item(1),), None])
@in_virtual_time
async def test_an_answer_that_is_no_list_of_items_counts_as_a_loss_and_as_no_item(
    answer: Any,
) -> None:
    broker, sink = Broker(*range(9)), Collect()
    Careless.answers[:] = [answer]
    async with running_node(limit=1000.0) as node:
        plan = Pipeline.spec(Careless(broker), sink)
        await node.supervise([ChildSpec("jobs", plan)])
        await until(lambda: broker.is_done)
        facts = await node.inspect("jobs")

    assert sorted(sink.bodies) == [*range(9)]
    assert facts["open"].startswith("0")
