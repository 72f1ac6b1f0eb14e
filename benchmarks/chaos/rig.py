"""A gateway under load, and the invariants that must hold in every ordeal."""

import sqlite3
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import trio

from ergo_py import PID, Actor, Alias, Caller, ErgoError, Node, open_node
from ergo_py.testing import no_leaks
from ergo_py.testing.leaks import LeakError
from examples.gateway.__main__ import start, where
from examples.gateway.gateway import connect
from examples.gateway.load import Device, value_of

from .load import FOUNTAIN, Fountain

__all__ = ["Findings", "PATIENCE", "Rig", "suffer"]

PATIENCE = 1.0
"""Seconds that the gateway gives its store and its decoder before it replaces them."""
RECOVERY = 60.0
"""Seconds within which all is well again after the last fault; a busy machine is given its time."""
DEVICES = 3


@dataclass
class Findings:
    """The result of a scenario."""

    name: str
    struck: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    tcp_sent: int = 0
    tcp_connections: int = 0
    udp_sent: int = 0
    udp_allowed: int = 0
    """Datagrams that the documentation gives up: an upper bound of those lost because the UDP side
    itself died.
    """
    udp_lost: int = 0
    udp_dropped: int = 0
    """Those of them that the operating system says it had no room for."""
    recovery: float = 0.0
    """Seconds from the end of the faults until all was stored."""
    outage: float = 0.0
    """Seconds: the longest time for which no device got an acknowledgement."""
    worst_answer: float = 0.0
    """Seconds: the longest time for which a bystander on the same node kept a caller waiting."""
    abandoned: int = 0
    """Threads that were left behind because they did not end when they were told to. All must be
    gone in the end.
    """
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.violations


class Bystander(Actor):
    """Has nothing to do with it all, and should notice as little as possible."""

    def handle_call(self, request: object, caller: Caller) -> object:
        return request


