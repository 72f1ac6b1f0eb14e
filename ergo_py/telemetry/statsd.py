"""`StatsdReporter`: an actor that sends the metrics of its node to a collector of statsd."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import trio

from .._core.vocabulary.errors import BadInputError, SpawnError
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from ..actor import Actor
from ..meta.sockets.datagrams import UDPSend
from ..meta.sockets.udp import UDPClient
from .families import Family, Histogram, Sample, families_of
from .figures import read_figures

__all__ = ["StatsdLines", "StatsdReporter"]

_LONGEST: Final = 1400
"""Bytes of a datagram: what every path takes without fragments."""
_FORBIDDEN: Final = re.compile(r"[\s|,#]+")
_REPORT: Final = object()


class StatsdReporter(Actor):
    """Sends the metrics of its node to a collector of statsd over UDP, with tags as dogstatsd
    writes them.

    Spawn it, or make it a child of a supervisor::

        ChildSpec("statsd", StatsdReporter, args=("127.0.0.1", 8125))

    Counters are sent as the difference to the last report, gauges as they are, and a histogram as
    the mean of its new measurements. A collector that cannot be reached is tried again at the next
    report, and the log tells the first failure.

    Args:
        host: the name or address of the collector.
        port: its port.
        every: seconds between two reports.
        prefix: the beginning of every name.
        tags: tags of every line besides those of the metric.

    Raises:
        BadInputError: a value has a wrong type.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8125,
        every: float = 10.0,
        prefix: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        check_number("StatsdReporter(every)", every, least=0.001)
        if not isinstance(prefix, str) or _FORBIDDEN.search(prefix) or ":" in prefix:
            raise BadInputError(
                "StatsdReporter(prefix)", prefix, "a text without |, #, : and commas"
            )
        if tags is not None and not (
            isinstance(tags, Mapping)
            and all(isinstance(text, str) for pair in tags.items() for text in pair)
        ):
            raise BadInputError(
                "StatsdReporter(tags)", tags, "a mapping of texts, such as {'env': 'test'}"
            )
        # Checks host and port, before the node is up.
        UDPClient(host, port, reader="task")
        self._host, self._port = host, port
        self._every = every
        self._lines = StatsdLines(prefix, tuple((tags or {}).items()))
        self._socket: Alias | None = None
        self._has_warned = False

    def init(self) -> None:
        """Arm the timer of the reports."""
        self.send_every(self._every, self.pid, _REPORT)

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Report. Failures of earlier datagrams come here, too, and are no reason to end."""
        if message is not _REPORT:
            return
        figures = await trio.to_thread.run_sync(read_figures, self.node)
        packets = self._lines.packets(families_of(figures))
        if self._socket is None:
            try:
                self._socket = await self.spawn_meta(
                    UDPClient(self._host, self._port, reader="task"), needed=False
                )
            except SpawnError as error:
                if not self._has_warned:
                    self._has_warned = True
                    self.log.warning("the collector of statsd cannot be reached", error=str(error))
                return
        for packet in packets:
            if not self.send(self._socket, UDPSend(packet)):
                # The socket has ended: open another one next time.
                self._socket = None
                return


class StatsdLines:
    """Turns metrics into lines. It keeps the last values of counters."""

    def __init__(self, prefix: str, tags: tuple[tuple[str, str], ...]) -> None:
        self._prefix = prefix
        self._tags = tags
        self._last: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[float, float]] = {}

    def packets(self, families: list[Family]) -> list[bytes]:
        """The datagrams of a report: whole lines, at most 1,400 bytes each."""
        packets: list[bytes] = []
        waiting: list[bytes] = []
        size = 0
        for line in self._lines(families):
            if waiting and size + len(line) + 1 > _LONGEST:
                packets.append(b"\n".join(waiting))
                waiting, size = [], 0
            waiting.append(line)
            size += len(line) + 1
        if waiting:
            packets.append(b"\n".join(waiting))
        return packets

    def _lines(self, families: list[Family]) -> Iterator[bytes]:
        for family in families:
            for sample in family.samples:
                found = self._value(family, sample)
                if found is not None:
                    name = f"{self._prefix}{family.name.replace('_', '.', 1)}"
                    tags = ",".join(
                        f"{_clean(label)}:{_clean(text)}"
                        for label, text in (*sample.labels, *self._tags)
                    )
                    line = f"{name}:{found}|#{tags}".encode(errors="replace")
                    if len(line) <= _LONGEST:
                        yield line

    def _value(self, family: Family, sample: Sample) -> str | None:
        """The value and the type of a line; None if there is no news."""
        value, key = sample.value, (family.name, sample.labels)
        if isinstance(value, Histogram):
            total, count = value.total, float(sum(value.counts))
            last_total, last_count = self._last.get(key, (0.0, 0.0))
            self._last[key] = total, count
            new = count - last_count
            return f"{(total - last_total) / new:.9g}|g" if new > 0 else None
        if family.kind == "gauge":
            return f"{_number(value)}|g"
        last, _ = self._last.get(key, (0.0, 0.0))
        self._last[key] = value, 0.0
        return f"{_number(value - last)}|c" if value > last else None


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("_", text)


show_public_names(__name__)
