import trio
from trio.testing import MockClock

from ergo_py import Actor, Reason, open_node


class Session(Actor):
    def init(self) -> None:
        self.set_idle_timeout(30)

    def handle_message(self, message: object, sender: object) -> None:
        print("busy:", message)

    def handle_idle(self) -> None:
        print("nothing for 30 seconds")
        self.stop()

    def terminate(self, reason: Reason) -> None:
        print("session:", reason)


async def main() -> None:
    async with open_node(watchdog=None) as node:
        session = await node.spawn(Session)
        for number in range(3):
            await trio.sleep(20)
            node.send(session, number)
        await node.wait_ended(session)
        print("after", round(trio.current_time()), "seconds of virtual time")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0.02))
