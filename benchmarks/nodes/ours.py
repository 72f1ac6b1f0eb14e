"""Two nodes of a `Local` network, or over a NATS server, each in a program of its own."""

import json
import sys
from dataclasses import dataclass
from time import perf_counter, process_time

import trio

from ergo_py import Actor, Caller, Request, open_node
from ergo_py.network import NATS, Local

__all__ = ["BYTES", "PARALLEL", "Echo", "Length", "network"]

BYTES = 128
PARALLEL = 64


@dataclass(frozen=True)
class Echo(Request[bytes]):
    """Answered with its data."""

    data: bytes


@dataclass(frozen=True)
class Length(Request[int]):
    """Answered with the length of its data."""

    data: bytes


@dataclass(frozen=True)
class Used(Request[float]):
    """The processor time of the program, after all messages before."""


class Server(Actor):
    """Answers, and counts messages."""

    def __init__(self) -> None:
        self.count = 0

    def handle_message(self, message: object, sender: object) -> None:
        self.count += 1

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Echo(data):
                return data
            case Length(data):
                return len(data)
        return process_time()


_TYPES = [Echo, Length, Used]


def network(place: str) -> Local | NATS:
    """The network of a directory, or of a NATS server."""
    if place.startswith("nats://"):
        return NATS(place, cluster="bench", types=_TYPES, patience=60.0)
    return Local(types=_TYPES, directory=place, patience=60.0)


async def serve(directory: str) -> None:
    """Serve until the program is killed."""
    async with open_node(
        "b@bench", network=network(directory), log_output="none", watchdog=None
    ) as node:
        await node.spawn(Server, name="server")
        await node.spawn(Server, name="other server")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await trio.sleep_forever()


async def ask(directory: str, size: int) -> None:
    """Measure, and print the figures."""
    async with open_node(
        "a@bench", network=network(directory), log_output="none", watchdog=None
    ) as node:
        there = node.at("b@bench")
        await there.wait_up(timeout=30)
        server = await there.whereis("server")
        assert server is not None
        request = Echo(b"x" * BYTES)
        took = []
        for _ in range(size // 10):
            began = perf_counter()
            await node.call(server, request)
            took.append(perf_counter() - began)

        async def many() -> None:
            for _ in range(size // PARALLEL):
                await node.call(server, request)

        began = perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(PARALLEL):
                nursery.start_soon(many)
        calls = size // PARALLEL * PARALLEL / (perf_counter() - began)
        used = process_time() + await node.call(server, Used())
        began = perf_counter()
        for number in range(size):
            await node.send_wait(server, request) if not number % 1000 else node.send(
                server, request
            )
        used = process_time() + await node.call(server, Used(), timeout=60) - used
        messages = size / (perf_counter() - began)
        json.dump(
            {
                "p50": sorted(took)[len(took) // 2] * 1e3,
                "calls": calls,
                "messages": messages,
                "cpu": used / size * 1e6,
            },
            sys.stdout,
        )


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        trio.run(serve, sys.argv[2])
    else:
        trio.run(ask, sys.argv[2], int(sys.argv[3]))
