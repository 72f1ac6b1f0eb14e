from dataclasses import dataclass

import trio

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    CallTimeoutError,
    Reject,
    Request,
    TargetDownError,
    open_node,
)
from ergo_py.errors import DeadlockError
from ergo_py.info import NoReply


@dataclass(frozen=True)
class Take(Request[str]):
    """Take an item from the shelf."""

    thing: str


@dataclass(frozen=True)
class Put:
    thing: str


class Shelf(Actor):
    """A caller that takes a missing item waits until another process puts it there."""

    def __init__(self, known: set[str]) -> None:
        self.known = known
        self.things: list[str] = []
        self.waiting: list[tuple[str, Caller]] = []

    def handle_call(self, request: Take, caller: Caller) -> str | NoReply:
        if request.thing not in self.known:
            raise Reject(LookupError(f"there is never any {request.thing}"))
        if request.thing in self.things:
            self.things.remove(request.thing)
            return request.thing
        self.waiting.append((request.thing, caller))
        return NO_REPLY  # the answer comes later

    def handle_message(self, message: Put, sender: PID) -> None:
        for waiting in self.waiting:
            thing, caller = waiting
            if thing == message.thing:
                self.waiting.remove(waiting)
                if self.reply(caller, thing):
                    return  # otherwise no caller waits any more, and the item stays there
        self.things.append(message.thing)


class Counter(Actor):
    """Knows nothing of shelves: it forwards the request, and the shelf answers the caller."""

    def __init__(self, shelf: PID) -> None:
        self.shelf = shelf

    def handle_call(self, request: Take, caller: Caller) -> NoReply:
        return self.forward(self.shelf, request, caller)


class Mirror(Actor):
    async def handle_call(self, request: object, caller: Caller) -> object:
        return await self.call(self.pid, request)


async def main() -> None:
    async with open_node("demo@localhost", log_level="off") as node:
        shelf = await node.spawn(Shelf, {"tea", "cups"})
        counter = await node.spawn(Counter, shelf)

        node.send(shelf, Put("tea"))
        print(await node.call(counter, Take("tea")))

        node.send_after(0.01, shelf, Put("cups"))
        print(await node.call(counter, Take("cups")), "came later")

        try:
            await node.call(counter, Take("beer"))
        except LookupError as error:
            print("refused:", error)
        try:
            await node.call(counter, Take("tea"), timeout=0.01)
        except CallTimeoutError as error:
            print("too late:", isinstance(error, TimeoutError))
        try:
            await node.call(shelf, "nonsense")
        except TargetDownError as error:
            print("died:", repr(error.__cause__))
        try:
            await node.call(await node.spawn(Mirror), "hello")
        except TargetDownError as error:
            print("not even asked:", isinstance(error.__cause__, DeadlockError))


if __name__ == "__main__":
    trio.run(main)
