"""A library that brings a descriptor of its own: the actor asks it for events when there are some,
and no thread waits for it.
"""

import socket
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta import Descriptors


class Library:
    """Stands for a driver written in C: a descriptor to wait for, and a function that returns the
    next event.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    def fileno(self) -> int:
        return self._ours.fileno()

    def next_event(self) -> str:
        return self._ours.recv(1).decode()

    def pretend(self, events: str) -> None:
        self._theirs.send(events.encode())

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class Driver(Actor):
    def __init__(self, library: Library, done: trio.Event) -> None:
        self.library, self.done = library, done

    async def init(self) -> None:
        self.watcher = await self.spawn_meta(Descriptors())
        await self.call(self.watcher, Descriptors.Watch(self.library))

    async def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Descriptors.Readable():
                # A single event for each message: as long as there are more, another message comes.
                event = self.library.next_event()
                print("event", event)
                if event == "c":
                    # After the answer, no task waits for the descriptor any more: only then may it
                    # be closed.
                    await self.call(self.watcher, Descriptors.Unwatch(self.library))
                    self.done.set()


async def main() -> None:
    library, done = Library(), trio.Event()
    async with open_node("fd@localhost") as node:
        await node.spawn(Driver, library, done)
        library.pretend("abc")
        await done.wait()
    library.close()


trio.run(main)
