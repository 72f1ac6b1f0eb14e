"""Hostile peers on real sockets: every refusal of the parser is a response, and the connection
ends; other peers are served meanwhile.
"""

import pytest

from tests.web.parsing.test_http1 import BAD, BAD_CHUNKS, line_of, with_field
from tests.web.rig import Served, get, serving, until

REFUSED: dict[str, tuple[bytes, int]] = {
    **{name: (stream, 400) for name, stream in BAD.items()},
    **{
        f"chunk: {name}": (with_field(b"Transfer-Encoding: chunked", body), 400)
        for name, body in BAD_CHUNKS.items()
    },
    "other coding": (with_field(b"Transfer-Encoding: gzip"), 501),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 501),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "long line": (line_of(9_000) + b"\r\nHost: a\r\n\r\n", 414),
    "endless line": (b"GET /" + b"a" * 10_000, 414),
    "long head": (with_field(b"X: " + b"y" * 17_000), 431),
    "endless head": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4_000, 431),
    "many fields": (with_field(b"X: y\r\n" * 101 + b"Z: z"), 431),
    "long body": (with_field(b"Content-Length: 1048577"), 413),
    "expectation": (with_field(b"Expect: tea\r\nContent-Length: 1"), 417),
    "bad path": (b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
}


async def _refusal(served: Served, stream: bytes) -> tuple[int, str | None]:
    peer = await served.dial()
    try:
        await peer.send(stream)
        reply = await peer.reply()
        assert await peer.rest() == b"", "bytes after a refusal"
        return reply.status, reply.headers.get("connection")
    finally:
        await peer.aclose()


@pytest.mark.parametrize("name", REFUSED)
async def test_a_doubtful_request_is_refused_and_its_connection_closed(name: str) -> None:
    stream, status = REFUSED[name]

    async with serving() as served:
        assert await _refusal(served, stream) == (status, "close")
        assert served.owner.callers == []
        assert (await served.ask(get())).status == 200


async def test_a_request_after_a_doubtful_request_is_never_served() -> None:
    async with serving() as served:
        smuggled = with_field(b"Content-Length: 1\r\nTransfer-Encoding: chunked", b"0\r\n\r\n")
        peer = await served.dial()
        await peer.send(get() + smuggled + get("/smuggled"))
        assert [(await peer.reply()).status for _ in range(2)] == [200, 400]
        assert await peer.rest() == b""
        assert len(served.owner.callers) == 1
        await peer.aclose()


async def test_refused_peers_leave_nothing_behind() -> None:
    async with serving() as served:
        for stream, _ in REFUSED.values():
            peer = await served.dial()
            await peer.send(stream)
            await peer.aclose()
        await until(lambda: not served.server.connections)
        assert (await served.ask(get())).status == 200


async def test_peers_that_leave_at_any_byte_leave_nothing_behind() -> None:
    stream = get("/a") + with_field(b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")
    async with serving() as served:
        for end in range(len(stream)):
            peer = await served.dial()
            await peer.send(stream[:end])
            await peer.aclose()
        await until(lambda: not served.server.connections)
        assert (await served.ask(get())).status == 200
