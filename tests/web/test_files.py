"""Static files: which bytes of which file a path is, and that no path leaves the directory."""

import gzip
import os
from pathlib import Path

import pytest

from ergo_py import BadInputError
from ergo_py.web import Files
from tests.web.rig import get, serving

TEXT = "hellö\n".encode() * 1_000


@pytest.fixture
def public(tmp_path: Path) -> Path:
    place = tmp_path / "public"
    (place / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (place / "a b.txt").write_bytes(TEXT)
    (place / "index.html").write_text("<p>root")
    (place / "sub" / "index.html").write_text("<p>sub")
    (place / ".hidden").write_text("secret")
    (place / "link").symlink_to(tmp_path / "secret.txt")
    (place / "inside").symlink_to(place / "a b.txt")
    (place / "hidden-link").symlink_to(place / ".hidden")
    (place / "packed.js").write_text("plain")
    (place / "packed.js.gz").write_bytes(gzip.compress(b"plain"))
    os.mkfifo(place / "pipe")
    return place


async def test_a_file_is_sent_with_its_type_and_tag(public: Path) -> None:
    async with serving(routes=[Files("/static", public, max_age=60)]) as served:
        peer = await served.dial()
        reply = await peer.ask(get("/static/a%20b.txt"))
        assert (reply.status, reply.body) == (200, TEXT)
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert reply.headers["cache-control"] == "max-age=60"
        head = await peer.ask(get("/static/a%20b.txt", method="HEAD"))
        assert (head.status, head.headers["content-length"]) == (200, str(len(TEXT)))
        tag = reply.headers["etag"]
        for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            again = await peer.ask(get("/static/a%20b.txt", f"If-None-Match: {known}"))
            assert again.status == 304
        assert (await peer.ask(get("/static/a%20b.txt", 'If-None-Match: "x"'))).status == 200
        assert (await peer.ask(get("/static/inside"))).body == TEXT
        assert (await peer.ask(get("/static/"))).body == b"<p>root"
        assert (await peer.ask(get("/static"))).body == b"<p>root"
        assert (await peer.ask(get("/static/sub"))).body == b"<p>sub"
        refused = await peer.ask(get("/static/a%20b.txt", method="PUT"))
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
        await peer.aclose()


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/sub/../../secret.txt",
        "/sub/%2e%2e/%2e%2e/secret.txt",
        "/%252e%252e/secret.txt",
        "/..%5csecret.txt",
        "//secret.txt",
        "/link",
        "/.hidden",
        "/hidden-link",
        "/missing",
        "/a%20b.txt/x",
        "/pipe",
        "/" + "x" * 300,
        "/./index.html",
    ],
)
async def test_no_path_leaves_the_directory(public: Path, path: str) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        reply = await served.ask(get(path))

    assert reply.status == 404
    assert b"secret" not in reply.body


@pytest.mark.parametrize(
    "asked,status,part",
    [
        ("bytes=0-3", 206, slice(0, 4)),
        ("bytes=5990-", 206, slice(5990, None)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=-99999999", 206, slice(None)),
        ("bytes=100-99999999", 206, slice(100, None)),
        ("bytes=7000-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=3-1", 200, slice(None)),
        ("bytes=0-1,4-5", 200, slice(None)),
        ("lines=0-1", 200, slice(None)),
        ("bytes=-", 200, slice(None)),
    ],
)
async def test_a_single_range_is_sent(
    public: Path, asked: str, status: int, part: slice | None
) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        reply = await served.ask(get("/inside", f"Range: {asked}"))

    assert reply.status == status
    if part is not None:
        assert reply.body == TEXT[part]
    if status == 206:
        begin = 0 if asked == "bytes=0-3" else len(TEXT) - len(reply.body)
        end = begin + len(reply.body) - 1
        assert reply.headers["content-range"] == f"bytes {begin}-{end}/{len(TEXT)}"


async def test_a_range_of_another_version_is_the_whole_file(public: Path) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        reply = await served.ask(get("/inside", "Range: bytes=0-3", 'If-Range: "old"'))

    assert (reply.status, reply.body) == (200, TEXT)


async def test_a_compressed_file_is_taken_if_the_client_can_read_it(public: Path) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        packed = await served.ask(get("/packed.js", "Accept-Encoding: br, gzip"))
        plain = await served.ask(get("/packed.js"))

    assert (packed.headers["content-encoding"], gzip.decompress(packed.body)) == ("gzip", b"plain")
    assert packed.headers["content-type"] == plain.headers["content-type"]
    assert (plain.body, "content-encoding" in plain.headers) == (b"plain", False)
    assert packed.headers["etag"] != plain.headers["etag"]


async def test_a_large_file_comes_whole(public: Path) -> None:
    data = os.urandom(3_000_000)
    (public / "large.bin").write_bytes(data)
    async with serving(routes=[Files("/", public)]) as served:
        assert (await served.ask(get("/large.bin"))).body == data


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError):
        Files("/", tmp_path / "missing")
