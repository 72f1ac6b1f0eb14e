"""A shop whose stock blocks the loop: everything stops, and the control socket says why."""

import time

from ergo_py import PID, Actor, Alias, Node, run


class Stock(Actor):
    def handle_message(self, message: object, sender: PID | Alias) -> None:
        time.sleep(20)


async def main(node: Node) -> None:
    stock = await node.spawn(Stock, name="stock")
    node.send(stock, "tea")
    await node.wait_ended(stock)


if __name__ == "__main__":
    run(main, name="shop@localhost", control="look")
