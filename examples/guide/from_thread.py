"""A reader that is written as for `trio.to_thread`: it asks the loop, and notices the stop."""

import time

import trio

from ergo_py import Actor, Caller, MetaProcess, open_node


class Worker(MetaProcess):
    def __init__(self, jobs: trio.MemoryReceiveChannel[int]) -> None:
        self.jobs = jobs

    def start(self) -> None:
        try:
            while True:
                job = trio.from_thread.run(self.jobs.receive)  # waits on the loop
                for step in range(job):
                    trio.from_thread.check_cancelled()  # raises when it is being stopped
                    time.sleep(0.001 * step)
                self.send(self.parent, f"job of {job} steps is done")
        finally:
            trio.from_thread.run_sync(print, "the worker ends")


class Owner(Actor):
    async def init(self) -> None:
        self.jobs, receiver = trio.open_memory_channel[int](10)
        self.worker = await self.spawn_meta(Worker(receiver))

    def handle_message(self, message: str, sender: object) -> None:
        print(message)
        self.stop()

    async def handle_call(self, request: int, caller: Caller) -> None:
        await self.jobs.send(request)


async def main() -> None:
    async with open_node() as node:
        owner = await node.spawn(Owner)
        await node.call(owner, 3)
        await node.wait_ended(owner)


if __name__ == "__main__":
    trio.run(main)
