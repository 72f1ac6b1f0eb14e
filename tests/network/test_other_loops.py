"""Other nodes and the cluster from synchronous and from asyncio programs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import ergo_py.aio
import ergo_py.blocking
from ergo_py import Name
from ergo_py.cluster import Cluster
from ergo_py.network import Local
from tests.network.pairs import TYPES, Add, Total
from tests.network.test_nodes import Counter

COUNTER = Name("counter", "b@test")


def network(place: Path) -> Any:
    return Local(
        directory=place, types=TYPES, allow="default,look,spawn", spawns={"counter": Counter}
    )


def test_a_synchronous_program_uses_other_nodes_and_the_cluster(meeting_place: Path) -> None:
    there = network(meeting_place)
    with (
        ergo_py.blocking.open_node("a@test", network=there, log_output="none") as a,
        ergo_py.blocking.open_node("b@test", network=there, log_output="none") as b,
    ):
        pid = a.at("b@test").spawn("counter", name="counter")
        assert b.whereis("counter") == pid
        assert a.send(COUNTER, Add(3))
        assert a.call(COUNTER, Total()) == 3
        assert a.at("b@test").process_info(pid).pid == pid
        assert a.at("b@test").is_connected
        assert a.at("b@test").ping() >= 0
        assert "counter" in a.at("b@test").service("counter").name
        b.run(lambda node: Cluster(node).register("total", pid))
        assert a.run(lambda node: Cluster(node).whereis("total")) == pid
        assert a.nodes() == ["b@test"] == a.discover()
        assert a.network().peers["b@test"].state == "up"


@pytest.mark.counted
def test_an_asyncio_program_uses_other_nodes_and_the_cluster(meeting_place: Path) -> None:
    there = network(meeting_place)

    async def main() -> None:
        async with (
            ergo_py.aio.open_node("a@test", network=there, log_output="none") as a,
            ergo_py.aio.open_node("b@test", network=there, log_output="none") as b,
        ):
            pid = await a.at("b@test").spawn("counter", name="counter")
            assert await b.whereis("counter") == pid
            assert await a.at("b@test").processes() == [pid]
            assert await a.at("b@test").ping() >= 0
            assert a.at("b@test").name == "b@test"
            assert a.send(COUNTER, Add(3))
            assert await a.call(COUNTER, Total()) == 3
            await b.run(lambda node: Cluster(node).register("total", pid))
            assert await a.run(lambda node: Cluster(node).whereis("total")) == pid
            assert (await a.network()).peers["b@test"].state == "up"

    asyncio.run(main())
