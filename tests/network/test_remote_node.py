"""`node.at("b@site")`: questions to another node itself."""

import threading
from typing import Any

import pytest
import trio

from ergo_py import (
    BadInputError,
    CallTimeoutError,
    NoNode,
    NotAllowedError,
    TargetDownError,
)
from ergo_py.network import UnreadableError
from tests.network.pairs import Add, Total, make_network, network_of, two_nodes
from tests.network.test_nodes import Counter
from tests.support import running_node


async def test_a_node_finds_the_processes_of_another_node_by_name(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter, name="counter")
        there = a.at("b@test")

        assert await there.whereis("counter") == pid
        assert await there.whereis("nothing") is None
        assert repr(there) == "<RemoteNode b@test>"
        with pytest.raises(BadInputError):
            await there.whereis("")


async def test_a_ping_travels_behind_the_messages_that_wait(network: Any) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        there = a.at("b@test")
        assert not there.is_connected
        for _ in range(100):
            a.send(pid, Add(1))
        assert await there.ping() >= 0.0

        assert there.is_connected
        assert await b.call(pid, Total()) == 100


async def test_a_node_that_is_missing_or_silent_does_not_answer(autojump_clock: Any) -> None:
    network = make_network("memory")
    async with two_nodes(network, limit=1000) as (a, _):
        with pytest.raises(TargetDownError) as missing:
            await a.at("nowhere@test").ping()
        assert missing.value.reason == NoNode("nowhere@test")
        network.freeze("b@test")
        with pytest.raises(
            CallTimeoutError, match=r"NodeName\(node='b@test'\) did not answer Ping within 2 s"
        ):
            await a.at("b@test").ping(timeout=2)
        with pytest.raises(TargetDownError, match="b@test: it does not answer"):
            await a.at("b@test").whereis("x", timeout=None)
        with trio.move_on_after(1):
            await a.at("b@test").ping()
        network.thaw("b@test")


async def test_a_node_is_awaited_until_it_starts_and_until_it_is_lost(
    autojump_clock: Any,
) -> None:
    network = make_network("memory")
    reasons: list[Any] = []
    async with running_node("a@test", network=network, limit=1000) as a:
        there = a.at("b@test")
        assert await there.wait_down() == NoNode("b@test")
        with pytest.raises(CallTimeoutError) as late:
            await there.wait_up(timeout=3)
        assert isinstance(late.value.__cause__, TargetDownError)

        async def watch() -> None:
            await there.wait_up()
            assert there.is_connected
            reasons.append(await there.wait_down())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(20)
            async with running_node("b@test", network=network, limit=1000):
                await trio.sleep(5)
                assert reasons == []
            await trio.sleep(1)
            assert [str(reason) for reason in reasons] == [
                "no connection to node b@test: the node goes down"
            ]


async def test_a_request_that_a_node_does_not_know_costs_that_request_only(
    network: Any,
) -> None:
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        peer = network_of(a).peer("b@test")
        with pytest.raises(UnreadableError, match="'b@test' does not know the request 'dance'"):
            await peer.ask("dance", None, None, 5.0)
        with pytest.raises(UnreadableError, match="'b@test' does not know the request 'whereis'"):
            await peer.ask("whereis", None, 17, 5.0)

        assert await a.call(pid, Total()) == 0


async def test_a_handle_needs_a_network_and_the_name_of_another_node() -> None:
    async with running_node("alone") as alone:
        with pytest.raises(NotAllowedError, match=r"the node 'alone' has no network; open it with"):
            alone.at("b@test")
    async with running_node("a@test", network=make_network("memory")) as a:
        wrong: Any
        for wrong in ("b", "@", "b@", "@b", 5):
            with pytest.raises(BadInputError, match="as in 'b@site'"):
                a.at(wrong)
        with pytest.raises(BadInputError, match="ask this node directly"):
            a.at("a@test")
        with pytest.raises(BadInputError, match="timeout"):
            await a.at("b@test").ping(timeout=-1)


async def test_a_thread_may_look_but_not_ask(network: Any) -> None:
    errors: list[Any] = []

    def look() -> None:
        there = a.at("b@test")
        errors.append(there.is_connected)
        try:
            there.ping().send(None)
        except NotAllowedError as error:
            errors.append(str(error))

    async with two_nodes(network) as (a, _):
        await a.at("b@test").ping()
        thread = threading.Thread(target=look)
        thread.start()
        await trio.to_thread.run_sync(thread.join)

    assert errors == [
        True,
        "ping of another node belongs on this node's own loop, and this is another thread; use "
        "send or call_from_thread, or `ergo_py.blocking.handle(node).at('b@test').ping(…)`",
    ]
