"""A node of the soak, in a program of its own: ``python -m benchmarks.soak_nodes.program``.

It sends numbered messages to all other nodes, calls them, and runs a singleton when its node has
the lease. Lines on its standard input are commands: ``rest``, ``meet``, ``go``, ``tell`` and
``quit``.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import trio

from ergo_py import (
    Actor,
    Caller,
    ChildSpec,
    ErgoError,
    MailboxFullError,
    Name,
    Node,
    NodeDown,
    Request,
    open_node,
)
from ergo_py.cluster import Singleton
from ergo_py.network import NATS

from .journal import Journal

__all__ = ["NODES", "main"]

NODES: tuple[str, ...] = ("a@soak", "b@soak", "c@soak", "d@soak")


@dataclass(frozen=True)
class Numbered:
    """A message, with the start of its sender and its number."""

    sender: str
    number: int
    filling: bytes


@dataclass(frozen=True)
class Count(Request[int]):
    """How many messages the sink has got."""


class Sink(Actor):
    """Notes the messages of other nodes."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.count = 0

    def handle_message(self, message: Numbered, sender: object) -> None:
        self.count += 1
        self.journal.write("got", message.sender, message.number)

    def handle_call(self, request: Count, caller: Caller) -> int:
        return self.count


class Source(Actor):
    """Sends and calls, unless it rests."""

    def __init__(self, journal: Journal, start: str, seed: int) -> None:
        self.journal = journal
        self.start = start
        self.random = Random(seed)
        self.sent = dict.fromkeys(NODES, 0)
        self.is_resting = False

    def init(self) -> None:
        self.subscribe("ergo.dead_letter")
        self.subscribe("ergo.node_down")
        self.others = [name for name in NODES if name != self.node.name]
        self.send_every(0.02, self.pid, "send")
        self.start_task(self.ask)

    def handle_message(self, message: object, sender: object) -> None:
        if message in ("rest", "go"):
            self.is_resting = message == "rest"
        elif not self.is_resting:
            for _ in range(self.random.choice((1, 1, 5, 20))):
                self.send_one(self.random.choice(self.others))

    def send_one(self, to: str) -> None:
        number = self.sent[to] + 1
        filling = bytes(self.random.choice((10, 10, 500, 5000)))
        try:
            self.send(Name("sink", to), Numbered(self.start, number, filling))
        except MailboxFullError:  # the backlog of that node is full, and nothing was sent
            return
        self.sent[to] = number
        self.journal.write("sent", to, number)

    def handle_event(self, event: Any) -> None:
        match event.message:
            case NodeDown(node):
                self.journal.write("down", node)
            case letter if letter.message_type.endswith("Numbered"):
                self.journal.write("dead", letter.target.node, letter.why.name)

    async def ask(self) -> None:
        while True:
            await trio.sleep(0.05)
            if self.is_resting:
                continue
            try:
                await self.call(Name("sink", self.random.choice(self.others)), Count(), timeout=10)
            except ErgoError:
                self.journal.write("failed", 1)
            else:
                self.journal.write("answered", 1)


class Only(Actor):
    """The singleton: notes each act, with the number of its lease, in a file of all nodes."""

    def __init__(self, folder: str) -> None:
        self.journal = Journal(Path(folder) / "leases", "only", 0)

    def init(self) -> None:
        self.lease = Singleton.lease_of(self)
        self.send_every(0.05, self.pid, "act")

    def handle_message(self, message: object, sender: object) -> None:
        self.lease.check()
        self.journal.write(self.lease.token, self.node.name)


def report(node: Node) -> dict[str, Any]:
    """The accounts of the node with each other node."""
    fields = (
        *("state", "sessions", "sent", "confirmed", "on_the_way", "waiting"),
        *("unconfirmed", "unsent", "received", "resent", "calls", "watches"),
    )
    return {
        "creation": node.pid.creation,
        "peers": {
            name: {field: getattr(info, field) for field in fields}
            for name, info in node.network().peers.items()
        },
    }


async def main() -> None:
    """Run the node until its standard input ends."""
    name, url, folder, seed = sys.argv[1:5]
    network = NATS(url, cluster="soak", types=[Numbered, Count])
    async with open_node(name, network=network, watchdog=None, log_level="error") as node:
        journal = Journal(Path(folder), name, node.pid.creation)
        await node.spawn(Sink, journal, name="sink")
        start = f"{name}+{node.pid.creation}"
        source = await node.spawn(Source, journal, start, int(seed))
        only = ChildSpec("only", Only, folder, shutdown=0.5, terminate_timeout=0.5)
        await node.supervise([Singleton(only)], intensity=1000, period=1.0)
        answer({"ready": True})
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            match line.strip():
                case "tell":
                    answer(report(node))
                case "meet":
                    # Two nodes tell each other their accounts with the next session.
                    for other in NODES:
                        if other != name:
                            await node.at(other).wait_up(timeout=60)
                    answer({"done": "meet"})
                case "quit":
                    return
                case command:
                    await node.send_wait(source, command)
                    answer({"done": command})


def answer(values: object) -> None:
    """Write a line for the soak."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
