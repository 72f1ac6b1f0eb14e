"""The program of a worker node. `WorkerNode` starts it, and closes its input to stop it."""

import json
import os
import sys

import trio

settings = json.loads(sys.argv[1])
# Modules are found where the first program finds them.
sys.path[:] = settings["path"]

from ..network.carriers.local import Local  # noqa: E402
from ..node import open_node  # noqa: E402
from .references import referent_of  # noqa: E402
from .worker_node import READY  # noqa: E402


async def main() -> None:
    """Open the node, start it, and serve until the input ends."""
    types = [referent_of(reference) for reference in settings["types"]]
    network = Local(types=types, **settings["network"])
    control = settings["control"]
    async with open_node(
        settings["name"],
        network=network,
        control=control,
        on_escalation="stop",
        log_output="json",
    ) as node:
        await referent_of(settings["start"])(node)
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        await input_ended()


async def input_ended() -> None:
    """Wait until the first program has closed the input, or has ended."""
    os.set_blocking(0, False)
    while True:
        await trio.lowlevel.wait_readable(0)
        if not os.read(0, 4096):
            return


trio.run(main)
