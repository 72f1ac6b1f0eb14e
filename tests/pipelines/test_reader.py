"""The thread of a source, while no item may be taken."""

from ergo_py import Backoff, ChildSpec
from ergo_py.pipelines import Pipeline
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
