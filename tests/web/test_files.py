"""Static files: which bytes of which file a path is, and that no path leaves the directory."""

import gzip
import os
import time
from collections.abc import Callable
from errno import EACCES, EIO, EMFILE, ENFILE, ENOMEM
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Shutdown, open_node
from ergo_py.web import Files, WebServer
from ergo_py.web.mounts import directory, file_cache
from tests.web.rig import Owner, Peer, Reply, Served, get, serving, until

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
    (place / "empty").mkdir()
    (place / ".well-known").mkdir()
    (place / ".well-known" / "security.txt").write_text("Contact: a")
    (place / ".well-known" / ".hidden").write_text("secret")
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
        assert (await peer.ask(get("/static/sub/"))).body == b"<p>sub"
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
        "/a%20b.txt/",
        "/empty",
        "/empty/",
        "/.well-known/.hidden",
        "/sub/..well-known/x",
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
        ("Bytes=0-3", 206, slice(0, 4)),
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
        begin = 0 if asked.endswith("=0-3") else len(TEXT) - len(reply.body)
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


ENCODINGS = {
    "gzip": True,
    "GZIP": True,
    "x-gzip": True,
    "br, gzip;q=0.5": True,
    "gzip ; q=0.001, *;q=0": True,
    "*": True,
    "*;q=0.1": True,
    "gzip;q=0": False,
    "gzip;q=0.0, *": False,
    "gzip;q=x": False,
    "gzip;p=1": False,
    "notgzipx": False,
    "br": False,
    "*;q=0": False,
    "identity": False,
    "": False,
}


async def test_a_client_that_refuses_gzip_gets_the_plain_file(public: Path) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        for accepted, is_packed in ENCODINGS.items():
            reply = await peer.ask(get("/packed.js", f"Accept-Encoding: {accepted}"))
            assert ("content-encoding" in reply.headers) is is_packed, accepted
            assert (gzip.decompress(reply.body) if is_packed else reply.body) == b"plain"
        await peer.aclose()


@pytest.mark.parametrize("prefix", ["/f", "/"])
async def test_a_directory_without_a_slash_is_redirected(public: Path, prefix: str) -> None:
    inside = prefix.rstrip("/")
    async with serving(routes=[Files(prefix, public)]) as served:
        peer = await served.dial()
        moved = await peer.ask(get(f"{inside}/sub?a=%20b"))
        assert (moved.status, moved.headers["location"]) == (301, f"{inside}/sub/?a=%20b")
        moved = await peer.ask(get(f"{inside}/sub", method="HEAD"))
        assert (moved.status, moved.headers["location"]) == (301, f"{inside}/sub/")
        assert (await peer.ask(get(f"{inside}/sub/"))).body == b"<p>sub"
        assert (await peer.ask(get(f"{inside}/"))).body == b"<p>root"
        if inside:
            moved = await peer.ask(get(inside))
            assert (moved.status, moved.headers["location"]) == (301, f"{inside}/")
        await peer.aclose()


@pytest.mark.parametrize(
    "name,kind",
    [
        ("t.tar.gz", "application/gzip"),
        ("a.txt.gz", "application/gzip"),
        ("a.txt.bz2", "application/x-bzip2"),
        ("a.txt.xz", "application/x-xz"),
        ("a.txt", "text/plain; charset=utf-8"),
        ("a.unknown-kind", "application/octet-stream"),
    ],
)
async def test_a_packed_file_asked_for_by_its_name_is_no_text(
    public: Path, name: str, kind: str
) -> None:
    (public / name).write_bytes(b"x")
    async with serving(routes=[Files("/", public)]) as served:
        reply = await served.ask(get(f"/{name}", "Accept-Encoding: gzip;q=0"))

    assert (reply.headers["content-type"], reply.body) == (kind, b"x")
    assert "content-encoding" not in reply.headers


async def test_well_known_files_are_served(public: Path) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        reply = await served.ask(get("/.well-known/security.txt"))

    assert reply.body == b"Contact: a"


