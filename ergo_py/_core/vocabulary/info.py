"""Snapshots for people and programs that look inside: frozen, and without references to anything
alive.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .ids import PID, Alias, Ref
from .messages import Why
from .reasons import Reason
from .states import MetaState, State

__all__ = [
    "ApplicationInfo",
    "BlockedReport",
    "ChildInfo",
    "Ended",
    "EventInfo",
    "ExitReport",
    "MetaInfo",
    "NodeInfo",
    "Phase",
    "ProcessInfo",
    "RestartRecord",
    "Restarted",
    "SupervisorInfo",
]


class Phase(Enum):
    """Where a supervised child, or a whole application, is in its life.

    An application is PENDING, RUNNING, TERMINATING, COMPLETED or FAILED.
    """

    PENDING = "pending"
    """Not started yet: it waits for its turn."""
    STARTING = "starting"
    """Its ``init`` runs."""
    RUNNING = "running"
    BACKING_OFF = "backing off"
    """It ended and will be started when its delay is over."""
    STOPPING = "stopping"
    """It was asked to end."""
    TERMINATING = "terminating"
    """An application that is being stopped, or is ending by itself."""
    COMPLETED = "completed"
    """It ended without failing, or was stopped, and does not come back by itself."""
    FAILED = "failed"
    """It failed and does not come back by itself."""
    DISABLED = "disabled"
    """It was disabled, by an operation or because it used up its budget of restarts."""


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """A supervised child as it is at this moment."""

    name: str
    phase: Phase
    pid: PID | None
    """The process, while there is one."""
    behaviour: str
    restart: str
    """Its restart policy."""
    significant: bool
    restarts: int
    """How often it was started again."""
    resumed: int
    """How often it failed and went on, since its ``decide`` said RESUME."""
    dropped: int
    """Messages that its ended processes had not come to and that were dropped, as its spec says."""
    waiting: int
    """How many wait, through a service, for it to come back."""
    reason: Reason | None
    """Why its last process ended."""
    starts_in: float | None
    """Seconds until it is started, if it is backing off."""


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """One restart of a child."""

    at: float
    """When the child had ended, on ``time.time``'s clock."""
    child: str
    reason: Reason
    delay: float
    """Seconds of back-off before the start."""


@dataclass(frozen=True, slots=True)
class SupervisorInfo:
    """A supervisor's children, and the last restarts."""

    strategy: str
    intensity: int
    period: float
    children: tuple[ChildInfo, ...]
    restarts: tuple[RestartRecord, ...]
    """The last 50, newest last."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A child was started again: what the event ``ergo.restarted`` brings."""

    supervisor: PID
    child: str
    pid: PID
    """The new process."""
    reason: Reason
    """Why its predecessor ended."""


@dataclass(frozen=True, slots=True)
class EventInfo:
    """An event as it is at this moment."""

    name: str
    producer: PID
    published: int
    """How many publications there have been."""
    kept: int
    """How many a new subscriber is handed."""
    open: bool
    """Whether anybody may publish."""
    subscribers: Mapping[PID, int]
    """Each with how much it has lost: publications that found it full, or older messages that had
    to go for one.
    """


@dataclass(frozen=True, slots=True)
class ApplicationInfo:
    """An application as it is at this moment."""

    name: str
    phase: Phase
    mode: str
    """What its end by itself means for the node."""
    depends_on: tuple[str, ...]
    pid: PID | None
    """Its supervisor, while there is one."""
    uptime: float
    """Seconds since it was started; 0 if it does not run."""
    reason: Reason | None
    """Why it ended the last time, or could not be started."""


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
    asks: object
    """Whom it asks in that call, as it was addressed."""
    trap_exit: bool
    mailbox_size: int | None
    env: Mapping[str, object] | None
    """Only if the node was opened with ``expose_env``."""
    phase: Phase | None = None
    """Where it is in its life as a child of a supervisor; None if it has none."""
    supervision: SupervisorInfo | None = None
    """What it supervises, if it is a supervisor."""
    suspended: bool = False
    """Whether somebody who looks inside holds it: it takes no messages until it is resumed."""
    dispatcher: str = "loop"
    """Where its plain callbacks run."""
    threads: tuple[int, ...] = ()
    """The numbers the operating system knows their threads by."""
    stack: str = ""
    """What its thread is doing, while a callback is there: its innermost frames, newest last."""


