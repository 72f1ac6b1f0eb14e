"""A node looks into another node, and starts a process there."""

import trio

from ergo_py import Actor, Caller, open_node
from ergo_py.network import Memory, NotPermittedError


class Worker(Actor):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def handle_call(self, request: int, caller: Caller) -> int:
        return self.factor * request

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"factor": str(self.factor)}


async def main() -> None:
    network = Memory(spawns={"worker": Worker}, allow={"ops@*": "default,look,spawn"})
    async with (
        open_node("stock@here", network=network),
        open_node("ops@here", network=network) as ops,
        open_node("shop@here", network=network) as shop,
    ):
        there = ops.at("stock@here")
        pid = await there.spawn("worker", 3, name="tripler")
        print("answer:", await ops.call(pid, 14))
        print("inspected:", await ops.inspect(pid))
        info = await there.process_info("tripler")
        print("handled:", info.messages_in, "in state", info.state.value)
        print(await there.tree())
        try:
            await shop.at("stock@here").tree()
        except NotPermittedError as error:
            print("refused:", error)
        traffic = ops.network().peers["stock@here"]
        print("operations:", traffic.sent, "sent,", traffic.received, "received")


if __name__ == "__main__":
    trio.run(main)
