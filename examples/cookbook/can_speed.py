"""The speed of a vehicle, from a CAN bus. Needs ``ergo_py[can]``.

python can_speed.py socketcan can0
"""

import sys

import can
import trio

from ergo_py import Actor, Backoff, ChildSpec, Node, run
from ergo_py.devices import CAN, Device

SPEED, ASK = 0x123, 0x7DF


class Speed(Actor):
    def __init__(self, interface: str, channel: str) -> None:
        self.interface, self.channel = interface, channel
        self.kilometers: float | None = None

    async def init(self) -> None:
        reopen = Backoff(0.1, 10.0)
        await self.spawn_meta(CAN(self.interface, self.channel, reopen=reopen), backlog=1000)

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Device.Opened(bus):
                self.send(bus, Device.Send(can.Message(arbitration_id=ASK, data=[2, 1, 13])))
            case Device.Data(_, can.Message() as frame) if frame.arbitration_id == SPEED:
                self.kilometers = int.from_bytes(frame.data[:2], "big") / 100
            case Device.Lost():
                self.kilometers = None  # not the last value: it is old

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"kilometers": str(self.kilometers)}


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("speed", Speed, sys.argv[1], sys.argv[2])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="vehicle@localhost")
