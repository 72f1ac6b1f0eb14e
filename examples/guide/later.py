from collections import deque
from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Alias, Caller, Down, open_node
from ergo_py.meta import TCP, Delimiter, TCPServer


@dataclass(frozen=True)
class Push:
    item: bytes


class Pop:
    """From a session: its peer waits for an item."""


@dataclass(frozen=True)
class Popped:
    item: bytes


class Taken:
    """From a session: the item that it was given is on its way to its peer."""


class Queue(Actor):
    """Gives each item to a single session. If a session ends without taking its item, the next
    session gets it.
    """

    def __init__(self) -> None:
        self.items: deque[bytes] = deque()
        self.waiting: deque[PID] = deque()
        self.given: dict[PID, bytes] = {}

    def handle_message(self, message: object, sender: PID) -> None:
        match message:
            case Push(item):
                self.items.append(item)
            case Pop():
                self.monitor(sender)
                self.waiting.append(sender)
            case Taken():
                del self.given[sender]
                self.demonitor(sender)
            case Down(PID() as session):
                if session in self.given:
                    self.items.appendleft(self.given.pop(session))
                else:
                    self.waiting.remove(session)
        while self.items and self.waiting:
            session, item = self.waiting.popleft(), self.items.popleft()
            self.given[session] = item
            self.send(session, Popped(item))

    def handle_call(self, request: object, caller: Caller) -> int:
        return len(self.waiting)


class Session(Actor):
    """Requests with a message, so it sleeps while it waits, and ends as soon as its connection
    does.
    """

    def __init__(self) -> None:
        self.connection: Alias

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Connected(connection):
                self.connection = connection
            case TCP.Data(_, b"pop"):
                self.send("queue", Pop())
            case Popped(item):
                # False if the connection has just ended: then this session ends, too, and the queue
                # gets the item back.
                if self.send(self.connection, TCP.Send(item + b"\n")):
                    self.send("queue", Taken())


class Door(Actor):
    def __init__(self, server: TCPServer) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)


async def main() -> None:
    async with open_node("demo@localhost") as node:
        queue = await node.spawn(Queue, name="queue")
        server = TCPServer(receiver=Session, framing=Delimiter(b"\n"))
        await node.spawn(Door, server)

        async with await trio.open_tcp_stream(*server.local) as first:
            await first.send_all(b"pop\n")
            while await node.call(queue, "how many wait?") == 0:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.001)
        while await node.call(queue, "how many wait?") > 0:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.001)
        print("the first one has gone, and nobody waits")

        async with await trio.open_tcp_stream(*server.local) as second:
            await second.send_all(b"pop\n")
            node.send(queue, Push(b"an item"))
            print("the second one gets", (await second.receive_some()).decode().strip())


if __name__ == "__main__":
    trio.run(main)
