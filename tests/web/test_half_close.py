"""A peer that closes its sending half: the whole requests before that are answered."""

import ssl
from pathlib import Path

import pytest
import trio
from trio.lowlevel import checkpoint

from ergo_py import NO_REPLY, Actor, Caller
from ergo_py.meta import TLSFiles
from ergo_py.testing import explore
from ergo_py.web import Drain, HTTPRequest, Response, Route
from tests.web.rig import UPGRADE, Peer, Served, get, post, serving, until

PLACE = Path(__file__).parent.parent / "meta" / "certificates"

MISSING = get("/none")
"""A request that is answered at once, with 404."""
ROUTES = [Route("/is")]


async def statuses(peer: Peer) -> list[int]:
    """The statuses of all responses, up to the end."""
    return [int(part[:3]) for part in (await peer.rest()).split(b"HTTP/1.1 ")[1:]]


async def answers(served: Served, data: bytes, pauses: int = 0) -> list[int]:
    """Send requests, close the sending half after some turns, and read the statuses."""
    peer = await served.dial()
    await peer.send(data)
    for _ in range(pauses):
        await checkpoint()
    assert isinstance(peer.stream, trio.SocketStream)
    await peer.stream.send_eof()
    return await statuses(peer)


@pytest.mark.parametrize("pauses", range(0, 12, 2))
@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 200])
async def test_all_pipelined_requests_before_a_half_close_are_answered(
    count: int, pauses: int
) -> None:
    async with serving(routes=ROUTES) as served:
        assert await answers(served, MISSING * count, pauses) == [404] * count


REQUESTS: dict[str, tuple[bytes, list[int]]] = {
    "bodies": (post("/none", b"abc") * 40, [404] * 40),
    "bodies for an actor": (post("/is", b"abc") * 40, [200] * 40),
    "an actor now and then": ((MISSING + get("/is")) * 40, [404, 200] * 40),
    "an actor as the ninth": (MISSING * 8 + get("/is") * 3, [404] * 8 + [200] * 3),
    "a part of a head": (MISSING * 20 + b"GET /n", [404] * 20),
    "a part of a body": (MISSING * 20 + post("/is", b"abc")[:-1], [404] * 20),
    "garbage": (MISSING * 20 + b"\0\r\n\r\n" + MISSING, [404] * 20 + [400]),
    "a close in the middle": (
        MISSING * 20 + get("/none", "Connection: close") + MISSING * 20,
        [404] * 21,
    ),
}


@pytest.mark.parametrize("pauses", range(0, 8, 2))
@pytest.mark.parametrize("name", list(REQUESTS))
async def test_requests_before_a_half_close_are_answered_up_to_the_last_whole_request(
    name: str, pauses: int
) -> None:
    data, found = REQUESTS[name]
    async with serving(routes=ROUTES) as served:
        assert await answers(served, data, pauses) == found
        await until(lambda: served.server.connections == 0)


def chunks(count: int) -> bytes:
    """A request with a body in many chunks."""
    head = get("/is", "Transfer-Encoding: chunked", method="POST")
    return head + b"3\r\nabc\r\n" * count + b"0\r\n\r\n"


LONG: dict[str, tuple[bytes, list[int]]] = {
    "600 chunks": (chunks(600), [200]),
    "2000 chunks": (chunks(2000), [200]),
    "many reads": (post("/is", bytes(300_000)), [200]),
    "one after another": ((chunks(300) + post("/is", bytes(70_000))) * 3, [200] * 6),
    "others in between": (
        (MISSING * 3 + chunks(600) + get("/is") * 2 + post("/none", bytes(5_000))) * 4,
        [404, 404, 404, 200, 200, 200, 404] * 4,
    ),
}
"""Requests whose bodies take several turns of the loop."""


