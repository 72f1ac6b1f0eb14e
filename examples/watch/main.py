"""Prints the changes in a directory."""

import tempfile
from pathlib import Path
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta import DirectoryWatch


class Watcher(Actor):
    def __init__(self, path: Path) -> None:
        self.path = path

    async def init(self) -> None:
        # With the extra `watch` the operating system reports changes; without it, the tree is
        # scanned at intervals.
        await self.spawn_meta(DirectoryWatch(self.path, interval=0.05))

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case DirectoryWatch.Changed(_, change, path):
                print(change.value, Path(path).name)
                if change.value == "added":
                    Path(path).unlink()
                elif change.value == "deleted":
                    self.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with open_node("watch@localhost") as node:
            watcher = await node.spawn(Watcher, Path(directory))
            (Path(directory) / "news.txt").touch()
            await node.wait_ended(watcher)


trio.run(main)
