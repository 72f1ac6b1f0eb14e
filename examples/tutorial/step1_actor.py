from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, open_node


@dataclass(frozen=True)
class Vote:
    choice: str


@dataclass(frozen=True)
class Close:
    """Ends the vote."""


class Poll(Actor):
    def __init__(self, *choices: str) -> None:
        self.votes = dict.fromkeys(choices, 0)

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Vote(choice):
                self.votes[choice] += 1
            case Close():
                print(self.votes)
                self.stop()


async def main() -> None:
    async with open_node("poll@localhost") as node:
        poll = await node.spawn(Poll, "tea", "coffee")
        for choice in ("tea", "coffee", "tea"):
            node.send(poll, Vote(choice))
        node.send(poll, Close())
        print("the poll ended:", await node.wait_ended(poll))


if __name__ == "__main__":
    trio.run(main)
