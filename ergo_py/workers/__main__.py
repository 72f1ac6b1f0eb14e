"""The program of a worker node. `WorkerNode` starts it, and closes its input to stop it."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from threading import Thread  # noqa: TID251 - it goes on while the loop is stuck

import trio

from ..meta.programs.lifeline import end_with_parent

# Before all other code, which may be stuck: the node has that many seconds to close in order.
end_with_parent(signal.SIGIO)
settings = json.loads(sys.argv[1])
# Modules are found where the first program finds them.
sys.path[:] = settings["path"]

from ..network.carriers.local import Local  # noqa: E402
from ..node import open_node  # noqa: E402
from .references import referent_of  # noqa: E402
from .worker_node import READY  # noqa: E402


async def main() -> None:
    """Open the node, start it, and serve until the input ends."""
    ended = trio.Event()
    Thread(
        target=watch_input, args=(ended, trio.lowlevel.current_trio_token()), daemon=True
    ).start()
    types = [referent_of(reference) for reference in settings["types"]]
    network = Local(types=types, **settings["network"])
    control = settings["control"]
    async with open_node(
        settings["name"],
        network=network,
        control=control,
        on_escalation="stop",
        log_output="json",
        cpu=settings["cpu"],
    ) as node:
        await referent_of(settings["start"])(node)
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        await ended.wait()


def watch_input(ended: trio.Event, token: trio.lowlevel.TrioToken) -> None:
    """Wait until the first program has closed the input, or has ended. The node has a limited time
    to close then: its loop may be stuck.
    """
    while os.read(0, 4096):
        pass
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(ended.set)
    time.sleep(settings["grace"])
    os._exit(1)


trio.run(main)
