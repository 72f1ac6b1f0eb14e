"""Nodes over a real NATS server: outages, servers that change, names, permissions, logins, TLS."""

import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from ergo_py import BadInputError, Down, Name, NoNode, TargetDownError
from ergo_py.network import NATS, NetworkError, NodeNameTakenError, StoreError
from ergo_py.network.carriers.nats.carrier import NatsCarrier
from ergo_py.network.carriers.nats.permissions import permissions_text
from ergo_py.network.carriers.nats.wire import Message, ServerInfo
from examples.guide.nats_nodes import open_shop
from tests.actors import Recorder
from tests.network.nats.server import NatsServer
from tests.network.pairs import TYPES, Add, Echo, Total, carrier_of, make_network, two_nodes, until
from tests.network.programs import COUNTER, other_program, until_it_answers
from tests.network.test_nodes import Counter, Talker
from tests.support import kernel_of, running_node

FAST: dict[str, Any] = {"beat": 0.05, "patience": 30.0, "grace": 30.0}
"""Settings for tests in which no node goes down, however slow the machine is."""


async def test_a_killed_and_restarted_server_is_invisible(server: NatsServer) -> None:
    got: list[Any] = []
    heard: list[Any] = []
    async with two_nodes(make_network("nats", server.url, **FAST)) as (a, b):
        pid = await b.spawn(Recorder, got)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        for number in range(300):
            a.send(pid, number)
            if number == 100:
                server.kill()
            if number == 200:
                await trio.to_thread.run_sync(server.start)
            await trio.sleep(0.001)
        await until(lambda: len(got) == 300)
        assert got == list(range(300))
        assert heard == []


async def test_a_server_that_stays_away_is_told_once(server: NatsServer) -> None:
    heard: list[Any] = []
    network = make_network("nats", server.url, beat=0.05, patience=1.0, grace=0.5)
    async with two_nodes(network) as (a, b):
        pid = await b.spawn(Counter)
        watcher = await a.spawn(Talker, heard)
        await a.call(watcher, lambda me: me.monitor(pid))
        await a.call(pid, Total())
        server.kill()
        a.send(pid, Add(1))
        await until(lambda: heard)
        with pytest.raises(TargetDownError):
            await a.call(pid, Total())
        await trio.to_thread.run_sync(server.start)
        await until(lambda: carrier_of(a).client.server is not None)
        # A new session: the process is the same.
        with trio.fail_after(60):
            while True:
                try:
                    total = await a.call(pid, Total(), timeout=30)
                    break
                except TargetDownError:
                    await trio.sleep(0.05)

    assert [type(down) for down in heard] == [Down]
    assert isinstance(heard[0].reason, NoNode)
    assert total == 0


async def test_a_killed_program_is_down_after_the_patience(shared_server: NatsServer) -> None:
    heard: list[Any] = []
    url, settings = shared_server.url, {"cluster": f"kill-{os.getpid()}", "grace": 0.1}
    network = make_network("nats", url, beat=0.05, patience=0.5, **settings)
    async with running_node("a@test", network=network) as a:
        async with other_program(url, 0.05, 0.5, "nats", **settings) as program:
            watcher = await a.spawn(Talker, heard)
            await until_it_answers(a)
            await a.call(watcher, lambda me: me.monitor(COUNTER))
            program.kill()
            await until(lambda: heard)
        assert heard == [Down(COUNTER, NoNode("b@test"))]
        async with other_program(url, 0.05, 0.5, "nats", **settings):
            await until_it_answers(a)


async def test_a_stopped_program_is_down_after_the_patience(shared_server: NatsServer) -> None:
    url, settings = shared_server.url, {"cluster": f"stop-{os.getpid()}", "grace": 0.1}
    network = make_network("nats", url, beat=0.05, patience=0.5, **settings)
    async with (
        running_node("a@test", network=network) as a,
        other_program(url, 0.05, 0.5, "nats", **settings) as program,
    ):
        await until_it_answers(a)
        program.send_signal(signal.SIGSTOP)
        with pytest.raises(TargetDownError, match=r"to node b@test: it (is|does not)"):
            await a.call(COUNTER, Total(), timeout=None)
        program.send_signal(signal.SIGCONT)
        # Both sides begin a new session.
        await until_it_answers(a)


async def test_a_node_that_no_server_knows_is_refused_at_once(shared_server: NatsServer) -> None:
    network = make_network("nats", shared_server.url, beat=1.0, patience=3600.0, grace=60.0)
    async with running_node("a@test", network=network) as a:
        with pytest.raises(
            TargetDownError, match="no client of the NATS server listens under its name"
        ):
            await a.call(Name("x", "nowhere@test"), Total(), timeout=None)


