"""Prints each typed line in capitals, until the input ends."""

from typing import Any

from ergo_py import Actor, run
from ergo_py.meta import StandardInput, StdinEnded, StdinLine


class Shouter(Actor):
    async def init(self) -> None:
        await self.spawn_meta(StandardInput())

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case StdinLine(_, line):
                print(line.upper())
            case StdinEnded():
                self.stop()


run(Shouter)
