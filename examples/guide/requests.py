from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Caller, Ref, Reject, Request, Response, open_node


@dataclass(frozen=True)
class Price(Request[int]):
    """The price of an item at a shop."""

    item: str


class Shop(Actor):
    def __init__(self, prices: dict[str, int]) -> None:
        self.prices = prices

    def handle_call(self, request: Price, caller: Caller) -> int:
        if request.item not in self.prices:
            raise Reject(LookupError(f"no {request.item}"))
        return self.prices[request.item]


class Buyer(Actor):
    """Asks all shops at once, and handles other messages meanwhile."""

    def __init__(self, shops: list[PID]) -> None:
        self.shops = shops
        self.open: set[Ref] = set()
        self.offers: list[int] = []

    def handle_message(self, message: str, sender: PID) -> None:
        self.open = {self.request(shop, Price(message), timeout=2.0) for shop in self.shops}

    def handle_response(self, response: Response) -> None:
        self.open.remove(response.ref)
        match response.request:
            case Price(item) as price:
                try:
                    self.offers.append(response.result_of(price))
                except Exception as error:
                    print(f"no offer for {item}: {error}")
        if not self.open:
            print("best offer:", min(self.offers))
            self.stop()


async def main() -> None:
    async with open_node("demo@localhost") as node:
        shops = [
            await node.spawn(Shop, {"tea": 4, "cups": 12}),
            await node.spawn(Shop, {"tea": 3}),
            await node.spawn(Shop, {}),
        ]
        buyer = await node.spawn(Buyer, shops)
        node.send(buyer, "tea")
        await node.wait_ended(buyer)


if __name__ == "__main__":
    trio.run(main)