async def test_all_nodes_of_the_cluster_are_discovered(shared_server: NatsServer) -> None:
    network = make_network("nats", shared_server.url)
    other = make_network("nats", shared_server.url)
    async with (
        two_nodes(network) as (a, b),
        running_node("c.d%e*f>@test", network=network),
        running_node("e@test", network=other) as e,
    ):
        found: list[str] = []
        while len(found) < 2:
            found = await a.discover(0.1)
        assert found == ["b@test", "c.d%e*f>@test"]
        assert await e.discover(0.1) == []
        assert b.nodes() == []


async def test_a_name_that_a_living_node_has_is_refused(shared_server: NatsServer) -> None:
    network = make_network("nats", shared_server.url)
    async with running_node("a@test", network=network) as a:
        with pytest.raises(NodeNameTakenError, match="has the name 'a@test'"):
            async with running_node("a@test", network=network):
                pass
        # The first node is not concerned, and its name is free again after it.
        async with running_node("b@test", network=network) as b:
            pid = await a.spawn(Counter)
            assert await b.call(pid, Total()) == 0
    async with running_node("a@test", network=network):
        pass


async def test_a_single_node_of_several_that_open_together_gets_the_name(
    shared_server: NatsServer,
) -> None:
    network = make_network("nats", shared_server.url, **FAST)
    ends: list[str] = []
    over = trio.Event()

    async def open_one() -> None:
        try:
            async with running_node("a@test", network=network):
                ends.append("open")
                await over.wait()
        except NodeNameTakenError:
            ends.append("taken")
        if ends.count("taken") == 2:
            over.set()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(open_one)

    assert sorted(ends) == ["open", "taken", "taken"]


