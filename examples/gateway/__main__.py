"""The gateway as a program.

Play a story, in which devices send while parts of the gateway die:
    python -m examples.gateway

Serve at these ports, by default 7780 and 7781, until Ctrl-C:
    python -m examples.gateway serve FILE [TCP UDP]
"""

import os
import signal
import sqlite3
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.meta import Endpoint
from ergo_py.supervision.handle import SupervisorHandle

from .gateway import Gateway, Where
from .load import Device, fire, value_of

__all__ = ["start", "where"]

COUNT = 1000


async def start(
    node: Node, path: Path, tcp: int = 0, udp: int = 0, patience: float = 5.0
) -> SupervisorHandle:
    """Start a gateway under a supervisor that restarts it as a whole if its own supervisor gives
    up.
    """
    await node.supervise(
        [ChildSpec("gateway", Gateway, path, tcp, udp, patience)], name="root", intensity=20
    )
    return node.supervisor("gateway")


async def where(node: Node, intake: str) -> Endpoint:
    """The endpoint at which ``"tcp"`` or ``"udp"`` listens; waits until it does."""
    return await node.service(intake).call(Where(), timeout=None, retry=True)


# -- the story -------------------------------------------------------------------------------------


async def play(node: Node) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "telemetry.db"
        gateway = await start(node, path)
        device = Device(partial(where, node, "tcp"), 1, COUNT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fire, partial(where, node, "udp"), 2, COUNT)
            nursery.start_soon(device.deliver)
            nursery.start_soon(mishaps, node, device)
        await settled(node)
        print(
            f"sent: {COUNT} datagrams, and {COUNT} readings over TCP on {device.connections} "
            "connections"
        )
        print(
            "restarts:", ", ".join(f"{child.name} {child.restarts}" for child in gateway.children())
        )
        rows, wrong = check(path)
        print(f"stored: {rows} readings, {wrong} of them wrong")


async def mishaps(node: Node, device: Device) -> None:
    """Wait for a part of the readings each time, and break something."""

    async def until(share: float) -> None:
        while device.next < device.count * share:  # noqa: ASYNC110 - nobody is told
            await trio.sleep(0.001)

    await until(0.25)
    os.kill(int((await node.inspect("decoder"))["program"]), signal.SIGKILL)
    await until(0.5)
    node.kill("store")
    await until(0.75)
    device.break_off()


async def settled(node: Node) -> None:
    """Wait until all datagrams are processed, by polling: UDP sends no confirmation."""
    with trio.move_on_after(60):
        while int((await node.inspect("udp", timeout=60))["stored"]) < COUNT:  # noqa: ASYNC110 - see above
            await trio.sleep(0.01)


def check(path: Path) -> tuple[int, int]:
    """How many readings were stored, and how many of them no device has sent like that."""
    database = sqlite3.connect(path)
    rows = list(database.execute("select source, number, value from reading"))
    database.close()
    return len(rows), sum(value != value_of(source, number) for source, number, value in rows)


# -- in earnest ------------------------------------------------------------------------------------


async def serve(node: Node) -> None:
    tcp, udp = map(int, sys.argv[3:5] or (7780, 7781))
    await start(node, Path(sys.argv[2]), tcp, udp)
    for intake in ("tcp", "udp"):
        print(f"{intake} at {await where(node, intake)}", flush=True)
    await trio.sleep_forever()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve, name="gateway@localhost", control="look,attach")
    else:
        run(play, name="gateway@localhost")
