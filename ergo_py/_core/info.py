"""Snapshots for people and programs that look inside: frozen, and without references to anything alive."""

from collections.abc import Mapping
from dataclasses import dataclass

from .ids import PID, Alias, Ref
from .messages import Why
from .reasons import Reason
from .states import State

__all__ = ["BlockedReport", "ExitReport", "NodeInfo", "ProcessInfo"]


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process as it is at this moment."""

    pid: PID
    name: str | None
    behaviour: str
    state: State
    history: tuple[tuple[State, float], ...]
    """The last few changes of state, each with its time on ``time.perf_counter``'s clock."""
    lanes: Mapping[str, int]
    """Envelopes waiting in each lane."""
    messages_in: int
    """Handled and queued."""
    messages_out: int
    dropped: int
    unhandled: int
    callback: str | None
    """The callback in progress."""
    message_type: str | None
    """The type of what it is handling."""
    running_time: float
    """Seconds spent in callbacks, waiting inside them included."""
    uptime: float
    parent: PID
    children: tuple[PID | Alias, ...]
    links: tuple[object, ...]
    linked_by: tuple[PID, ...]
    monitors: tuple[object, ...]
    monitored_by: tuple[PID, ...]
    aliases: tuple[Alias, ...]
    waits_for: Ref | None
    """The call it is waiting in."""
    trap_exit: bool
    mailbox_size: int | None
    env: Mapping[str, object] | None
    """Only if the node was opened with ``expose_env``."""


@dataclass(frozen=True, slots=True)
class BlockedReport:
    """Something kept the loop from running."""

    seconds: float
    """How long it had been blocked when this was written."""
    process: PID | None
    name: str | None
    behaviour: str | None
    callback: str | None
    message_type: str | None
    stack: str


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as it is at this moment."""

    name: str
    creation: int
    uptime: float
    processes: int
    names: int
    aliases: int
    relations: int
    timers: int
    calls_in_flight: int
    dead_letters: Mapping[Why, int]
    late_replies: int
    spawned: int
    crashed: int
    times_blocked: int
    last_blocked: BlockedReport | None
    max_processes: int | None
    env: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """One process of an exit report."""

    pid: PID | Alias
    name: str | None
    behaviour: str
    reason: Reason | None

    def __str__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"{self.pid}{called} {self.behaviour}"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a node came down."""

    seconds: float
    stopped: tuple[Ended, ...]
    """Those that ended when asked."""
    killed: tuple[Ended, ...]
    """Those that had to be killed."""
    abandoned: tuple[Ended, ...]
    """Those that did not even end then, and were left behind."""

    def __str__(self) -> str:
        parts = [f"{len(self.stopped)} stopped"]
        for what, these in (("killed", self.killed), ("abandoned", self.abandoned)):
            if these:
                parts.append(
                    f"{len(these)} {what} ({', '.join(map(str, these[:10]))}{', …' if len(these) > 10 else ''})"
                )
        return f"node down in {self.seconds:.3f} s: " + ", ".join(parts)
