from dataclasses import dataclass

import trio

from ergo_py import Actor, Pool, PoolSpec, Request, Routing, open_node


@dataclass(frozen=True)
class Resize(Request[str]):
    picture: str


class Resizer(Actor):
    def handle_call(self, request: Resize, caller: object) -> str:
        return f"{request.picture} is smaller"


async def main() -> None:
    async with open_node("demo@localhost") as node:
        await node.spawn(
            Pool,
            PoolSpec(Resizer, size=8, routing=Routing.LEAST_LOADED, mailbox_size=100),
            name="resizers",
        )
        print(await node.call("resizers", Resize("a.png")))


if __name__ == "__main__":
    trio.run(main)
