from dataclasses import dataclass

import trio

from ergo_py import PID, StateMachine, open_node
from ergo_py.state_machine import state


@dataclass(frozen=True)
class Code:
    digits: str


@dataclass(frozen=True)
class Push:
    who: str


class Door(StateMachine):
    """A door with a code: the right code opens it for a moment, and callers that pushed before go
    through then.
    """

    def __init__(self, digits: str) -> None:
        self.digits = digits
        self.wrong = 0

    @state
    def locked(self, message: object, sender: PID) -> None:
        match message:
            case Code(self.digits):
                self.become(self.unlocked)
            case Code():
                self.wrong += 1
                if self.wrong == 3:
                    self.become(self.blocked)
            case Push(who):
                print(f"{who} waits")
                self.postpone()

    @state(timeout=2.0)
    def unlocked(self, message: object, sender: PID) -> None:
        match message:
            case Push(who):
                print(f"{who} goes through")
            case StateMachine.StateTimeout():
                self.become(self.locked)

    @unlocked.enter
    def draw_the_bolt(self, previous: str | None) -> None:
        self.wrong = 0
        print("the bolt is drawn")

    @unlocked.exit
    def throw_the_bolt(self, following: str) -> None:
        print(f"the bolt is thrown, and the door is {following}")

    @state(timeout=30.0)
    def blocked(self, message: object, sender: PID) -> None:
        match message:
            case StateMachine.StateTimeout():
                self.wrong = 0
                self.become(self.locked)


async def main() -> None:
    async with open_node("demo@localhost") as node:
        door = await node.spawn(Door, "1234")

        node.send(door, Push("Ada"))
        node.send(door, Code("1234"))
        node.send(door, Push("Bob"))
        await trio.sleep(0.1)
        print((await node.inspect(door))["state"])

        await trio.sleep(2.1)
        for _ in range(3):
            node.send(door, Code("0000"))
        print((await node.inspect(door))["state"])
        await trio.sleep(0.1)
        print((await node.inspect(door))["state"])


if __name__ == "__main__":
    trio.run(main)
