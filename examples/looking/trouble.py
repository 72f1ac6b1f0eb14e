"""Four things that go wrong, to practise on: one waits, one is slow, one has died, and messages
vanish.

ergo run --control look,act examples/looking/trouble.py
"""

import trio

from ergo_py import NO_REPLY, Actor, Caller, ChildSpec, Node, NoReply


class Printer(Actor):
    """Takes jobs, and never says that one is done."""

    def handle_call(self, request: object, caller: Caller) -> NoReply:
        return NO_REPLY


class Waiter(Actor):
    """Waits for the printer, and for as long as it takes."""

    async def handle_message(self, message: object, sender: object) -> None:
        await self.call("printer", message, timeout=None)


class Slow(Actor):
    """Is sent more than it can do."""

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
        node.send("slwo", text)  # a slip of the pen
    node.send("fragile", "seven")
    await trio.sleep_forever()
