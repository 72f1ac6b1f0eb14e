"""The processes of the demonstration: devices that send readings over UDP, and the intake; a device
on a serial line, and the pipeline that stores its readings.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..._core.vocabulary.ids import PID, Alias
from ..._core.vocabulary.messages import Request
from ...actor import Actor
from ...devices.bridge import Device as Bridge
from ...meta.parsing.framing import Delimiter
from ...meta.sockets.datagrams import UDP
from ...meta.sockets.messages import Endpoint
from ...meta.sockets.udp import UDPClient, UDPServer
from ...pipelines.item import Item
from ...pipelines.lanes import Retry
from ...pipelines.pipeline import Pipeline
from ...pipelines.steps import Stage, ToActor
from ...supervision.specs import Backoff, ChildSpec, SupervisorSpec

__all__ = ["Device", "Intake", "Ledger", "Press", "Reading", "SerialLine", "Where", "gateway"]

PERIOD: Final = 0.5
"""Seconds between two readings of a device."""
FRAMES: Final = 60
"""The frames that a serial line sends before its cable is loose."""
REOPEN: Final = Backoff(1.0, 5.0)
"""The delays before a serial line is plugged in again."""


@dataclass(frozen=True)
class Reading:
    """A value that a device has measured."""

    device: str
    value: float


@dataclass(frozen=True)
class Where(Request[Endpoint]):
    """The address at which the intake takes datagrams."""


class Intake(Actor):
    """Owns the socket of the readings, and hands each reading on."""

    def __init__(self, take: Callable[["Intake", Reading], object]) -> None:
        self.take = take
        self.server: UDPServer = UDPServer()

    async def init(self) -> None:
        """Open the socket, on loopback."""
        await self.spawn_meta(self.server)

    def handle_call(self, request: Where, caller: object) -> Endpoint | None:
        """Tell the address."""
        return self.server.local

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Hand a reading on. A datagram that is no reading crashes the intake."""
        match message:
            case UDP.Data(data=data):
                device, value = data.decode().split()
                self.take(self, Reading(device, float(value)))


class Device(Actor):
    """Measures a temperature twice a second, and sends it. A moody device fails at times."""

    def __init__(self, device: str, is_moody: bool) -> None:
        self.device = device
        self.is_moody = is_moody
        self.draws: random.Random = random.Random(device)
        self.sent: int = 0

    async def init(self) -> None:
        """Open a socket of its own to the intake, and begin to measure."""
        host, port = await self.call("intake", Where(), timeout=10)
        self.socket: Alias = await self.spawn_meta(UDPClient(host, port))
        self.send_after(PERIOD * self.draws.random(), self.pid, "measure")

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Measure."""
        if message != "measure":
            return
        self.send_after(PERIOD, self.pid, "measure")
        self.sent += 1
        if self.is_moody and self.sent % 20 == 0:
            raise OSError(f"{self.device}: the sensor does not answer")
        value = 20 + 5 * math.sin(self.sent / 10) + self.draws.random()
        self.send(self.socket, UDP.Send(f"{self.device} {value:.2f}".encode()))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """How many readings it has sent."""
        return {"sent": str(self.sent)}


class SerialLine(Bridge):
    """A simulated serial line. Its functions run in a thread, as those of a real driver do."""

    kind = "serial"

    def __init__(self) -> None:
        super().__init__(framing=Delimiter(), reopen=REOPEN)

    def open(self) -> None:
        """Plug the cable in."""
        self.frames: int = 0

    def read(self) -> bytes:
        """Wait for a frame. After some of them the cable is loose: the bridge opens it again."""
        self.pause(PERIOD)
        self.frames += 1
        if self.frames > FRAMES:
            raise OSError("the cable is loose")
        return f"{80 + 5 * math.sin(self.frames / 10):.2f}\n".encode()


class Press(Actor):
    """Owns the serial line, and has its frames stored. While the pipeline starts again, it waits,
    and so does the line.
    """

    async def init(self) -> None:
        """Open the line."""
        await self.spawn_meta(SerialLine())

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Hand a frame on."""
        match message:
            case SerialLine.Data(data=bytes(frame)):
                await self.service("readings").call(Item(frame, "press"), timeout=60, retry=True)


class Parse(Stage):
    """Turns a frame into a reading, in a thread."""

    def handle(self, item: Item) -> Reading:
        """Parse a frame."""
        return Reading(str(item.key), float(item.body))


def gateway(store: str | type[Actor]) -> SupervisorSpec:
    """The serial line, and the pipeline to the process or the entities that store."""
    # A store that was killed comes back: no reading is given up.
    readings = Pipeline.spec(Parse(), ToActor(store), retry=Retry(1000, Backoff(0.1, 1.0)))
    return SupervisorSpec(
        [ChildSpec("readings", readings), ChildSpec("press", Press)], intensity=1000
    )


class Ledger(Actor):
    """Counts readings, for an installation without entities."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def handle_message(self, message: Reading, sender: PID | Alias) -> None:
        """Count a reading."""
        self.counts[message.device] = self.counts.get(message.device, 0) + 1

    def handle_call(self, request: Reading, caller: object) -> None:
        """Count a reading, and say so."""
        self.counts[request.device] = self.counts.get(request.device, 0) + 1

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The readings of each device."""
        return {device: str(count) for device, count in self.counts.items()}
