import trio
import trio.testing

from ergo_py import Actor, Backoff, ChildSpec, Supervisor, open_node


class Database(Actor):
    starts = 0

    def init(self) -> None:
        Database.starts += 1
        if Database.starts > 1:
            raise ConnectionRefusedError("the database is down")


class Listener(Actor):
    def handle_message(self, message: object, sender: object) -> None: ...


async def main() -> None:
    async with open_node("demo@localhost", log_level="off") as node:
        children = [
            ChildSpec("db", Database, backoff=Backoff(0.1, 5.0)),
            ChildSpec("web", Supervisor, [ChildSpec("listener", Listener)]),
        ]
        await node.supervise(children, intensity=10, name="root")
        node.kill("listener")
        node.kill("db")
        await trio.sleep(1.0)
        for message in ("one", "two"):
            node.send("listener", message)
        print(node.tree())


if __name__ == "__main__":
    # With virtual time, so that it prints the same each time, and at once.
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
