import trio

from ergo_py import Actor, ChildSpec, MetaProcess, Reason, open_node


class Clock(MetaProcess):
    """A reader that blocks."""

    def start(self) -> None:
        while self.pause(3600):
            self.send(self.parent, "tick")

    def terminate(self, reason: Reason) -> None:
        print("clock:", reason)


class Member(Actor):
    def __init__(self, name: str) -> None:
        self.name = name

    def handle_message(self, message: object, sender: object) -> None: ...

    def pre_stop(self, reason: Reason) -> None:
        print(f"{self.name}: going to end")

    def terminate(self, reason: Reason) -> None:
        print(f"{self.name}: {reason}")


class Owner(Member):
    async def init(self) -> None:
        await self.spawn_meta(Clock())


class Stubborn(Actor):
    """Does not end when it is asked to: its callback never returns."""

    def __init__(self, busy: trio.Event) -> None:
        self.busy = busy

    async def handle_message(self, message: object, sender: object) -> None:
        self.busy.set()
        await trio.sleep_forever()


async def main() -> None:
    async with open_node("demo@localhost", log_level="off") as node:
        busy = trio.Event()
        await node.supervise(
            [
                ChildSpec("database", Member, "database"),
                ChildSpec("owner", Owner, "owner"),
                ChildSpec("stubborn", Stubborn, busy, shutdown=0.1),
            ],
            name="root",
        )
        node.send("stubborn", "do something")
        await busy.wait()
    report = node.exit_report
    assert report is not None
    print("stopped:", len(report.stopped), "killed:", [ended.name for ended in report.killed])


if __name__ == "__main__":
    trio.run(main)
