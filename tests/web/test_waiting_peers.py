"""Peers whose first request has not come: they have no connection, and their time limits pass a few
at a time.
"""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from ergo_py._core.runtime.detached_task import DetachedTask
from ergo_py._core.tables.pending_calls import Deadline
from ergo_py.web import Drain, Response
from ergo_py.web import server as server_module
from ergo_py.web.options import WebOptions
from ergo_py.web.waiting_peers import WaitingPeers
from tests.web.rig import get, post, serving, until

PART = b"GET / HTTP/1.1\r\nHost: a\r\n"


class Rig:
    """A site, a clock, a poller and a server that tests drive by hand."""

    options = WebOptions()

    def __init__(self) -> None:
        self.time = 100.0
        self.clock = self
        self.armed: list[tuple[float, Deadline]] = []
        self.watched: dict[socket.socket, Callable[[], bool]] = {}
        self.statuses = [0] * 6
        self.logged: list[object] = []
        self.adopted: list[tuple[bytes, float | None]] = []
        self.ended: list[tuple[int, int]] = []
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        site: Any = self
        self.waiting = WaitingPeers(
            site, self, linger=5.0, make=self.make, begin=self.begin, ended=self.note_end
        )

    def now(self) -> float:
        return self.time

    def arm_call(self, deadline: Deadline, seconds: float) -> None:
        self.armed.append((self.time + seconds, deadline))

    def log_access(self, request: object, status: int, sent: int, since: float) -> None:
        self.logged.append((request, status, sent, since))

    def add(self, sock: socket.socket, readable: Callable[[], bool]) -> None:
        self.watched[sock] = readable

    def drop(self, sock: socket.socket) -> None:
        self.watched.pop(sock, None)

    def make(
        self, sock: socket.socket, address: object, data: bytes, since: float | None
    ) -> tuple[bytes, float | None]:
        assert address == "address"
        return data, since

    def begin(self, connection: tuple[bytes, float | None], sock: socket.socket) -> None:
        sock.close()
        self.adopted.append(connection)

    def note_end(self, received: int, sent: int) -> None:
        self.ended.append((received, sent))

    # -- actions of the tests ----------------------------------------------------------------------

    def dial(self, data: bytes = b"") -> socket.socket:
        """A peer that has sent ``data`` when it is accepted."""
        ours, theirs = socket.socketpair()
        self.pairs.append((ours, theirs))
        theirs.sendall(data)
        self.waiting.admit((ours, "address"))
        return theirs

    def read(self) -> None:
        """Let the poller serve all sockets once."""
        for sock, readable in list(self.watched.items()):
            if not readable():
                self.watched.pop(sock, None)

    def advance(self, seconds: float) -> int:
        """Let time pass, up to the next time limit. Returns how many were due."""
        self.time += seconds
        due = [deadline for moment, deadline in self.armed if moment <= self.time]
        self.armed = [entry for entry in self.armed if entry[1] not in due]
        for deadline in due:
            if not deadline.settled:
                deadline.expire(0.0)
        return len(due)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    for pair in rig.pairs:
        for sock in pair:
            sock.close()


def test_a_whole_head_becomes_a_connection_at_once(rig: Rig) -> None:
    rig.dial(get("/a") + b"more")
    assert rig.adopted == [(get("/a") + b"more", None)]
    assert (len(rig.waiting), rig.watched, rig.ended) == (0, {}, [])


def test_a_head_in_pieces_becomes_a_connection_with_its_last_piece(rig: Rig) -> None:
    peer = rig.dial()
    for byte in get("/a"):
        assert rig.adopted == []
        peer.sendall(bytes([byte]))
        rig.read()
    assert rig.adopted == [(get("/a"), None)]
    assert (len(rig.waiting), rig.watched) == (0, {})


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\nHost: a\n", b"\x16\x03\x01", b"a\rb"])
def test_bytes_that_are_no_head_are_left_to_the_parser_at_once(rig: Rig, data: bytes) -> None:
    rig.dial(data)
    assert [given for given, _ in rig.adopted] == [data]


