from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Caller, ChildSpec, Reject, Request, TargetDownError, open_node


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
    async with open_node("poll@localhost", log_level="critical") as node:
        await node.supervise([ChildSpec("poll", Poll, "tea", "coffee")], name="root")
        poll = node.service("poll")
        try:
            await poll.call(Share("tea"))
        except TargetDownError as error:
            print("the poll died of", repr(error.__cause__))
        poll.send(Vote("tea"))
        print(f"tea has {await poll.call(Share('tea')):.0%}")
        print(node.tree())


if __name__ == "__main__":
    trio.run(main)
