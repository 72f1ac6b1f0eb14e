from typing import Any

import trio

from ergo_py import Actor, Application, BadInputError, ChildSpec, Needs, Node, Reason, open_node
from ergo_py.errors import ApplicationError


class Database(Actor):
    def __init__(self) -> None:
        self.rows = {"greeting": "hello"}

    def handle_call(self, request: str, caller: object) -> str:
        return self.rows[request]


class Pages(Actor):
    db = Needs("db")  # passed as an argument: the service of that name, which survives restarts

    async def handle_call(self, request: str, caller: object) -> str:
        return f"<h1>{await self.db.call(request)}, {self.env['audience']}</h1>"


class Broken(Actor):
    def init(self) -> None:
        raise OSError("no such device")


class Web(Application):
    def after_start(self, node: Node) -> None:
        print("the web is up")

    def after_stop(self, node: Node, reason: Reason) -> None:
        print("the web is down")


storage = Application("storage", [ChildSpec("db", Database)])
web = Web("web", [ChildSpec("pages", Pages)], depends_on=["storage"], env={"audience": "world"})
mail = Application(
    "mail", [ChildSpec("queue", Actor), ChildSpec("printer", Broken)], depends_on=["web"]
)


def show(node: Node) -> None:
    print({each.name: each.phase.value for each in node.applications()})


async def main() -> None:
    async with open_node("demo@localhost", log_level="critical") as node:
        try:
            node.load_applications(web)
        except BadInputError as error:
            print(error)

        await node.start_applications(web, storage)
        answer: Any = await node.call("pages", "greeting")
        print(answer)

        node.load_applications(mail)
        await node.stop_applications("web")
        try:
            await node.start_applications("mail")
        except ApplicationError as error:
            print(
                f"{error.application} did not start, and these were stopped again: {error.undone}"
            )
        show(node)


if __name__ == "__main__":
    trio.run(main)
