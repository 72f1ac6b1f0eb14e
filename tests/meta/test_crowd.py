"""Thousands of connections at once. ``python -m benchmarks test-deep`` takes the large numbers."""

import gc
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import TCPConnected
from ergo_py.meta.sockets.tcp import TCPServer
from tests.meta.wires import Ear, Mail, echo, spawn_meta, until
from tests.support import THOROUGH, needs_proc, running_node

CROWD: dict[ReaderKind, int] = (
    {"thread": 2_000, "task": 10_000} if THOROUGH else {"thread": 200, "task": 500}
)


def resident() -> int:
    """Resident memory of this program, in bytes."""
    gc.collect()
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@contextmanager
def descriptors_for(count: int) -> Iterator[None]:
    """As many descriptors as a crowd needs, as far as the system lets us have them; the client
    inherits that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(
            f"RLIMIT_NOFILE may not be more than {hard}, which is too small for {count} connections"
        )
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_proc
@pytest.mark.parametrize("reader", ["thread", "task"])
@pytest.mark.no_cover
async def test_a_crowd_is_served_and_every_answer_is_right(
    reader: ReaderKind, capsys: pytest.CaptureFixture[str]
) -> None:
    count = CROWD[reader]
    with descriptors_for(count):
        await serve_a_crowd(reader, count, capsys)


async def serve_a_crowd(reader: ReaderKind, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_node(limit=110.0, max_reader_threads=count + 10) as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail, echo)
        server = TCPServer(reader=reader, queue=4096)
        await spawn_meta(node, owner, server)
        before = resident()
        client = await trio.lowlevel.open_process(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(__file__).parent / "crowd_client.py"),
                str(server.local.port),
                str(count),
                "3",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert client.stdin is not None
        assert client.stdout is not None

        assert await client.stdout.receive_some() == b"connected\n"
        await until(lambda: server.connections == count)
        idle = (resident() - before) / count
        await client.stdin.send_all(b"\n")
        verdict = await client.stdout.receive_some()
        busy = (resident() - before) / count
        began = trio.current_time()
        await client.stdin.aclose()
        await until(lambda: server.connections == 0 and node.metas() == [server.id])
        ended = trio.current_time() - began
        await client.wait()
        await client.stdout.aclose()

        with capsys.disabled():
            sys.stdout.write(
                f"\n{count} connections, reader {reader}: {idle / 1024:.1f} KiB each idle, "
                f"{busy / 1024:.1f} KiB after "
                f"talking; all closed within {ended:.2f} s\n"
            )
        assert verdict == b"right\n"
        assert len(mail.of(TCPConnected)) == count
        assert node.metas() == [server.id]
