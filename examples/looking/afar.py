"""Two nodes: the stock has no control socket, and the shop may look into it."""

import trio

from ergo_py import ChildSpec, Name, open_node
from ergo_py.network import Memory
from examples.looking.shop import Stock


async def main() -> None:
    network = Memory(allow={"shop@*": "default,look"})
    async with (
        open_node("stock@here", network=network) as there,
        open_node("shop@here", network=network, control="look") as here,
    ):
        await there.supervise([ChildSpec("stock", Stock)], name="store")
        here.send(Name("stock", "stock@here"), "tea")
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