# -- preconditions ---------------------------------------------------------------------------------

MODIFIED = 1_000_000_000
AT, BEFORE, AFTER = (
    "Sun, 09 Sep 2001 01:46:40 GMT",
    "Sun, 09 Sep 2001 01:46:39 GMT",
    "Sun, 09 Sep 2001 01:46:41 GMT",
)


CASES: list[tuple[list[str], int]] = [
    ([f"If-Modified-Since: {AT}"], 304),
    ([f"If-Modified-Since: {AFTER}"], 304),
    ([f"If-Modified-Since: {BEFORE}"], 200),
    (["If-Modified-Since: yesterday"], 200),
    (["If-Modified-Since: Xxx, 99 Sep 2001 01:46:40 GMT"], 200),
    ([f"If-Modified-Since: {AT}", 'If-None-Match: "x"'], 200),
    ([f"If-Modified-Since: {BEFORE}", "If-None-Match: TAG"], 304),
    ([f"If-Unmodified-Since: {AT}"], 200),
    ([f"If-Unmodified-Since: {BEFORE}"], 412),
    (["If-Unmodified-Since: yesterday"], 200),
    (["If-Match: TAG"], 200),
    (['If-Match: "x", TAG'], 200),
    (["If-Match: *"], 200),
    (['If-Match: "x"'], 412),
    (["If-Match: W/TAG"], 412),
    (["If-Match: TAG", f"If-Unmodified-Since: {BEFORE}"], 200),
    (["If-Match: TAG", "If-None-Match: TAG"], 304),
    (["Range: bytes=0-3", "If-Range: TAG"], 206),
    (["Range: bytes=0-3", 'If-Range: "x"'], 200),
    (["Range: bytes=0-3", "If-Range: W/TAG"], 200),
    (["Range: bytes=0-3", f"If-Range: {AT}"], 206),
    (["Range: bytes=0-3", f"If-Range: {AFTER}"], 200),
    (["Range: bytes=0-3", 'If-Match: "x"'], 412),
    (["Range: bytes=0-3", f"If-Modified-Since: {AT}"], 304),
    (["Range: bytes=9000000-", 'If-None-Match: "x"'], 416),
]


