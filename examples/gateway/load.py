"""Devices that send to the gateway: some fire and forget, others keep unacknowledged readings and
send them again.

python -m examples.gateway.load --tcp 7780 --udp 7781 --devices 4 --readings 5000
"""

import argparse
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

import trio

from .decode import QUANTITIES, encode
from .gateway import FRAMES

__all__ = ["Device", "fire", "reading", "value_of"]

Find = Callable[[], Awaitable[tuple[str, int]]]
"""The address to send to. A restarted gateway may listen elsewhere."""


def value_of(source: int, number: int) -> float:
    """The value of a reading, computed, so that a checker can compute it, too."""
    return source * 1000 + number / 8


def reading(source: int, number: int) -> bytes:
    return encode(source, number, QUANTITIES[number % len(QUANTITIES)], value_of(source, number))


async def fire(find: Find, source: int, count: int, *, first: int = 0, pause: float = 0.0) -> None:
    """Send readings as datagrams, a few at a time, and forget them."""
    where = await find()
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
        for number in range(first, first + count):
            if number % 50 == 0:
                where = await find()
                await trio.sleep(pause)
            try:
                await sock.sendto(reading(source, number), where)
            except ConnectionError:  # no process listened when the datagram before came
                pass


class Device:
    """Delivers its readings over TCP: if the gateway fails, it reconnects until the last reading is
    acknowledged.
    """

    def __init__(self, find: Find, source: int, count: int, *, pause: float = 0.0) -> None:
        self.find, self.source, self.count, self.pause = find, source, count, pause
        self.next = 0
        self.kept: deque[int] = deque()
        """Sent and not acknowledged."""
        self.connections = 0
        self._breaks_off = False

    @property
    def is_done(self) -> bool:
        return self.next == self.count and not self.kept

    async def deliver(self) -> None:
        while not self.is_done:
            try:
                stream = await trio.open_tcp_stream(*await self.find())
            except OSError:
                await trio.sleep(0.05)
                continue
            self.connections += 1
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._send, stream)
                await self._hear(stream)
                nursery.cancel_scope.cancel()

    async def _send(self, stream: trio.SocketStream) -> None:
        try:
            for number in list(self.kept):
                await stream.send_all(FRAMES.encode(reading(self.source, number)))
            while self.next < self.count:
                if self._breaks_off:
                    self._breaks_off = False
                    await stream.send_all(FRAMES.encode(reading(self.source, self.next))[:7])
                    await trio.aclose_forcefully(stream)
                    return
                number, self.next = self.next, self.next + 1
                self.kept.append(number)
                await stream.send_all(FRAMES.encode(reading(self.source, number)))
                await trio.sleep(self.pause)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _hear(self, stream: trio.SocketStream) -> None:
        acknowledged, heard = 0, b""
        try:
            while not self.is_done and (data := await stream.receive_some()):
                heard += data
                for begin in range(0, len(heard) - 3, 4):
                    count = int.from_bytes(heard[begin : begin + 4], "big")
                    while acknowledged < count:
                        self.kept.popleft()
                        acknowledged += 1
                heard = heard[len(heard) // 4 * 4 :]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def break_off(self) -> None:
        """Disconnect in the middle of the next frame, and come back."""
        self._breaks_off = True


async def main(tcp: int, udp: int, devices: int, readings: int) -> None:
    async def tcp_at() -> tuple[str, int]:
        return "127.0.0.1", tcp

    async def udp_at() -> tuple[str, int]:
        return "127.0.0.1", udp

    began = perf_counter()
    async with trio.open_nursery() as nursery:
        for source in range(devices):
            nursery.start_soon(partial(fire, udp_at, 1000 + source, readings, pause=0.005))
            nursery.start_soon(Device(tcp_at, source, readings).deliver)
    seconds = perf_counter() - began
    print(
        f"{devices * readings} datagrams sent, {devices * readings} readings acknowledged, in "
        f"{seconds:.1f} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send readings to a gateway.")
    for option, default in (
        ("--tcp", 7780),
        ("--udp", 7781),
        ("--devices", 4),
        ("--readings", 5000),
    ):
        parser.add_argument(option, type=int, default=default)
    chosen = parser.parse_args()
    trio.run(main, chosen.tcp, chosen.udp, chosen.devices, chosen.readings)
