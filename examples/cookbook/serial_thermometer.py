"""A thermometer on a serial line. Needs ``ergo_py[serial]``.

python serial_thermometer.py /dev/ttyUSB0
"""

import sys

import trio

from ergo_py import Actor, Backoff, ChildSpec, Node, run
from ergo_py.devices import Device, Serial
from ergo_py.meta import Delimiter


class Thermometer(Actor):
    """Asks for the temperature when the line is open, and keeps the last that came."""

    degrees: float | None = None

    def __init__(self, port: str) -> None:
        self.port = port

    async def init(self) -> None:
        await self.spawn_meta(
            Serial(self.port, 115_200, framing=Delimiter(), reopen=Backoff(0.1, 10.0))
        )

    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Device.Opened(line):
                await self.call(line, Device.Send(b"T?\n"))
            case Device.Data(_, bytes(text)):
                self.degrees = float(text)  # a wrong line ends this process: it starts again
            case Device.Lost(_, why):
                self.log.warning("no temperature", why=why)
                self.degrees = None

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"degrees": str(self.degrees)}


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("thermometer", Thermometer, sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="thermometer@localhost")
