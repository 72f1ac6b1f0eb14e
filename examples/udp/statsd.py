"""A small collector of metrics, in the manner of statsd: counters, gauges and timings, a metric in
each line.

    python examples/udp/statsd.py [PORT]

and then, in another terminal, ``echo 'visits:1|c' | nc -u -w0 127.0.0.1 8125``.
"""

import sys
from dataclasses import dataclass, field
from statistics import median

import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, InitError, Node, Reject, Request, run
from ergo_py.meta import UDP, UDPServer

__all__ = ["Collector", "Metrics", "Snapshot"]


@dataclass
class Metrics:
    """The metrics collected so far."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    timings: dict[str, list[float]] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Note a line such as ``visits:1|c``, ``heat:21.5|g`` or ``answer:3.2|ms``.

        Raises:
            ValueError: the line is not a metric.
        """
        name, _, rest = line.partition(":")
        number, _, kind = rest.partition("|")
        if not name or kind not in ("c", "g", "ms"):
            raise ValueError(f"not a metric: {line!r}")
        value = float(number)
        if kind == "c":
            self.counters[name] = self.counters.get(name, 0.0) + value
        elif kind == "g":
            self.gauges[name] = value
        else:
            self.timings.setdefault(name, []).append(value)

    def lines(self) -> dict[str, str]:
        """All metrics, for people."""
        return {
            **{name: f"{value:g}" for name, value in sorted(self.counters.items())},
            **{name: f"{value:g} now" for name, value in sorted(self.gauges.items())},
            **{
                name: f"{median(all_):g} ms, median of {len(all_)}"
                for name, all_ in sorted(self.timings.items())
            },
        }


class Snapshot(Request[dict[str, str]]):
    """Ask for all collected metrics."""


class Collector(Actor):
    """Owns the socket and the metrics. A line that is not a metric is only counted."""

    def __init__(self, port: int, fallback: bool = False) -> None:
        self.port = port
        self.fallback = fallback
        self.metrics = Metrics()
        self.rubbish = 0
        self.local = ""

    async def init(self) -> None:
        try:
            await self.open(self.port)
        except InitError:
            if not self.fallback:
                raise
            await self.open(0)

    async def open(self, port: int) -> None:
        # Built for floods: a large buffer to absorb them, and a task that reads in batches.
        server = UDPServer(
            "127.0.0.1", port, reader="task", max_datagram=1500, receive_buffer=1 << 20
        )
        await self.spawn_meta(server)
        self.local = str(server.local)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case UDP.Data(_, _, data):
                for line in data.decode(errors="replace").splitlines():
                    try:
                        self.metrics.take(line)
                    except ValueError:
                        self.rubbish += 1

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Snapshot():
                return self.metrics.lines()
            case "where?":
                return self.local
        raise Reject(LookupError(f"no answer to {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"listens at": self.local, **self.metrics.lines(), "rubbish": str(self.rubbish)}


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8125
    await node.supervise([ChildSpec("metrics", Collector, port)])
    print(f"collecting at {await node.call('metrics', 'where?')}", flush=True)
    while True:
        await trio.sleep(10)
        print(await node.service("metrics").call(Snapshot()), flush=True)


if __name__ == "__main__":
    run(main, name="statsd@localhost")
