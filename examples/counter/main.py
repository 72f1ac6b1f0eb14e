from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Caller, Reject, Request, open_node


@dataclass(frozen=True)
class Add:
    amount: int


@dataclass(frozen=True)
class Total(Request[int]):
    """The sum so far."""


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.total = start

    async def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Add(amount):
                self.total += amount

    async def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Total():
                return self.total
        raise Reject(LookupError(f"no answer to {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


async def main() -> None:
    async with open_node("demo@localhost") as node:
        counter = await node.spawn(Counter, 5, name="counter")
        node.send(counter, Add(3))
        total = await node.call(counter, Total(), timeout=1)  # inferred: int
        print(total, await node.inspect("counter"))


trio.run(main)
