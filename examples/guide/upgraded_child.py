"""A running counter gets another class, and goes on with its count."""

import trio

from ergo_py import Actor, Caller, ChildSpec, open_node


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    def handle_message(self, message: object, sender: object) -> None:
        self.count += 1

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.count


class NamedCounter(Actor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.counted: dict[object, int] = {}

    def handle_message(self, message: object, sender: object) -> None:
        self.counted[message] = self.counted.get(message, 0) + 1

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.name, self.counted


def migrate(old: Counter, new: NamedCounter) -> None:
    new.counted["before"] = old.count


async def main() -> None:
    async with open_node() as node:
        supervisor = await node.supervise([ChildSpec("counter", Counter)])
        before = node.whereis("counter")
        node.send("counter", "apple")
        print("apples and others:", await node.call("counter", "count"))
        node.send("counter", "pear")  # waits for the new class
        await supervisor.upgrade_child("counter", NamedCounter, "fruit", migrate=migrate)
        print(await node.call("counter", "counted"))
        print("the same process:", node.whereis("counter") == before)


if __name__ == "__main__":
    trio.run(main)
