"""The words of a question, sorted by a program of the operating system."""

from dataclasses import dataclass
from typing import Any

import trio

from ergo_py import NO_REPLY, Actor, Alias, Caller, Reject, Request, open_node
from ergo_py.meta import Port


@dataclass(frozen=True)
class Sort(Request[list[str]]):
    words: tuple[str, ...]


class Sorter(Actor):
    """Starts a ``sort`` for each question, and answers when it has ended."""

    def __init__(self) -> None:
        self.questions: dict[Alias, tuple[Caller, list[str]]] = {}

    async def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Sort(words):
                # The program inherits nothing of our environment; pass the variables that it needs.
                port = await self.spawn_meta(Port(["sort"], env={"LC_ALL": "C"}))
                self.questions[port] = caller, []
                self.send(port, Port.Write("".join(f"{word}\n" for word in words)))
                self.send(port, Port.CloseInput())
                return NO_REPLY
        raise Reject(LookupError(f"no answer to {request!r}"))

    async def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Port.Line(port, line):
                self.questions[port][1].append(line)
            case Port.ErrorLine(_, line):
                self.log.warning("sort says", line=line)
            case Port.Exited(port, status):
                caller, lines = self.questions.pop(port)
                if status == 0:
                    self.reply(caller, lines)
                else:
                    self.reply_error(caller, RuntimeError(f"sort ended with {status}"))


async def main() -> None:
    async with open_node("port@localhost") as node:
        sorter = await node.spawn(Sorter)
        print(*await node.call(sorter, Sort(("pear", "apple", "fig"))))


trio.run(main)
