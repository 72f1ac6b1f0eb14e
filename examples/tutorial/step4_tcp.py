import sys
from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, Node, Reject, Request, run
from ergo_py.meta import TCP, Delimiter, TCPServer


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
            case Vote(choice) if choice in self.votes:
                self.votes[choice] += 1

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Share(choice):
                if choice not in self.votes:
                    raise Reject(LookupError(f"nobody can vote for {choice}"))
                return self.votes[choice] / sum(self.votes.values())
        raise Reject(LookupError(f"no answer to {request!r}"))


class Door(Actor):
    """Owns the server. Every line from a peer is a command."""

    def __init__(self, port: int) -> None:
        self.server = TCPServer("127.0.0.1", port, framing=Delimiter(b"\n", max_frame=200))

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        print(f"listening at {self.server.local}", flush=True)

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Data(connection, line):
                answer = await self.obey(line.decode(errors="replace").split())
                self.send(connection, TCP.Send(answer.encode() + b"\n"))

    async def obey(self, words: list[str]) -> str:
        match words:
            case ["vote", choice]:
                self.service("poll").send(Vote(choice))
                return "thank you"
            case ["share", choice]:
                return f"{await self.service('poll').call(Share(choice)):.0%}"
        return "say: vote CHOICE, or: share CHOICE"


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7777
    children = [ChildSpec("poll", Poll, "tea", "coffee"), ChildSpec("door", Door, port)]
    await node.supervise(children, name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="poll@localhost")
