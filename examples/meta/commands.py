"""Actor-controlled I/O: actors send commands, and a handler runs them with a blocking library."""

import subprocess
from dataclasses import dataclass
from typing import Any

import trio

from ergo_py import Actor, Caller, MetaProcess, Reject, Request, open_node


@dataclass(frozen=True)
class Run(Request[str]):
    """Run a command, and answer with its output."""

    argv: tuple[str, ...]


class Commands(MetaProcess):
    """Runs commands, one at a time."""

    def start(self) -> None:
        while self.pause(3600):  # there is nothing to read: it only waits for its end
            pass

    # A plain def: it runs in a worker thread, and may block.
    def handle_call(self, request: object, caller: Caller) -> str:
        match request:
            case Run(argv):
                try:
                    return subprocess.run(
                        argv, capture_output=True, text=True, check=True, timeout=10
                    ).stdout
                except (OSError, subprocess.SubprocessError) as error:
                    # The caller gets the error; this process keeps running.
                    raise Reject(error) from None
        raise Reject(LookupError(f"no answer to {request!r}"))


class Owner(Actor):
    async def init(self) -> None:
        self.commands = await self.spawn_meta(Commands())
        self.send(self.pid, "go")

    async def handle_message(self, message: Any, sender: Any) -> None:
        print(await self.call(self.commands, Run(("echo", "hello"))), end="")
        try:
            await self.call(self.commands, Run(("false",)))
        except subprocess.CalledProcessError as error:
            print("refused with status", error.returncode)
        self.stop()


async def main() -> None:
    async with open_node("commands@localhost") as node:
        await node.wait_ended(await node.spawn(Owner))


trio.run(main)
