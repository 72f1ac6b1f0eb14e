"""Waiting for many sockets in a single task."""

import errno
import os
import select
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from ergo_py._core.runtime.parking import TrioTurns
from ergo_py.meta.poller import SocketPoller, watch_alone
from ergo_py.meta.sockets.tcp import TCPServer
from tests.meta.wires import Ear, Mail, echo, spawn_meta, wired_node
from tests.support import replace_private


@pytest.mark.parametrize("is_slow", [True, False])
async def test_other_tasks_run_between_two_sockets_after_some_time(
    monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    now, order = 0.0, list[str]()

    def tell_time() -> float:
        nonlocal now
        now += 1.0 if is_slow else 0.0
        return now

    def readable(name: str) -> Callable[[], bool]:
        def read() -> bool:
            order.append(name)
            return False

        return read

    async def take_turns() -> None:
        while True:
            order.append("another")
            await trio.lowlevel.checkpoint()

    pairs = [socket.socketpair() for _ in range(5)]
    for ours, theirs in pairs:
        ours.setblocking(False)
        theirs.send(b"x")
    replace_private(monkeypatch, "clock of time slices", tell_time)
    async with trio.open_nursery() as nursery:
        others = await nursery.start(_nursery)

        def start(work: Callable[[], Awaitable[None]]) -> None:
            others.start_soon(work)

        poller = SocketPoller(start)
        poller.open(TrioTurns())
        with trio.fail_after(30):
            async with trio.open_nursery() as readers:
                for ours, _ in pairs:
                    readers.start_soon(poller.watch, ours, readable("socket"))
                others.start_soon(take_turns)
        poller.close()
        nursery.cancel_scope.cancel()
    for pair in pairs:
        for sock in pair:
            sock.close()

    served = [index for index, name in enumerate(order) if name == "socket"]
    # In two turns of the loop, each of two tasks has run at least once, in any order.
    together = [third == first + 2 for first, third in zip(served, served[2:], strict=False)]
    assert len(served) == 5
    assert together == [not is_slow] * 3


async def test_a_server_without_free_descriptors_serves_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with wired_node() as node:
        server = TCPServer(reader="task")
        await spawn_meta(node, await node.spawn(Ear, Mail(), echo), server)
        monkeypatch.setattr(select, "epoll", refuse)
        async with await trio.open_tcp_stream(*server.local) as stream:
            for _ in range(2):
                await stream.send_all(b"hello")
                assert await stream.receive_some() == b"hello"


async def test_a_reader_waits_by_itself_after_the_poller_is_closed() -> None:
    poller = SocketPoller(lambda work: None)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, trio.fail_after(30):
        theirs.send(b"x")

        await poller.watch(ours, lambda: ours.recv(1) != b"x")


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="a poller needs epoll")
async def test_a_watch_takes_the_place_of_another_of_the_same_socket() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    heard, done = list[bytes](), trio.Event()

    def go_on() -> bool:
        heard.append(ours.recv(1))
        if len(heard) == 3:
            done.set()
        return True

    def begin() -> bool:
        heard.append(ours.recv(1))
        poller.add(ours, go_on)
        return False

    with ours, theirs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            poller = SocketPoller(nursery.start_soon)
            poller.open(TrioTurns())
            poller.add(ours, begin)
            theirs.send(b"abc")
            await done.wait()
            await trio.testing.wait_all_tasks_blocked()
            poller.close()

    assert heard == [b"a", b"b", b"c"]


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="a poller needs epoll")
async def test_a_reader_that_closes_its_socket_ends_its_watch() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    done = trio.Event()

    def close() -> bool:
        pairs[0][0].close()
        return False

    def read() -> bool:
        pairs[1][0].recv(1)
        done.set()
        return True

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            poller = SocketPoller(nursery.start_soon)
            poller.open(TrioTurns())
            number = pairs[0][0].fileno()
            poller.add(pairs[0][0], close)
            pairs[0][1].send(b"x")
            while pairs[0][0].fileno() >= 0:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            # Another socket gets the number of the closed socket, and is watched.
            os.dup2(pairs[1][0].fileno(), number)
            with socket.socket(fileno=number) as same:
                poller.add(same, read)
                pairs[1][1].send(b"x")
                await done.wait()
                await trio.testing.wait_all_tasks_blocked()
                poller.drop(same)
            poller.close()
    for pair in pairs:
        for sock in pair:
            sock.close()


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="a poller needs epoll")
@pytest.mark.parametrize("is_same", [False, True], ids=["another", "same"])
async def test_a_new_socket_with_the_number_of_a_closed_socket_is_watched(
    is_same: bool,
) -> None:
    closed, peer = socket.socketpair()
    done = trio.Event()

    def read() -> bool:
        done.set()
        return False

    with peer, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            poller = SocketPoller(nursery.start_soon)
            poller.open(TrioTurns())
            poller.add(closed, lambda: True)
            number = closed.detach()
            ours, theirs = socket.socketpair()
            if not is_same:
                os.dup2(ours.fileno(), number)
            with ours, theirs, socket.socket(fileno=number) as now:
                poller.add(now, read)
                (peer if is_same else theirs).send(b"x")
                await done.wait()
                poller.close()


