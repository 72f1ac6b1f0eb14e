from typing import Any

import trio
import trio.testing

from ergo_py import PID, Actor, Caller, GroupJoined, GroupLeft, open_node
from ergo_py.errors import KeyTakenError


class Player(Actor):
    """Registers itself under the key ("player", number), and joins the group of its room."""

    def __init__(self, number: int, room: str) -> None:
        self.number = number
        self.room = room

    def init(self) -> None:
        players = self.node.registry("players")
        players.register(("player", self.number), self.pid, value=self.room)
        self.node.group(("room", self.room)).join(self.pid)

    def handle_message(self, message: Any, sender: PID) -> None:
        print(f"a player of room {self.room} hears {message!r}")

    def handle_call(self, request: object, caller: Caller) -> int:
        return self.number


class Doorman(Actor):
    def init(self) -> None:
        inside = self.node.group(("room", "red")).monitor(self.pid)
        print("inside already:", len(inside))

    def handle_message(self, message: Any, sender: PID) -> None:
        match message:
            case GroupJoined():
                print("a player has come")
            case GroupLeft(reason=reason):
                print("a player has gone:", reason)


async def main() -> None:
    async with open_node(log_level="off") as node:
        players = node.registry("players")
        room = node.group(("room", "red"))
        await node.spawn(Player, 1, "red")
        await node.spawn(Doorman)
        second = await node.spawn(Player, 2, "red")
        await trio.testing.wait_all_tasks_blocked()

        ada = players.address(("player", 1))  # an address, as a PID or a name is
        print("called:", await node.call(ada, "who are you"))
        node.send(ada, "hello")
        await trio.testing.wait_all_tasks_blocked()
        print("told:", room.broadcast("supper"))
        await trio.testing.wait_all_tasks_blocked()

        try:
            players.register(("player", 1), second)
        except KeyTakenError as error:
            print("taken:", error.key)
        node.kill(second)
        await node.wait_ended(second)
        await trio.testing.wait_all_tasks_blocked()
        print(players.keys(), len(room), [entry.value for entry in players.entries()])


if __name__ == "__main__":
    trio.run(main)
