"""Sources on real brokers keep the rules, also while the broker is killed."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import trio

from ergo_py import Backoff, ChildSpec, open_node
from ergo_py.pipelines import Item, Pipeline, Sink
from ergo_py.supervision import Budget
from ergo_py.testing.bridges import SOURCE_RULES, SourceRig
from ergo_py.testing.bridges.sources import SourceRule
from tests.postgres import needs_postgres

if find_spec("redis") is None or find_spec("psycopg") is None:
    pytest.skip("needs the packages redis and psycopg", allow_module_level=True)

from tests.pipelines.brokers.servers import (  # after the check
    PostgresRig,
    RedisRig,
    RedisServer,
    started,
)
from tests.postgres import PostgresServer

Server = RedisServer | PostgresServer
ITEMS = int(os.environ.get("ERGO_BROKERS", "2000"))
KILLS = 50 if ITEMS >= 50_000 else 4

pytestmark = pytest.mark.skipif(
    "ERGO_BROKERS" not in os.environ, reason="`python -m benchmarks brokers` starts the servers"
)
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("redis", marks=needs_redis),
        pytest.param("postgres", marks=needs_postgres),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with started(request.param) as running:
        yield running


def rig_of(server: Server, queue: str) -> SourceRig:
    return (
        RedisRig(server, queue) if isinstance(server, RedisServer) else PostgresRig(server, queue)
    )


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=[rule.__name__ for rule in SOURCE_RULES])
def test_a_broker_keeps_the_rule(rule: SourceRule, server: Server) -> None:
    rig = rig_of(server, rule.__name__)
    source = rig.source()
    source.open()
    source.close()

    rule(rig)


class Collect(Sink):
    def __init__(self, handled: Counter[bytes]) -> None:
        super().__init__(batch=10)
        self.handled = handled

    async def handle_batch(self, items: list[Item]) -> None:
        self.handled.update(item.body for item in items)
        await trio.sleep(0.001)


def test_nothing_is_lost_while_the_broker_and_the_pipeline_are_killed_in_turn(
    server: Server,
) -> None:
    """The broker's own count is 0 at the end, and each double was delivered again."""
    rig, handled = rig_of(server, "killed"), Counter[bytes]()
    source = rig.source()
    source.open()
    source.close()
    bodies = [b"%d" % number for number in range(ITEMS)]
    rig.put(bodies)

    async def run() -> None:
        plan = Pipeline.spec(
            rig.source(), Collect(handled), most_unacknowledged=50, reopen=Backoff(0.02, 0.2)
        )
        async with open_node("brokers@test", log_level="critical") as node:
            await node.supervise([ChildSpec("jobs", plan, budget=Budget(1000, 1.0))])
            for kill in range(1, KILLS + 1):
                while len(handled) < kill * ITEMS // (KILLS + 1):  # noqa: ASYNC110 - the sink sets no event
                    await trio.sleep(0.01)
                if kill % 2:
                    node.kill("jobs")
                else:
                    await trio.to_thread.run_sync(server.stop, signal.SIGKILL)
                    await trio.to_thread.run_sync(server.start)
            while await trio.to_thread.run_sync(rig.left):  # noqa: ASYNC110
                await trio.sleep(0.01)

    async def run_within() -> None:
        with trio.fail_after(1000):
            await run()

    trio.run(run_within)

    assert {*handled} == {*bodies}
    assert handled.total() - ITEMS <= KILLS * 50
