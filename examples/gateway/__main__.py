"""The gateway as a program.

Play a story, in which devices send while parts of the gateway die:
    python -m examples.gateway

Serve at these ports, by default 7780 and 7781, until Ctrl-C:
    python -m examples.gateway serve FILE [TCP UDP]
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.meta import Endpoint

from .gateway import Gateway, Where, connect
from .load import Device, fire, value_of

__all__ = ["start", "where"]

COUNT = 1000
PARTS = ("decoder", "readings")


async def start(node: Node, path: Path, tcp: int = 0, udp: int = 0, patience: float = 5.0) -> None:
    """Start a gateway under a supervisor that restarts it as a whole if its own gives up."""
    gateway = ChildSpec("gateway", Gateway, path, tcp, udp, patience)
    await node.supervise([gateway], name="root", intensity=20)


async def where(node: Node, intake: str) -> Endpoint:
    """The endpoint at which ``"tcp"`` or ``"udp"`` listens; waits until it does."""
    return await node.service(intake).call(Where(), timeout=None, retry=True)


async def play(node: Node) -> None:
    """Let devices send; break something after each quarter of the readings."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "telemetry.db"
        await start(node, path)
        device = Device(partial(where, node, "tcp"), 1, COUNT)
        kill: list[Callable[[], object]] = [partial(node.kill, name) for name in PARTS]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fire, partial(where, node, "udp"), 2, COUNT)
            nursery.start_soon(device.deliver)
            for quarter, mishap in enumerate([*kill, device.break_off], 1):
                while device.next < COUNT * quarter / 4:  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.001)
                mishap()
        while int((await node.inspect("udp", timeout=60))["stored"]) < COUNT:  # noqa: ASYNC110
            await trio.sleep(0.01)
        print(f"sent: {COUNT} datagrams, and {COUNT} readings on {device.connections} connections")
        parts = [*node.supervisor("back").children(), *node.supervisor("gateway").children()]
        print("restarts:", ", ".join(f"{part.name} {part.restarts}" for part in parts))
        with closing(connect(path)) as database:
            rows = list(database.execute("select source, number, value from reading"))
        wrong = sum(value != value_of(source, number) for source, number, value in rows)
        print(f"stored: {len(rows)} readings, {wrong} of them wrong")


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
