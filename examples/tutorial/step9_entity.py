import sys
from dataclasses import dataclass, field

import trio

from ergo_py import (
    PID,
    Actor,
    Alias,
    Caller,
    ChildSpec,
    Node,
    Reject,
    Request,
    TargetDownError,
    run,
)
from ergo_py.entities import Entities, Entity, SQLite
from ergo_py.meta import TCP, Delimiter, TCPServer

CHOICES = ("tea", "coffee")


@dataclass(frozen=True)
class Vote(Request[None]):
    choice: str


@dataclass(frozen=True)
class Share(Request[float]):
    """The share of all votes that a choice has."""

    choice: str


@dataclass
class Votes:
    counts: dict[str, int] = field(default_factory=dict)  # a new poll is Votes()


class Poll(Entity[Votes]):
    """A poll; its key is its subject."""

    def handle_call(self, request: object, caller: Caller) -> object:
        counts = self.state.counts
        match request:
            case Vote(choice) | Share(choice) if choice not in CHOICES:
                raise Reject(LookupError(f"nobody can vote for {choice}"))
            case Vote(choice):
                counts[choice] = counts.get(choice, 0) + 1
                return None  # leaves when the vote is on disk
            case Share(choice):
                if not counts:
                    raise Reject(LookupError("nobody has voted yet"))
                return counts.get(choice, 0) / sum(counts.values())
        raise Reject(LookupError(f"no answer to {request!r}"))


@dataclass(frozen=True)
class Obeyed:
    """From a session: the command that it has carried out, and how long that took."""

    command: str
    seconds: float


class Metrics(Actor):
    """Counts the commands of all sessions, and publishes the numbers every second."""

    def __init__(self, period: float = 1.0) -> None:
        self.period = period
        self.counts: dict[str, int] = {}
        self.slowest = 0.0

    def init(self) -> None:
        self.register_event("metrics", buffer=1)
        self.send_every(self.period, self.pid, "publish")

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Obeyed(command, seconds):
                self.counts[command] = self.counts.get(command, 0) + 1
                self.slowest = max(self.slowest, seconds)
            case "publish":
                self.publish("metrics", dict(self.counts))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {
            **{command: str(count) for command, count in self.counts.items()},
            "slowest": f"{self.slowest:.6f} s",
        }


class Session(Actor):
    """Serves a single peer. It starts with the connection and ends with it."""

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Data(connection, line):
                words = line.decode(errors="replace").split()
                begin = trio.current_time()
                answer = await self.obey(words)
                self.service("metrics").send(
                    Obeyed(words[0] if words else "", trio.current_time() - begin)
                )
                self.send(connection, TCP.Send(answer.encode() + b"\n"))

    async def obey(self, words: list[str]) -> str:
        poll = self.entity(Poll, "drinks")
        try:
            match words:
                case ["vote", choice]:
                    await poll.call(Vote(choice))
                    return "thank you"
                case ["share", choice]:
                    return f"{await poll.call(Share(choice)):.0%}"
        except (LookupError, TargetDownError) as error:
            return f"sorry: {error}"
        return "say: vote CHOICE, or: share CHOICE"


class Door(Actor):
    """Owns the server, which spawns a session for each connection."""

    def __init__(self, port: int) -> None:
        self.server = TCPServer(
            "127.0.0.1", port, receiver=Session, framing=Delimiter(b"\n", max_frame=200)
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        print(f"listening at {self.server.local}", flush=True)


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7777
    children = [
        ChildSpec("entities", Entities.spec(SQLite("votes.db"), [Poll])),
        ChildSpec("metrics", Metrics),
        ChildSpec("door", Door, port),
    ]
    await node.supervise(children, name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="poll@localhost")
