"""Prints each typed line in capitals, until the input ends."""

from typing import Any

from ergo_py import Actor, run
from ergo_py.meta import StandardInput


class Shouter(Actor):
    async def init(self) -> None:
        await self.spawn_meta(StandardInput())

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case StandardInput.Line(_, line):
                print(line.upper())
            case StandardInput.Ended():
                self.stop()


run(Shouter)
