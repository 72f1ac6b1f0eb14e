"""A device for tests to plug and unplug, with a library that can get stuck."""

import threading
from queue import SimpleQueue
from typing import Any

import trio

from ergo_py import BadInputError
from ergo_py.devices import Device

__all__ = ["Answering", "FullDuplex", "HalfDuplex", "Outlet", "wait_for"]


class Outlet:
    """The place of the device. Each device has a line of its own."""

    def __init__(self, *, is_plugged: bool = True) -> None:
        self._line: SimpleQueue[object] | None = SimpleQueue() if is_plugged else None
        self.tries = 0
        self.written: list[object] = []
        self.closed: list[object] = []
        self.gates: dict[str, tuple[threading.Event, threading.Event]] = {}

    def plug(self) -> None:
        """Attach a new device."""
        self._line = SimpleQueue()

    def unplug(self) -> None:
        """Take the device away: the library raises."""
        line, self._line = self._line, None
        assert line is not None
        line.put(OSError("unplugged"))

    def say(self, *data: object) -> None:
        """Send from the device."""
        assert self._line is not None
        for each in data:
            self._line.put(each)

    def stick(self, function: str) -> tuple[threading.Event, threading.Event]:
        """Let the next call of a function of the library set the first event, and block until the
        test sets the second.
        """
        gate = self.gates[function] = (threading.Event(), threading.Event())
        return gate

    def pass_gate(self, function: str) -> None:
        gate = self.gates.pop(function, None)
        if gate is not None:
            begun, over = gate
            begun.set()
            assert over.wait(120)

    def connect(self) -> SimpleQueue[object]:
        self.tries += 1
        if self._line is None:
            raise FileNotFoundError("no such device")
        return self._line


class HalfDuplex(Device):
    """A library for a single thread."""

    kind = "outlet"

    def __init__(self, outlet: Outlet, **options: Any) -> None:
        super().__init__(**options)
        self.outlet = outlet

    def open(self) -> None:
        self.outlet.pass_gate("open")
        self.line = self.outlet.connect()

    def read(self) -> object:
        found = self.line.get()
        if isinstance(found, Exception):
            raise found
        return found

    def write(self, data: object) -> None:
        self.outlet.pass_gate("write")
        if data == "unplugged":
            raise OSError("unplugged during a write")
        if not isinstance(data, bytes):
            raise BadInputError("data", data, "bytes")
        self.outlet.written.append(data)

    def wake(self) -> None:
        self.line.put(None)

    def close(self) -> None:
        self.outlet.pass_gate("close")
        self.outlet.closed.append(self.line)


class FullDuplex(HalfDuplex):
    """A library that reads and writes at the same time."""

    full_duplex = True


class Answering(Device):
    """A device that only answers."""

    def __init__(self, outlet: Outlet, **options: Any) -> None:
        super().__init__(**options)
        self.outlet = outlet

    def open(self) -> None:
        self.line = self.outlet.connect()

    def write(self, data: object) -> object:
        self.outlet.pass_gate("write")
        if data == "unplugged":
            raise OSError("unplugged during a write")
        return f"{data} is done"

    def wake(self) -> None:
        self.outlet.written.append("woken")

    def close(self) -> None:
        self.outlet.closed.append(self.line)


async def wait_for(event: threading.Event) -> None:
    """Wait for an event of a thread."""
    await trio.to_thread.run_sync(event.wait)