def test_a_long_head_keeps_the_time_of_its_beginning(rig: Rig) -> None:
    peer = rig.dial(PART)
    rig.advance(7.0)
    peer.sendall(b"X: " + b"x" * 9_000)
    while rig.watched:
        rig.read()
    assert [since for _, since in rig.adopted] == [100.0]


def test_time_limits_that_pass_together_are_spread_over_turns(rig: Rig) -> None:
    peers = [rig.dial(PART) for _ in range(100)]
    assert rig.advance(9.9) == 0
    rig.advance(0.1)
    for turn in range(1, 13):
        assert rig.statuses[4] == 8 * turn
        # Nothing more is due at once: the clock lets other tasks run first.
        assert rig.advance(0.0) == 0
        rig.advance(0.001)
    assert rig.statuses == [0, 0, 0, 0, 100, 0]
    assert all(peer.recv(4096).startswith(b"HTTP/1.1 408 ") for peer in peers)
    assert (len(rig.waiting), rig.ended) == (100, [])


def test_a_refused_peer_may_read_its_refusal_and_is_closed_later(rig: Rig) -> None:
    leaves, stays, talks = [rig.dial(PART) for _ in range(3)]
    rig.advance(10.0)
    assert rig.statuses == [0, 0, 0, 0, 3, 0]
    leaves.close()
    talks.sendall(b"X: 1\r\n\r\n")
    rig.read()
    assert (len(rig.waiting), rig.adopted) == (2, [])
    sent = len(stays.recv(4096))
    rig.advance(5.0)
    assert (len(rig.waiting), rig.watched) == (0, {})
    assert rig.ended == [(len(PART), sent)] * 3


def test_a_refusal_has_a_line_in_the_access_log_if_there_is_any(rig: Rig) -> None:
    rig.options = WebOptions(access_log=True)
    peer = rig.dial(PART)
    rig.advance(10.0)
    body = peer.recv(4096).partition(b"\r\n\r\n")[2]
    assert rig.logged == [(None, 408, len(body), 100.0)]


def test_a_silent_peer_ends_after_the_time_of_a_head(rig: Rig) -> None:
    peer = rig.dial()
    rig.advance(9.9)
    assert len(rig.waiting) == 1
    rig.advance(0.1)
    assert (len(rig.waiting), rig.ended, peer.recv(10)) == (0, [(0, 0)], b"")


def test_a_peer_that_leaves_is_forgotten(rig: Rig) -> None:
    rig.dial(PART).close()
    rig.dial().close()
    rig.read()
    assert (len(rig.waiting), rig.watched, rig.ended) == (0, {}, [(len(PART), 0), (0, 0)])


def test_a_peer_that_has_left_before_its_refusal_is_forgotten(rig: Rig) -> None:
    rig.dial(PART).close()
    rig.advance(10.0)
    assert (len(rig.waiting), rig.watched, rig.ended) == (0, {}, [(len(PART), 0)])


def test_the_end_of_the_server_is_told_to_peers_that_have_begun_a_head(rig: Rig) -> None:
    refused = rig.dial(PART)
    rig.advance(10.0)
    silent, begun = rig.dial(), rig.dial()
    begun.sendall(PART)
    rig.read()
    rig.waiting.end_all()
    assert rig.statuses == [0, 0, 0, 0, 1, 1]
    assert silent.recv(10) == b""
    assert begun.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert refused.recv(4096).startswith(b"HTTP/1.1 408 ")
    assert (len(rig.waiting), rig.watched) == (0, {})
    assert all(deadline.settled for _, deadline in rig.armed)


