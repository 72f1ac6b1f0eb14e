import os
from tempfile import TemporaryDirectory

import trio

from ergo_py import Actor, Backoff, open_node
from ergo_py.devices import Device, Serial
from ergo_py.meta import Delimiter


class Thermometer(Actor):
    def __init__(self, path: str, lost: trio.Event, done: trio.Event) -> None:
        self.path, self.lost, self.done = path, lost, done

    async def init(self) -> None:
        self.line = await self.spawn_meta(
            Serial(self.path, 115_200, framing=Delimiter(), reopen=Backoff(0.01, 10.0))
        )

    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Device.Lost(_, why):
                print("lost:", why.partition(":")[0])
                self.lost.set()
            case Device.Opened(device):
                print("open")
                await self.call(device, Device.Send(b"T?\n"))
            case Device.Data(device, bytes(line)):
                print("read:", line.decode())
                print((await self.inspect_meta(device))["openings"], "opening")
                self.done.set()


async def main() -> None:
    with TemporaryDirectory() as folder:
        path, lost, done = os.path.join(folder, "ttyUSB0"), trio.Event(), trio.Event()
        # A pseudo-terminal stands for the device.
        device, end = os.openpty()
        async with open_node("demo@localhost") as node:
            await node.spawn(Thermometer, path, lost, done)
            await lost.wait()
            os.symlink(os.ttyname(end), path)  # the device is plugged in
            await trio.lowlevel.wait_readable(device)
            if os.read(device, 100) == b"T?\n":
                os.write(device, b"21.5\n")
            await done.wait()
        os.close(device)
        os.close(end)


if __name__ == "__main__":
    trio.run(main)
