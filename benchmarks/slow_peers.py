"""``python -m benchmarks slow-peers``: thousands of peers that begin the head of a
request and never end it, and other peers beside them.

Every request of the others must have its response, and every slow peer must be refused with status
408 in its time. The times of the others are printed beside their times without slow peers, and
beside their times while the slow peers attack another server of the same machine; they do not
decide. The passes of the server's loop are measured in processor time, which other programs do not
change. slowhttptest, if it is installed, attacks with slow heads, slow bodies and slow readers, and
must find the server available.
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
from time import perf_counter, thread_time

import trio
from trio.abc import Instrument

from ergo_py import Actor, Caller, open_node
from ergo_py.web import HTTPRequest, Response, WebServer

__all__ = ["ATTACKS", "Owner", "attack_of", "main", "was_available"]

_HEAD_TIMEOUT = 10.0
_DIALS = 200
"""Connections that are opened at once."""


LARGE = Response(200, b"x" * 1_000_000)


class Passes(Instrument):
    """Measures the passes of a loop in processor time."""

    def __init__(self) -> None:
        self._began = thread_time()
        self.taken: list[float] = []

    def after_io_wait(self, timeout: float) -> None:
        self._began = thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.taken.append(thread_time() - self._began)


class Owner(Actor):
    """Owns the server, and answers every request. ``/passes`` tells the longest pass of the loop
    since the last time, and the sum of all, in milliseconds.
    """

    def __init__(self, server: WebServer) -> None:
        self.server = server
        self.passes = Passes()

    async def init(self) -> None:
        trio.lowlevel.add_instrument(self.passes)
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case HTTPRequest("GET", ("passes",)):
                taken, self.passes.taken = self.passes.taken, []
                return Response(200, f"{max(taken) * 1e3:.1f} {sum(taken) * 1e3:.0f} ok")
            case HTTPRequest("GET", ("large",)):
                return LARGE
        return Response(200, "ok")


async def _serve() -> None:
    server = WebServer(head_timeout=_HEAD_TIMEOUT, max_connections=None)
    async with open_node("slow@localhost", log_output="none") as node:
        await node.spawn(Owner, server)
        print(server.local.port, flush=True)
        await trio.sleep_forever()


class _Server:
    """A server in a program of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.slow_peers", "--serve"]
        self._program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "_Server":
        assert self._program.stdout is not None
        self.port = int(self._program.stdout.readline())
        return self

    def __exit__(self, *_error: object) -> None:
        with self._program as program:
            program.kill()


async def _get(stream: trio.SocketStream, path: str = "/") -> str:
    """The body of a response."""
    await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"ok"):
        data = await stream.receive_some(4096)
        if not data:
            raise SystemExit("a request has no response")
        answer += data
    return answer.partition(b"\r\n\r\n")[2].decode()


async def _ask(stream: trio.SocketStream, times: int) -> list[float]:
    """Seconds for each request of a peer that is not slow, over a connection that stays open."""
    taken: list[float] = []
    for _ in range(times):
        began = perf_counter()
        await _get(stream)
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


async def _be_slow(
    port: int, limiter: trio.CapacityLimiter, statuses: list[bytes], asks_first: bool
) -> None:
    async with limiter:
        stream = await _dial(port)
        if asks_first:
            await _get(stream)
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
    return (
        f"median {median(times) * 1e3:.1f} ms, 99 of 100 within {last * 1e3:.1f} ms, "
        f"all within {max(times) * 1e3:.0f} ms"
    )


async def _crowd(port: int, count: int, asks_first: bool) -> None:
    """Many slow peers, in a program of their own. Prints how many were refused with 408."""
    limiter, statuses = trio.CapacityLimiter(_DIALS), list[bytes]()
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(_be_slow, port, limiter, statuses, asks_first)
    print(sum(status == b"HTTP/1.1 408" for status in statuses), flush=True)


async def _beside(stream: trio.SocketStream, attacked: int, count: int, *more: str) -> bool:
    """Measure a peer beside a crowd. Returns whether the whole crowd was refused."""
    command = [sys.executable, "-m", "benchmarks.slow_peers", "--crowd", str(attacked), *more]
    crowd = await trio.lowlevel.open_process(
        [*command, "--peers", str(count)], stdout=subprocess.PIPE
    )
    assert crowd.stdout is not None
    await _get(stream, "/passes")
    times: list[float] = []
    while crowd.poll() is None:
        times += await _ask(stream, 20)
    longest, together, _ = (await _get(stream, "/passes")).split()
    refused = int(await crowd.stdout.receive_some(100) or b"0")
    print(f"  {_describe(times)}")
    print(f"  the longest pass of the loop took {longest} ms, all passes {together} ms")
    print(f"  {refused} of {count} slow heads were refused with 408; {len(times)} others served")
    return refused == count


async def _attack(port: int, other: int, count: int) -> bool:
    """Whether every slow head was refused, and every other request served."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    print(f"alone:\n  {_describe(await _ask(stream, 300))}")
    print(f"beside {count} slow heads at another server:")
    is_good = await _beside(stream, other, count)
    print(f"beside {count} slow heads:")
    is_good = await _beside(stream, port, count) and is_good
    print(f"beside {count} slow heads, each after a request:")
    is_good = await _beside(stream, port, count, "--ask-first") and is_good
    await stream.aclose()
    return is_good


ATTACKS = {"slow heads": ("-H", "/"), "slow bodies": ("-B", "/"), "slow readers": ("-X", "/large")}
"""The attacks of slowhttptest: the option and the path of each."""


def attack_of(program: str, name: str, port: int, count: int, seconds: int) -> list[str]:
    """The command line of an attack."""
    option, path = ATTACKS[name]
    command = [program, option, "-c", count, "-r", 500, "-i", 2, "-l", seconds, "-p", 3]
    # Readers that take 5 bytes a second of a response that is longer than their window.
    command += ["-w", 10, "-y", 100, "-k", 3] if option == "-X" else []
    return [*map(str, command), "-u", f"http://127.0.0.1:{port}{path}"]


def was_available(output: str) -> bool:
    """Whether slowhttptest has found the server available at each of its probes."""
    lines = [line for line in output.splitlines() if "service available:" in line]
    return bool(lines) and all(line.rstrip("\x1b[0m ").endswith("YES") for line in lines)


def _slowhttptest(port: int, count: int) -> bool:
    """Whether slowhttptest finds the server available under each of its attacks."""
    program = shutil.which("slowhttptest")
    if program is None:
        print("slowhttptest is not installed; its attacks are left out")
        return True
    is_good = True
    for name in ATTACKS:
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(
                attack_of(program, name, port, count, 15),
                cwd=Path(place),
                capture_output=True,
                text=True,
                check=False,
            )
        available = was_available(done.stdout)
        word = "available" if available else "NOT available"
        print(f"slowhttptest, {name}: the server was {word}")
        is_good = is_good and available
    return is_good


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_peers", description=__doc__)
    parser.add_argument("--peers", type=int, default=10_000, help="slow peers (default: 10000)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--crowd", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--ask-first", action="store_true", help=argparse.SUPPRESS)
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
        trio.run(_crowd, chosen.crowd, chosen.peers, chosen.ask_first)
        return 0
    with _Server() as server, _Server() as other:
        is_good = trio.run(_attack, server.port, other.port, chosen.peers)
        if not chosen.alone:
            is_good = _slowhttptest(server.port, min(chosen.peers, 4_000)) and is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
