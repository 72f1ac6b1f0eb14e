"""Functions and messages of worker nodes in tests: their programs import this module."""

import os
import sys
from dataclasses import dataclass

from ergo_py import Actor, Caller, Node, Request


@dataclass(frozen=True)
class Ask(Request[object]):
    """A request."""

    about: str


class Answerer(Actor):
    """Answers, says which program it is in, or ends the program."""

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Ask("program"):
                return os.getpid()
            case Ask("die"):
                sys.stderr.write("about to die\n")
                os._exit(7)
            case Ask(about):
                return f"{about}!"
        raise TypeError(request)


async def start(node: Node) -> None:
    """Start a worker node."""
    await node.spawn(Answerer, name="answerer")


async def fail(node: Node) -> None:
    """Fail to start a worker node."""
    sys.stdout.write("a line of the program\n")
    raise LookupError("no such thing")
