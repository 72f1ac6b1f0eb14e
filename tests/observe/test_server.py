"""The web side of the page: files, headers, hosts, origins, tokens, and hostile clients."""

import json
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from ergo_py import BadInputError, open_node
from ergo_py.observe import Observe
from ergo_py.observe.server import check_address
from tests.observe.rig import TOKEN, Page, http, in_thread, page_of, serving

HAS_PAGE = (resources.files("ergo_py.observe") / "page" / "index.html").is_file()

UPGRADE = {
    "upgrade": "websocket",
    "connection": "upgrade",
    "sec_websocket_version": "13",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
}


# -- files and headers -----------------------------------------------------------------------------


async def test_every_file_has_the_headers_that_guard_the_page() -> None:
    async with serving() as url:
        status, fields, _ = await in_thread(http, url, "/no/such/file")

        assert status == 404
        assert fields["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'"
        )
        assert fields["x-content-type-options"] == "nosniff"
        assert fields["referrer-policy"] == "no-referrer"
        assert fields["cross-origin-opener-policy"] == "same-origin"
        assert fields["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.skipif(not HAS_PAGE, reason="the files of the page are not installed")
async def test_files_need_no_token_and_are_kept_by_their_tag() -> None:
    async with serving() as url:
        status, fields, body = await in_thread(http, url, "/")
        again, _, nothing = await in_thread(lambda: http(url, "/", if_none_match=fields["etag"]))

        assert (status, fields["content-type"]) == (200, "text/html; charset=utf-8")
        assert (again, nothing) == (304, b"")
        assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    "path", ["/../beside.py", "/%2e%2e/server.py", "/beside.py", "/page", "//"]
)
async def test_only_files_of_the_page_are_served(path: str) -> None:
    async with serving() as url:
        status, _, body = await in_thread(http, url, path)

        assert status in (400, 404)
        assert b"import" not in body


# -- hosts and origins -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ws"])
async def test_a_foreign_host_is_refused_against_dns_rebinding(path: str) -> None:
    async with serving() as url:
        headers = UPGRADE if path == "/ws" else {}
        status, _, _ = await in_thread(lambda: http(url, path, host="evil.example", **headers))

        assert status == 421


@pytest.mark.parametrize(
    "origin, status",
    [("http://evil.example", 403), ("null", 403), ("http://{host}", 101)],
)
async def test_only_the_own_origin_may_open_a_websocket(origin: str, status: int) -> None:
    async with serving() as url:
        host = url.partition("//")[2].partition("/")[0]
        found, _, _ = await in_thread(
            lambda: http(url, "/ws", origin=origin.format(host=host), **UPGRADE)
        )

        assert found == status


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_an_address_that_others_reach_needs_tls_or_the_word_insecure(host: str) -> None:
    with pytest.raises(BadInputError, match="insecure"):
        check_address(host, None, False)
    check_address(host, None, True)
    for own in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_address(own, None, False)


async def test_a_public_address_checks_the_host_as_well() -> None:
    async with serving(host="0.0.0.0") as url:
        refused, _, _ = await in_thread(lambda: http(url, "/", host="evil.example"))
        upgrade, _, _ = await in_thread(
            lambda: http(url, "/ws", host="evil.example", origin="http://evil.example", **UPGRADE)
        )
        own, _, _ = await in_thread(http, url, "/no-file")

        assert (refused, upgrade, own) == (421, 421, 404)


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hello",
    [
        {"hello": 1, "token": "wrong"},
        {"hello": 1},
        {"hello": 1, "token": None},
        {"hello": 2, "token": TOKEN},
        {"id": 1, "do": "watch"},
        {"hello": 1, "token": TOKEN + "x"},
        {"hello": 1, "token": ["a"]},
        [],
        17,
    ],
)
async def test_without_the_token_there_is_no_data(hello: Any) -> None:
    async with serving() as url:

        def look(page: Page) -> tuple[list[Any], int]:
            page.say(hello)
            return page.nodes, page.close_code()

        assert await in_thread(lambda: page_of(url, look, token=None)) == ([], 4401)


