import trio

from ergo_py import Actor, open_node
from ergo_py.info import Delivered, Sent, Sight, Spawned, Stopped


def observe(sight: Sight) -> None:
    match sight:
        case Spawned(pid, parent, behaviour, name):
            print(f"{parent} started {pid}: {behaviour}, {name}")
        case Stopped(pid, reason):
            print(f"{pid} ended: {reason}")
        case Sent(sender, to, message):
            print(f"{sender} sent to {to}: {message}")
        case Delivered(pid, sender, message):
            print(f"{pid} handles what came from {sender}: {message}")


class Quiet(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        self.stop()


async def main() -> None:
    async with open_node("demo@localhost", observer=observe) as node:
        quiet = await node.spawn(Quiet, name="quiet")
        node.send(quiet, "hello")
        await node.wait_ended(quiet)


if __name__ == "__main__":
    trio.run(main)
