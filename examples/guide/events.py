from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, EventStarted, EventStopped, Published, open_node


@dataclass(frozen=True)
class Tick:
    price: int


class Prices(Actor):
    def init(self) -> None:
        self.token = self.register_event("prices", buffer=10, notify=True)

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Tick():
                self.publish("prices", message)
            case EventStarted() | EventStopped():
                print(type(message).__name__)  # the first subscriber has come, the last has gone

    def handle_call(self, request: object, caller: object) -> str:
        return "done"


class Chart(Actor):
    def init(self) -> None:
        for event in self.subscribe("prices"):  # the last ten
            print("before:", event.message)

    def handle_event(self, event: Published) -> None:
        print("now:", event.message)

    def handle_call(self, request: object, caller: object) -> str:
        return "done"


async def main() -> None:
    async with open_node("demo@localhost") as node:
        prices = await node.spawn(Prices)
        node.send(prices, Tick(7))
        await node.call(prices, "are you done?")
        chart = await node.spawn(Chart)
        node.send(prices, Tick(8))
        await node.call(prices, "are you done?")
        await node.call(chart, "are you done?")
        node.send_exit(chart)
        await node.wait_ended(chart)
        await node.call(prices, "are you done?")


if __name__ == "__main__":
    trio.run(main)