@pytest.mark.parametrize("size", [6_000, 2_000_000])
async def test_preconditions_are_checked_in_their_order(public: Path, size: int) -> None:
    path = public / "dated.txt"
    path.write_bytes(TEXT[:1000] * (size // 1000))
    os.utime(path, (MODIFIED, MODIFIED))
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        first = await peer.ask(get("/dated.txt", method="HEAD"))
        assert first.headers["last-modified"] == AT
        for case, status in CASES:
            fields = [field.replace("TAG", first.headers["etag"]) for field in case]
            reply = await peer.ask(get("/dated.txt", *fields))
            assert reply.status == status, fields
            assert len(reply.body) == {200: size, 206: 4}.get(status, len(reply.body))
            # A range is for GET only.
            again = await peer.ask(get("/dated.txt", *fields, method="HEAD"))
            assert again.status == (200 if status in (206, 416) else status), fields
        await peer.aclose()


async def test_a_date_that_may_stand_for_two_versions_selects_no_range(public: Path) -> None:
    path = public / "dated.txt"
    path.write_bytes(TEXT)
    now = time.time() + 100
    os.utime(path, (now, now))
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        date = (await peer.ask(get("/dated.txt"))).headers["last-modified"]
        reply = await peer.ask(get("/dated.txt", "Range: bytes=0-3", f"If-Range: {date}"))
        assert reply.status == 200
        await peer.aclose()


async def test_an_empty_file_has_no_parts(public: Path) -> None:
    (public / "empty.txt").write_bytes(b"")
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        for fields in ([], ["Range: bytes=0-"], ["Range: bytes=-1"]):
            reply = await peer.ask(get("/empty.txt", *fields))
            assert (reply.status, reply.headers["content-length"]) == (200, "0")
        await peer.aclose()


# -- files that change -----------------------------------------------------------------------------


@pytest.fixture(params=["local", "remote", "not kept"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which files are kept in memory, and where a look at them happens."""
    monkeypatch.setattr(directory, "is_local", lambda device: request.param == "local")
    if request.param != "not kept":
        monkeypatch.setattr(file_cache, "_SETTLED", -1e9)
    return str(request.param)


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(b"new")
    beside.rename(path)


def rewrite(path: Path) -> None:
    path.write_bytes(b"new")


def shrink(path: Path) -> None:
    os.truncate(path, 3)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


def grow_much(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(2_000_000))


def link_inside(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "sub" / "index.html")


def link_outside(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "secret.txt")


def hide(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name(".hidden"))


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def add_packed(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(b"packed")


OLD = b"old text"
CHANGES: list[tuple[Callable[[Path], None], int, bytes]] = [
    (remove, 404, b""),
    (replace, 200, b"new"),
    (rewrite, 200, b"new"),
    (shrink, 200, b"old"),
    (grow, 200, OLD + b"!"),
    (grow_much, 200, OLD + bytes(2_000_000)),
    (link_inside, 200, b"<p>sub"),
    (link_outside, 404, b""),
    (hide, 404, b""),
    (make_directory, 404, b""),
    (add_packed, 200, b"packed"),
]


@pytest.mark.parametrize("change,status,body", CHANGES)
@pytest.mark.usefixtures("kept")
async def test_a_file_that_changes_is_seen_by_the_next_request(
    public: Path, change: Callable[[Path], None], status: int, body: bytes
) -> None:
    path = public / "page.txt"
    path.write_bytes(OLD)
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        before = await peer.ask(get("/page.txt", "Accept-Encoding: gzip"))
        for _ in range(2):
            assert (await peer.ask(get("/page.txt", "Accept-Encoding: gzip"))).body == OLD
        change(path)
        for _ in range(2):
            after = await peer.ask(get("/page.txt", "Accept-Encoding: gzip"))
            assert after.status == status
            if status == 200:
                assert after.body == body
                assert after.headers["etag"] != before.headers["etag"]
        tail = await peer.ask(get("/page.txt", "Range: bytes=7-", "Accept-Encoding: gzip"))
        if status == 200:
            assert tail.status == (416 if len(body) <= 7 else 206)
        await peer.aclose()


@pytest.mark.usefixtures("kept")
async def test_a_packed_file_that_goes_leaves_the_plain_file(public: Path) -> None:
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        for _ in range(2):
            reply = await peer.ask(get("/packed.js", "Accept-Encoding: gzip"))
            assert reply.headers["content-encoding"] == "gzip"
        (public / "packed.js.gz").unlink()
        for _ in range(2):
            reply = await peer.ask(get("/packed.js", "Accept-Encoding: gzip"))
            assert (reply.body, "content-encoding" in reply.headers) == (b"plain", False)
        (public / "packed.js.gz").symlink_to(public.parent / "secret.txt")
        assert (await peer.ask(get("/packed.js", "Accept-Encoding: gzip"))).body == b"plain"
        (public / "packed.js").unlink()
        assert (await peer.ask(get("/packed.js", "Accept-Encoding: gzip"))).status == 404
        await peer.aclose()


async def opened_before(
    served: Served, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> Reply:
    """Ask for ``/sub/page.txt``; ``change`` happens after its path is resolved, before it is
    opened.
    """
    real = directory.Directory._open

    def late(self: Any, path: str, name: str, encoding: str) -> Any:
        change()
        return real(self, path, name, encoding)

    monkeypatch.setattr(directory.Directory, "_open", late)
    return await served.ask(get("/sub/page.txt"))


@pytest.mark.parametrize("what", ["file", "directory"])
async def test_a_link_that_appears_after_the_path_is_resolved_is_not_followed(
    public: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = public.parent / "outside"
    outside.mkdir()
    (outside / "page.txt").write_text("secret")
    (public / "sub" / "page.txt").write_text("public")

    def change() -> None:
        if what == "file":
            (public / "sub" / "page.txt").unlink()
            (public / "sub" / "page.txt").symlink_to(outside / "page.txt")
        else:
            (public / "sub").rename(public / "away")
            (public / "sub").symlink_to(outside)

    monkeypatch.setattr(directory, "is_local", lambda device: False)
    async with serving(routes=[Files("/", public)]) as served:
        reply = await opened_before(served, monkeypatch, change)

    assert reply.status == 404
    assert b"secret" not in reply.body


@pytest.mark.parametrize(
    "code, status", [(EMFILE, 503), (ENFILE, 503), (ENOMEM, 503), (EIO, 503), (EACCES, 404)]
)
async def test_a_file_that_the_machine_cannot_open_now_is_not_missing(
    public: Path, code: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (public / "sub" / "page.txt").write_text("public")

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(directory, "is_local", lambda device: False)
    async with serving(routes=[Files("/", public)]) as served:
        reply = await opened_before(served, monkeypatch, fail)

    assert reply.status == status


async def test_a_file_that_becomes_shorter_while_it_is_sent_is_cut(public: Path) -> None:
    path = public / "large.bin"
    path.write_bytes(bytes(20_000_000))
    async with serving(routes=[Files("/", public)], log_level="critical") as served:
        peer = await served.dial()
        await peer.send(get("/large.bin"))
        await peer.head()
        os.truncate(path, 1_000_000)
        with pytest.raises(trio.BrokenResourceError):
            while await peer.stream.receive_some(1 << 20):
                pass


async def test_a_file_that_is_removed_or_grows_while_it_is_sent_comes_as_it_was(
    public: Path,
) -> None:
    path = public / "large.bin"
    path.write_bytes(bytes(8_000_000))
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        await peer.send(get("/large.bin"))
        head = await peer.head()
        grow(path)
        path.unlink()
        assert head.headers["content-length"] == "8000000"
        left = 8_000_000 - len(peer.buffer)
        peer.buffer = b""
        while left:
            left -= len(await peer.stream.receive_some(left))
        assert (await peer.ask(get("/large.bin"))).status == 404
        await peer.aclose()


async def test_a_file_comes_whole_while_the_server_stops(public: Path) -> None:
    (public / "large.bin").write_bytes(bytes(8_000_000))
    server = WebServer(routes=[Files("/", public)])
    async with open_node("web@localhost", log_output="none") as node:
        pid = await node.spawn(Owner, server, None)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        await peer.send(get("/large.bin"))
        await peer.head()
        node.send_exit(pid, Shutdown())
        await until(lambda: server.is_draining)
        taken = len(peer.buffer)
        while data := await peer.stream.receive_some(1 << 20):
            taken += len(data)
        assert taken == 8_000_000
        await peer.aclose()


# -- memory ----------------------------------------------------------------------------------------


async def test_a_file_in_memory_is_sent_without_a_thread(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "is_local", lambda device: True)
    monkeypatch.setattr(file_cache, "_SETTLED", -1e9)
    async with serving(routes=[Files("/", public)]) as served:
        peer = await served.dial()
        first = await peer.ask(get("/a%20b.txt"))
        monkeypatch.setattr(trio.to_thread, "run_sync", None)
        again = await peer.ask(get("/a%20b.txt"))
        assert (again.body, again.headers["etag"]) == (TEXT, first.headers["etag"])
        head = await peer.ask(get("/a%20b.txt", method="HEAD"))
        assert head.headers["content-length"] == str(len(TEXT))
        part = await peer.ask(get("/a%20b.txt", "Range: bytes=1-2"))
        assert (part.status, part.body) == (206, TEXT[1:3])
        known = await peer.ask(get("/a%20b.txt", f"If-None-Match: {first.headers['etag']}"))
        assert known.status == 304
        monkeypatch.undo()
        await peer.aclose()


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operating system has all files in memory. Returns where each read has begun."""
    read: list[int] = []

    def read_cached(fd: int, begin: int, end: int) -> bytes:
        read.append(begin)
        return os.pread(fd, end - begin, begin)

    def open_cached(root: str, path: str) -> int:
        return os.open(f"{root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

    monkeypatch.setattr(directory, "is_local", lambda device: True)
    monkeypatch.setattr(directory, "open_cached", open_cached)
    monkeypatch.setattr(directory, "read_cached", read_cached)
    return read


LARGE = bytes(range(256)) * 8_192


@pytest.mark.usefixtures("in_memory")
async def test_a_file_that_the_operating_system_has_in_memory_is_sent_without_a_thread(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (public / "large.bin").write_bytes(LARGE)
    async with serving(routes=[Files("/", public, cache=0)]) as served:
        peer = await served.dial()
        monkeypatch.setattr(trio.to_thread, "run_sync", None)
        assert (await peer.ask(get("/a%20b.txt"))).body == TEXT
        assert (await peer.ask(get("/sub/"))).body == b"<p>sub"
        assert (await peer.ask(get("/"))).body == b"<p>root"
        packed = await peer.ask(get("/packed.js", "Accept-Encoding: gzip"))
        assert gzip.decompress(packed.body) == b"plain"
        plain = await peer.ask(get("/a%20b.txt", "Accept-Encoding: gzip"))
        assert (plain.body, "content-encoding" in plain.headers) == (TEXT, False)
        large = await peer.ask(get("/large.bin"))
        assert large.body == LARGE
        part = await peer.ask(get("/large.bin", "Range: bytes=100-1000099"))
        assert (part.status, part.body) == (206, LARGE[100:1_000_100])
        known = await peer.ask(get("/large.bin", f"If-None-Match: {large.headers['etag']}"))
        assert (known.status, known.body) == (304, b"")
        head = await peer.ask(get("/large.bin", method="HEAD"))
        assert head.headers["content-length"] == str(len(LARGE))
        monkeypatch.undo()
        await peer.aclose()


@pytest.mark.parametrize("reads", [0, 1, 2])
@pytest.mark.usefixtures("in_memory")
async def test_a_thread_reads_the_parts_that_are_not_in_memory(
    public: Path, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (public / "large.bin").write_bytes(LARGE)
    fast, left = vars(directory)["read_cached"], [0]

    def read_some(fd: int, begin: int, end: int) -> bytes:
        left[0] -= 1
        piece: bytes = fast(fd, begin, end - 10) if left[0] >= 0 else b""
        return piece

    monkeypatch.setattr(directory, "read_cached", read_some)
    async with serving(routes=[Files("/", public, cache=0)]) as served:
        peer = await served.dial()
        for path, body in (("/a%20b.txt", TEXT), ("/large.bin", LARGE)):
            left[0] = reads
            assert (await peer.ask(get(path))).body == body
        await peer.aclose()


async def test_the_loop_does_other_work_between_the_pieces_of_a_file(
    public: Path, in_memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (public / "large.bin").write_bytes(LARGE)
    turns, seen, fast = [0], list[int](), vars(directory)["read_cached"]

    def note(fd: int, begin: int, end: int) -> bytes:
        seen.append(turns[0])
        piece: bytes = fast(fd, begin, end)
        return piece

    async def turn() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(directory, "read_cached", note)
    async with serving(routes=[Files("/", public)]) as served, trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        assert (await served.ask(get("/large.bin"))).body == LARGE
        nursery.cancel_scope.cancel()

    assert in_memory == list(range(0, len(LARGE), 256 * 1024))
    # In each turn of trio, both tasks have a step: after two reads, the other task had one.
    assert all(later > earlier for earlier, later in zip(seen, seen[2:], strict=False))


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError):
        Files("/", tmp_path / "missing")


def test_wrong_values_are_refused(tmp_path: Path) -> None:
    wrong: Any
    for wrong in ({"cache": -1}, {"cache": 1.5}, {"max_age": -1}):
        with pytest.raises(BadInputError):
            Files("/", tmp_path, **wrong)
