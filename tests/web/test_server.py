"""The web server: requests are calls, and every request has a response."""

import gc
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    BadInputError,
    Caller,
    Down,
    Drain,
    Reject,
    Shutdown,
    TargetDownError,
)
from ergo_py._core.runtime.detached_task import DetachedTask
from ergo_py.meta import TLSFiles
from ergo_py.pipelines import Item, Pipeline, Stage
from ergo_py.testing import VirtualClock
from ergo_py.web import HTTPError, HTTPRequest, Response, Route, WebServer
from ergo_py.web.parsing.http1 import Head
from tests.pipelines.broker import Collect
from tests.support import kernel_of
from tests.web.rig import Owner, Peer, Served, get, later, post, serving, until

PLACE = Path(__file__).parent.parent / "meta" / "certificates"

# -- W1: a request is a call -----------------------------------------------------------------------


async def test_a_request_is_a_call_with_method_path_and_body() -> None:
    seen: list[HTTPRequest] = []

    def handle(request: HTTPRequest) -> object:
        seen.append(request)
        match request:
            case HTTPRequest("POST", ("orders", number)):
                return Response.json({"number": number, "body": request.json()}, 201)
        raise Reject(HTTPError(404))

    async with serving(handle) as served:
        reply = await served.ask(
            post("/orders/a%2Fb?x=1&y=%C3%A4", b"[1]", "Cookie: a=b; c=d", "X: y")
        )

    assert (reply.status, reply.body) == (201, b'{"number":"a/b","body":[1]}')
    assert reply.headers["content-type"] == "application/json"
    (request,) = seen
    assert dict(request.query) == {"x": "1", "y": "ä"}
    assert request.cookies == {"a": "b", "c": "d"}
    assert request.headers["x"] == "y"
    assert (request.host, request.client, request.scheme) == ("a", "127.0.0.1", "http")
    assert request.version == "1.1"


async def test_a_connection_is_used_for_many_requests_in_order() -> None:
    async with serving(lambda request: Response(200, request.path[0])) as served:
        peer = await served.dial()
        for name in ("a", "b", "c"):
            assert (await peer.ask(get(f"/{name}"))).body == name.encode()
        await peer.aclose()

        assert (await served.facts("accepted", "requests")) == {"accepted": "1", "requests": "3"}


async def test_a_connection_in_clear_is_never_upgraded_to_tls() -> None:
    """So nothing that came in clear can count as encrypted."""
    async with serving(lambda request: Response(200, request.scheme)) as served:
        peer = await served.dial()
        upgrade = get("/", "Upgrade: TLS/1.0", "Connection: Upgrade")
        await peer.send(upgrade + get("/"))

        assert [(await peer.reply()).body for _ in range(2)] == [b"http", b"http"]
        await peer.aclose()
    options: dict[str, Any] = {"start_tls": True}
    with pytest.raises(TypeError, match="start_tls"):
        WebServer(**options)


async def test_pipelined_requests_are_answered_singly_and_in_order() -> None:
    under_way: list[int] = []

    class Slow(Actor):
        async def handle_call(self, request: object, caller: Caller) -> object:
            assert isinstance(request, HTTPRequest)
            under_way.append(len(served.owner.busy))
            served.owner.busy.append(1)
            await trio.lowlevel.checkpoint()
            served.owner.busy.pop()
            return Response(200, request.path[0])

    async with serving(routes=[Route("/", to="slow")]) as served:
        served.owner.busy = []
        await served.node.spawn(Slow, name="slow")
        peer = await served.dial()
        await peer.send(b"".join(get(f"/{number}") for number in range(200)))
        replies = [await peer.reply() for _ in range(200)]
        await peer.aclose()

    assert [reply.body for reply in replies] == [b"%d" % number for number in range(200)]
    assert set(under_way) == {0}


async def test_an_answer_may_be_deferred_and_come_from_another_process() -> None:
    class Other(Actor):
        def handle_message(self, message: object, sender: PID | Alias) -> None:
            assert isinstance(message, Caller)
            self.reply(message, Response(200, "from another"))

    async with serving(later) as served:
        other = await served.node.spawn(Other)
        peer = await served.dial()
        await peer.send(get() + get("/second"))
        await until(lambda: served.owner.callers)
        served.node.send(other, served.owner.callers[0])
        assert (await peer.reply()).body == b"from another"
        await until(lambda: len(served.owner.callers) == 2)
        served.node.send(other, served.owner.callers[1])
        assert (await peer.reply()).body == b"from another"
        await peer.aclose()


