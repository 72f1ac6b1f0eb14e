from dataclasses import dataclass

import trio

from ergo_py import Actor, open_node


@dataclass(frozen=True)
class Login:
    user: str
    secret: str


class Door(Actor):
    def __init__(self) -> None:
        self.password = "swordfish"
        self.guests = 0

    def handle_message(self, message: object, sender: object) -> None: ...


def redact(what: str, value: object) -> object:
    """``what`` is "message", or the name of an attribute."""
    return "…" if what == "password" or isinstance(value, Login) else value


async def main() -> None:
    async with open_node("demo@localhost", redact=redact) as node:
        door = await node.spawn(Door)
        await node.suspend(door)
        node.send(door, Login("ada", "xyzzy"))
        print(node.peek(door, contents=True)[0].message)


if __name__ == "__main__":
    trio.run(main)
