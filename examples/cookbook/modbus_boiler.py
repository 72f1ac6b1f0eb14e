"""A boiler behind Modbus, polled each second. Needs ``ergo_py[modbus]``.

python modbus_boiler.py 10.0.0.7
"""

import sys

import trio
from pymodbus.client import ModbusTcpClient

from ergo_py import Actor, ChildSpec, Node, run
from ergo_py.devices import Modbus


class Boiler(Actor):
    """Reads the temperature from register 0, and turns the heater, coil 0, on and off."""

    def __init__(self, host: str, port: int = 502, each: float = 1.0) -> None:
        self.host, self.port, self.each = host, port, each
        self.degrees: float | None = None

    async def init(self) -> None:
        host, port = self.host, self.port
        self.plc = await self.spawn_meta(Modbus(lambda: ModbusTcpClient(host, port=port)))
        self.send(self.pid, "poll")

    async def handle_message(self, message: object, sender: object) -> None:
        try:
            [tenths] = await self.call(self.plc, Modbus.read_input_registers(0), timeout=20)
            self.degrees = tenths / 10
            await self.call(self.plc, Modbus.write_coils(0, [self.degrees < 60]), timeout=20)
        except ConnectionError as error:  # absent, or silent: the next poll connects again
            self.degrees = None
            self.log.warning("the boiler does not answer", error=str(error))
        self.send_after(self.each, self.pid, "poll")

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"degrees": str(self.degrees)}


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("boiler", Boiler, sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="boiler@localhost")
