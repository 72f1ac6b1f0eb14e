"""A task that waits for the same socket again and again."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import trio
import trio.testing
from trio.lowlevel import wait_readable

from ergo_py._core.runtime import socket_watch
from ergo_py._core.runtime.socket_watch import SocketWatch, unmet
from tests.support import epoll_of_loop, io_of_loop, waiting_for_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll")


@pytest.fixture(name="ends")
def _ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.fixture(name="_still")
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is short, and no turn ends."""
    monkeypatch.setattr(socket_watch, "perf_counter", lambda: 0.0)


def in_trio(work: Any, *args: Any) -> None:
    """Run with the clock of the system: under virtual time a watch does not wait in a turn."""
    trio.run(work, *args)


def test_the_installed_trio_is_the_trio_that_the_module_knows() -> None:
    async def look() -> None:
        assert unmet(io_of_loop()) == ""

    in_trio(look)


async def test_another_trio_is_described_and_a_watch_waits_as_trio_does(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EpollIOManager:
        def process_events(self, events: list[int]) -> None:
            events.sort()

    assert unmet(object()) == "trio waits with object"
    assert "process_events of trio" in unmet(EpollIOManager())
    monkeypatch.setattr(socket_watch, "unmet", lambda _io: "another trio")
    ours, theirs = ends
    with closing(SocketWatch(ours.fileno())) as watch:
        theirs.send(b"x")
        await watch.wait()
        assert not watch.poll()
        assert ours.recv(10) == b"x"


async def test_a_watch_waits_again_and_again_until_the_connection_ends(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    heard: list[bytes] = []

    async def read() -> None:
        with closing(SocketWatch(ours.fileno())) as watch:
            while not heard or heard[-1]:
                await watch.wait()
                heard.append(ours.recv(10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for data in (b"1", b"2", b"3"):
            theirs.send(data)
            await trio.testing.wait_all_tasks_blocked()
        theirs.close()
    assert heard == [b"1", b"2", b"3", b""]


async def test_the_system_is_told_of_a_watch_once(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    io = io_of_loop()
    told: list[str] = []

    class Told:
        """The epoll of the loop, which notes what the loop asks it for."""

        def __init__(self, epoll: Any) -> None:
            self.epoll = epoll

        def __getattr__(self, name: str) -> Any:
            if name in ("register", "modify", "unregister"):
                told.append(name)
            return getattr(self.epoll, name)

    # A task has waited for the socket before, so that trio's epoll knows it.
    theirs.send(b"x")
    await wait_readable(ours)
    ours.recv(10)
    monkeypatch.setattr(io, "_epoll", Told(epoll_of_loop()))
    with closing(SocketWatch(ours.fileno())) as watch:
        for _ in range(3):
            theirs.send(b"x")
            await watch.wait()
            ours.recv(10)
    assert told == ["register", "modify", "unregister"]


async def test_a_cancelled_wait_leaves_the_watch_whole(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    with closing(SocketWatch(ours.fileno())) as watch:
        with trio.CancelScope() as scope:
            scope.cancel()
            await watch.wait()
        assert scope.cancelled_caught
        theirs.send(b"x")
        await trio.testing.wait_all_tasks_blocked()  # no task waits for this event
        await watch.wait()
        assert ours.recv(10) == b"x"


async def test_a_closed_watch_is_woken_no_more_and_may_be_closed_twice(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    watch = SocketWatch(ours.fileno())
    table = waiting_for_sockets()
    with trio.CancelScope() as scope:
        scope.cancel()
        await watch.wait()
    assert table[ours.fileno()] is watch
    watch.close()
    watch.close()
    assert ours.fileno() not in table
    theirs.send(b"x")
    await wait_readable(ours)
    assert ours.recv(10) == b"x"


@pytest.mark.usefixtures("_still")
def test_after_a_short_wait_the_next_is_within_the_turn(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    async def work() -> None:
        ours, theirs = ends
        with closing(SocketWatch(ours.fileno())) as watch:
            theirs.send(b"1")
            assert not watch.poll()  # before a first wait
            await watch.wait()
            ours.recv(10)
            theirs.send(b"2")
            assert watch.poll()
            assert ours.recv(10) == b"2"
            assert not watch.poll()  # nothing comes for a millisecond

    in_trio(work)


def test_waits_within_a_turn_end_with_the_turn_and_after_a_long_wait(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(socket_watch, "perf_counter", lambda: now)

    async def work() -> None:
        nonlocal now
        ours, theirs = ends
        with closing(SocketWatch(ours.fileno())) as watch:
            theirs.send(b"x")
            await watch.wait()
            assert watch.poll()
            now = 1.0
            assert not watch.poll()  # the turn is too long
            waiting = watch.wait()
            now = 2.0
            await waiting
            assert not watch.poll()  # the wait was long

    in_trio(work)


@pytest.mark.usefixtures("_still")
def test_an_event_of_another_descriptor_ends_a_wait_within_the_turn_and_is_not_lost(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    async def work() -> None:
        ours, theirs = ends
        reading, writing = os.pipe()
        woken = trio.Event()

        async def read() -> None:
            await wait_readable(reading)
            woken.set()

        with closing(SocketWatch(ours.fileno())) as watch:
            theirs.send(b"1")
            await watch.wait()
            ours.recv(10)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                os.write(writing, b"x")
                theirs.send(b"2")
                assert not watch.poll()
                await woken.wait()
            await watch.wait()
            assert ours.recv(10) == b"2"
        os.close(reading)
        os.close(writing)

    in_trio(work)


@pytest.mark.usefixtures("_still")
async def test_under_virtual_time_all_waits_are_those_of_trio(
    ends: tuple[socket.socket, socket.socket], autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = ends
    with closing(SocketWatch(ours.fileno())) as watch:
        theirs.send(b"x")
        await watch.wait()
        assert not watch.poll()