async def test_the_sixth_wrong_token_in_a_minute_waits_and_the_right_token_does_not() -> None:
    async with serving() as url:

        def look() -> tuple[list[int], str, bool]:
            codes = [page_of(url, lambda page: page.close_code(), token="wrong") for _ in range(5)]
            with Page(url, "wrong") as sixth, Page(url) as right:
                said = right.hear()["push"]
                try:
                    sixth.socket.recv(0.3)
                    waits = False
                except TimeoutError:
                    waits = True
            return codes, said, waits

        codes, said, waits = await in_thread(look)

        assert codes == [4401] * 5
        assert said == "hello"
        assert waits


async def test_a_page_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ergo_py.observe.viewer._HELLO", 0.05)
    async with serving() as url:
        assert await in_thread(lambda: page_of(url, Page.close_code, token=None)) == 4408


async def test_the_ninth_page_is_told_and_a_place_becomes_free() -> None:
    async with serving() as url:

        def look() -> tuple[int, str]:
            pages = [Page(url) for _ in range(8)]
            for page in pages:
                page.hear()
            ninth = page_of(url, Page.close_code)
            pages.pop().close()
            while True:
                with Page(url) as another:
                    try:
                        said = another.hear()["push"]
                        break
                    except Exception:  # the closed page is not gone yet
                        continue
            for page in pages:
                page.close()
            return ninth, said

        assert await in_thread(look) == (4429, "hello")


# -- hostile messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, code",
    [
        ("{", 1007),
        ("", 1007),
        ("NaN x", 1007),
        ("[" * 60 + "]" * 60, 1008),
        ('{"a":' * 51 + "1" + "}" * 51, 1008),
        ('"' + "x" * 65_600 + '"', 1009),
        (b"{}", 1003),
    ],
    ids=["brace", "empty", "text", "lists", "objects", "long", "binary"],
)
@pytest.mark.parametrize("token", [TOKEN, None], ids=["in", "out"])
async def test_a_message_that_cannot_be_read_closes_the_connection(
    message: str | bytes, code: int, token: str | None
) -> None:
    async with serving() as url:

        def look(page: Page) -> int:
            if token is not None:
                page.hear()
            page.socket.send(message)
            return page.close_code()

        assert await in_thread(lambda: page_of(url, look, token=token)) == code


@pytest.mark.parametrize(
    "message, code",
    [
        ([], "bad_request"),
        (7, "bad_request"),
        ({}, "bad_request"),
        ({"id": 1}, "bad_request"),
        ({"id": 1, "do": 7}, "bad_request"),
        ({"id": 1, "do": "ps", "with": []}, "bad_request"),
        ({"id": 1, "do": "ps", "node": 4}, "bad_request"),
        ({"id": 1, "do": "eval", "with": {"source": "1"}}, "unknown"),
        ({"id": 1, "do": "complete", "with": {"text": "no"}}, "unknown"),
        ({"id": 1, "do": "fly"}, "unknown"),
        ({"do": "inspect", "node": "x", "with": {"to": 1}}, "bad_request"),
        ({"id": 1, "do": "inspect", "node": "x", "with": {"to": 1}}, "no_such_node"),
        ({"id": 1, "do": "history", "node": "x"}, "no_such_node"),
        ({"id": 1, "do": "kill", "node": "x", "with": {"to": 1}}, "not_permitted"),
        ({"id": 1, "do": "watch", "with": {}}, "bad_argument"),
        ({"id": 1, "do": "watch", "with": {"views": {"a": {"kind": "secrets"}}}}, "bad_argument"),
        ({"id": 1, "do": "watch", "with": {"views": {"a" * 41: {"kind": "rows"}}}}, "bad_argument"),
        ({"id": 1, "do": "watch", "with": {"views": {"a": 1}}}, "bad_argument"),
        ({"id": True, "do": "fly"}, "unknown"),
    ],
    ids=str,
)
async def test_a_wrong_message_is_answered_and_the_connection_lives(
    message: Any, code: str
) -> None:
    async with serving() as url:

        def look(page: Page) -> tuple[Any, Any]:
            page.say(message)
            while "ok" not in (said := page.hear()):
                pass
            return said["error"], page.ask("watch", views={})

        error, after = await in_thread(lambda: page_of(url, look))

        assert error["code"] == code
        assert len(json.dumps(error)) < 1000
        assert after == {}