class Async(Actor):
    """Answers in a coroutine, and does not wait."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        return Response(200)


@pytest.mark.parametrize("pauses", range(4))
@pytest.mark.parametrize("name", list(LONG))
def test_long_requests_before_a_half_close_are_answered_in_any_order_of_tasks(
    name: str, pauses: int
) -> None:
    data, found = LONG[name]

    async def run() -> None:
        async with serving(routes=ROUTES) as served:
            assert await answers(served, data, pauses) == found

    explore(run, range(12))


@pytest.mark.parametrize("pauses", range(4))
def test_a_receiver_with_coroutines_has_its_turn_before_a_half_close(
    pauses: int,
) -> None:
    async def run() -> None:
        async with serving(routes=[Route("/is", to="async")]) as served:
            await served.node.spawn(Async, name="async")
            data, found = LONG["others in between"]
            assert await answers(served, data, pauses) == found

    explore(run, range(12))


class Talk(Actor):
    """A WebSocket."""


@pytest.mark.parametrize("pauses", range(0, 8, 2))
async def test_an_upgrade_before_a_half_close_is_answered(pauses: int) -> None:
    async with serving(routes=[Route("/talk", websocket=Talk)]) as served:
        assert await answers(served, MISSING * 8 + UPGRADE, pauses) == [404] * 8 + [101]
        await until(lambda: served.server.connections == 0)


@pytest.mark.parametrize("pauses", range(0, 8, 2))
async def test_a_drain_after_a_half_close_answers_a_further_request_at_most(pauses: int) -> None:
    async with serving(routes=ROUTES) as served:
        peer = await served.dial()
        await peer.send(MISSING * 200)
        assert isinstance(peer.stream, trio.SocketStream)
        await peer.stream.send_eof()
        for _ in range(pauses):
            await checkpoint()
        await served.node.call(served.owner.alias, Drain(5.0))
        found = await peer.rest()
        assert found.count(b"HTTP/1.1 404") == found.count(b"HTTP/1.1 ") <= 200
        assert found.endswith(b"\n") or not found
        assert served.server.connections == 0


async def test_a_goodbye_of_tls_is_handled_after_the_requests_before_it() -> None:
    files = TLSFiles(PLACE / "server.pem", PLACE / "server.key")
    context = ssl.create_default_context(cafile=str(PLACE / "authority.pem"))
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(coming, going, server_hostname="localhost")
    async with serving(routes=ROUTES, tls=files) as served:
        peer = await served.dial()
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                await peer.send(going.read())
                await peer.more()
                coming.write(peer.buffer)
                peer.buffer = b""
        session.write(MISSING * 100)
        with pytest.raises(ssl.SSLWantReadError):
            session.unwrap()
        await peer.send(going.read())
        coming.write(await peer.rest())
        found = b""
        with pytest.raises((ssl.SSLWantReadError, ssl.SSLZeroReturnError)):
            while piece := session.read(1 << 16):
                found += piece
            raise ssl.SSLZeroReturnError
        assert found.count(b"HTTP/1.1 404") == 100


@pytest.mark.parametrize("pauses", range(0, 8, 2))
async def test_a_half_close_abandons_a_call_behind_pipelined_requests(pauses: int) -> None:
    requests: list[HTTPRequest] = []

    def handle(request: HTTPRequest) -> object:
        requests.append(request)
        return NO_REPLY

    async with serving(handle, routes=ROUTES) as served:
        data = MISSING * 20 + get("/is") + MISSING * 20
        assert await answers(served, data, pauses) == [404] * 20
        assert [request.gone for request in requests] == [True]
        await until(lambda: served.server.connections == 0)


async def test_requests_before_a_half_close_wait_for_a_peer_that_reads_slowly() -> None:
    def handle(_: HTTPRequest) -> Response:
        return Response(200, bytes(8_000_000))

    async with serving(handle, routes=ROUTES, write_limit=1) as served:
        data = get("/is") + MISSING * 20
        assert await answers(served, data * 3) == ([200] + [404] * 20) * 3