class Rig:
    """A gateway on a node, with its load. Strikes are done through it, so that it knows the
    permitted losses.
    """

    def __init__(self, node: Node, database: Path, random: Random, findings: Findings) -> None:
        self.node = node
        self.database = database
        self.random = random
        self.findings = findings
        # Opened and read once now: there may be no descriptors left when it is needed.
        self._rows = sqlite3.connect(database, timeout=60)
        self.stored(FOUNTAIN)
        self.fountain = Fountain()
        self.devices = [
            Device(partial(where, node, "tcp"), source, 1_000_000_000, pause=0.004)
            for source in range(DEVICES)
        ]
        self._settling = False
        self.leaves = False
        """Whether the node is stopped in the middle of it all, without waiting until all is well
        again.
        """
        self.expected: dict[str, int] = {}
        """How often the supervisors themselves were struck."""
        self._given_up: set[int] = set()
        self._window: tuple[int, PID | None] | None = None
        """Since which datagram the UDP side may be away, and its PID."""
        self._gateway: PID | None = None
        """The supervisor when the UDP side was found the last time."""
        self._before: tuple[set[int], tuple[int, PID | None] | None] = (set(), None)

    # -- permitted losses --------------------------------------------------------------------------

    def stored(self, source: int) -> dict[int, float]:
        return dict(
            self._rows.execute("select number, value from reading where source = ?", (source,))
        )

    def udp_dies(self) -> None:
        """Called before the UDP side is struck: datagrams that are not stored by now, and datagrams
        that come until it is back, may be lost.
        """
        self._before, sent = (self._given_up, self._window), self.fountain.sent
        self._given_up = self._given_up | (set(range(sent)) - self.stored(FOUNTAIN).keys())
        self._window = (sent if self._window is None else self._window[0]), self.node.whereis("udp")

    def udp_lives(self) -> None:
        """Called after a strike that found no target: no more datagrams may be lost than before."""
        self._given_up, self._window = self._before

    def _udp_is_back(self, pid: PID, address: tuple[str, int]) -> None:
        sent = self.fountain.aim(address)
        gateway = self.node.whereis("gateway")
        if gateway != self._gateway:
            # A part that is struck while its supervisor starts ends the supervisor, and the UDP
            # side with it. `settle` checks that no more supervisors end than were struck.
            self._given_up |= set(range(sent)) - self.stored(FOUNTAIN).keys()
            self._gateway = gateway
        if self._window is not None and pid != self._window[1]:
            self._given_up |= set(range(self._window[0], sent))
            self._window = None

    async def _follow_udp(self) -> None:
        """Tell the fountain where the gateway listens, each time that it is somewhere else."""
        known = None
        while True:
            pid = self.node.whereis("udp")
            if pid is not None and pid != known:
                try:
                    address = await where(self.node, "udp")
                except ErgoError:  # it died at this very moment, and its supervisor with it
                    address = None
                if address is not None and self.node.whereis("udp") == pid:
                    known = pid
                    self._udp_is_back(pid, address)
            await trio.sleep(0.002)

    # -- load --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_udp)
            nursery.start_soon(self._ask_bystander)
            nursery.start_soon(self._watch_outages)
            for device in self.devices:
                nursery.start_soon(device.deliver)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    async def _ask_bystander(self) -> None:
        bystander = await self.node.spawn(Bystander)
        while True:
            began = time.perf_counter()
            await self.node.call(bystander, "still there?", timeout=None)
            await trio.sleep(0.005)
            took = time.perf_counter() - began - 0.005
            self.findings.worst_answer = max(self.findings.worst_answer, took)

    async def _watch_outages(self) -> None:
        last, since = -1, time.perf_counter()
        while True:
            acknowledged = sum(device.next - len(device.kept) for device in self.devices)
            now = time.perf_counter()
            if acknowledged == last and not self._settling:
                self.findings.outage = max(self.findings.outage, now - since)
            else:
                last, since = acknowledged, now
            await trio.sleep(0.005)

    async def progress(self, count: int = 10) -> None:
        """Wait until every device has sent some more, and had some more acknowledged."""
        goals = [device.next + count for device in self.devices]
        while any(  # noqa: ASYNC110
            device.next - len(device.kept) < goal
            for device, goal in zip(self.devices, goals, strict=True)
        ):
            await trio.sleep(0.005)

    # -- looking around ----------------------------------------------------------------------------

    def metas(self, behaviour: str, owner: str = "") -> list[Alias]:
        """The meta-processes of a kind; those below the process of a name, if it is given."""
        return [
            alias
            for alias in self.node.metas()
            if self.node.meta_info(alias).behaviour == behaviour
            and (not owner or self._owner(alias) == self.node.whereis(owner))
        ]

    def _owner(self, alias: Alias) -> PID:
        parent: PID | Alias = alias
        while isinstance(parent, Alias):
            parent = self.node.meta_info(parent).parent
        return parent

    def processes(self, behaviour: str) -> list[PID]:
        return [
            pid
            for pid in self.node.processes()
            if self.node.process_info(pid).behaviour == behaviour
        ]

    # -- the end -----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Stop sending, and wait until everything that was sent is stored, or accounted for."""
        if self.leaves:
            self.fountain.stop()
            self._given_up |= set(range(self.fountain.sent))
            return
        began = time.perf_counter()
        self._settling = True
        for device in self.devices:
            device.count = device.next
        with trio.move_on_after(RECOVERY) as scope:
            while self._window is not None:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.005)
            self.fountain.stop()
            while not await self._is_settled():  # noqa: ASYNC110
                await trio.sleep(0.01)
        self.fountain.stop()
        self.findings.recovery = time.perf_counter() - began
        if scope.cancelled_caught:
            self.violation(f"not all was stored {RECOVERY:g} s after the last fault")
        self.findings.restarts = {
            child.name: child.restarts
            for name in ("root", "gateway", "back")
            for child in self.node.supervisor(name).children()
        }
        if self.findings.restarts["gateway"] > self.expected.get("gateway", 0):
            self.violation("the gateway was given up and started again as a whole")
        if self.findings.restarts["back"]:
            self.violation("the back end was given up and started again as a whole")

    async def _is_settled(self) -> bool:
        if not all(device.is_done for device in self.devices):
            return False
        missing = set(range(self.fountain.sent)) - self.stored(FOUNTAIN).keys() - self._given_up
        return not missing or len(missing) <= await self._dropped()

    async def _dropped(self) -> int:
        """How many datagrams the operating system had no room for, as the socket that is there now
        knows it.
        """
        facts = [await self.node.inspect_meta(alias, "drops") for alias in self.metas("UDPServer")]
        self.findings.udp_dropped = sum(int(fact["drops"]) for fact in facts)
        return self.findings.udp_dropped

    def check(self) -> None:
        """Whether all is in the database that must be there, and nothing else. After the node is
        down.
        """
        findings = self.findings
        sent = {device.source: device.next for device in self.devices} | {
            FOUNTAIN: self.fountain.sent
        }
        kept = {device.source: set(device.kept) for device in self.devices}
        if list(self._rows.execute("pragma integrity_check")) != [("ok",)]:
            self.violation("the database is damaged")
        sources = {
            source for (source,) in self._rows.execute("select distinct source from reading")
        }
        if sources - sent.keys():
            self.violation(f"readings of nobody: {sorted(sources - sent.keys())}")
        for source, count in sent.items():
            rows = self.stored(source)
            if any(
                number >= count or value != value_of(source, number)
                for number, value in rows.items()
            ):
                self.violation(f"readings of source {source} that were never sent")
            lost = set(range(count)) - rows.keys()
            if source == FOUNTAIN:
                findings.udp_sent, findings.udp_allowed = count, len(self._given_up)
                findings.udp_lost = len(lost)
                if len(lost - self._given_up) > findings.udp_dropped:
                    self.violation(
                        f"{len(lost - self._given_up)} datagrams lost, {findings.udp_dropped} "
                        "accounted for"
                    )
            else:
                findings.tcp_sent += count
                lost -= kept[source]
                if lost:
                    self.violation(
                        f"{len(lost)} acknowledged readings of device {source} are not there"
                    )
        findings.tcp_connections = sum(device.connections for device in self.devices)

    def close(self) -> None:
        self.fountain.stop()
        self._rows.close()

    def violation(self, text: str) -> None:
        if text not in self.findings.violations:
            self.findings.violations.append(text)


