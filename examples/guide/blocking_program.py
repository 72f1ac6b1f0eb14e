"""A node in a program without async: each verb blocks the calling thread, and nothing else."""

from ergo_py import Actor, Caller, ChildSpec
from ergo_py.blocking import open_node


class Counter(Actor):
    def __init__(self, total: int) -> None:
        self.total = total

    def handle_message(self, message: int, sender: object) -> None:
        self.total += message

    def handle_call(self, request: str, caller: Caller) -> int:
        return self.total


def main() -> None:
    with open_node("demo@localhost") as node:
        supervisor = node.supervise([ChildSpec("counter", Counter, 5)])
        node.send("counter", 3)
        print(node.call("counter", "total"), [child.name for child in supervisor.children()])

        # A future: for several calls at once, and for other event loops.
        futures = [node.ask("counter", "total") for _ in range(3)]
        print([future.result() for future in futures])
        print(list(node.map_stream(abs, [-1, 2, -3])))

        # Whatever else runs on the node's loop.
        print(node.run(lambda node: node.info().processes))


if __name__ == "__main__":
    main()
