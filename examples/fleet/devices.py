"""Simulated devices, which report to any node of a fleet and compare the counts at the end:

python examples/fleet/devices.py [--devices 20] [--reports 1000] HOST:PORT [HOST:PORT …]
"""

import argparse
import sys
from itertools import cycle, islice

import trio

__all__ = ["Device", "Total"]


class Total:
    """The counts of all devices."""

    def __init__(self) -> None:
        self.stored = 0
        """Reports that a node has acknowledged."""
        self.moves = 0
        """How often a device has gone to another node."""
        self.wrong: list[str] = []
        """Devices of which the fleet knows another number of reports than were acknowledged."""

    def __str__(self) -> str:
        found = f"WRONG: {', '.join(self.wrong)}" if self.wrong else "none lost, none doubled"
        return f"{self.stored} reports stored, {self.moves} times to another node, {found}"


class Device:
    """A device numbers its reports, and repeats each until a node has stored the report."""

    def __init__(self, name: str, places: list[tuple[str, int]], total: Total) -> None:
        self.name, self.total = name, total
        self.places = cycle(places)
        self.number = self.last = -1

    async def run(self, reports: int, pause: float) -> None:
        """Report, and compare at the end."""
        for host, port in self.places:
            try:
                with trio.fail_after(5):
                    stream = await trio.open_tcp_stream(host, port)
                async with stream:
                    await self.talk(stream, reports, pause)
                return
            except (OSError, EOFError, trio.BrokenResourceError, trio.TooSlowError):
                self.total.moves += 1
                await trio.sleep(0.1)

    async def talk(self, stream: trio.SocketStream, reports: int, pause: float) -> None:
        """Report to a node, while the connection lasts."""
        if self.last < 0:
            self.number = await self.known(stream)  # of an earlier run
            self.last = self.number + reports
        while self.number < self.last:
            number = self.number + 1
            answer = await ask(stream, f"{self.name} {number} {20 + number % 10}")
            if answer == f"ok {number}":
                self.number = number
                self.total.stored += 1
            elif not answer.startswith("again"):
                raise ValueError(f"{self.name} has sent report {number}, and got {answer!r}")
            await trio.sleep(pause)
        if await self.known(stream) != self.number:
            self.total.wrong.append(self.name)

    async def known(self, stream: trio.SocketStream) -> int:
        """The number of reports that the fleet knows."""
        while True:
            answer = await ask(stream, self.name)
            if answer.startswith("reports="):
                return int(answer.split()[0].removeprefix("reports="))
            await trio.sleep(0.1)


async def ask(stream: trio.SocketStream, line: str) -> str:
    """The answer to a line."""
    answer = b""
    with trio.fail_after(10):
        await stream.send_all(line.encode() + b"\n")
        while not answer.endswith(b"\n"):
            data = await stream.receive_some()
            if not data:
                raise EOFError
            answer += data
    return answer.decode().strip()


async def show(total: Total) -> None:
    """Print a line each second."""
    while True:
        await trio.sleep(1)
        print(total, flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--reports", type=int, default=1000, help="of each device")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two reports")
    options = parser.parse_args()
    places = [(host, int(port)) for host, _, port in (p.rpartition(":") for p in options.places)]
    total = Total()
    async with trio.open_nursery() as shown:
        shown.start_soon(show, total)
        async with trio.open_nursery() as nursery:
            for number in range(options.devices):
                # Each begins with another node.
                order = islice(cycle(places), number, number + len(places))
                device = Device(f"device-{number}", [*order], total)
                nursery.start_soon(device.run, options.reports, options.pause)
        shown.cancel_scope.cancel()
    print(total, flush=True)
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(trio.run(main))
