"""A broker in memory, its source, and the steps of pipelines in tests."""

import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Final, ParamSpec

import trio

from ergo_py import Backoff, ChildSpec, Node
from ergo_py.pipelines import Item, Pipeline, Retry, Sink, Source
from ergo_py.testing import VirtualClock
from tests.support import running_node

__all__ = ["QUICK", "Broker", "BrokerSource", "Collect", "in_virtual_time", "running", "until"]

P = ParamSpec("P")

QUICK: Final = Retry(2, Backoff(1.0, 1.0))


class Broker:
    """Delivers each number until it is acknowledged. A new opening delivers all again that the
    opening before has left, and no acknowledgement of the opening before counts then.
    """

    def __init__(self, *numbers: int, key: Callable[[int], Hashable] = lambda _: None) -> None:
        self.ready = deque((number, 0) for number in numbers)
        """With the number of deliveries before."""
        self.key = key
        self.delivered: dict[int, int] = {}
        """Unacknowledged, with the number of the opening."""
        self.acknowledged: list[int] = []
        self.failed: list[tuple[int, str]] = []
        self.redelivered = 0
        self.most = 0
        """The most that were unacknowledged at once."""
        self.openings = self.closings = 0
        self.faults: dict[str, int] = Counter()
        """How often each method is still to raise."""
        self.threads: set[int] = set()

    @property
    def is_done(self) -> bool:
        return not self.ready and not self.delivered

    def fault(self, method: str) -> None:
        self.threads.add(threading.get_ident())
        if self.faults[method] > 0:
            self.faults[method] -= 1
            raise ConnectionError(method)


class BrokerSource(Source):
    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def open(self) -> None:
        broker = self.broker
        broker.openings += 1
        broker.fault("open")
        left = sorted(broker.delivered)
        broker.delivered.clear()
        broker.ready.extendleft((number, 1) for number in reversed(left))

    def take(self, most: int) -> list[Item]:
        broker = self.broker
        broker.fault("take")
        items = []
        for _ in range(min(most, len(broker.ready))):
            number, again = broker.ready.popleft()
            broker.delivered[number] = broker.openings
            broker.redelivered += again
            items.append(Item(number, broker.key(number), (number, broker.openings), again))
        broker.most = max(broker.most, len(broker.delivered))
        return items

    def ack(self, items: list[Item]) -> None:
        broker = self.broker
        broker.fault("ack")
        for item in items:
            number, opening = item.receipt
            if broker.delivered.get(number) == opening:
                del broker.delivered[number]
                broker.acknowledged.append(number)

    def fail(self, items: list[Item], error: Exception) -> None:
        broker = self.broker
        broker.fault("fail")
        for item in items:
            number, _ = item.receipt
            broker.delivered.pop(number, None)
            broker.failed.append((number, str(error)))

    def close(self) -> None:
        self.broker.closings += 1
        self.broker.fault("close")


class Collect(Sink):
    """Keeps the bodies of its items, on the loop; waits while it is shut."""

    def __init__(self, *, batch: int = 100, within: float = 0.0) -> None:
        super().__init__(batch=batch, within=within)
        self.batches: list[list[Any]] = []
        self.gate = trio.Event()
        self.gate.set()

    @property
    def bodies(self) -> list[Any]:
        return [body for batch in self.batches for body in batch]

    def shut(self) -> None:
        self.gate = trio.Event()

    async def handle_batch(self, items: list[Item]) -> None:
        await self.gate.wait()
        self.batches.append([item.body for item in items])


@asynccontextmanager
async def running(broker: Broker, *steps: Any, **options: Any) -> AsyncIterator[Node]:
    """A node with a pipeline "jobs" from the broker, under a supervisor."""
    keywords: dict[str, Any] = {"retry": QUICK, "reopen": Backoff(1.0, 4.0), **options}
    async with running_node(limit=1000.0) as node:
        plan = Pipeline.spec(BrokerSource(broker), *steps, **keywords)
        await node.supervise([ChildSpec("jobs", plan)])
        yield node


async def until(holds: Callable[[], object], limit: float = 100.0) -> None:
    """Wait in virtual time."""
    with trio.fail_after(limit):
        while not holds():  # noqa: ASYNC110 - threads change it, which set no event
            await trio.sleep(0.25)
        # The thread that has made it hold may be in the middle of its step: time stands still
        # until it rests.
        await trio.sleep(0.01)


def in_virtual_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test in virtual time, which waits for the threads."""

    @wraps(test)
    def run(*args: P.args, **keywords: P.kwargs) -> None:
        trio.run(partial(test, *args, **keywords), clock=VirtualClock())

    return run
