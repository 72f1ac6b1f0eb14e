"""The same with two programs of nats-py, the client of NATS for asyncio: bare bytes, a server in
between.
"""

import asyncio
import json
import sys
from time import perf_counter, process_time

import nats
from nats.aio.msg import Msg

from .ours import BYTES, PARALLEL


async def serve(url: str) -> None:
    """Serve until the program is killed."""
    client = await nats.connect(url)

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    async def take(message: Msg) -> None:
        # The last of many messages asks for the processor time of this program.
        if message.reply:
            await message.respond(str(process_time()).encode())

    await client.subscribe("echo", cb=echo)
    await client.subscribe("take", cb=take)
    await client.flush()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def ask(url: str, size: int) -> None:
    """Measure, and print the figures."""
    client = await nats.connect(url)
    data = b"x" * BYTES
    await client.request("echo", data, timeout=30)
    took = []
    for _ in range(size // 10):
        began = perf_counter()
        await client.request("echo", data, timeout=30)
        took.append(perf_counter() - began)

    async def many() -> None:
        for _ in range(size // PARALLEL):
            await client.request("echo", data, timeout=30)

    began = perf_counter()
    await asyncio.gather(*(many() for _ in range(PARALLEL)))
    calls = size // PARALLEL * PARALLEL / (perf_counter() - began)
    used = process_time() + float((await client.request("take", b"", timeout=60)).data)
    began = perf_counter()
    for number in range(size):
        await client.publish("take", data)
        if not number % 1000:
            await client.flush()
    used = process_time() + float((await client.request("take", b"", timeout=60)).data) - used
    messages = size / (perf_counter() - began)
    figures = {
        "p50": sorted(took)[len(took) // 2] * 1e3,
        "calls": calls,
        "messages": messages,
        "cpu": used / size * 1e6,
    }
    json.dump(figures, sys.stdout)
    await client.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(sys.argv[2]))
    else:
        asyncio.run(ask(sys.argv[2], int(sys.argv[3])))
