"""A process whose state moves to the next version of its program: start the program twice."""

from typing import Any

import trio

from ergo_py import Actor, Caller, ChildSpec, Node, run


class Visits(Actor):
    def __init__(self) -> None:
        self.total = 0
        self.last = ""

    def handle_call(self, request: str, caller: Caller) -> int:
        self.total, self.last = self.total + 1, request
        return self.total

    def hand_over(self) -> object:  # in the old program, between two messages
        return {"total": self.total, "last": self.last}

    def take_over(self, state: Any) -> None:  # in the new one; the first version had no "last"
        self.total, self.last = state["total"], state.get("last", "")


async def main(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    await node.supervise([ChildSpec("visits", Visits)])
    task_status.started()  # from now on the process has the state of its predecessor
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="visits@localhost", handover="visits")
