"""External events to actors: a reader turns every line of a pipe into a message."""

import os
import threading
from dataclasses import dataclass
from typing import Any, TextIO

import trio

from ergo_py import Actor, MetaProcess, open_node
from ergo_py.meta import Counter


@dataclass(frozen=True)
class Line:
    text: str


class Lines(MetaProcess):
    """Every line of a file that may never end becomes a message to the owner."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.count = Counter()

    # A plain def: it runs in a thread of its own, and may block without a limit.
    def start(self) -> None:
        with self.opened(self.file) as file:  # registered, so that stopping can wake the thread
            for line in file:
                self.count.add()
                self.send(self.parent, Line(line.rstrip("\n")))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"lines": str(self.count)}


class Owner(Actor):
    def __init__(self, file: TextIO, enough: trio.Event) -> None:
        self.file, self.enough = file, enough

    async def init(self) -> None:
        self.lines = await self.spawn_meta(Lines(self.file))

    async def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Line("enough"):
                print("seen:", (await self.inspect_meta(self.lines))["lines"], "lines")
                self.enough.set()
            case Line(text):
                print("read:", text)


async def main() -> None:
    read, write = os.pipe()
    enough = trio.Event()
    with os.fdopen(write, "w", buffering=1) as out:
        # A writer that knows nothing of actors.
        threading.Thread(target=lambda: out.write("one\ntwo\nenough\n")).start()
        async with open_node("events@localhost") as node:
            await node.spawn(Owner, os.fdopen(read), enough)
            await enough.wait()
    # The pipe was still open: leaving the block has woken the thread out of its read, and closed
    # the reading end.


trio.run(main)