def test_a_refused_peer_gives_way_and_then_the_peer_that_waits_for_longest(rig: Rig) -> None:
    late = rig.dial(PART)
    rig.advance(10.0)
    first = rig.dial()
    rig.advance(1.0)
    in_head = rig.dial(PART)
    rig.advance(1.0)
    second = rig.dial()

    assert (len(rig.waiting), rig.waiting.oldest) == (4, 100.0)
    rig.waiting.end_oldest()
    assert (late.recv(4096)[:12], rig.waiting.oldest) == (b"HTTP/1.1 408", 110.0)
    rig.waiting.end_oldest()
    assert (first.recv(10), rig.waiting.oldest) == (b"", 111.0)
    rig.waiting.end_oldest()
    assert (in_head.recv(4096)[:12], rig.waiting.oldest) == (b"HTTP/1.1 503", 112.0)
    rig.waiting.end_oldest()
    assert (second.recv(10), rig.waiting.oldest) == (b"", None)
    assert (len(rig.waiting), rig.watched, len(rig.ended)) == (0, {}, 4)


def test_a_slow_head_that_has_left_gives_way_once(rig: Rig) -> None:
    rig.dial(PART).close()
    rig.waiting.end_oldest()
    assert (len(rig.waiting), rig.ended) == (0, [(len(PART), 0)])


# -- in a server -----------------------------------------------------------------------------------


async def test_peers_without_a_request_cost_no_task_and_harm_no_other() -> None:
    async with serving() as served:
        before = trio.lowlevel.current_statistics().tasks_living
        peers = [await served.dial() for _ in range(200)]
        for peer in peers:
            await peer.send(PART)
        assert (await served.ask(get())).status == 200
        await until(lambda: served.server.connections == 200)
        # The tasks of the last request may still end.
        assert trio.lowlevel.current_statistics().tasks_living <= before + 5
        assert (await served.facts("open"))["open"] == "200"
        assert (await peers[7].ask(b"\r\n")).status == 200
        for peer in peers:
            await peer.aclose()
        await until(lambda: not served.server.connections)
        assert (await served.facts("accepted"))["accepted"] == "201"


async def test_a_request_arrives_whole_however_it_is_cut() -> None:
    whole = post("/a", b"body" * 10)
    async with serving(lambda request: Response(200, request.body)) as served:
        for size in (1, 7, len(whole) - 1):
            peer = await served.dial()
            for at in range(0, len(whole), size):
                await peer.send(whole[at : at + size])
                await trio.lowlevel.checkpoint()
            assert (await peer.reply()).body == b"body" * 10
            await peer.aclose()


async def test_a_drain_waits_a_moment_for_peers_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "FIRST", 0.05)
    async with serving() as served:
        silent, begun = await served.dial(), await served.dial()
        await begun.send(PART)
        await until(lambda: served.server.connections == 2)
        assert (await served.ask(get())).status == 200
        assert await served.node.call(served.owner.alias, Drain(60.0), timeout=60.0) == 0
        assert await silent.rest() == b""
        assert (await begun.reply()).status == 503
        assert served.server.connections == 0


async def test_places_of_peers_without_a_request_are_given_to_others() -> None:
    async with serving(max_connections=2) as served:
        waits, leaves, third = [await served.dial() for _ in range(3)]
        await third.send(get())
        await until(lambda: served.server.connections == 2)
        await leaves.aclose()
        assert (await third.reply()).status == 200
        await waits.aclose()


async def test_the_first_request_of_a_connection_takes_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    start = DetachedTask.start

    def note(self: DetachedTask, kernel: Any, body: Any, name: str, context: Any = None) -> None:
        begun.append(name)
        start(self, kernel, body, name, context)

    async with serving() as served:
        monkeypatch.setattr(DetachedTask, "start", note)
        peer = await served.dial()
        assert (await peer.ask(get())).status == 200
        assert (await peer.ask(get())).status == 200
        assert begun == []
        monkeypatch.undo()


@pytest.mark.parametrize("number", [63, 64, 65, 200])
async def test_requests_that_come_with_the_first_are_all_answered(number: int) -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(get() * number)
        for _ in range(number):
            assert (await peer.reply()).status == 200


async def test_a_peer_that_closes_after_its_first_request_gets_the_response() -> None:
    async with serving() as served:
        peer = await served.dial()
        await peer.send(get("/", "Connection: close"))
        assert (await peer.reply()).status == 200
        assert await peer.rest() == b""
        await until(lambda: served.server.connections == 0)