# -- a scenario ------------------------------------------------------------------------------------


def suffer(
    name: str, ordeal: Callable[[Rig], Awaitable[None]], directory: Path, random: Random
) -> Findings:
    """Run a gateway, do something terrible to it, and check the database."""
    findings = Findings(name)
    began = time.perf_counter()
    try:
        with no_leaks(grace=10.0):
            trio.run(_suffer, ordeal, directory, random, findings)
    except LeakError as error:
        findings.violations += error.left
    findings.seconds = time.perf_counter() - began
    return findings


async def _suffer(
    ordeal: Callable[[Rig], Awaitable[None]], directory: Path, random: Random, findings: Findings
) -> None:
    rig: Rig | None = None
    try:
        # Before the pipeline of the gateway opens the database: on a busy machine one of the two
        # found it locked.
        connect(directory / "telemetry.db").close()
        async with open_node("chaos@localhost", log_output="none") as node:
            await start(node, directory / "telemetry.db", patience=PATIENCE)
            rig = Rig(node, directory / "telemetry.db", random, findings)
            try:
                with trio.fail_after(4 * RECOVERY):
                    async with rig.under_load():
                        await rig.progress()
                        await ordeal(rig)
                        await rig.settle()
            finally:
                rig.fountain.stop()
                findings.abandoned = node.info().threads_abandoned
        report = node.exit_report
        assert rig is not None
        if report is None or report.killed:
            rig.violation(f"no clean end: {report}")
        rig.check()
    except Exception as error:  # a finding like others: the next scenario is run
        findings.violations.append(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        if rig is not None:
            rig.close()