async def _nursery(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


class Roots(TrioTurns):
    """Turns that remember whether a root has begun and not ended."""

    is_open = False

    def begin(self, root: trio.lowlevel.Task, wakes_many: bool = False) -> bool:
        self.is_open = True
        return True

    def serve(self, root: trio.lowlevel.Task) -> bool:
        return self.end(root)

    def end(self, root: trio.lowlevel.Task) -> bool:
        self.is_open = False
        return False


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_reader_that_exits_the_program_leaves_no_root_behind(is_alone: bool) -> None:
    def exits() -> bool:
        assert turns.is_open
        raise SystemExit(3)

    turns = Roots()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.send(b"x")
    pollers: list[SocketPoller] = []
    with ours, theirs, pytest.RaisesGroup(SystemExit):
        async with trio.open_nursery() as nursery:
            if is_alone:
                nursery.start_soon(watch_alone, ours, exits, turns)
            else:
                pollers.append(SocketPoller(nursery.start_soon))
                pollers[0].open(turns)
                nursery.start_soon(pollers[0].watch, ours, exits)

    for poller in pollers:
        poller.close()
    assert not turns.is_open


async def test_sockets_that_end_together_let_other_tasks_run_in_between() -> None:
    ended, most = list[int](), 0
    pairs = [socket.socketpair() for _ in range(40)]

    def readable(number: int) -> Callable[[], bool]:
        def read() -> bool:
            ended.append(number)
            return False

        return read

    async def look(task_status: trio.TaskStatus[None]) -> None:
        nonlocal most
        task_status.started()
        while True:
            before = len(ended)
            await trio.lowlevel.checkpoint()
            most = max(most, len(ended) - before)

    async with trio.open_nursery() as nursery:
        others = await nursery.start(_nursery)
        poller = SocketPoller(others.start_soon)
        poller.open(TrioTurns())
        with trio.fail_after(30):
            await others.start(look)
            async with trio.open_nursery() as readers:
                for number, (ours, theirs) in enumerate(pairs):
                    ours.setblocking(False)
                    theirs.close()
                    readers.start_soon(poller.watch, ours, readable(number))
        poller.close()
        nursery.cancel_scope.cancel()
    for ours, _ in pairs:
        ours.close()
    assert sorted(ended) == list(range(40))
    # trio shuffles the tasks of a pass: there may be two turns of the poller between two looks.
    assert most <= 16


async def test_a_function_may_watch_a_socket_without_a_task() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    got, done = list[bytes](), trio.Event()

    def read() -> bool:
        got.append(ours.recv(10))
        if got[-1] == b"last":
            done.set()
        return got[-1] != b"last"

    async with trio.open_nursery() as nursery:
        poller = SocketPoller(nursery.start_soon)
        poller.open(TrioTurns())
        poller.add(ours, read)
        with trio.fail_after(30):
            theirs.send(b"first")
            while not got:  # noqa: ASYNC110 - a plain function sets it
                await trio.sleep(0.001)
            theirs.send(b"last")
            await done.wait()
        poller.drop(ours)  # it is not watched any more: nothing happens
        poller.add(ours, read)
        poller.drop(ours)
        theirs.send(b"unseen")
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        poller.close()
    assert got == [b"first", b"last"]
    ours.close()
    theirs.close()
