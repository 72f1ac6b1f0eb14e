from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

import trio

from ergo_py import Actor, Alias, Caller, Down, MetaProcess, Reason, Reject, open_node
from ergo_py.meta import Counter

# -- what is given: a driver that knows nothing of actors, and blocks ------------------------------


class Scanner:
    """A barcode scanner. ``read`` blocks until a code is scanned; ``cancel`` ends a ``read`` from
    another thread.
    """

    def __init__(self) -> None:
        self.codes: SimpleQueue[str | None] = SimpleQueue()
        self.light = False

    def read(self) -> str | None:
        return self.codes.get()

    def cancel(self) -> None:
        self.codes.put(None)

    def set_light(self, on: bool) -> None:
        self.light = on

    def close(self) -> None:
        print("scanner: closed")


# -- the bridge ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scanned:
    scanner: Alias
    code: str


@dataclass(frozen=True)
class Light:
    on: bool


class ScannerBridge(MetaProcess):
    """Every scanned code becomes a message to the owner, and messages control the light."""

    def __init__(self, connect: Callable[[], Scanner]) -> None:
        self.connect = connect  # no I/O here: the object may never be spawned
        self.scanned = Counter()  # written by the reader, read by handle_inspect

    def init(self) -> None:
        scanner = self.connect()  # an exception here is an InitError of spawn_meta, after cleanup
        # A stop calls `unblock`; the scanner is closed at the end.
        self.scanner = self.opened(scanner, unblock=scanner.cancel)

    def start(self) -> None:  # plain: in a thread of its own, which may block
        while (code := self.scanner.read()) is not None:
            self.scanned.add()
            self.send(self.parent, Scanned(self.id, code))

    # Plain: in a worker thread, beside the reader.
    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Light(on):
                self.scanner.set_light(on)
                return on
        raise Reject(LookupError(f"a scanner does not know {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"scanned": str(self.scanned.value), "light": str(self.scanner.light)}

    def terminate(self, reason: Reason) -> None:
        print("bridge:", reason)


# -- its owner -------------------------------------------------------------------------------------


class Till(Actor):
    def __init__(self, connect: Callable[[], Scanner]) -> None:
        self.connect = connect

    async def init(self) -> None:
        self.scanner = await self.spawn_meta(ScannerBridge(self.connect), backlog=100)
        self.monitor(self.scanner)
        await self.call(self.scanner, Light(True))

    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Scanned(scanner, "end of day"):
                print("till:", await self.inspect_meta(scanner))
                self.stop()
            case Scanned(_, code):
                print("till:", code)
            case Down(_, reason):
                print("till: the scanner is gone:", reason)


async def main() -> None:
    scanner = Scanner()
    async with open_node("demo@localhost") as node:
        till = await node.spawn(Till, lambda: scanner)
        for code in ("4006381333931", "9780131103627", "end of day"):
            scanner.codes.put(code)
        await node.wait_ended(till)


if __name__ == "__main__":
    trio.run(main)
