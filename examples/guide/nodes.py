"""Two nodes of a network: messages, calls, monitors and events work as on a single node."""

from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Alias, Caller, Down, EventName, Name, Published, Request, open_node
from ergo_py.network import Memory


@dataclass(frozen=True)
class Sold:
    item: str
    pieces: int


@dataclass(frozen=True)
class Left(Request[int]):
    item: str


class Stock(Actor):
    def init(self) -> None:
        self.pieces = {"tea": 10}
        self.register_event("low")

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Sold(item, pieces):
                self.pieces[item] -= pieces
                if self.pieces[item] == 4:
                    self.publish("low", item)

    def handle_call(self, request: object, caller: Caller) -> int:
        match request:
            case Left(item):
                return self.pieces[item]
        raise TypeError(request)


class Shop(Actor):
    async def handle_call(self, request: object, caller: Caller) -> int:
        if request == "open":
            self.monitor(STOCK)
            self.subscribe(EventName("low", "stock@here"))
        else:
            self.send(STOCK, Sold("tea", 3))  # never waits
        return await self.call(STOCK, Left("tea"))  # inferred: int

    def handle_event(self, event: Published) -> None:
        print("low on", event.message)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Down(target, reason):
                print(target, "is down:", reason)
                self.stop()


STOCK = Name("stock", "stock@here")


async def main() -> None:
    network = Memory(types=[Sold, Left])
    async with open_node("shop@here", network=network) as here:
        shop = await here.spawn(Shop)
        async with open_node("stock@here", network=network) as there:
            await there.spawn(Stock, name="stock")
            await here.call(shop, "open")
            left = [await here.call(shop, "sell") for _ in range(3)]
            print("left:", left, "connected:", here.nodes())
        await here.wait_ended(shop)


if __name__ == "__main__":
    trio.run(main)
