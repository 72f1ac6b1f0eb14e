"""Follows a log file while another process writes and rotates it."""

import tempfile
from pathlib import Path
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta import FileReader, FileWriter


class Reader(Actor):
    """Prints each line, and reports when it has seen enough."""

    def __init__(self, path: Path, lines: int, enough: trio.Event) -> None:
        self.path, self.left, self.enough = path, lines, enough

    async def init(self) -> None:
        await self.spawn_meta(FileReader(self.path, follow=True, interval=0.02))

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case FileReader.Line(_, line):
                print("read:", line)
                self.left -= 1
            case FileReader.Rotated():
                print("(another file)")
        if not self.left:
            self.enough.set()


class Writer(Actor):
    def __init__(self, path: Path) -> None:
        self.path = path

    async def init(self) -> None:
        self.log_file = await self.spawn_meta(FileWriter(self.path))

    async def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case "rotate":
                self.path.rename(self.path.with_suffix(".1"))
                self.send(self.log_file, FileWriter.Reopen())
            case str(text):
                self.send(self.log_file, FileWriter.Write(f"{text}\n"))
                # The answer comes when the disk has the data.
                await self.call(self.log_file, FileWriter.Sync())


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, enough = Path(directory) / "app.log", trio.Event()
        path.touch()
        async with open_node("files@localhost") as node:
            await node.spawn(Reader, path, 4, enough)
            writer = await node.spawn(Writer, path)
            for message in ("one", "two", "rotate", "three", "four"):
                node.send(writer, message)
            await enough.wait()


trio.run(main)
