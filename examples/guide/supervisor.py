import trio

from ergo_py import Actor, Backoff, ChildSpec, Strategy, Supervisor, SupervisorSpec, open_node
from ergo_py.supervision import Decision


class Database(Actor):
    def __init__(self, url: str) -> None:
        self.url = url


class Listener(Actor): ...


class Sessions(Actor): ...


class Parser(Actor):
    def handle_call(self, request: str, caller: object) -> int:
        return int(request)


parser = ChildSpec(
    "parser",
    Parser,
    decide=lambda error: Decision.RESUME if isinstance(error, ValueError) else Decision.RESTART,
)


class Root(Supervisor):
    def __init__(self, url: str) -> None:
        self.url = url

    def children(self) -> SupervisorSpec:
        return SupervisorSpec(
            [
                ChildSpec("db", Database, self.url, backoff=Backoff(0.05, 5.0)),
                ChildSpec(
                    "web",
                    Supervisor,
                    [ChildSpec("listener", Listener), ChildSpec("sessions", Sessions)],
                ),
                parser,
            ],
            strategy=Strategy.REST_FOR_ONE,
        )


async def main() -> None:
    async with open_node("demo@localhost", log_level="critical") as node:
        await node.spawn(Root, "postgres://localhost", name="root")
        print(node.tree())


if __name__ == "__main__":
    trio.run(main)