# -- Observe ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"port": -1},
        {"port": "9911"},
        {"host": "0.0.0.0"},
        {"permit": "attach"},
        {"permit": "look,attach"},
        {"permit": ""},
        {"permit": "fly"},
        {"token": "short"},
        {"metrics": 1},
    ],
    ids=str,
)
def test_a_wrong_option_of_observe_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        Observe(**{"port": 0, **options})


async def test_a_port_that_is_taken_keeps_the_node_from_opening() -> None:
    async with serving() as url:
        port = int(url.partition("/#")[0].rpartition(":")[2])
        with pytest.raises(BadInputError, match="a free port"):
            async with open_node("shop@localhost", beside=[Observe(port)]):
                raise AssertionError("it must not open")


@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"]
)
async def test_probes_and_page_answer_beside_idle_connections(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.web.server._GRACE", 0.0)
    observe = Observe(0, metrics=True, health=True)
    async with open_node("shop@localhost", log_output="none", beside=[observe]):
        place = urlsplit(observe.url)
        idle = [await trio.open_tcp_stream("127.0.0.1", place.port or 0) for _ in range(70)]
        with trio.fail_after(20):
            for stream in idle[:60]:
                await stream.send_all(first)
            for path in ("/healthz", "/metrics", "/"):
                status, _, _ = await in_thread(http, observe.url, path)
                assert status == 200
        for stream in idle:
            await trio.aclose_forcefully(stream)


WRONG = b'{"hello": 1, "token": "wrong"}'


@pytest.mark.parametrize(
    "said",
    [b"", b"\x81" + bytes([0x80 | len(WRONG)]) + bytes(4) + WRONG],
    ids=["nothing", "a wrong token"],
)
async def test_probes_and_pages_find_places_beside_websockets_without_the_token(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A WebSocket whose peer does not answer the close keeps no other peer away.
    monkeypatch.setattr("ergo_py.web.websocket._LINGER", 3600.0)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in UPGRADE.items())
    observe = Observe(0, health=True)
    async with open_node("shop@localhost", log_output="none", beside=[observe]):
        place = urlsplit(observe.url)
        upgrade = f"GET /ws HTTP/1.1\r\nhost: {place.netloc}\r\n{lines}\r\n".encode()
        strangers = list[trio.SocketStream]()
        with trio.fail_after(60):
            for _ in range(80):  # none of them ever closes its side
                strangers.append(await trio.open_tcp_stream("127.0.0.1", place.port or 0))
                await strangers[-1].send_all(upgrade)
                assert (await strangers[-1].receive_some(16)) == b"HTTP/1.1 101 Swi"
                await strangers[-1].send_all(said)
            status, _, _ = await in_thread(http, observe.url, "/healthz")
            assert status == 200
            token = place.fragment.removeprefix("token=")
            page = partial(page_of, observe.url, lambda page: page.hear()["push"], token=token)
            assert await in_thread(page) == "hello"
        for stream in strangers:
            await trio.aclose_forcefully(stream)


async def test_a_page_that_has_shown_the_token_keeps_its_place() -> None:
    def look(url: str) -> tuple[str, set[int], bool]:
        with Page(url) as first:
            said = first.hear()["push"]
            codes = set[int]()
            silent = [Page(url, None) for _ in range(20)]
            for page in silent[:4]:  # the oldest
                codes.add(page.close_code())
            first.hear()  # the nodes
            first.say({"id": 1, "do": "watch", "node": "", "with": {"views": {}}})
            while "ok" not in (answer := first.hear()):
                pass
            for page in silent:
                page.close()
            return said, codes, answer["ok"]

    async with serving() as url:
        assert await in_thread(look, url) == ("hello", {4429}, True)


async def test_beside_takes_a_list_of_objects_that_open() -> None:
    wrong: Any
    for wrong in ("observe", [1], [object()], Observe(0)):
        with pytest.raises(BadInputError, match="beside"):
            open_node("shop@localhost", beside=wrong)
