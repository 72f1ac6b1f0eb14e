"""``python -m benchmarks devices``: unplug a serial line again and again, and measure serial lines
and a CAN bus beside threads that read with their libraries into a queue, and at their usual speed
on a single core.

A pseudo-terminal stands for each serial line. Each unplug must be told, in order, and nothing may
be left: no thread, no descriptor.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import can
import serial
import trio

from ergo_py import Actor, Backoff, MetaProcess, Node, open_node
from ergo_py.devices import CAN, Device, Serial
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
            for kind in (Device.Opened, Device.Data):
                if kind is Device.Data:
                    os.write(end, LINE % number)
                message = await heard.receive()
                if not isinstance(message, kind):
                    faults.append(f"unplug {number}: expected {kind.__name__}, found {message!r}")
            os.unlink(path)
            os.close(end)
            message = await heard.receive()
            if not isinstance(message, Device.Lost):
                faults.append(f"unplug {number}: expected Device.Lost, found {message!r}")
    left = {name: count - before[name] for name, count in leftovers().items()}
    return faults + [f"{count} {name} are left" for name, count in left.items() if count > 0]


def leftovers() -> dict[str, int]:
    return {"threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd"))}


# -- frames ----------------------------------------------------------------------------------------


class InOrder:
    """Checks that frames come in the order of their numbers, and tells when all have come."""

    def __init__(self, frames: int, number_of: Callable[[Any], int]) -> None:
        self.frames, self.number_of = frames, number_of
        self.come = self.wrong = 0
        self.done, self.opened = trio.Event(), trio.Event()

    def __call__(self, message: object) -> None:
        match message:
            case Device.Data(_, data):
                self.wrong += self.number_of(data) != self.come
                self.come += 1
                if self.come == self.frames:
                    self.done.set()
            case Device.Opened():
                self.opened.set()


class Feed(NamedTuple):
    """A device: its bridge, its frames, and the function that sends them."""

    bridge: Callable[[], MetaProcess]
    frames: int
    number_of: Callable[[Any], int]
    send: Callable[[], None]


class Took(NamedTuple):
    """The cost of frames on their way from the devices to the code that checks them."""

    seconds: float
    used: float
    """Seconds of processor time, with the senders."""
    wrong: int
    """Frames in a wrong order."""


async def through(*feeds: Feed) -> Took:
    """Send the frames of devices through their bridges, all at once."""
    counts = [InOrder(feed.frames, feed.number_of) for feed in feeds]
    async with node_of_devices() as node:
        for feed, count in zip(feeds, counts, strict=True):
            await node.spawn(Receiver, feed.bridge(), count)
            await count.opened.wait()
        began, used = time.perf_counter(), time.process_time()
        feeders = [threading.Thread(target=feed.send) for feed in feeds]
        for feeder in feeders:
            feeder.start()
        for count in counts:
            await count.done.wait()
        seconds, used = time.perf_counter() - began, time.process_time() - used
        for feeder in feeders:
            feeder.join()
    return Took(seconds, used, sum(count.wrong for count in counts))


def bare(feed: Feed, read: Callable[[], Iterable[Any]]) -> Took:
    """The same for the least that a program without a framework does: a thread reads with the
    library, and puts the frames of each read into a queue, from which another thread checks them.
    """
    frames: SimpleQueue[Any] = SimpleQueue()

    def move() -> None:
        left = feed.frames
        while left > 0:
            for frame in read():
                frames.put(frame)
                left -= 1

    began, used = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=each) for each in (feed.send, move)]
    for thread in threads:
        thread.start()
    wrong = sum(feed.number_of(frames.get()) != number for number in range(feed.frames))
    for thread in threads:
        thread.join()
    return Took(time.perf_counter() - began, time.process_time() - used, wrong)


def lines_of(line: serial.Serial) -> Callable[[], Iterable[bytes]]:
    """A function that returns the lines of the next read."""
    rest = b""

    def read() -> Iterable[bytes]:
        nonlocal rest
        *lines, rest = (rest + line.read(line.in_waiting or 1)).split(b"\n")
        return lines

    return read


def paced(frames: int, rate: float, send: Callable[[int, int], None]) -> None:
    """Send so many frames in a second, in bursts of ten milliseconds as a driver delivers them;
    rate 0 sends as fast as the device takes them.
    """
    began, sent = time.perf_counter(), 0
    while sent < frames:
        due = int((time.perf_counter() - began) * rate) if rate else sent + 50
        if due > sent:
            send(sent, min(due, frames))
            sent = min(due, frames)
        if rate:
            time.sleep(0.01)


@contextmanager
def serial_lines(count: int, frames: int, rate: float = 0.0) -> Iterator[list[tuple[str, Feed]]]:
    """Pseudo-terminals, each with its path."""
    with ExitStack() as stack:

        def made() -> tuple[str, Feed]:
            end, other = os.openpty()
            stack.callback(os.close, end)
            stack.callback(os.close, other)
            path = os.ttyname(other)

            def send(first: int, last: int) -> None:
                data = b"".join(LINE % number for number in range(first, last))
                while data:
                    data = data[os.write(end, data) :]

            bridge = partial(Serial, path, 921_600, framing=Delimiter())
            return path, Feed(
                bridge, frames, lambda line: int(line[2:10]), partial(paced, frames, rate, send)
            )

        yield [made() for _ in range(count)]


@contextmanager
def can_bus(frames: int, rate: float = 0.0) -> Iterator[Feed]:
    """The virtual bus of python-can."""
    with can.Bus(interface="virtual", channel="benchmark") as far:

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                far.send(can.Message(arbitration_id=0x123, data=number.to_bytes(8, "big")))

        bridge = partial(CAN, "virtual", "benchmark")
        number = partial(int.from_bytes, byteorder="big")
        yield Feed(
            bridge, frames, lambda frame: number(frame.data), partial(paced, frames, rate, send)
        )


def beside_bare_loops(frames: int) -> int:
    """Measure as fast as the devices send, the best of three runs of each, in turn. Returns the
    frames in a wrong order.
    """
    with serial_lines(1, frames) as [(path, feed)]:

        def by_pyserial() -> Took:
            with serial.Serial(path) as line:
                return bare(feed, lines_of(line))

        wrong = _compare("Serial", feed, by_pyserial)
    with can_bus(frames) as feed:

        def by_python_can() -> Took:
            with can.Bus(interface="virtual", channel="benchmark") as bus:
                return bare(feed, lambda: filter(None, [bus.recv(1.0)]))

        wrong += _compare("CAN", feed, by_python_can)
    return wrong


def _compare(name: str, feed: Feed, by_library: Callable[[], Took]) -> int:
    runs = [(trio.run(through, feed), by_library()) for _ in range(3)]
    (seconds, used), (bare_seconds, bare_used) = (
        (min(each.seconds for each in kind), min(each.used for each in kind))
        for kind in zip(*runs, strict=True)
    )
    cost, bare_cost = used / feed.frames * 1e6, bare_used / feed.frames * 1e6
    print(
        f"{name}: {feed.frames / seconds:,.0f} frames/s, {cost:.1f} us; the library and a queue: "
        f"{feed.frames / bare_seconds:,.0f} frames/s, {bare_cost:.1f} us; "
        f"{bare_seconds / seconds:.2f} x the rate, {used / bare_used:.1f} x the processor time"
    )
    return sum(each.wrong for run in runs for each in run)


def at_line_speed(seconds: float) -> int:
    """A CAN bus with 8,000 frames a second, and four serial lines of 921,600 baud, on a single
    core, together. Returns the frames in a wrong order; lost frames never end it.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    lines_a_second = 92_160 / len(LINE % 0)
    try:
        with (
            can_bus(int(8_000 * seconds), 8_000) as bus,
            serial_lines(4, int(lines_a_second * seconds), lines_a_second) as lines,
        ):
            took, used, wrong = trio.run(through, bus, *(feed for _, feed in lines))
    finally:
        os.sched_setaffinity(0, cores)
    print(
        f"on one core, for {seconds:g} s: CAN with 8,000 frames/s and 4 serial lines with "
        f"{lines_a_second:,.0f} lines/s each: all came after {took:.1f} s, {wrong} in a wrong "
        f"order, {used / took:.0%} of the core with the senders"
    )
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks devices", description=__doc__)
    parser.add_argument("--unplugs", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="at the speed of the lines")
    chosen = parser.parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f}")
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        faults = trio.run(unplug, chosen.unplugs, Path(folder))
        print(f"{chosen.unplugs} unplugs in {time.perf_counter() - began:.1f} s")
    print("\n".join(faults) or "each gap was told in order; no thread and no descriptor is left")
    wrong = beside_bare_loops(chosen.frames) + at_line_speed(chosen.seconds)
    return 1 if faults or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