async def test_a_request_may_be_forwarded() -> None:
    class Worker(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            return Response(200, "worker")

    class Front(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            self.forward("worker", request, caller)
            return NO_REPLY

    async with serving(routes=[Route("/", to="front")]) as served:
        await served.node.spawn(Worker, name="worker")
        await served.node.spawn(Front, name="front")
        assert (await served.ask(get())).body == b"worker"


async def test_a_behaviour_as_receiver_gets_an_actor_for_each_request() -> None:
    lives: list[str] = []

    class Report(Actor):
        async def init(self) -> None:
            lives.append("begins")

        async def handle_call(self, request: object, caller: Caller) -> object:
            return Response(200, str(self.pid))

        def terminate(self, reason: object) -> None:
            lives.append("ends")

    async with serving(routes=[Route("/", to=Report)]) as served:
        peer = await served.dial()
        first, second = await peer.ask(get()), await peer.ask(get())
        await until(lambda: lives.count("ends") == 2)
        await peer.aclose()

    assert first.body != second.body
    assert lives.count("begins") == 2


async def test_several_receivers_take_turns() -> None:
    class Named(Actor):
        def __init__(self, name: str) -> None:
            self.name = name

        def handle_call(self, request: object, caller: Caller) -> object:
            return Response(200, self.name)

    async with serving(routes=[Route("/", to=["a", "b"])]) as served:
        await served.node.spawn(Named, "a", name="a")
        await served.node.spawn(Named, "b", name="b")
        peer = await served.dial()
        bodies = [(await peer.ask(get())).body for _ in range(4)]
        await peer.aclose()

    assert bodies == [b"a", b"b", b"a", b"b"]


# -- routes ----------------------------------------------------------------------------------------


async def test_the_longest_prefix_of_whole_parts_wins() -> None:
    class Named(Actor):
        def __init__(self, name: str) -> None:
            self.name = name

        def handle_call(self, request: object, caller: Caller) -> object:
            assert isinstance(request, HTTPRequest)
            return Response(200, f"{self.name} {request.prefix}")

    routes = [
        Route("/a", to="one"),
        Route("/a/b/", to="two", methods=["GET"]),
        Route("/caf%C3%A9", to="one"),
    ]
    async with serving(routes=routes) as served:
        await served.node.spawn(Named, "one", name="one")
        await served.node.spawn(Named, "two", name="two")
        peer = await served.dial()

        async def ask(path: str, method: str = "GET") -> tuple[int, bytes]:
            reply = await peer.ask(get(path, method=method))
            return reply.status, reply.body

        assert await ask("/a") == (200, b"one 1")
        assert await ask("/a/x/y?b=/a/b") == (200, b"one 1")
        assert await ask("/a/b") == (200, b"two 2")
        assert await ask("/a/b/c") == (200, b"two 2")
        assert await ask("/a/bc") == (200, b"one 1")
        assert await ask("/caf%c3%a9") == (200, b"one 1")
        assert (await ask("/ab"))[0] == 404
        assert (await ask("/"))[0] == 404
        reply = await peer.ask(get("/a/b", method="PUT"))
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        await peer.aclose()


@pytest.mark.parametrize("path", ["/%", "/%4", "/%zz", "/%00", "/%ff"])
async def test_a_path_with_a_wrong_escape_is_refused(path: str) -> None:
    async with serving() as served:
        assert (await served.ask(get(path))).status == 400


async def test_a_host_that_is_not_served_gets_421() -> None:
    async with serving(hosts=["Example.org", "[::1]"]) as served:
        assert (await served.ask(get(host="example.ORG:8080"))).status == 200
        assert (await served.ask(get(host="[::1]:80"))).status == 200
        assert (await served.ask(get(host="other.org"))).status == 421
        assert (await served.ask(get(host=""))).status == 421
        assert (await served.ask(get("http://[::1]/", host="[::1]"))).status == 200
        assert (await served.ask(get("http://other.org/", host=""))).status == 421


async def test_a_client_that_writes_an_empty_line_after_a_body_keeps_its_connection() -> None:
    async with serving() as served:
        peer = await served.dial()
        for _ in range(3):
            assert (await peer.ask(post("/", b"hello") + b"\r\n")).status == 200
        assert (await peer.ask(get())).status == 200


@pytest.mark.parametrize(
    "make",
    [
        lambda: Route("orders"),
        lambda: Route("/a//b"),
        lambda: Route("/a?b"),
        lambda: Route("/%"),
        lambda: Route("/", methods="GET"),
        lambda: Route("/", methods=["get"]),
        lambda: Route("/", max_body=-1),
        lambda: Route("/", request_timeout=0),
        lambda: Route("/", body="stream"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Route("/", to="a", websocket=Actor),
        lambda: Route("/", websocket="a"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Route("/", websocket=Actor, origins="https://a"),
        lambda: Route("/", websocket=Actor, origins=["a"]),
        lambda: WebServer(routes=[Route("/a"), Route("/a/")]),
        lambda: WebServer(routes=Route("/a")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WebServer(routes=["/a"]),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        lambda: WebServer(head_timeout=0),
        lambda: WebServer(hosts="a"),
        lambda: WebServer(hosts=[]),
        lambda: WebServer(trusted="10.0.0.0/8"),
        lambda: WebServer(trusted=["proxy"]),
        lambda: WebServer(forwarded="x-forwarded-host"),
        lambda: WebServer(forwarded=["forwarded"]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WebServer(forwarded_host="a"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WebServer(tls=True),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WebServer(port=70_000),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadInputError):
        make()


# -- W2: outcomes ----------------------------------------------------------------------------------


def crash(_: HTTPRequest) -> object:
    raise ZeroDivisionError("secret")


@pytest.mark.parametrize(
    "answer,status",
    [
        (Reject(HTTPError(404)), 404),
        (Reject(HTTPError(418, "no coffee")), 418),
        (Reject(KeyError("secret")), 500),
        (Reject(TargetDownError("secret", None, Shutdown())), 500),
        ("a text", 500),
        (None, 500),
        (ZeroDivisionError("secret"), 500),
    ],
)
async def test_an_outcome_has_its_status_and_no_detail(answer: object, status: int) -> None:
    class Worker(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

    async with serving(routes=[Route("/", to="worker")]) as served:
        await served.node.spawn(Worker, name="worker")
        reply = await served.ask(get())

    assert reply.status == status
    assert b"secret" not in reply.body


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_crash_is_500_at_once_for_both_kinds_of_actor(is_async: bool) -> None:
    class Plain(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            return crash(request)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    class Async(Actor):
        async def handle_call(self, request: object, caller: Caller) -> object:
            await trio.lowlevel.checkpoint()
            raise ZeroDivisionError("secret")

    async with serving(routes=[Route("/", to="worker")]) as served:
        await served.node.spawn(Async if is_async else Plain, name="worker")
        peer = await served.dial()
        first = await peer.ask(get())
        await until(lambda: served.node.whereis("worker") is None)
        second = await peer.ask(get())
        await peer.aclose()

    assert first.status == 500
    assert (second.status, second.headers["retry-after"]) == (503, "1")


async def test_a_missing_receiver_is_503() -> None:
    async with serving(routes=[Route("/", to="nobody")]) as served:
        reply = await served.ask(get())

    assert (reply.status, reply.headers["retry-after"]) == (503, "1")


async def test_a_receiver_that_ends_before_its_answer_is_503() -> None:
    class Worker(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            self.stop()
            return NO_REPLY

    async with serving(routes=[Route("/", to="worker")]) as served:
        await served.node.spawn(Worker, name="worker")
        assert (await served.ask(get())).status == 503


async def test_a_full_receiver_is_503() -> None:
    class Worker(Actor):
        async def handle_call(self, request: object, caller: Caller) -> object:
            await trio.sleep_forever()

    async with serving(routes=[Route("/", to="worker")]) as served:
        await served.node.spawn(Worker, name="worker", mailbox_size=1, shutdown=0.01)
        peers = [await served.dial() for _ in range(3)]
        for peer in peers:
            await peer.send(get())
        reply = None
        async with trio.open_nursery() as nursery:

            async def wait(peer: Peer) -> None:
                nonlocal reply
                reply = await peer.reply()
                nursery.cancel_scope.cancel()

            for peer in peers:
                nursery.start_soon(wait, peer)
        for peer in peers:
            await peer.aclose()

    assert reply is not None
    assert reply.status == 503


class Welcome(Stage):
    async def handle(self, item: Item) -> Response:
        return Response(200, b"welcome")


async def test_a_pipeline_that_is_full_drained_or_stopped_is_503() -> None:
    sink = Collect()
    sink.shut()
    plan = Pipeline.spec(Welcome(), sink, most_unacknowledged=1, on_stop=Drain(0.01))
    async with serving(routes=[Route("/", to="desk")]) as served:
        node = served.node
        await node.spawn(plan, name="desk")
        first, second = await served.dial(), await served.dial()
        await first.send(get())
        await until_shown(served, open="1")
        await second.send(get())
        await until_shown(served, waiting="1")
        replies = [await served.ask(get())]  # full
        assert await node.call("desk", Drain(0.01)) == 1
        replies += [await second.reply(), await served.ask(get())]  # drained
        sink.gate.set()
        assert (await first.reply()).body == b"welcome"
        node.send_exit("desk")
        await until(lambda: node.whereis("desk") is None)
        replies.append(await served.ask(get()))  # stopped
        for peer in (first, second):
            await peer.aclose()

    assert [(reply.status, reply.headers["retry-after"]) for reply in replies] == [(503, "1")] * 4


async def test_a_request_that_a_pipeline_leaves_at_its_stop_is_503() -> None:
    sink = Collect()
    sink.shut()
    plan = Pipeline.spec(Welcome(), sink, most_unacknowledged=1, on_stop=Drain(0.01))
    async with serving(routes=[Route("/", to="desk")]) as served:
        await served.node.spawn(plan, name="desk")
        peers = [await served.dial() for _ in range(2)]
        for peer in peers:
            await peer.send(get())
        await until_shown(served, open="1", waiting="1")
        served.node.send_exit("desk")
        statuses = [(await peer.reply()).status for peer in peers]
        for peer in peers:
            await peer.aclose()

    assert statuses == [503, 503]


async def until_shown(served: Served, **facts: str) -> None:
    while not facts.items() <= (await served.node.inspect("desk")).items():  # noqa: ASYNC110
        await trio.sleep(0.001)


async def test_an_actor_that_cannot_start_is_500() -> None:
    class Broken(Actor):
        def init(self) -> None:
            raise RuntimeError("secret")

    async with serving(routes=[Route("/", to=Broken)]) as served:
        reply = await served.ask(get())

    assert reply.status == 500
    assert b"secret" not in reply.body


def in_virtual_time(test: Callable[[], object]) -> None:
    trio.run(test, clock=VirtualClock())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_no_answer_in_time_is_504_and_the_late_answer_is_counted() -> None:
    async def run() -> None:
        async with serving(later) as served:
            peer = await served.dial()
            reply = await peer.ask(get())
            assert reply.status == 504
            late = served.owner.callers[0]
            assert served.node.reply(late, Response(200)) is False
            served.owner.handle = None
            assert (await peer.ask(get())).status == 200
            await peer.aclose()
            assert trio.current_time() >= 30.0

    in_virtual_time(run)


async def test_a_peer_that_leaves_abandons_its_call() -> None:
    requests: list[HTTPRequest] = []

    def handle(request: HTTPRequest) -> object:
        requests.append(request)
        return NO_REPLY

    async with serving(handle) as served:
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: requests)
        assert not requests[0].gone
        await peer.aclose()
        await until(lambda: requests[0].gone)
        assert served.node.reply(served.owner.callers[0], Response(200)) is False
        assert served.server.connections == 0


async def test_an_actor_of_its_own_ends_if_the_peer_leaves() -> None:
    lives: list[str] = []

    class Report(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            lives.append("asked")
            return NO_REPLY

        def terminate(self, reason: object) -> None:
            lives.append("ended")

    async with serving(routes=[Route("/", to=Report)]) as served:
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: lives)
        await peer.aclose()
        await until(lambda: lives == ["asked", "ended"])


# -- W4: time --------------------------------------------------------------------------------------


def test_a_head_that_takes_too_long_is_408() -> None:
    async def run() -> None:
        async with serving() as served:
            peer = await served.dial()
            await peer.send(b"GET / HT")
            begun = trio.current_time()
            reply = await peer.reply()
            assert (reply.status, reply.headers["connection"]) == (408, "close")
            assert 10.0 <= trio.current_time() - begun <= 11.0
            assert await peer.rest() == b""
            await peer.aclose()

    in_virtual_time(run)


def test_bytes_of_a_head_do_not_prolong_its_time() -> None:
    async def run() -> None:
        async with serving() as served, trio.open_nursery() as nursery:
            peer = await served.dial()

            async def drip() -> None:
                for byte in get("/" + "a" * 60):
                    await peer.send(bytes([byte]))
                    await trio.sleep(1.0)

            nursery.start_soon(drip)
            reply = await peer.reply()
            assert reply.status == 408
            assert trio.current_time() <= 12.0
            nursery.cancel_scope.cancel()
            await peer.aclose()

    in_virtual_time(run)


def test_a_long_head_that_is_slow_has_no_second_time_limit() -> None:
    async def run() -> None:
        async with serving() as served:
            peer = await served.dial()
            await peer.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
            await trio.sleep(7.0)
            await peer.send(b"X: " + b"x" * 9_000)
            assert (await peer.reply()).status == 408
            assert 10.0 <= trio.current_time() <= 11.0

    in_virtual_time(run)


def test_a_body_that_pauses_is_408() -> None:
    async def run() -> None:
        async with serving() as served:
            peer = await served.dial()
            await peer.send(post("/", b"x" * 100)[:-50])
            begun = trio.current_time()
            assert (await peer.reply()).status == 408
            assert 10.0 <= trio.current_time() - begun <= 11.0
            await peer.aclose()

    in_virtual_time(run)


def test_a_body_below_the_rate_is_408() -> None:
    async def run() -> None:
        async with serving() as served, trio.open_nursery() as nursery:
            peer = await served.dial()
            await peer.send(post("/", b"x" * 100_000)[:-99_000])

            async def drip() -> None:
                while True:
                    await trio.sleep(5.0)
                    await peer.send(b"x")

            nursery.start_soon(drip)
            assert (await peer.reply()).status == 408
            assert 30.0 <= trio.current_time() <= 36.0
            nursery.cancel_scope.cancel()
            await peer.aclose()

    in_virtual_time(run)


def test_a_body_above_the_rate_may_take_minutes() -> None:
    async def run() -> None:
        async with serving(lambda request: Response(200, str(len(request.body)))) as served:
            peer = await served.dial()
            size = 300 * 200
            await peer.send(post("/", b"x" * size)[:-size])
            for _ in range(20):
                await trio.sleep(9.0)
                await peer.send(b"x" * (size // 20))
            assert (await peer.reply()).body == str(size).encode()
            await peer.aclose()

    in_virtual_time(run)


def test_an_idle_connection_ends_after_its_time() -> None:
    async def run() -> None:
        async with serving() as served:
            fresh, used = await served.dial(), await served.dial()
            await trio.sleep(5.0)
            assert (await used.ask(get())).status == 200
            assert await fresh.rest() == b""
            assert 10.0 <= trio.current_time() <= 11.0
            assert await used.rest() == b""
            assert 65.0 <= trio.current_time() <= 67.0
            await fresh.aclose()
            await used.aclose()

    in_virtual_time(run)


def test_a_peer_that_takes_nothing_is_cut() -> None:
    async def run() -> None:
        async with serving(lambda _: Response(200, b"x" * 30_000_000)) as served:
            peer = await served.dial()
            await peer.send(get())
            await until_virtual(lambda: served.server.connections == 1)
            await trio.sleep(200.0)
            assert served.server.connections == 0
            await peer.aclose()

    async def until_virtual(condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - the condition may be anything
            await trio.sleep(0.01)

    in_virtual_time(run)


async def test_slow_peers_cost_no_task_each_and_harm_no_other() -> None:
    async with serving() as served:
        before = trio.lowlevel.current_statistics().tasks_living
        peers = [await served.dial() for _ in range(200)]
        for peer in peers:
            # A peer whose first head is not complete does not even have a connection.
            assert (await peer.ask(get())).status == 200
            await peer.send(b"GET / HTTP/1.1\r\n")
        assert (await served.ask(get())).status == 200
        # The task of the reader is there for each open connection; no further task is.
        assert trio.lowlevel.current_statistics().tasks_living <= before + 200 + 5
        for peer in peers:
            await peer.aclose()


@pytest.mark.parametrize("is_tls", [False, True])
def test_the_first_byte_must_come_within_the_time_of_a_head(is_tls: bool) -> None:
    async def run() -> None:
        files = TLSFiles(PLACE / "server.pem", PLACE / "server.key") if is_tls else None
        async with serving(tls=files) as served:
            peer = await served.dial()
            if isinstance(peer.stream, trio.SocketStream) and is_tls:
                context = ssl.create_default_context(cafile=PLACE / "authority.pem")
                peer.stream = trio.SSLStream(peer.stream, context, server_hostname="localhost")
                await peer.stream.do_handshake()
            began = trio.current_time()
            assert await peer.rest() == b""
            assert 10.0 <= trio.current_time() - began <= 10.5
            await peer.aclose()

    in_virtual_time(run)


def test_a_full_server_ends_the_oldest_connection_without_a_request() -> None:
    async def run() -> None:
        async with serving(max_connections=3) as served:
            oldest, used, silent = [await served.dial() for _ in range(3)]
            assert (await oldest.ask(get())).status == 200
            await trio.sleep(0.5)
            assert (await used.ask(get())).status == 200
            newcomer = await served.dial()
            await newcomer.send(get())
            assert await silent.rest() == b""
            assert (await newcomer.reply()).status == 200
            # Nobody gives way in the first second.
            assert 1.0 <= trio.current_time() <= 1.1
            another = await served.dial()
            assert (await another.ask(get())).status == 200
            assert await oldest.rest() == b""
            assert (await used.ask(get())).status == 200
            assert served.server.connections == 3

    in_virtual_time(run)


@pytest.mark.parametrize("number", [64, 65, 150])
@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", get()])
def test_a_request_gets_through_beside_idle_connections(number: int, first: bytes) -> None:
    async def run() -> None:
        async with serving(max_connections=64) as served:
            peers = [await served.dial() for _ in range(number)]
            for peer in peers[:64]:
                await peer.send(first)
            await trio.sleep(1.0)
            for _ in range(3):
                began = trio.current_time()
                assert (await served.ask(get())).status == 200
                assert trio.current_time() - began < 3.5
            assert served.server.connections <= 64

    in_virtual_time(run)


def test_requests_and_websockets_under_way_never_give_way() -> None:
    async def run() -> None:
        routes = [Route("/"), Route("/ws", websocket=Actor)]
        async with serving(later, routes=routes, max_connections=2) as served:
            busy, talker, third = [await served.dial() for _ in range(3)]
            await busy.send(get())
            await talker.send(
                get(
                    "/ws",
                    "Upgrade: websocket",
                    "Connection: Upgrade",
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                    "Sec-WebSocket-Version: 13",
                )
            )
            assert (await talker.head()).status == 101
            await third.send(get())
            await trio.sleep(5.0)
            assert len(served.owner.callers) == 1
            kernel_of(served.node).calls.reply(served.owner.callers[0], Response(200), None)
            assert (await busy.reply()).status == 200
            # The connection that is idle now gives way a second later.
            assert await busy.rest() == b""
            with trio.fail_after(5):
                while len(served.owner.callers) < 2:  # noqa: ASYNC110 - in virtual time
                    await trio.sleep(0.01)

    in_virtual_time(run)


async def test_connections_are_bounded() -> None:
    async with serving(max_connections=2) as served:
        first, second, third = [await served.dial() for _ in range(3)]
        assert (await first.ask(get())).status == 200
        assert (await second.ask(get())).status == 200
        await third.send(get())
        assert served.server.connections == 2
        await first.aclose()
        assert (await third.reply()).status == 200
        await second.aclose()
        await third.aclose()


# -- W5, W6: bodies --------------------------------------------------------------------------------


async def test_pipelined_requests_beyond_the_buffer_are_not_read() -> None:
    async with serving(later) as served:
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: served.owner.callers)
        total = 64 * 1024 * 1024

        async def flood() -> None:
            request = get("/x", "X: " + "y" * 8000)
            for _ in range(total // len(request)):
                await peer.send(request)

        with trio.move_on_after(1.0) as scope:
            await flood()
        read = int((await served.facts("bytes in"))["bytes in"])
        assert scope.cancelled_caught
        assert read < 1024 * 1024
        await peer.aclose()


async def test_pipelined_requests_in_the_buffer_are_served_after_a_pause() -> None:
    async with serving(later) as served:
        peer = await served.dial()
        request = get("/x", "X: " + "y" * 8000)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for _ in range(40):
                    await peer.send(request)

            nursery.start_soon(send)
            for number in range(40):
                await until(lambda: len(served.owner.callers) == number + 1)  # noqa: B023
                served.node.reply(served.owner.callers[number], Response(200, str(number)))
                assert (await peer.reply()).body == str(number).encode()
        await peer.aclose()


async def test_expect_is_answered_when_the_body_is_wanted() -> None:
    async with serving(lambda request: Response(200, request.body)) as served:
        peer = await served.dial()
        whole = post("/", b"hello", "Expect: 100-continue")
        await peer.send(whole[:-5])
        assert await peer.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await peer.send(b"hello")
        assert (await peer.reply()).body == b"hello"
        await peer.aclose()


async def test_expect_is_not_answered_for_a_refused_body() -> None:
    async with serving(routes=[Route("/", max_body=4)]) as served:
        peer = await served.dial()
        await peer.send(post("/", b"hello", "Expect: 100-continue")[:-5])
        reply = await peer.reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert await peer.rest() == b""
        await peer.aclose()


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with serving(routes=[Route("/", max_body=1000)]) as served:
        peer = await served.dial()
        reply = await peer.ask(get("/", "Content-Length: 10000000", method="POST"))
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        await peer.aclose()


async def test_a_chunked_body_over_the_limit_is_refused() -> None:
    async with serving(routes=[Route("/", max_body=10)]) as served:
        fits = get("/", "Transfer-Encoding: chunked", method="POST") + b"A\r\n0123456789\r\n"
        assert (await served.ask(fits + b"0\r\n\r\n")).status == 200
        assert (await served.ask(fits + b"1\r\nx\r\n0\r\n\r\n")).status == 413


async def test_a_chunked_body_may_follow_an_empty_chunked_body() -> None:
    async with serving(lambda request: Response(200, b"<" + request.body)) as served:
        peer, head = await served.dial(), get("/", "Transfer-Encoding: chunked", method="POST")
        assert (await peer.ask(head + b"0\r\n\r\n")).body == b"<"
        assert (await peer.ask(head + b"1\r\nx\r\n0\r\n\r\n")).body == b"<x"
        await peer.aclose()


async def test_a_short_unwanted_body_is_skipped_and_the_connection_is_used_again() -> None:
    async with serving(routes=[Route("/a")]) as served:
        peer = await served.dial()
        assert (await peer.ask(post("/b", b"x" * 60_000))).status == 404
        chunked = (
            get("/b", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n0\r\n\r\n"
        )
        assert (await peer.ask(chunked)).status == 404
        assert (await peer.ask(get("/a"))).status == 200
        await peer.aclose()


async def test_a_long_unwanted_body_closes_the_connection() -> None:
    async with serving(routes=[Route("/a")]) as served:
        peer = await served.dial()
        reply = await peer.ask(get("/b", "Content-Length: 70000", method="POST"))
        assert (reply.status, reply.headers["connection"]) == (404, "close")
        await peer.aclose()
        peer = await served.dial()
        await peer.send(get("/b", "Transfer-Encoding: chunked", method="POST"))
        assert (await peer.reply()).status == 404
        await peer.send(b"20000\r\n" + b"x" * 0x20000)
        assert await peer.rest() == b""
        await peer.aclose()


async def test_many_small_chunks_are_collected() -> None:
    async with serving(lambda request: Response(200, str(len(request.body)))) as served:
        body = b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n"
        reply = await served.ask(get("/", "Transfer-Encoding: chunked", method="POST") + body)

    assert reply.body == b"5000"


# -- W8: responses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Response(100),
        lambda: Response(199),
        lambda: Response(600),
        lambda: Response("200"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Response(200, 5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Response(200, []),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Response(200, b"", {"x": "a\r\nb: c"}),
        lambda: Response(200, b"", {"x": "a\nb"}),
        lambda: Response(200, b"", {"x": "a\0"}),
        lambda: Response(200, b"", {"x": "€"}),
        lambda: Response(200, b"", {"x y": "a"}),
        lambda: Response(200, b"", {"": "a"}),
        lambda: Response(200, b"", {"x": 1}),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Response(200, b"", 5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Response(200, b"", {"Content-Length": "1"}),
        lambda: Response(200, b"", {"transfer-encoding": "chunked"}),
        lambda: Response(200, b"", [("Connection", "close")]),
        lambda: Response(204, b"x"),
        lambda: Response(304, b"x"),
        lambda: Response(204, stream=True),
        lambda: Response(200, b"x", stream=True),
        lambda: Response(200, length=1),
        lambda: Response(200, stream=True, length=-1),
        lambda: Response.json(object()),
        lambda: Response.json(float("nan")),
        lambda: Response.redirect("/", 200),
        lambda: Response.redirect("/a\r\nb: c"),
        lambda: HTTPError(200),
        lambda: HTTPError(404, headers={"x": "\n"}),
    ],
)
def test_a_response_that_could_be_misread_is_refused_when_it_is_made(
    make: Callable[[], object],
) -> None:
    with pytest.raises(BadInputError):
        make()


def _constant(response: Response, _: HTTPRequest) -> Response:
    return response


async def test_head_never_has_a_body() -> None:
    for response in (Response(200, b"12345"), Response(200, stream=True, length=5)):
        async with serving(partial(_constant, response)) as served:
            peer = await served.dial()
            first = await peer.ask(get(method="HEAD"))
            second = await peer.ask(get(method="HEAD"))
            assert first.headers["content-length"] == "5"
            assert second.status == 200
            await peer.aclose()


async def test_a_response_without_a_body_has_no_length() -> None:
    async with serving(lambda request: Response(int(request.path[0]))) as served:
        peer = await served.dial()
        assert "content-length" not in (await peer.ask(get("/204"))).headers
        assert "content-length" not in (await peer.ask(get("/304"))).headers
        assert (await peer.ask(get("/200"))).headers["content-length"] == "0"
        assert (await peer.ask(get("/599"))).status == 599
        await peer.aclose()


async def test_the_content_type_is_never_left_to_a_guess() -> None:
    answers = {
        "bytes": (Response(200, b"x"), "application/octet-stream"),
        "text": (Response(200, "x"), "text/plain; charset=utf-8"),
        "html": (Response.html("x"), "text/html; charset=utf-8"),
        "own": (Response(200, b"x", {"Content-Type": "a/b"}), "a/b"),
        "json": (Response.json(1, headers={"content-type": "a/b+json"}), "a/b+json"),
    }
    async with serving(lambda request: answers[request.path[0]][0]) as served:
        peer = await served.dial()
        for name, (_, kind) in answers.items():
            assert (await peer.ask(get(f"/{name}"))).headers["content-type"] == kind
        await peer.aclose()


async def test_a_large_response_comes_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serving(lambda _: Response(200, body)) as served:
        assert (await served.ask(get())).body == body


async def test_connection_fields_follow_the_version() -> None:
    async with serving() as served:
        assert "connection" not in (await served.ask(get())).headers
        assert (await served.ask(get("/", "Connection: close"))).headers["connection"] == "close"
        old = b"GET / HTTP/1.0\r\n\r\n"
        assert (await served.ask(old)).headers["connection"] == "close"
        kept = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        assert (await served.ask(kept)).headers["connection"] == "keep-alive"


@pytest.mark.parametrize(
    "read",
    [
        HTTPRequest.json,
        HTTPRequest.form,
        HTTPRequest.text,
        lambda request: request.query,
    ],
)
async def test_input_that_cannot_be_read_is_the_fault_of_the_peer(
    read: Callable[[HTTPRequest], object],
) -> None:
    def handle(request: HTTPRequest) -> object:
        read(request)
        return Response(200)

    async with serving(handle) as served:
        kind = "Content-Type: application/x-www-form-urlencoded"
        assert (await served.ask(post("/?a=%ff", b"\xff", kind))).status == 400
        alive = await served.ask(post("/?a=b", b"1", kind))
        assert alive.status == 200


async def test_a_form_has_its_own_type() -> None:
    async with serving(lambda request: Response.json(request.form())) as served:
        kind = "Content-Type: application/x-www-form-urlencoded; charset=utf-8"
        assert (await served.ask(post("/", b"a=1&b=%C3%A4+c&e=", kind))).body == (
            '{"a":"1","b":"ä c","e":""}'.encode()
        )
        assert (await served.ask(post("/", b"a=1"))).status == 415


def form(body: bytes) -> HTTPRequest:
    """A request with this form."""
    fields = {"content-type": "application/x-www-form-urlencoded"}
    head = Head("POST", "/", False, [*fields.items()], fields)
    return HTTPRequest("POST", (), head, body, connection=Alias("a@test", 1, 1))


@pytest.mark.parametrize(
    "given,found",
    [
        ("100%", "100%"),
        ("%zz%4%", "%zz%4%"),
        ("a+b%2B%26%3d", "a b+&="),
        (r"\x41\u0041\%5c", r"\x41\u0041\\"),
        ("ä%C3%A4", "ää"),
    ],
)
def test_a_percent_sign_without_digits_is_no_escape(given: str, found: str) -> None:
    assert form(f"a={given}&{given}=b".encode()).form() == {"a": found, found: "b"}


@pytest.mark.parametrize("escape", ["%41", "%", "%zz", "ä%41"])
def test_a_form_is_decoded_without_a_step_for_each_escape(escape: str) -> None:
    request = form(b"a=" + escape.encode() * 10_000)
    events: list[str] = []

    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        with suppress(Reject):  # more than a thousand percent signs that begin no escape
            request.form()
    finally:
        sys.setprofile(before)

    assert len(events) < 200


# -- W15: proxies ----------------------------------------------------------------------------------


LOCAL = ["127.0.0.0/8"]
FORGED = ["Forwarded: for=6.6.6.6;host=evil.org;proto=https"]
FORGED_TOO = ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil.org"]


@pytest.mark.parametrize(
    "options,fields,expected",
    [
        ({}, ["X-Forwarded-For: 9.9.9.9", "X-Forwarded-Proto: https"], "127.0.0.1 http a"),
        (
            {"trusted": LOCAL},
            ["X-Forwarded-For: 6.6.6.6, 9.9.9.9", "X-Forwarded-Proto: https"],
            "9.9.9.9 https a",
        ),
        (
            {"trusted": [*LOCAL, "10.0.0.0/8"], "forwarded_host": True},
            ["X-Forwarded-For: 9.9.9.9:55, 10.0.0.1", "X-Forwarded-Host: shop.org"],
            "9.9.9.9 http shop.org",
        ),
        ({"trusted": ["127.0.0.1/32"]}, ["X-Forwarded-For: [2001:db8::1]:5"], "2001:db8::1 http a"),
        (
            {"trusted": LOCAL, "forwarded": "forwarded", "forwarded_host": True},
            ['Forwarded: for=6.6.6.6, for="[2001:db8::1]:5";proto=https;host=b'],
            "2001:db8::1 https b",
        ),
        (
            {"trusted": ["10.0.0.0/8"], "forwarded": "forwarded"},
            ["Forwarded: for=9.9.9.9"],
            "127.0.0.1 http a",
        ),
        (
            {"trusted": LOCAL, "forwarded_host": True},
            ["X-Forwarded-Proto: gopher", "X-Forwarded-Host: a/b"],
            "127.0.0.1 http a",
        ),
    ],
)
async def test_words_of_a_proxy_count_only_from_trusted_networks(
    options: dict[str, Any], fields: list[str], expected: str
) -> None:
    async with serving(_tell_client, **options) as served:
        assert (await served.ask(get("/", *fields))).body.decode() == expected


def _tell_client(request: HTTPRequest) -> object:
    return Response(200, f"{request.client} {request.scheme} {request.host}")


@pytest.mark.parametrize(
    "options,fields,expected",
    [
        # A proxy that writes X-Forwarded-For passes the Forwarded of its client on, and the other
        # way round.
        ({}, FORGED, "127.0.0.1 http a"),
        ({}, [*FORGED, "X-Forwarded-For: 9.9.9.9"], "9.9.9.9 http a"),
        ({}, ["X-Forwarded-For: 9.9.9.9", "X-Forwarded-Host: evil.org"], "9.9.9.9 http a"),
        ({"forwarded": "forwarded"}, FORGED_TOO, "127.0.0.1 http a"),
        ({"forwarded": "forwarded"}, [*FORGED_TOO, "Forwarded: for=9.9.9.9"], "9.9.9.9 http a"),
        ({"forwarded": "forwarded"}, ["Forwarded: for=9.9.9.9;host=b"], "9.9.9.9 http a"),
        # haproxy appends a field of its own, nginx appends to the field.
        ({}, ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 9.9.9.9"], "9.9.9.9 http a"),
        ({}, ["X-Forwarded-Proto: https", "X-Forwarded-Proto: http"], "127.0.0.1 http a"),
        # The quote of a client does not swallow the word of the proxy.
        (
            {"forwarded": "forwarded"},
            ['Forwarded: for="6.6.6.6', "Forwarded: for=9.9.9.9"],
            "9.9.9.9 http a",
        ),
    ],
)
async def test_fields_of_a_client_behind_a_proxy_do_not_count(
    options: dict[str, Any], fields: list[str], expected: str
) -> None:
    async with serving(_tell_client, trusted=LOCAL, **options) as served:
        assert (await served.ask(get("/", *fields))).body.decode() == expected


async def test_hosts_are_checked_against_the_field_and_the_word_of_the_proxy() -> None:
    hosts, shop = ["a", "shop.org"], "X-Forwarded-Host: shop.org"
    async with serving(hosts=hosts, trusted=LOCAL, forwarded_host=True) as served:
        assert (await served.ask(get("/", shop))).status == 200
        assert (await served.ask(get("/", shop, host="other.org"))).status == 421
        assert (await served.ask(get("/", "X-Forwarded-Host: other.org"))).status == 421
    async with serving(hosts=hosts, trusted=LOCAL) as served:
        assert (await served.ask(get("/", "X-Forwarded-Host: other.org"))).status == 200
        assert (await served.ask(get("/", shop, host="other.org"))).status == 421


# -- killing under load ----------------------------------------------------------------------------


async def test_every_request_has_a_response_while_receivers_are_killed() -> None:
    class Worker(Actor):
        async def handle_call(self, request: object, caller: Caller) -> object:
            await trio.sleep(0.001)
            return Response(200)

    async def ask_often(served: Served, statuses: list[int]) -> None:
        peer = await served.dial()
        statuses.extend([(await peer.ask(get())).status for _ in range(40)])
        await peer.aclose()

    statuses: list[int] = []
    async with (
        serving(routes=[Route("/", to="worker")]) as served,
        trio.open_nursery() as nursery,
    ):
        for _ in range(10):
            nursery.start_soon(ask_often, served, statuses)
        while len(statuses) < 400:
            worker = await served.node.spawn(Worker, name="worker")
            await trio.sleep(0.01)
            served.node.kill(worker)
            await until(partial(_is_gone, served, worker))

    assert len(statuses) == 400
    assert set(statuses) <= {200, 500, 503}
    assert 200 in statuses


def _is_gone(served: Served, pid: PID) -> bool:
    return not any(each == pid for each in served.node.processes())


def living_requests() -> int:
    return sum(type(thing) is HTTPRequest for thing in gc.get_objects())


async def test_a_request_that_is_answered_is_freed_without_the_garbage_collector() -> None:
    async with serving() as served:
        gc.collect()  # may take seconds on a busy machine, and a peer has to ask soon
        peer = await served.dial()
        before = living_requests()
        gc.disable()
        try:
            for _ in range(10):
                await peer.ask(post("/", b"body"))
            kept = living_requests() - before
        finally:
            gc.enable()

    assert kept <= 2


async def test_a_peer_that_resets_its_connection_ends_without_a_task_for_terminate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    start = DetachedTask.start

    def note(self: DetachedTask, kernel: Any, body: Any, name: str, context: Any = None) -> None:
        begun.append(name)
        start(self, kernel, body, name, context)

    def downs(owner: Owner) -> list[object]:
        return [message for message in owner.messages if isinstance(message, Down)]

    async with serving() as served:
        peers = [await served.dial() for _ in range(3)]
        for peer in peers:
            assert (await peer.ask(get())).status == 200
        for caller in served.owner.callers:
            served.run(partial(Owner.monitor, target=caller.pid))
        await served.node.call(served.pid, None)
        monkeypatch.setattr(DetachedTask, "start", note)
        for peer in peers:
            sock = peer.stream.socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            await peer.aclose()
        await until(lambda: len(downs(served.owner)) == 3)
        assert begun == ["WebConnection ending"] * 3
        assert all("reset" in str(down) for down in downs(served.owner))
        assert (await served.facts("open"))["open"] == "0"
        monkeypatch.undo()