@dataclass(frozen=True, slots=True)
class MetaInfo:
    """A meta-process as it is at this moment."""

    alias: Alias
    behaviour: str
    state: MetaState
    history: tuple[tuple[MetaState, float], ...]
    """The last few changes of state, each with its time on ``time.perf_counter``'s clock."""
    process: PID
    """The process that owns it."""
    parent: PID | Alias
    """Who spawned it: that process, or another meta-process."""
    children: tuple[Alias, ...]
    lanes: Mapping[str, int]
    """Messages waiting in each lane."""
    messages_in: int
    """Handled and queued."""
    messages_out: int
    dropped: int
    """Not taken into its own mailbox, which was full."""
    backlog: int
    """Sent by the reader and not delivered yet."""
    backlog_dropped: int
    """Dropped because the reader was too far ahead of its receivers."""
    reader_waits: bool
    """Whether the reader is held up by a slow receiver."""
    reader: str
    """``thread`` or ``task``."""
    thread: str | None
    """The name of its thread, as the operating system shows it."""
    thread_id: int | None
    """The number the operating system knows it by."""
    stack: str
    """What the thread is doing: its innermost frames, newest last."""
    callback: str | None
    message_type: str | None
    """What the handler is busy with."""
    requests: int
    """Requests of its own that are not answered yet."""
    monitored_by: tuple[PID, ...]
    linked_by: tuple[PID, ...]
    uptime: float
    stopping: bool


@dataclass(frozen=True, slots=True)
class BlockedReport:
    """Something kept the loop from running."""

    seconds: float
    """How long it had been blocked when this was written."""
    process: PID | Alias | None
    """Who blocked it: a process or a meta-process; None for a task that is neither."""
    name: str | None
    behaviour: str | None
    callback: str | None
    message_type: str | None
    stack: str
    starved: bool = False
    """True if the loop's thread wanted to run and mostly could not, because other threads of this
    program or other programs had the processor. Then the process and the callback are only where
    the loop stood. Known on Linux only.
    """


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as it is at this moment."""

    name: str
    creation: int
    uptime: float
    processes: int
    names: int
    aliases: int
    """Of processes and of meta-processes."""
    metas: int
    reader_threads: int
    """Threads that read for meta-processes; those that were left behind included, until they end.
    """
    threads_abandoned: int
    """Threads that would not end when they were told to."""
    dispatcher_threads: int
    """Threads in which plain callbacks of processes run."""
    relations: int
    timers: int
    calls_in_flight: int
    dead_letters: Mapping[Why, int]
    late_replies: int
    late_messages: int
    """Messages that crossed with the end of a connection, or of its receiver: no dead letters."""
    spawned: int
    crashed: int
    log_lines_lost: int
    """Lines of the log that could be written nowhere: no output took them, nor did standard error.
    """
    times_blocked: int
    last_blocked: BlockedReport | None
    max_processes: int | None
    max_reader_threads: int
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
    """Those that had to be killed, or of which a background task had to be cut off."""
    abandoned: tuple[Ended, ...]
    """Those that did not even end then, and were left behind."""
    escalated: Ended | None = None
    """The supervisor that gave up and so stopped the node."""

    def __str__(self) -> str:
        parts = [f"{len(self.stopped)} stopped"]
        for what, these in (("killed", self.killed), ("abandoned", self.abandoned)):
            if these:
                parts.append(
                    f"{len(these)} {what} "
                    f"({', '.join(map(str, these[:10]))}{', …' if len(these) > 10 else ''})"
                )
        if self.escalated is not None:
            parts.append(f"because {self.escalated} gave up: {self.escalated.reason}")
        return f"node down in {self.seconds:.3f} s: " + ", ".join(parts)
