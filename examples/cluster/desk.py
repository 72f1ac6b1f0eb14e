"""A node of a cluster. Each second it gives a job to the node that has done the fewest.

Start a NATS server, then several nodes, on any machines::

    ergo run --network nats://127.0.0.1:4222 --name desk@berlin examples/cluster/desk.py
"""

from dataclasses import dataclass

import trio

from ergo_py import (
    PID,
    Actor,
    Alias,
    Caller,
    CallError,
    ChildSpec,
    Name,
    Node,
    NodeDown,
    NodeUp,
    Published,
    Request,
)


@dataclass(frozen=True)
class HowBusy(Request[int]):
    """Ask a desk how many jobs it has done."""


@dataclass(frozen=True)
class Job:
    """Work for a desk."""

    number: int


TYPES = [HowBusy, Job]


class Desk(Actor):
    """Does jobs, and gives jobs to the desk that has done the fewest."""

    def init(self) -> None:
        self.done = 0
        self.subscribe("ergo.node_up")
        self.subscribe("ergo.node_down")
        self.send_every(1.0, self.pid, "round")

    def handle_event(self, event: Published) -> None:
        match event.message:
            case NodeUp(name):
                self.tell(f"{name} is here")
            case NodeDown(name, reason):
                self.tell(f"{name} is gone: {reason}")

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Job(number):
                self.done += 1
                self.tell(f"has done job {number}")
            case "round":
                # In a task of its own: the desk answers calls of other desks meanwhile.
                self.start_task(self.give_job)

    def handle_call(self, request: object, caller: Caller) -> int:
        return self.done

    async def give_job(self) -> None:
        """Ask all desks of the cluster, and give a job to the least busy one."""
        loads: dict[Name, int] = {}
        for node in await self.node.discover(0.2):
            desk = Name("desk", node)
            try:
                loads[desk] = await self.call(desk, HowBusy(), timeout=1.0)
            except CallError as error:
                self.tell(f"no answer: {error}")
        if loads:
            self.send(min(loads, key=loads.__getitem__), Job(sum(loads.values())))

    def tell(self, text: str) -> None:
        """Print a line."""
        print(f"{self.node.name}: {text}", flush=True)


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("desk", Desk)])
    await trio.sleep_forever()
