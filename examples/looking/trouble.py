"""Four faults to practise on: a process that waits, a slow process, a dead process, and messages
that vanish.

ergo run --control look,act examples/looking/trouble.py
"""

import trio

from ergo_py import NO_REPLY, Actor, Caller, ChildSpec, Node
from ergo_py.info import NoReply


class Printer(Actor):
    """Takes jobs, and never reports the end of a job."""

    def handle_call(self, request: object, caller: Caller) -> NoReply:
        return NO_REPLY


class Waiter(Actor):
    """Waits for the printer, without a time limit."""

    async def handle_message(self, message: object, sender: object) -> None:
        await self.call("printer", message, timeout=None)


class Slow(Actor):
    """Gets more messages than it can handle."""

    async def handle_message(self, message: object, sender: object) -> None:
        await trio.sleep(3600)


class Fragile(Actor):
    def handle_message(self, message: str, sender: object) -> None:
        int(message)


async def main(node: Node) -> None:
    children = [ChildSpec("printer", Printer), ChildSpec("waiter", Waiter), ChildSpec("slow", Slow)]
    await node.supervise([*children, ChildSpec("fragile", Fragile)], name="office")
    for text in ("a letter", "another one"):
        node.send("waiter", text)
        node.send("slow", text)
        node.send("slwo", text)  # a typing error
    node.send("fragile", "seven")
    await trio.sleep_forever()
