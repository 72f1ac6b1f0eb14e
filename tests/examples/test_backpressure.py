"""`examples/backpressure`: a slow database slows the peers, memory has a bound, and a failed
database loses no row.
"""

import socket
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from ergo_py import PID, Node, open_node
from ergo_py.pipelines import Batch
from examples.backpressure import main as backpressure
from examples.backpressure.main import ROOM, Database, Readings, send_rows


@asynccontextmanager
async def running(path: str = ":memory:") -> AsyncIterator[tuple[Node, int]]:
    with trio.fail_after(60):
        async with open_node("readings@localhost", log_output="none", watchdog=None) as node:
            await node.spawn(Readings, path, 0.0, name="readings")
            yield node, await node.call("door", "port")


def waiting_for(node: Node, to: str | PID) -> int:
    return sum(node.process_info(to).lanes.values())


async def ask(stream: trio.SocketStream, text: bytes, answer: bytes) -> None:
    await stream.send_all(text)
    got = b""
    while len(got) < len(answer):
        part = await stream.receive_some()
        assert part, f"the connection ended after {got!r}"
        got += part
    assert got == answer


async def test_a_row_is_stored_although_its_batch_is_not_full() -> None:
    async with running() as (_, port), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await ask(stream, b"hall 21.5\n", b"stored 1\n")
        await ask(stream, b"hall 22\n", b"stored 2\n")


@pytest.mark.parametrize("line", [b"hall", b"hall warm", b"hall 1 2", b"hall nan", b"\xff 1", b""])
async def test_a_wrong_line_is_refused_and_the_next_is_taken(line: bytes) -> None:
    async with running() as (_, port), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await ask(stream, line + b"\n", b"refused: write SENSOR VALUE\n")
        await ask(stream, b"hall 22\n", b"stored 1\n")


async def test_rows_of_many_peers_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "batch", Batch(100, within=3600.0))
    async with running() as (node, port):
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(send_rows, port, f"sensor-{number}", 50)
        stored, largest = await node.call("database", "figures")

    assert stored == 500
    assert largest == 100


async def test_a_database_that_stands_still_stops_its_peers_and_memory_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(backpressure, "time", SimpleNamespace(sleep=lambda _: gate.wait(60)))
    line = b"%s 1\n" % (b"x" * 190)
    left = memoryview(line * 100_000)  # 20 MB: more than all buffers of the system
    try:
        async with running() as (node, port):
            with closing(socket.create_connection(("127.0.0.1", port))) as peer:
                peer.setblocking(False)
                idle = 0
                while left and idle < 20:
                    try:
                        left = left[peer.send(left[:65_536]) :]
                        idle = 0
                    except BlockingIOError:
                        idle += waiting_for(node, "database") == ROOM
                        await trio.sleep(0.01)
                sessions = [
                    waiting_for(node, pid)
                    for pid in node.processes()
                    if node.process_info(pid).behaviour == "Session"
                ]
                rows = waiting_for(node, "database")
                gate.set()

        assert len(left) > 0
        assert rows == ROOM
        assert len(sessions) == 1
        assert sessions[0] <= 20
    finally:
        gate.set()


async def test_a_failed_database_loses_no_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches: list[int] = []

    def fail_once(_: float) -> None:
        batches.append(len(batches))
        if len(batches) == 2:
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(backpressure, "time", SimpleNamespace(sleep=fail_once))
    path = tmp_path / "rows.sqlite"
    stored, connections = 0, 0
    async with running(str(path)) as (node, port):
        while stored < 250:
            connections += 1
            begin, answers = stored, b""
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"".join(b"hall %d\n" % i for i in range(stored, 250)))
                while stored < 250 and (part := await stream.receive_some()):
                    answers += part
                    complete = answers.rpartition(b"\n")[0]
                    if complete:
                        stored = begin + int(complete.split()[-1])
        assert [each.name for each in node.crashes()] == ["database"]

    assert connections > 1
    with closing(sqlite3.connect(path)) as database:
        values = {int(value) for (value,) in database.execute("select value from row")}
    assert values == set(range(250))
