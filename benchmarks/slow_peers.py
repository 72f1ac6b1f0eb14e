"""``make slow-peers``: thousands of peers that begin the head of a request and never end it, and
other peers beside them.

Every request of the others must have its response, and every slow peer must be refused with status
408 in its time. The times of the others are printed beside their times without slow peers; they do
not decide. slowhttptest, if it is installed, attacks with slow heads, slow bodies and slow readers,
and must find the server available.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import trio

from ergo_py import Actor, Caller, open_node
from ergo_py.web import Response, WebServer

__all__ = ["main"]

_HEAD_TIMEOUT = 10.0
_DIALS = 200
"""Connections that are opened at once."""


class Owner(Actor):
    """Owns the server, and answers every request."""

    def __init__(self, server: WebServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> object:
        return Response(200, "ok")


async def _serve() -> None:
    server = WebServer(head_timeout=_HEAD_TIMEOUT, max_connections=None)
    async with open_node("slow@localhost", log_output="none") as node:
        await node.spawn(Owner, server)
        print(server.local.port, flush=True)
        await trio.sleep_forever()


async def _ask(stream: trio.SocketStream, times: int) -> list[float]:
    """Seconds for each request of a peer that is not slow, over a connection that stays open."""
    taken: list[float] = []
    for _ in range(times):
        began = perf_counter()
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok"):
            data = await stream.receive_some(4096)
            if not data:
                raise SystemExit("a request has no response")
            answer += data
        taken.append(perf_counter() - began)
        await trio.sleep(0.01)
    return taken


async def _dial(port: int) -> trio.SocketStream:
    """Connect, and try again: a system that is out of room for connections drops some."""
    while True:
        try:
            return await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(1.0)


async def _be_slow(port: int, limiter: trio.CapacityLimiter, statuses: list[bytes]) -> None:
    async with limiter:
        stream = await _dial(port)
    async with stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nX")
        answer = b""
        # A peer that reads late is reset after its answer.
        with suppress(trio.BrokenResourceError):
            while data := await stream.receive_some(4096):
                answer += data
        statuses.append(answer[:12])


def _describe(times: list[float]) -> str:
    last = quantiles(times, n=100)[98]
    return f"median {median(times) * 1e3:.1f} ms, 99 of 100 within {last * 1e3:.1f} ms"


async def _crowd(port: int, count: int) -> None:
    """Many slow peers, in a program of their own. Prints how many were refused with 408."""
    limiter, statuses = trio.CapacityLimiter(_DIALS), list[bytes]()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(_be_slow, port, limiter, statuses)
    print(sum(status == b"HTTP/1.1 408" for status in statuses), flush=True)


async def _attack(port: int, count: int) -> bool:
    """Whether nobody else was hurt."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    print(f"alone: {_describe(await _ask(stream, 300))}")
    command = [sys.executable, "-m", "benchmarks.slow_peers", "--crowd", str(port)]
    crowd = await trio.lowlevel.open_process(
        [*command, "--peers", str(count)], stdout=subprocess.PIPE
    )
    assert crowd.stdout is not None
    times: list[float] = []
    while crowd.poll() is None:
        times += await _ask(stream, 20)
    await stream.aclose()
    refused = int(await crowd.stdout.receive_some(100) or b"0")
    print(f"beside {count} slow heads: {_describe(times)}")
    print(f"{refused} of {count} slow heads were refused with 408; {len(times)} others were served")
    return refused == count


def _slowhttptest(port: int, count: int) -> bool:
    """Whether slowhttptest finds the server available under each of its attacks."""
    program = shutil.which("slowhttptest")
    if program is None:
        print("slowhttptest is not installed; its attacks are left out")
        return True
    is_good = True
    for name, option in (("slow heads", "-H"), ("slow bodies", "-B"), ("slow readers", "-X")):
        with tempfile.TemporaryDirectory() as place:
            command = [program, option, "-c", count, "-r", 500, "-i", 2, "-l", 15, "-p", 3]
            done = subprocess.run(
                [*map(str, command), "-u", f"http://127.0.0.1:{port}/"],
                cwd=Path(place),
                capture_output=True,
                text=True,
                check=False,
            )
        available = "service available:" in done.stdout and not _was_down(done.stdout)
        word = "available" if available else "NOT available"
        print(f"slowhttptest, {name}: the server was {word}")
        is_good = is_good and available
    return is_good


def _was_down(output: str) -> bool:
    lines = [line for line in output.splitlines() if "service available:" in line]
    return any(not line.rstrip("\x1b[0m ").endswith("YES") for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_peers", description=__doc__)
    parser.add_argument("--peers", type=int, default=10_000, help="slow peers (default: 10000)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--crowd", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help="without slowhttptest")
    chosen = parser.parse_args(arguments)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < chosen.peers + 200:
        print(f"{chosen.peers} peers need more descriptors than the {hard} of this system")
        return 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if chosen.serve:
        trio.run(_serve)
        return 0
    if chosen.crowd is not None:
        trio.run(_crowd, chosen.crowd, chosen.peers)
        return 0
    command = [sys.executable, "-m", "benchmarks.slow_peers", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            is_good = trio.run(_attack, port, chosen.peers)
            if not chosen.alone:
                is_good = _slowhttptest(port, min(chosen.peers, 4_000)) and is_good
        finally:
            server.kill()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
