"""A group with members on two nodes, and a spread that stands for them."""

from dataclasses import dataclass

import trio
import trio.testing

from ergo_py import Actor, Caller, Request, Routing, open_node
from ergo_py.cluster import Cluster, Spread
from ergo_py.network import Memory


@dataclass(frozen=True)
class Visit(Request[str]):
    user: str


class Sessions(Actor):
    """Keeps the sessions of some of the users."""

    async def init(self) -> None:
        self.visits: dict[str, int] = {}
        group = await Cluster(self.node).group("sessions")
        group.join(self.pid)

    def handle_call(self, request: Visit, caller: Caller) -> str:
        self.visits[request.user] = self.visits.get(request.user, 0) + 1
        return f"visit {self.visits[request.user]} of {request.user}"


async def main() -> None:
    network = Memory(types=[Visit])
    async with (
        open_node("web@berlin", network=network) as berlin,
        open_node("web@paris", network=network) as paris,
    ):
        for node in (berlin, paris):
            await node.spawn(Sessions)
            by_user = Spread.spec("sessions", Routing.BY_KEY, key=lambda request: request.user)
            await node.spawn(by_user, name="sessions")
        await trio.testing.wait_all_tasks_blocked()
        # Both nodes choose the same member for a user.
        print(await berlin.call("sessions", Visit("ada")))
        print(await paris.call("sessions", Visit("ada")))
        print(await paris.call("sessions", Visit("bob")))


if __name__ == "__main__":
    trio.run(main)
