from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Down, Exit, Reason, open_node


@dataclass(frozen=True)
class Parse:
    text: str


class Worker(Actor):
    """Parses numbers, and fails at any other text."""

    def __init__(self, boss: PID) -> None:
        self.boss = boss

    def init(self) -> None:
        self.log.debug("ready", boss=str(self.boss))

    def handle_message(self, message: Parse, sender: PID) -> None:
        self.send(self.boss, int(message.text))

    def terminate(self, reason: Reason) -> None:
        print("worker:", reason)


class Boss(Actor):
    """Has a worker, monitors it, and continues without it."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    async def init(self) -> None:
        self.worker = await self.spawn(Worker, self.pid)
        self.monitor(self.worker)

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case "go on":
                self.send(self.worker, Parse(self.texts.pop(0)))
            case int():
                print("boss: got", message)
                self.send(self.pid, "go on")
            case Down(target, reason):
                print("boss:", "my worker" if target == self.worker else target, reason)
                self.stop()


class Linked(Actor):
    """A linked process ends with the boss, unless it traps exits, as this process does."""

    def init(self) -> None:
        self.trap_exit = True
        self.link("boss")

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Exit(source, reason):
                print(f"linked: {source} ended: {reason}")
                self.stop()


async def main() -> None:
    async with open_node("demo@localhost", log_level="critical") as node:
        await node.spawn(Boss, "7", "seven", name="boss")
        linked = await node.spawn(Linked)
        node.send("boss", "go on")
        await node.wait_ended(linked)
        print("left:", node.processes())


if __name__ == "__main__":
    trio.run(main)
