from queue import SimpleQueue
from typing import Any

import trio

from ergo_py import Actor, Backoff, open_node
from ergo_py.devices import Device


class ScannerGoneError(Exception):
    pass


class Scanner:
    """A barcode scanner. ``read`` blocks until a code is scanned; ``cancel`` ends a ``read`` from
    another thread. It scans while its light is on.
    """

    def __init__(self, goods: list[str]) -> None:
        self.goods = goods
        self.codes: SimpleQueue[str | None] = SimpleQueue()

    def read(self) -> str | None:
        code = self.codes.get()
        if code == "unplugged":
            raise ScannerGoneError("the scanner does not answer")
        return code

    def cancel(self) -> None:
        self.codes.put(None)

    def set_light(self, on: object) -> None:
        for _ in range(2):
            self.codes.put(self.goods.pop(0))

    def close(self) -> None:
        self.goods = []


class ScannerBridge(Device):
    lost_by = (ScannerGoneError,)

    def __init__(self, goods: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.goods = goods

    def open(self) -> None:
        self.scanner = Scanner(self.goods)

    def read(self) -> object:
        return self.scanner.read()

    def write(self, data: object) -> None:
        self.scanner.set_light(data)

    def wake(self) -> None:
        self.scanner.cancel()

    def close(self) -> None:
        self.scanner.close()


class Till(Actor):
    def __init__(self, goods: list[str]) -> None:
        self.goods = goods

    async def init(self) -> None:
        await self.spawn_meta(ScannerBridge(self.goods, reopen=Backoff(0.01, 10.0)), backlog=100)

    async def handle_message(self, message: Any, sender: object) -> None:
        match message:
            case Device.Opened(scanner):
                await self.call(scanner, Device.Send(True))
            case Device.Data(_, "end of day"):
                self.stop()
            case Device.Data(_, code):
                print("till:", code)
            case Device.Lost(_, why):
                print("till:", why)


async def main() -> None:
    async with open_node("demo@localhost") as node:
        goods = ["4006381333931", "unplugged", "9780131103627", "end of day"]
        await node.wait_ended(await node.spawn(Till, goods))


if __name__ == "__main__":
    trio.run(main)
