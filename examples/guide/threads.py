import hashlib
import threading
import time

import trio

from ergo_py import Actor, Node, Request, Threads, open_node


class Digest(Request[str]):
    def __init__(self, data: bytes) -> None:
        self.data = data


class Hasher(Actor):
    """Its plain callbacks run in a pool of two threads; `hashlib` releases the interpreter's lock
    meanwhile.
    """

    def handle_call(self, request: Digest, caller: object) -> str:
        return hashlib.sha256(request.data).hexdigest()[:8]


class Fetcher(Actor):
    """An occasional blocking call: a worker thread of trio is enough."""

    async def handle_call(self, request: object, caller: object) -> str:
        await trio.to_thread.run_sync(time.sleep, 0.01)
        return "fetched"


def elsewhere(node: Node) -> None:
    """A thread of your own: it may send and call."""
    node.send("log", "from " + threading.current_thread().name)
    print("asked:", node.call_from_thread("hasher", Digest(b"tea")))


class Log(Actor):
    def handle_message(self, message: str, sender: object) -> None:
        print("log:", message)

    def handle_call(self, request: object, caller: object) -> str:
        return "written"


async def main() -> None:
    async with open_node("demo@localhost") as node:
        await node.spawn(Hasher, name="hasher", dispatcher=Threads("hashing", 2))
        await node.spawn(Fetcher, name="fetcher")
        await node.spawn(Log, name="log")
        print(await node.call("fetcher", "a page"))
        thread = threading.Thread(target=elsewhere, args=(node,), name="my thread")
        thread.start()
        await trio.to_thread.run_sync(thread.join)
        await node.call("log", "are you done?")


if __name__ == "__main__":
    trio.run(main)
