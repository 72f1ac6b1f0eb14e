import trio

from ergo_py import PID, Actor, ChildSpec, open_node


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 0

    def handle_message(self, message: object, sender: PID) -> None:
        if not isinstance(message, int):
            raise TypeError(f"not a number: {message!r}")
        self.total += message

    def handle_call(self, request: object, caller: object) -> int:
        return self.total


async def main() -> None:
    async with open_node("demo@localhost", log_level="critical") as node:
        await node.supervise([ChildSpec("counter", Counter)])
        counter = node.service("counter")

        counter.send(5)
        print(await counter.call("total"))
        counter.send("five")  # the counter crashes, and the supervisor restarts it
        print(await counter.call("total", retry=True))


if __name__ == "__main__":
    trio.run(main)
