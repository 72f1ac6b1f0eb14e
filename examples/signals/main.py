"""A program that reads its settings again on SIGHUP."""

import os
import signal
from typing import Any

import trio

from ergo_py import Actor, open_node
from ergo_py.meta import Signals


class Settings(Actor):
    def __init__(self, done: trio.Event) -> None:
        self.done = done

    async def init(self) -> None:
        await self.spawn_meta(Signals(signal.SIGHUP))

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Signals.Received(_, signal.SIGHUP, count):
                print(f"SIGHUP came {count} time(s): reading the settings again")
                self.done.set()


async def main() -> None:
    done = trio.Event()
    async with open_node("signals@localhost") as node:
        await node.spawn(Settings, done)
        os.kill(os.getpid(), signal.SIGHUP)
        await done.wait()


trio.run(main)
