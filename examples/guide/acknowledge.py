import time
from dataclasses import dataclass
from queue import SimpleQueue

import trio

from ergo_py import Actor, MetaProcess, Overflow, open_node


class Broker:
    """A queue of jobs. A job that is not acknowledged is delivered again."""

    def __init__(self, count: int) -> None:
        self.jobs: SimpleQueue[int | None] = SimpleQueue()
        self.open = set(range(1, count + 1))
        for number in self.open:
            self.jobs.put(number)

    def acknowledge(self, number: int) -> None:
        time.sleep(0.001)  # a transaction
        self.open.discard(number)


@dataclass(frozen=True)
class Job:
    number: int


@dataclass(frozen=True)
class Done:
    number: int


class Jobs(MetaProcess):
    """Every job becomes a message to the owner, and a `Done` acknowledges it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def start(self) -> None:
        while not self.stopping and (number := self.broker.jobs.get()) is not None:
            self.send(self.parent, Job(number))

    def unblock(self) -> None:
        self.broker.jobs.put(None)

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Done(number):
                self.broker.acknowledge(number)


class Clerk(Actor):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def init(self) -> None:
        # At most 10 acknowledgements wait; an orderly end has 5 seconds for them.
        self.jobs = await self.spawn_meta(
            Jobs(self.broker), mailbox_size=10, overflow=Overflow.WAIT, drain=5.0
        )

    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Job(number):
                if number == 60:
                    raise RuntimeError("a job that fails")
                await self.send_wait(self.jobs, Done(number))  # waits while 10 are under way


async def main() -> None:
    broker = Broker(100)
    async with open_node("demo@localhost", log_level="critical") as node:
        await node.wait_ended(await node.spawn(Clerk, broker))
    print("to be delivered again:", len(broker.open), "from", min(broker.open))


if __name__ == "__main__":
    trio.run(main)
