from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Caller, Reject, Request, open_node


@dataclass(frozen=True)
class Vote:
    choice: str


@dataclass(frozen=True)
class Share(Request[float]):
    """The share of all votes that a choice has."""

    choice: str


class Poll(Actor):
    def __init__(self, *choices: str) -> None:
        self.votes = dict.fromkeys(choices, 0)

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Vote(choice):
                self.votes[choice] += 1

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Share(choice):
                if choice not in self.votes:
                    raise Reject(LookupError(f"nobody can vote for {choice}"))
                return self.votes[choice] / sum(self.votes.values())
        raise Reject(LookupError(f"no answer to {request!r}"))


async def main() -> None:
    async with open_node("poll@localhost") as node:
        poll = await node.spawn(Poll, "tea", "coffee")
        for choice in ("tea", "coffee", "tea"):
            node.send(poll, Vote(choice))
        share = await node.call(poll, Share("tea"))
        print(f"tea has {share:.0%}")
        try:
            await node.call(poll, Share("beer"))
        except LookupError as error:
            print(error)


if __name__ == "__main__":
    trio.run(main)
