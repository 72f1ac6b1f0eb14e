"""FastStream on a queue of RabbitMQ: takes and acknowledges so many items, and prints its seconds
and its seconds of processor time. `broker_throughput` runs it with a Python that has FastStream.

python benchmarks/peers/with_faststream.py amqp://localhost jobs 50000
"""
# pyright: reportMissingImports=false

import asyncio
import sys
import time

from faststream import AckPolicy
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue


async def main(url: str, queue: str, count: int) -> None:
    broker = RabbitBroker(url, default_channel=Channel(prefetch_count=2_000), logger=None)
    done, left = asyncio.Event(), count

    async def handle(body: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    broker.subscriber(RabbitQueue(queue, durable=True), ack_policy=AckPolicy.ACK)(handle)
    async with broker:
        wall, cpu = time.perf_counter(), time.process_time()
        await broker.start()
        await done.wait()
        print(time.perf_counter() - wall, time.process_time() - cpu)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
