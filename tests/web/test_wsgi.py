"""`Mount` of WSGI applications."""

import sys
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.validate import validator

import pytest
import trio

from ergo_py.web import Mount
from tests.web.rig import get, post, serving, until
from tests.web.test_asgi import Message, logged

# -- WSGI ------------------------------------------------------------------------------------------


def wsgi_echo(environ: Message, start_response: Any) -> Iterable[bytes]:
    data = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("201 Created", [("Content-Type", "text/plain")])
    return [data, environ["PATH_INFO"].encode("latin-1")]


def wsgi_mounted(app: Any, **options: Any) -> Any:
    return serving(routes=[Mount("/old", wsgi=app, **options)])


async def test_a_wsgi_application_keeps_to_the_standard_with_this_server() -> None:
    async with wsgi_mounted(validator(wsgi_echo)) as served:
        reply = await served.ask(post("/old/caf%C3%A9?x=1", b"hello"))

    assert (reply.status, reply.body) == (201, b"hello/caf\xc3\xa9")
    assert reply.headers["content-type"] == "text/plain"


async def test_a_wsgi_application_sees_its_environment() -> None:
    seen: list[Message] = []

    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        seen.append(environ)
        start_response("200 OK", [])
        return []

    async with wsgi_mounted(app) as served:
        fields = ("X-A: 1", "X_Forged: 2", "X-Forged: 3", "Proxy: evil", "Content-Type: a/b")
        await served.ask(get("/old?q=1", *fields, host="shop.example:80"))

    environ = seen[0]
    assert (environ["SCRIPT_NAME"], environ["PATH_INFO"]) == ("/old", "")
    assert environ["QUERY_STRING"] == "q=1"
    assert environ["SERVER_NAME"] == "shop.example"
    assert environ["SERVER_PROTOCOL"] == "HTTP/1.1"
    assert environ["CONTENT_TYPE"] == "a/b"
    assert environ["HTTP_X_A"] == "1"
    assert environ["HTTP_X_FORGED"] == "3"
    assert "HTTP_PROXY" not in environ
    assert environ["wsgi.multithread"] is True


async def test_a_wsgi_application_streams_both_ways() -> None:
    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        while piece := environ["wsgi.input"].read1(100):
            yield piece.upper()

    async with wsgi_mounted(app) as served:
        peer = await served.dial()
        await peer.send(get("/old", "Transfer-Encoding: chunked", method="POST"))
        await peer.send(b"3\r\none\r\n")
        await peer.head()
        assert await peer.until(b"ONE\r\n") == b"3\r\nONE\r\n"
        await peer.send(b"0\r\n\r\n")
        assert await peer.until(b"0\r\n\r\n") == b"0\r\n\r\n"
        assert (await peer.ask(post("/old", b"again"))).body == b"AGAIN"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_wsgi_application_may_write_pieces(method: str) -> None:
    closed: list[bool] = []

    class Pieces:
        def __iter__(self) -> Any:
            return iter([b"c", b"d"])

        def close(self) -> None:
            closed.append(True)

    def app(environ: Message, start_response: Any) -> Any:
        write = start_response("200 OK", [("Content-Length", "4")])
        write(b"a")
        write(b"b")
        return Pieces()

    async with wsgi_mounted(app) as served:
        peer = await served.dial()
        for _ in range(2):
            reply = await peer.ask(get("/old", method=method))

            assert reply.headers["content-length"] == "4"
            assert reply.body == (b"abcd" if method == "GET" else b"")
        await until(lambda: len(closed) == 2)


def wsgi_fails(environ: Message, start_response: Any) -> Iterable[bytes]:
    raise KeyError("secret")


def wsgi_never_starts(environ: Message, start_response: Any) -> Iterable[bytes]:
    return [b"x"]


def wsgi_starts_twice(environ: Message, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    start_response("200 OK", [])
    return [b"x"]


def wsgi_lies(environ: Message, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "3")])
    return [b"x"]


def wsgi_mistakes_status(environ: Message, start_response: Any) -> Iterable[bytes]:
    start_response("fine", [])
    return [b"x"]


@pytest.mark.parametrize(
    "app", [wsgi_fails, wsgi_never_starts, wsgi_starts_twice, wsgi_lies, wsgi_mistakes_status]
)
async def test_a_failure_of_a_wsgi_application_is_its_500(app: Any) -> None:
    async with wsgi_mounted(app) as served:
        peer = await served.dial()
        for _ in range(2):
            reply = await peer.ask(get("/old"))

            assert reply.status == 500
            assert b"secret" not in reply.body


async def test_a_wsgi_application_replaces_its_response_after_an_error() -> None:
    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        try:
            raise KeyError("x")
        except KeyError:
            start_response("503 Sorry", [], sys.exc_info())
        return [b"sorry"]

    async with wsgi_mounted(app) as served:
        reply = await served.ask(get("/old"))

    assert (reply.status, reply.body) == (503, b"sorry")


async def test_a_wsgi_application_has_so_many_threads_and_further_requests_wait() -> None:
    release = threading.Event()
    lock = threading.Lock()
    now = most = 0

    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        release.wait(30)
        with lock:
            now -= 1
        start_response("200 OK", [])
        return [b"ok"]

    statuses: list[int] = []

    async def ask() -> None:
        statuses.append((await served.ask(get("/old"))).status)

    async with wsgi_mounted(app, threads=2) as served, trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(ask)
        await until(lambda: now == 2)
        release.set()

    assert statuses == [200] * 6
    assert most == 2


async def test_a_request_that_waits_for_a_thread_is_504_and_never_runs() -> None:
    release = threading.Event()
    paths: list[str] = []

    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        paths.append(environ["PATH_INFO"])
        release.wait(30)
        start_response("200 OK", [])
        return [b"ok"]

    async with wsgi_mounted(app, threads=1, request_timeout=0.05) as served:
        first = await served.dial()
        await first.send(get("/old/first"))
        await until(lambda: paths)
        assert (await served.ask(get("/old/second"))).status == 504
        release.set()

        assert (await first.reply()).status == 504
        while (await served.ask(get("/old/third"))).status != 200:
            pass  # a busy machine may need several attempts

    assert "/second" not in paths


async def test_a_wsgi_thread_that_does_not_end_does_not_keep_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ergo_py.web.mounts.running_tasks.PATIENCE", 0.01)
    begun, release = threading.Event(), threading.Event()

    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        begun.set()
        release.wait(30)
        start_response("200 OK", [])
        return [b"ok"]

    try:
        async with wsgi_mounted(app) as served:
            peer = await served.dial()
            await peer.send(get("/old"))
            await trio.to_thread.run_sync(begun.wait)
            await peer.aclose()
        assert not release.is_set()
    finally:
        release.set()


async def test_lines_for_wsgi_errors_are_in_the_log() -> None:
    def app(environ: Message, start_response: Any) -> Iterable[bytes]:
        print("trouble", file=environ["wsgi.errors"])
        start_response("200 OK", [])
        return [b"ok"]

    async with wsgi_mounted(app) as served:
        lines = await logged(served)
        assert (await served.ask(get("/old"))).status == 200
        await until(lambda: any("trouble" in line for line in lines))
