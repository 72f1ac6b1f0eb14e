"""A lamp that follows a switch, both on MQTT. Needs ``ergo_py[mqtt]``.

python mqtt_lamp.py mqtt://localhost
"""

import sys

import trio
from paho.mqtt.client import MQTTMessage

from ergo_py import Actor, Backoff, ChildSpec, Node, run
from ergo_py.devices import Device, MQTTTopics


class Lamp(Actor):
    def __init__(self, url: str) -> None:
        self.url = url

    async def init(self) -> None:
        topics = MQTTTopics(self.url, "hall/switch", reopen=Backoff(0.1, 10.0))
        self.broker = await self.spawn_meta(topics)

    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Device.Opened():
                self.log.info("the switch works")
            case Device.Data(_, MQTTMessage() as pressed):
                light = b"on" if pressed.payload == b"1" else b"off"
                await self.call(self.broker, Device.Send(("hall/lamp", light)))
            case Device.Lost(_, why):
                self.log.warning("the switch does nothing", why=why)


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("lamp", Lamp, sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="lamp@localhost")