async def opening(carrier: NatsCarrier, monkeypatch: pytest.MonkeyPatch, *messages: Message) -> Any:
    """Open a carrier whose client gets these messages in a single turn. Returns the error."""

    async def run() -> None:
        carrier.connected(ServerInfo())
        for message in messages:
            carrier.message(message)
        await trio.sleep_forever()

    monkeypatch.setattr(carrier.client, "run", run)
    error: Any = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(carrier.run, Mock())
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        error = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def test_a_claim_right_after_the_name_was_free_comes_too_late(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node("a@test") as node:
        free = Message("ergo.c.x.a@test.a@test", 2, "", 503, b"")
        older = Message("ergo.c.n.a@test.a@test", 1, "", 0, b"c[1, 0, 0]")
        for messages, is_open in (((free, older), True), ((older, free), False)):
            carrier = NatsCarrier(kernel_of(node), [], "c", None, None, False, 5.0, 1.0)
            error = await opening(carrier, monkeypatch, *messages)
            assert (error is None) == is_open
            assert bool(carrier.claim.taken) != is_open


async def test_a_node_that_opens_waits_for_younger_nodes_to_leave(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node("a@test") as node, trio.open_nursery() as nursery:
        carrier = NatsCarrier(kernel_of(node), [], "c", None, None, False, 5.0, 1.0)

        async def claim() -> None:
            for _ in range(5):  # a younger node that is slow
                await trio.sleep(1.5)
                carrier.message(Message("ergo.c.n.a@test.a@test", 1, "", 0, b"c[9, 0, 0]"))
            await trio.sleep(1.5)
            carrier.message(Message("ergo.c.x.a@test.a@test", 2, "", 503, b""))

        nursery.start_soon(claim)
        assert await opening(carrier, monkeypatch) is None
        assert trio.current_time() >= 9.0
        silent = NatsCarrier(kernel_of(node), [], "c", None, None, False, 5.0, 1.0)
        error = await opening(silent, monkeypatch)
        assert "listens under the name 'a@test' and does not answer" in str(error)


async def test_a_server_that_takes_only_short_messages_is_refused_by_name() -> None:
    with NatsServer("max_payload: 4096") as server:
        network = make_network("nats", server.url)
        with pytest.raises(NetworkError, match=r"its max_payload is 4096 bytes; .* at least 60000"):
            async with running_node("a@test", network=network):
                pass


async def test_large_messages_pass_a_server_that_takes_60_000_bytes() -> None:
    with NatsServer("max_payload: 60000") as server:
        async with two_nodes(make_network("nats", server.url, **FAST)) as (a, b):
            pid = await b.spawn(Counter)
            for size in (40_000, 48 << 10, 50_000, 1_000_000):
                assert await a.call(pid, Echo("x" * size), timeout=30) == "x" * size
            for number in range(5_000):
                a.send(pid, Add(number))
            assert await a.call(pid, Total(), timeout=30) == sum(range(5_000))
            assert a.network().peers["b@test"].sessions == 1


async def test_the_younger_of_two_nodes_with_the_same_name_leaves_the_network(
    server: NatsServer,
) -> None:
    """As after a partition of the servers: both nodes are open before they meet."""
    with NatsServer() as elsewhere:
        here = make_network("nats", [server.url], cluster="one", **FAST)
        there = make_network("nats", [elsewhere.url, server.url], cluster="one", **FAST)
        async with (
            running_node("a@test", network=here) as first,
            running_node("a@test", network=there) as second,
            running_node("b@test", network=here) as b,
        ):
            pid = await first.spawn(Counter)
            assert await b.call(pid, Total()) == 0
            elsewhere.kill()
            await until(lambda: carrier_of(second).claim.taken)
            with pytest.raises(TargetDownError, match="another node has the name"):
                await second.call(Name("x", "b@test"), Total())
            assert await b.call(pid, Total()) == 0
            assert not carrier_of(first).claim.taken


async def test_a_client_that_has_the_name_and_does_not_answer_is_an_error(
    server: NatsServer,
) -> None:
    async with bare_client(server, b"SUB ergo.c.n.a@test.* 1\r\nPING\r\n"):
        with pytest.raises(NodeNameTakenError, match="does not answer"):
            async with running_node(
                "a@test", network=make_network("nats", server.url, cluster="c", grace=0.1)
            ):
                pass


@asynccontextmanager
async def bare_client(server: NatsServer, operations: bytes, **login: str) -> AsyncIterator[str]:
    """A client that sends these operations; with the answer of the server."""
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(
            f"CONNECT {json.dumps({'verbose': False, **login})}\r\n".encode() + operations
        )
        data = b""
        while b"PONG" not in data:
            data += await stream.receive_some(4096)
        yield data.decode()


async def test_a_lame_duck_hands_over_to_another_server(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[Any] = []
    with NatsServer('lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"') as duck:
        network = make_network("nats", f"{duck.url}, {server.url}", **FAST)
        async with two_nodes(network) as (a, b):
            pid = await b.spawn(Recorder, got)
            assert await a.call(pid, None) == []
            reasons: list[str] = []
            monkeypatch.setattr(carrier_of(a), "disconnected", reasons.append)
            duck.signal(signal.SIGUSR2)
            for number in range(100):
                a.send(pid, number)
                await trio.sleep(0.001)
            await until(lambda: len(got) == 100)
            await until(lambda: str(carrier_of(a).client.server) == server.url)
            assert reasons[0].endswith("it goes down")  # before the server cuts the connection

    assert got == list(range(100))


async def test_another_server_takes_over_from_a_killed_server(server: NatsServer) -> None:
    got: list[Any] = []
    with NatsServer() as second:
        network = make_network("nats", [second.url, server.url], **FAST)
        async with two_nodes(network) as (a, b):
            pid = await b.spawn(Recorder, got)
            assert await a.call(pid, None) == []
            second.kill()
            for number in range(100):
                a.send(pid, number)
            await until(lambda: len(got) == 100)
            assert [str(carrier_of(node).client.server) for node in (a, b)] == [server.url] * 2

    assert got == list(range(100))


async def test_a_frozen_server_is_left_for_another(server: NatsServer) -> None:
    got: list[Any] = []
    with NatsServer() as second:
        network = make_network("nats", [second.url, server.url], **FAST)
        async with two_nodes(network) as (a, b):
            pid = await b.spawn(Recorder, got)
            assert await a.call(pid, None) == []
            second.freeze()
            try:
                for number in range(100):
                    a.send(pid, number)
                await until(lambda: len(got) == 100)
            finally:
                second.signal(signal.SIGCONT)

    assert got == list(range(100))


async def test_no_server_at_the_start_is_an_error_that_names_all(unused_port: int) -> None:
    network = NATS([f"nats://me:secret@127.0.0.1:{unused_port}", "nats://127.0.0.1:1"])
    with pytest.raises(NetworkError, match="no NATS server accepts this node") as caught:
        async with running_node("a@test", network=network):
            pass
    assert f"nats://127.0.0.1:{unused_port}: " in str(caught.value)
    assert "nats://127.0.0.1:1: " in str(caught.value)
    assert "secret" not in str(caught.value) + repr(network)


@pytest.fixture
async def unused_port() -> AsyncIterator[int]:
    with trio.socket.socket() as free:
        await free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


@pytest.mark.parametrize(
    "greeting, text",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an unknown operation"),
        (b"PING\r\n", "does not greet as a NATS server does"),
        (b'INFO {"version":"1.0"}\r\n', "too old"),
        (b"INFO {\"headers\":true}\r\n-ERR 'no'\r\n", ": no"),
        (b"", "closed the connection"),
    ],
)
async def test_a_server_without_the_protocol_is_an_error(greeting: bytes, text: str) -> None:
    async with hostile_server(greeting) as port:
        with pytest.raises(NetworkError, match=text):
            async with running_node("a@test", network=NATS(f"nats://127.0.0.1:{port}")):
                pass


@asynccontextmanager
async def hostile_server(greeting: bytes) -> AsyncIterator[int]:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(greeting)
        if greeting.count(b"\r\n") > 1:
            await stream.receive_some(1)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


# -- permissions ----------------------------------------------------------------------

STREAM = "$JS.API.STREAM.CREATE.KV_ergo-c"
SPY = {"name": "KV_ergo-c", "subjects": ["$KV.ergo-c.>", "ergo.c.n.>"]}
"""A bucket that would keep the messages of all nodes."""


async def test_the_server_binds_a_node_to_its_name() -> None:
    """With the permissions that `ergo nats permissions` prints."""
    config = permissions_text("c", ["a@test", "b@test"]).replace("REPLACE-THIS", "password")
    with (
        tempfile.TemporaryDirectory(prefix="js-", dir="/tmp") as folder,
        NatsServer(config, "--jetstream", "--store_dir", folder) as server,
    ):

        def network(user: str, password: str = "password") -> NATS:
            return NATS(
                f"nats://{user}%40test:{password}@127.0.0.1:{server.port}", cluster="c", types=TYPES
            )

        async with (
            running_node("a@test", network=network("a")) as a,
            running_node("b@test", network=network("b")) as b,
        ):
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0
            with pytest.raises(TargetDownError, match="no client of the NATS server"):
                await a.call(Name("x", "c@test"), Echo(1))
            # A client with the password of b cannot send as a, and cannot listen as a.
            # It cannot make a bucket that does so, either.
            bucket = json.dumps(SPY).encode()
            spoof = (
                b"PUB ergo.c.n.b@test.a@test 1\r\nf\r\nSUB ergo.c.n.a@test.* 1\r\n"
                + f"PUB {STREAM} ergo.c.x.b@test.1 {len(bucket)}\r\n".encode()
                + bucket
                + b"\r\nPING\r\n"
            )
            user = {"user": "b@test", "pass": "password"}
            async with bare_client(server, spoof, **user) as answer:
                assert 'Violation for Publish to "ergo.c.n.b@test.a@test"' in answer
                assert 'Violation for Subscription to "ergo.c.n.a@test.*"' in answer
                assert f'Violation for Publish to "{STREAM}"' in answer
                assert await a.call(pid, Total()) == 0
            store = carrier_of(b).store()
            with pytest.raises(
                StoreError, match=r"this node cannot make it: .* listed first there"
            ):
                await store.get("key")
            assert await carrier_of(a).store().put("key", b"value", 0)
            found = await store.get("key")
            assert found is not None
            assert found.value == b"value"
        with pytest.raises(NetworkError, match="Permissions Violation for Subscription"):
            async with running_node("other@test", network=network("a")):
                pass
        with pytest.raises(NetworkError, match="Authorization Violation") as caught:
            async with running_node("a@test", network=network("a", "wrong")):
                pass
        assert "wrong" not in str(caught.value)


# -- input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"urls": ""}, "the URLs of servers"),
        ({"urls": 5}, "the URLs of servers"),
        ({"urls": [5]}, "the URL of a NATS server"),
        ({"urls": "http://me:secret@host"}, "the URL of a NATS server"),
        ({"urls": "nats://host:port"}, "the URL of a NATS server"),
        ({"urls": "nats://host/path"}, "the URL of a NATS server"),
        ({"cluster": " "}, "the name of a cluster"),
        ({"grace": 0}, "grace"),
        ({"grace": 6.0}, "at most the patience of 5 s"),
        ({"tls": 5}, "an ssl.SSLContext"),
        ({"tls": "/nowhere"}, "a readable file of authorities"),
        ({"credentials": 5}, "the path of a .creds file"),
        ({"types": Add}, "a list of classes and modules"),
    ],
)
def test_an_invalid_setting_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInputError, match=text) as caught:
        NATS(**{"urls": "nats://127.0.0.1:4222", **settings})
    assert "secret" not in str(caught.value)


async def test_the_example_of_the_guide_runs(
    shared_server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await open_shop(shared_server.url)
    assert capsys.readouterr().out == "left: 7\n"


async def test_a_flush_waits_until_the_server_has_got_everything(server: NatsServer) -> None:
    network = make_network("nats", server.url, **FAST)
    async with running_node("a@test", network=network) as a:
        server.freeze()
        with trio.move_on_after(0.1) as scope:
            await carrier_of(a).flush()
        server.signal(signal.SIGCONT)
        assert scope.cancelled_caught
        with trio.fail_after(60):
            await carrier_of(a).flush()
        server.freeze()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carrier_of(a).flush)
            await trio.testing.wait_all_tasks_blocked(0.01)
            server.kill()  # a lost server ends the wait
        server.start()
