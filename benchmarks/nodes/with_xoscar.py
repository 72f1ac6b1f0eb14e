"""The same with two pools of xoscar, each in a program of its own, over a socket on loopback."""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import asyncio
import json
import sys
from time import perf_counter, process_time
from typing import Any

import xoscar

from .ours import BYTES, PARALLEL


class Server(xoscar.Actor):  # type: ignore[misc] # xoscar has no types
    """Answers, and takes messages."""

    def echo(self, data: bytes) -> bytes:
        return data

    def take(self, _data: bytes) -> None:
        pass

    def used(self) -> float:
        return process_time()


async def serve() -> None:
    """Serve until the program is killed."""
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
    await xoscar.create_actor(Server, uid="server", address=pool.external_address)
    sys.stdout.write(f"ready {pool.external_address}\n")
    sys.stdout.flush()
    await pool.join()


async def ask(address: str, size: int) -> None:
    """Measure, and print the figures."""
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
    async with pool:
        server: Any = await xoscar.actor_ref("server", address=address)
        data = b"x" * BYTES
        took = []
        for _ in range(size // 10):
            began = perf_counter()
            await server.echo(data)
            took.append(perf_counter() - began)

        async def many() -> None:
            for _ in range(size // PARALLEL):
                await server.echo(data)

        began = perf_counter()
        await asyncio.gather(*(many() for _ in range(PARALLEL)))
        calls = size // PARALLEL * PARALLEL / (perf_counter() - began)
        used = process_time() + await server.used()
        began = perf_counter()
        for _ in range(size):
            await server.take.tell(data)
        used = process_time() + await server.used() - used
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
        asyncio.run(serve())
    else:
        asyncio.run(ask(sys.argv[2], int(sys.argv[3])))
