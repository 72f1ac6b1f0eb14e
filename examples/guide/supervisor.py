import trio

from ergo_py import (
    REST_FOR_ONE,
    RESTART,
    RESUME,
    Actor,
    Backoff,
    ChildSpec,
    Supervisor,
    SupervisorSpec,
    open_node,
)


class Database(Actor):
    def __init__(self, url: str) -> None:
        self.url = url


class Listener(Actor): ...


class Sessions(Actor): ...


class Parser(Actor):
    def handle_call(self, request: str, caller: object) -> int:
        return int(request)


parser = ChildSpec(
    "parser", Parser, decide=lambda error: RESUME if isinstance(error, ValueError) else RESTART
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
            strategy=REST_FOR_ONE,
        )


async def main() -> None:
    async with open_node("demo@localhost", log_level="critical") as node:
        await node.spawn(Root, "postgres://localhost", name="root")
        print(node.tree())


if __name__ == "__main__":
    trio.run(main)
