"""Members of a network over NATS: breaks, names, successors, discovery; with virtual time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from trio.testing import MockClock

from ergo_py import Down, Name, Node, NoNode, TargetDownError
from ergo_py.network import NATS, NodeNameTakenError
from ergo_py.network.carriers.nats import carrier as module
from ergo_py.network.carriers.nats.carrier import NatsCarrier
from ergo_py.network.carriers.nats.wire import Message
from tests.actors import Recorder
from tests.network.nats.fake_server import FakeServer, open_fake_server
from tests.network.pairs import TYPES, Total, carrier_of, network_of
from tests.network.support import begin_search, found_nodes, replace_sink, sink_of
from tests.network.test_nodes import Counter, Talker
from tests.support import kernel_of, running_node


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeServer]:
    async with open_fake_server(monkeypatch) as server:
        yield server


def opened(name: str, way: str = "", **settings: Any) -> Any:
    """A node whose way to the server is named after it."""
    network = NATS(f"nats://{way or name[0]}", cluster="c", types=TYPES, **settings)
    return running_node(name, network=network, limit=100_000)


@asynccontextmanager
async def watched_pair() -> AsyncIterator[tuple[Node, Node, Any, list[Any], list[Any]]]:
    """The nodes a@x and b@x, which watch each other; a recorder on b@x, its messages, and the
    notices on both.
    """
    got: list[Any] = []
    heard: list[Any] = []
    async with opened("a@x") as a, opened("b@x") as b:
        pid = await b.spawn(Recorder, got)
        for node, target in ((a, pid), (b, await a.spawn(Counter))):
            watcher = await node.spawn(Talker, heard)
            await node.call(watcher, lambda me, target=target: me.monitor(target))
        yield a, b, pid, got, heard


# -- breaks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds, phase", [(0.1, 0.5), (1.5, 0.95), (3.5, 0.5), (4.95, 0.0)])
@pytest.mark.parametrize("hosts", ["a", "b", "ab"])
async def test_a_cut_shorter_than_the_patience_is_invisible(
    autojump_clock: MockClock, server: FakeServer, hosts: str, seconds: float, phase: float
) -> None:
    async with watched_pair() as (a, b, pid, got, heard):
        await trio.sleep(2 + phase)
        server.cut(*hosts)
        for number in range(10):
            a.send(pid, number)
        await trio.sleep(seconds)
        server.mend(*hosts)
        await trio.sleep(9)

        assert got == list(range(10))
        assert heard == []
        assert a.network().peers["b@x"].sessions == b.network().peers["a@x"].sessions == 1


@pytest.mark.parametrize("hosts", ["a", "b", "ab"])
async def test_a_cut_longer_than_the_patience_is_told_once_on_both_nodes(
    autojump_clock: MockClock, server: FakeServer, hosts: str
) -> None:
    async with watched_pair() as (a, _, pid, got, heard):
        await trio.sleep(10)
        server.cut(*hosts)
        a.send(pid, "lost")
        await trio.sleep(20)
        server.mend(*hosts)
        await trio.sleep(20)

        assert got == []
        assert [type(down) for down in heard] == [Down, Down]
        assert {str(down.reason) for down in heard} == {
            "no connection to node a@x: it is silent",
            "no connection to node b@x: it is silent",
        }
        assert await a.call(pid, None) == []
        assert a.network().peers["b@x"].sessions == 2


async def test_the_end_of_a_program_is_told_after_the_patience_a_beat_and_the_grace(
    autojump_clock: MockClock,
    server: FakeServer,
) -> None:
    """The server knows no more of a killed program than of a program that is cut off."""
    async with watched_pair() as (_, _, _, _, heard):
        await trio.sleep(10.5)
        server.cut("b")
        began = trio.current_time()
        while not heard:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)

        assert 5 <= trio.current_time() - began <= 7.1
        assert type(heard[0].reason) is NoNode


async def test_a_break_that_the_server_does_not_notice_is_invisible(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    """The server holds the old connection for alive, so it never says that the node is alone."""
    async with watched_pair() as (a, b, pid, got, heard):
        await trio.sleep(10)
        server.lose("b")
        for number in range(10):
            a.send(pid, number)
        await trio.sleep(30)

        assert got == list(range(10))
        assert heard == []
        assert b.network().left == ""


async def test_a_node_that_never_was_connected_is_refused_at_once(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("a@x") as a:
        await trio.sleep(10)
        began = trio.current_time()
        with pytest.raises(TargetDownError, match="no client of the NATS server listens under its"):
            await a.call(Name("x", "nowhere@x"), Total(), timeout=None)
        assert trio.current_time() - began < 1.0


async def test_a_node_that_said_farewell_is_refused_at_once(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("a@x") as a:
        async with opened("b@x") as b:
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0
        began = trio.current_time()
        with pytest.raises(TargetDownError):
            await a.call(pid, Total(), timeout=None)
        assert trio.current_time() - began < 1.0


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.0, 4.0, 60.0])
async def test_a_program_that_continues_does_not_take_its_name_from_its_successor(
    autojump_clock: MockClock, server: FakeServer, seconds: float
) -> None:
    """As a program that was stopped, or a machine that was cut off."""
    async with opened("b@x") as b, opened("z@x", "old") as old:
        server.cut("old")
        async with opened("z@x", "new") as new:
            pid = await new.spawn(Counter, name="counter")
            assert await b.call(pid, Total()) == 0
            await trio.sleep(seconds)
            server.mend("old")
            await trio.sleep(120)

            assert await b.call(Name("counter", "z@x"), Total()) == 0
            assert b.network().peers["z@x"].sessions == 1
            assert new.network().left == ""
            assert old.network().left.startswith("another node has the name 'z@x'")
            with pytest.raises(TargetDownError, match="another node has the name 'z@x'"):
                await old.call(Name("x", "b@x"), Total())
            # Neither do cuts of the successor give it back.
            server.cut("new")
            await trio.sleep(4.9)
            server.mend("new")
            await trio.sleep(120)
            assert await b.call(pid, Total()) == 0
            assert (new.network().left, bool(old.network().left)) == ("", True)
        # The name is free: the node that has left joins again.
        await trio.sleep(60)
        assert old.network().left == ""
        await old.spawn(Counter, name="counter")
        assert await b.call(Name("counter", "z@x"), Total()) == 0


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
async def test_the_successor_keeps_its_name_when_both_programs_connect_again(
    autojump_clock: MockClock, server: FakeServer, order: tuple[str, str]
) -> None:
    async with opened("z@x", "old") as old:
        server.cut("old")
        async with opened("z@x", "new") as new:
            await trio.sleep(10)
            server.cut("new")
            for way in order:
                await trio.sleep(1.5)
                server.mend(way)
            await trio.sleep(60)

            assert (new.network().left, bool(old.network().left)) == ("", True)


async def test_a_node_that_has_left_gives_way_to_a_node_that_opens(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("z@x", "old") as old:
        server.cut("old")
        async with opened("z@x", "new"):
            server.mend("old")
            await trio.sleep(20)
            assert old.network().left
        # The old node looks at the name for a while before it joins.
        with trio.fail_after(60):
            while carrier_of(old).client.server is None:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.1)
        async with opened("z@x", "third") as third:
            await trio.sleep(60)
            assert (third.network().left, bool(old.network().left)) == ("", True)


async def test_a_server_that_is_away_keeps_a_node_from_joining_again(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("z@x", "old") as old:
        server.cut("old")
        async with opened("z@x", "new"):
            server.mend("old")
            await trio.sleep(20)
        server.cut("old")
        await trio.sleep(100)
        assert old.network().left
        server.mend("old")
        await trio.sleep(60)
        assert old.network().left == ""


async def test_a_refused_program_ends_no_session_of_the_node_with_its_name(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    """The server sends the frames of all nodes to both of them for a moment."""
    async with watched_pair() as (a, b, pid, got, heard):
        server.subscribed = lambda host: a.send(pid, host) if host == "other" else None
        for _ in range(3):
            with pytest.raises(NodeNameTakenError):
                async with opened("b@x", "other"):
                    pass
            await trio.sleep(1)

        assert got == ["other"] * 9  # each subscribes three times
        assert heard == []
        assert a.network().peers["b@x"].sessions == b.network().peers["a@x"].sessions == 1


async def new_carrier(stack: AsyncExitStack) -> NatsCarrier:
    """A carrier of a node that is no member yet, with a sink that notes calls."""
    node = await stack.enter_async_context(running_node("a@x"))
    carrier = NatsCarrier(kernel_of(node), [], "c", None, None, False, 5.0, 1.0)
    replace_sink(carrier, Mock())
    return carrier


@pytest.mark.parametrize(
    "claim", [b"[]", b"[0]", b'["", 0, 0]', b"[true, 0, 0]", b"[0, 0, 0, 0]", b"0", b"null", b"{"]
)
async def test_a_malformed_claim_is_ignored(claim: bytes) -> None:
    async with AsyncExitStack() as stack:
        carrier = await new_carrier(stack)
        carrier.message(Message("ergo.c.n.a@x.a@x", 1, "", 0, b"c" + claim))
        assert carrier.claim.taken == ""
        carrier.message(Message("ergo.c.n.a@x.a@x", 1, "", 0, b"c[0, 0, 0]"))
        assert "has the name" in carrier.claim.taken


async def test_answers_of_jetstream_are_never_taken_for_messages_of_nodes() -> None:
    """Any node can let the server send them to the subjects of another node."""
    async with AsyncExitStack() as stack:
        carrier = await new_carrier(stack)
        kinds = [getattr(module, name) for name in ("_FRAME", "_CLAIM", "_PRESENT")]
        assert all(len(kind) == 1 and kind.isalpha() for kind in kinds)
        begin_search(carrier)
        for sender in ("a@x", "b@x"):
            carrier.message(Message(f"ergo.c.n.a@x.{sender}", 1, "", 0, b'{"type":"x"}'))

        assert sink_of(carrier).method_calls == []
        assert (found_nodes(carrier), carrier.claim.taken) == ({}, "")


# -- discovery -------------------------------------------------------------------------------------


async def test_a_node_answers_a_discovery_of_each_node_once_a_second(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("a@x"):
        await trio.sleep(10)
        for _ in range(30):
            for sender in ("b@x", "c@x"):
                server.publish(f"ergo.c.d.{sender}", b"")
            await trio.sleep(0.1)
        await trio.sleep(1)

        for sender in ("b@x", "c@x"):
            answers = [s for s, _ in server.published if s == f"ergo.c.n.{sender}.a@x"]
            assert len(answers) == 3


async def test_a_flood_of_names_gets_a_limited_number_of_answers(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("a@x"):
        await trio.sleep(10)
        for second in range(2):
            for number in range(1500):
                server.publish(f"ergo.c.d.{second}-{number}@x", b"")
            await trio.sleep(1.5)

        answers = [s for s, data in server.published if data == b"d" and s.endswith(".a@x")]
        assert len(answers) == 2000


async def test_searches_that_follow_each_other_find_all_nodes(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("a@x") as a, opened("b@x"):
        async with opened("c@x"):
            for seconds in (0.1, 0.1, 0.5, 1.0, 1.5, 3.0, 0.1):
                assert await a.discover(seconds) == ["b@x", "c@x"]
        await trio.sleep(1.1)
        assert await a.discover(0.1) == ["b@x"]


async def test_a_node_that_starts_again_finds_nodes_that_have_just_answered(
    autojump_clock: MockClock,
    server: FakeServer,
) -> None:
    async with opened("b@x"):
        async with opened("a@x") as a:
            assert await a.discover(0.1) == ["b@x"]
        async with opened("a@x") as a:
            assert await a.discover(1.5) == ["b@x"]


async def test_the_network_of_a_node_says_why_it_has_left(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async with opened("z@x", "old") as old:
        server.cut("old")
        async with opened("z@x", "new"):
            server.mend("old")
            await trio.sleep(20)
            assert network_of(old).why_left == old.network().left != ""
