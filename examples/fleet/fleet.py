"""A node of a fleet: each device is an entity, awake on a single node.

    ergo run --network local --name fleet@berlin examples/fleet/fleet.py DATABASE [PORT [HOST]]

Devices connect to any node, and write lines: ``NAME NUMBER VALUE`` for a report, ``NAME`` for a
look.
"""

import sys
from dataclasses import asdict, dataclass

import trio

from ergo_py import Actor, Caller, ChildSpec, ErgoError, Node, Supervisor, ask, exposed
from ergo_py.entities import Entities, Entity, Postgres, Store
from ergo_py.meta import TCP, Delimiter, TCPServer

__all__ = ["TYPES", "Device", "DeviceState", "Fleet", "Gate", "Silence", "main"]

SILENCE = 3.0
"""Seconds without a report after which a device is silent."""


@dataclass(frozen=True)
class Silence:
    """The timer of a device."""


TYPES = [Silence]


@dataclass
class DeviceState:
    """The state of a device."""

    reports: int = 0
    value: float = 0.0
    is_silent: bool = True


class Device(Entity[DeviceState]):
    """A device. The key is the name of the device."""

    @exposed
    def report(self, number: int, value: float) -> int:
        """Count a report, and return the number of the last report, when the report is in the
        database. A device repeats a report until this number comes.
        """
        if number == self.state.reports + 1:
            self.state.reports, self.state.value = number, value
        if self.state.is_silent:
            self.state.is_silent = False
            self.tell("reports")
        # The timer is stored with the report, and outlives this node.
        self.send_after(SILENCE, self.entity(Device, self.key), Silence(), name="silence")
        return self.state.reports

    @exposed
    def look(self) -> dict[str, object]:
        """The state of the device."""
        return asdict(self.state)

    def handle_message(self, message: object, sender: object) -> None:
        """The timer: no report has come."""
        match message:
            case Silence():
                self.state.is_silent = True
                self.tell("is silent")

    def tell(self, text: str) -> None:
        print(f"{self.node.name}: {self.key} {text}", flush=True)


class Session(Actor):
    """Serves the connection of a device."""

    async def handle_message(self, message: object, sender: object) -> None:
        """Answer a line. The next line waits meanwhile."""
        match message:
            case TCP.Data(connection, line):
                self.send(connection, TCP.Send(await self.answer(line) + b"\n"))

    async def answer(self, line: bytes) -> bytes:
        try:
            match line.decode().split():
                case [name, number, value]:
                    report = ask(Device.report, int(number), float(value))
                    last = await self.entity(Device, name).call(report)
                    return b"ok %d" % last
                case [name]:
                    device = await self.entity(Device, name).call(ask(Device.look))
                    return " ".join(f"{key}={value}" for key, value in device.items()).encode()
            return b"error: write NAME NUMBER VALUE, or NAME"
        except ValueError as error:
            return f"error: {error}".encode()
        except ErgoError as error:
            # Its shard moves, or the database does not answer: the report may be stored, or not.
            return f"again: {type(error).__name__}".encode()


class Gate(Actor):
    """Owns the server for devices."""

    def __init__(self, host: str, port: int) -> None:
        framing = Delimiter(b"\n", max_frame=200)
        self.server = TCPServer(
            host, port, receiver=Session, framing=framing, max_connections=10_000
        )

    async def init(self) -> None:
        """Listen."""
        await self.spawn_meta(self.server)

    def handle_call(self, request: object, caller: Caller) -> str:
        """The address of the server."""
        return str(self.server.local)


class Fleet(Supervisor):
    """The entities of this node, and the gate for devices."""

    def __init__(self, store: Store, host: str, port: int) -> None:
        entities = Entities.spec(store, [Device], types=TYPES, shards=64, lease=5.0)
        super().__init__([ChildSpec("entities", entities), ChildSpec("gate", Gate, host, port)])


async def main(node: Node) -> None:
    database, port, host = [*sys.argv[1:], *("", "0", "127.0.0.1")[len(sys.argv) - 1 :]]
    await node.spawn(Fleet, Postgres(database), host, int(port), name="fleet")
    print(f"{node.name}: devices at {await node.call('gate', 'where')}", flush=True)
    await trio.sleep_forever()
