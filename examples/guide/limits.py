from collections import deque
from typing import Any

import trio
from trio.testing import MockClock

from ergo_py import NO_REPLY, Actor, Caller, Ref, Reject, Response, open_node
from ergo_py.info import NoReply


class RateLimiter(Actor):
    """Lets ``rate`` callers through in a second; the others wait for their turn."""

    def __init__(self, rate: float) -> None:
        self.pause = 1 / rate
        self.waiting: deque[Caller] = deque()
        self.is_free = True

    def handle_call(self, request: object, caller: Caller) -> NoReply:
        self.waiting.append(caller)
        self.let_through()
        return NO_REPLY

    def handle_message(self, message: object, sender: object) -> None:
        self.is_free = True
        self.let_through()

    def let_through(self) -> None:
        while self.is_free and self.waiting:
            # False: that caller has given up, so the next gets its turn.
            if self.reply(self.waiting.popleft(), "go on"):
                self.is_free = False
                self.send_after(self.pause, self.pid, "free again")


class BreakerOpenError(Exception):
    """The service has failed too often; it is not asked for a while."""


class CircuitBreaker(Actor):
    """Passes calls on to a process. After ``limit`` failures in a row it refuses them for ``rest``
    seconds; then a single call tries again.
    """

    def __init__(self, to: str, limit: int, rest: float) -> None:
        self.to = to
        self.limit = limit
        self.rest = rest
        self.failures = 0
        self.is_open = False
        self.callers: dict[Ref, Caller] = {}

    def handle_call(self, request: Any, caller: Caller) -> NoReply:
        if self.is_open:
            raise Reject(BreakerOpenError(f"{self.to} has failed {self.failures} times"))
        self.is_open = self.failures >= self.limit  # until the answer to this try
        self.callers[self.request(self.to, request)] = caller
        return NO_REPLY

    def handle_response(self, response: Response) -> None:
        caller = self.callers.pop(response.ref)
        if response.error is None:
            self.failures, self.is_open = 0, False
            self.reply(caller, response.value)
            return
        self.failures += 1
        if self.failures >= self.limit:
            self.is_open = True
            self.send_after(self.rest, self.pid, "try again")
        self.reply_error(caller, response.error)

    def handle_message(self, message: object, sender: object) -> None:
        self.is_open = False


class Shop(Actor):
    def __init__(self) -> None:
        self.is_closed = True

    def handle_call(self, request: str, caller: Caller) -> str:
        if request == "open":
            self.is_closed = False
        elif self.is_closed:
            raise Reject(LookupError("the shop is closed"))
        return f"{request}: done"


async def main() -> None:
    async with open_node(watchdog=None) as node:
        limiter = await node.spawn(RateLimiter, 2)
        begin = trio.current_time()

        async def enter() -> None:
            await node.call(limiter, "may I?", timeout=None)
            print(f"through after {trio.current_time() - begin:.1f} s")

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(enter)

        await node.spawn(Shop, name="shop")
        breaker = await node.spawn(CircuitBreaker, "shop", 2, 30.0)
        for pause, request in ((0, "tea"), (0, "tea"), (0, "tea"), (31, "tea"), (31, "tea")):
            await trio.sleep(pause)
            try:
                print(await node.call(breaker, request))
            except (LookupError, BreakerOpenError) as error:
                print(f"{type(error).__name__}: {error}")
            if pause:
                await node.call("shop", "open")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0.02))
