from dataclasses import dataclass

import trio

from ergo_py import StateMachine, open_node
from ergo_py.state_machine import MachineState


@dataclass(frozen=True)
class Digit:
    value: str


class Idle(MachineState["Phone"]):
    def enter(self, previous: str | None) -> None:
        print(f"idle, last dialled {self.machine.redial!r}")

    def handle(self, message: object, sender: object) -> None:
        if message == "lifted":
            self.machine.become(Dialling)


class Dialling(MachineState["Phone"]):
    timeout = 20.0

    def __init__(self) -> None:
        self.digits = ""

    def handle(self, message: object, sender: object) -> None:
        match message:
            case Digit(value):
                self.digits += value
                if len(self.digits) == 3:
                    self.machine.become(Talking)
            case StateMachine.StateTimeout():
                self.machine.become(Idle)

    def exit(self, following: str) -> None:
        self.machine.redial = self.digits


class Talking(MachineState["Phone"]):
    def handle(self, message: object, sender: object) -> None:
        if message == "hung up":
            self.machine.become(Idle)


class Phone(StateMachine):
    states = (Idle, Dialling, Talking)

    def __init__(self) -> None:
        self.redial = ""


async def main() -> None:
    async with open_node("demo@localhost") as node:
        phone = await node.spawn(Phone)
        for message in ("lifted", Digit("1"), Digit("1"), Digit("2"), "hung up"):
            node.send(phone, message)
        await node.call(phone, "the line is free")


if __name__ == "__main__":
    trio.run(main)
