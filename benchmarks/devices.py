"""``python -m benchmarks devices``: unplug a serial line again and again, and measure serial lines
and a CAN bus beside the bare loops of their libraries.

A pseudo-terminal stands for each serial line. Each unplug must be told, in order, and nothing may
be left: no thread, no descriptor.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import can
import serial
import trio

from ergo_py import Actor, Backoff, MetaProcess, Node, open_node
from ergo_py.devices import CAN, DeviceData, DeviceLost, DeviceOpened, Serial
from ergo_py.meta import Delimiter

LINE = b"T:%08d B:00000000\n"
"""A line of 22 bytes, as thermometers send."""


class Receiver(Actor):
    """Owns a bridge, and hands its messages to the program."""

    def __init__(self, bridge: MetaProcess, heard: Callable[[object], None]) -> None:
        self.bridge, self.heard = bridge, heard

    async def init(self) -> None:
        await self.spawn_meta(self.bridge)

    def handle_message(self, message: object, sender: object) -> None:
        self.heard(message)


@asynccontextmanager
async def node_of_devices() -> AsyncIterator[Node]:
    async with open_node("devices@localhost", watchdog=None, log_level="critical") as node:
        yield node


# -- unplugs ---------------------------------------------------------------------------------------


async def unplug(times: int, folder: Path) -> list[str]:
    """Unplug a line so many times. Returns the faults."""
    path, faults = folder / "tty", list[str]()
    sender, heard = trio.open_memory_channel[object](1000)
    before = leftovers()
    async with node_of_devices() as node:
        line = Serial(str(path), framing=Delimiter(), reopen=Backoff(0.001, 0.001))
        await node.spawn(Receiver, line, sender.send_nowait)
        await heard.receive()  # the line is absent at first
        for number in range(times):
            end, other = os.openpty()
            os.symlink(os.ttyname(other), path)
            os.close(other)
            for kind in (DeviceOpened, DeviceData):
                if kind is DeviceData:
                    os.write(end, LINE % number)
                message = await heard.receive()
                if not isinstance(message, kind):
                    faults.append(f"unplug {number}: expected {kind.__name__}, found {message!r}")
            os.unlink(path)
            os.close(end)
            message = await heard.receive()
            if not isinstance(message, DeviceLost):
                faults.append(f"unplug {number}: expected DeviceLost, found {message!r}")
    left = {name: count - before[name] for name, count in leftovers().items()}
    return faults + [f"{count} {name} are left" for name, count in left.items() if count > 0]


def leftovers() -> dict[str, int]:
    return {"threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd"))}


# -- frames ----------------------------------------------------------------------------------------


class Count:
    """Counts frames, and tells when all have come."""

    def __init__(self, frames: int) -> None:
        self.left, self.done, self.opened = frames, trio.Event(), trio.Event()

    def __call__(self, message: object) -> None:
        if isinstance(message, DeviceData):
            self.left -= 1
            if not self.left:
                self.done.set()
        elif isinstance(message, DeviceOpened):
            self.opened.set()


async def through(bridge: MetaProcess, frames: int, feed: Callable[[], None]) -> float:
    """Seconds for so many frames through a bridge."""
    async with node_of_devices() as node:
        count = Count(frames)
        await node.spawn(Receiver, bridge, count)
        await count.opened.wait()
        began, feeder = time.perf_counter(), threading.Thread(target=feed)
        feeder.start()
        await count.done.wait()
        seconds = time.perf_counter() - began
        feeder.join()
        return seconds


def bare(frames: int, feed: Callable[[], None], read: Callable[[], int]) -> float:
    """Seconds for the same frames through a loop over the library."""
    began, feeder = time.perf_counter(), threading.Thread(target=feed)
    feeder.start()
    left = frames
    while left > 0:
        left -= read()
    feeder.join()
    return time.perf_counter() - began


def serial_frames(frames: int) -> tuple[float, float]:
    """Seconds through `Serial`, and through pyserial."""
    end, other = os.openpty()
    path = os.ttyname(other)

    def feed() -> None:
        for first in range(0, frames, 50):
            data = b"".join(LINE % number for number in range(first, min(first + 50, frames)))
            while data:
                data = data[os.write(end, data) :]

    ours = trio.run(through, Serial(path, framing=Delimiter()), frames, feed)
    line = serial.Serial(path)
    theirs = bare(frames, feed, lambda: line.read(line.in_waiting or 1).count(b"\n"))
    line.close()
    os.close(other)
    os.close(end)
    return ours, theirs


def can_frames(frames: int) -> tuple[float, float]:
    """Seconds through `CAN`, and through python-can."""
    message = can.Message(arbitration_id=0x123, data=b"12345678")
    with can.Bus(interface="virtual", channel="benchmark") as far:

        def feed() -> None:
            for _ in range(frames):
                far.send(message)

        ours = trio.run(through, CAN("virtual", "benchmark"), frames, feed)
        with can.Bus(interface="virtual", channel="benchmark") as bus:
            theirs = bare(frames, feed, lambda: int(bus.recv(1.0) is not None))
    return ours, theirs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks devices", description=__doc__)
    parser.add_argument("--unplugs", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=50_000)
    chosen = parser.parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f}")
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        faults = trio.run(unplug, chosen.unplugs, Path(folder))
        print(f"{chosen.unplugs} unplugs in {time.perf_counter() - began:.1f} s")
    print("\n".join(faults) or "each gap was told in order; no thread and no descriptor is left")
    for name, measure in (("Serial", serial_frames), ("CAN", can_frames)):
        ours, theirs = measure(chosen.frames)
        print(
            f"{name}: {chosen.frames / ours:,.0f} frames/s, the bare loop "
            f"{chosen.frames / theirs:,.0f} frames/s: {theirs / ours:.2f} of it"
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
