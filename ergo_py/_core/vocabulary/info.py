"""Snapshots for inspection of nodes, processes and supervisors: frozen, and without references to
live objects.
"""

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from .ids import PID, Alias, Ref
from .late_methods import dataclass
from .messages import Why
from .public_names import show_public_names
from .reasons import Reason
from .states import MetaState, State

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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


def _as_table(self: "DataclassInstance") -> str:
    """A table of the facts, for notebooks."""
    from html import escape  # noqa: PLC0415 - needed in notebooks only

    rows = [
        f"<tr><th>{field.name.replace('_', ' ')}</th>"
        f"<td>{escape(str(getattr(self, field.name)))}</td></tr>"
        for field in fields(self)
    ]
    return f"<table>{''.join(rows)}</table>"


class Phase(Enum):
    """The lifecycle of a supervised child, or of an application.

    An application is PENDING, RUNNING, TERMINATING, COMPLETED or FAILED.
    """

    PENDING = "pending"
    """Not started yet: waits for its turn."""
    STARTING = "starting"
    """The ``init`` of the child runs."""
    RUNNING = "running"
    """The child or application runs."""
    BACKING_OFF = "backing off"
    """The child ended and restarts after its back-off delay."""
    STOPPING = "stopping"
    """The child was asked to end."""
    TERMINATING = "terminating"
    """The application is being stopped, or ends by itself."""
    COMPLETED = "completed"
    """Ended without a failure, or was stopped, and does not restart by itself."""
    FAILED = "failed"
    """Failed, and does not restart by itself."""
    DISABLED = "disabled"
    """The child was disabled, by an operation or because it used up its restart budget."""


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """Snapshot of a supervised child."""

    name: str
    phase: Phase
    pid: PID | None
    """The process, while the child runs; else None."""
    behaviour: str
    """The name of its behaviour class."""
    restart: str
    """The restart policy."""
    significant: bool
    """Whether the final end of the child ends its supervisor."""
    restarts: int
    """How often the child was restarted."""
    resumed: int
    """How often the child failed and continued, because its ``decide`` returned RESUME."""
    dropped: int
    """Messages still queued when its processes ended, and dropped by ``Fate.DROP``."""
    waiting: int
    """Requests that wait, through a service, for its restart."""
    reason: Reason | None
    """The reason its last process ended with."""
    starts_in: float | None
    """Seconds until the restart, while the child is backing off."""


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """A restart of a child."""

    at: float
    """When the child had ended, as ``time.time()`` counts."""
    child: str
    reason: Reason
    """The reason the child had ended with."""
    delay: float
    """Seconds of back-off before the restart."""


@dataclass(frozen=True, slots=True)
class SupervisorInfo:
    """Snapshot of a supervisor: its children, and the last restarts."""

    strategy: str
    intensity: int
    """The restart limit: restarts allowed in ``period`` seconds."""
    period: float
    children: tuple[ChildInfo, ...]
    restarts: tuple[RestartRecord, ...]
    """The last 50 restarts, newest last."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A child was restarted: the message of the event ``ergo.restarted``."""

    supervisor: PID
    child: str
    pid: PID
    """The new process."""
    reason: Reason
    """The reason its predecessor ended with."""


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Snapshot of an event."""

    name: str
    producer: PID
    published: int
    """The number of publications so far."""
    kept: int
    """The number of buffered publications, which a new subscriber gets."""
    open: bool
    """Whether any process may publish."""
    subscribers: Mapping[PID, int]
    """Each subscriber, with the number of messages it lost because its mailbox was full:
    publications, or older messages that a publication displaced.
    """


@dataclass(frozen=True, slots=True)
class ApplicationInfo:
    """Snapshot of an application."""

    name: str
    phase: Phase
    mode: str
    """The effect on the node when the application ends by itself."""
    depends_on: tuple[str, ...]
    """The names of the applications it depends on."""
    pid: PID | None
    """Its supervisor, while the application runs."""
    uptime: float
    """Seconds since its start; 0 if the application does not run."""
    reason: Reason | None
    """Why the application ended the last time, or could not be started."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Snapshot of a process."""

    _repr_html_ = _as_table

    pid: PID
    name: str | None
    """The registered name."""
    behaviour: str
    """The name of its behaviour class."""
    state: State
    history: tuple[tuple[State, float], ...]
    """The last few changes of state, each with its time as ``time.perf_counter()`` counts."""
    lanes: Mapping[str, int]
    """Envelopes waiting in each lane; under ``postponed`` those that the process has set aside, in
    a batch that waits or for another state of a state machine.
    """
    messages_in: int
    """Messages handled and queued."""
    messages_out: int
    """Messages sent."""
    dropped: int
    """Messages not accepted, or displaced, because the mailbox was full."""
    unhandled: int
    """Messages without a callback to handle them."""
    callback: str | None
    """The callback in progress."""
    message_type: str | None
    """The type of the message in progress."""
    running_time: float
    """Seconds spent in callbacks, including waits inside them."""
    uptime: float
    """Seconds since the start of the process."""
    parent: PID
    children: tuple[PID | Alias, ...]
    """Its child processes and meta-processes."""
    links: tuple[object, ...]
    """The targets it is linked to."""
    linked_by: tuple[PID, ...]
    """The processes that are linked to it."""
    monitors: tuple[object, ...]
    """The targets it monitors."""
    monitored_by: tuple[PID, ...]
    """The processes that monitor it."""
    aliases: tuple[Alias, ...]
    waits_for: Ref | None
    """The call that the process waits in."""
    asks: object
    """The target of that call, as the process addressed it."""
    trap_exit: bool
    mailbox_size: int | None
    env: Mapping[str, object] | None
    """The settings; None unless the node was opened with ``expose_env``."""
    phase: Phase | None = None
    """Its phase as a child of a supervisor; None without a supervisor."""
    supervision: SupervisorInfo | None = None
    """Its children and restarts, if the process is a supervisor."""
    entity: str | None = None
    """Its kind and key, if the process is that of an entity: ``Account/ada``."""
    suspended: bool = False
    """Whether an inspection has suspended the process: it handles no messages until it is resumed.
    """
    dispatcher: str = "loop"
    """Where its plain callbacks run."""
    threads: tuple[int, ...] = ()
    """The thread ids, in the operating system, of its dispatcher."""
    stack: str = ""
    """The call stack of its thread, while a callback runs there: the innermost frames, newest last.
    """


@dataclass(frozen=True, slots=True)
class MetaInfo:
    """Snapshot of a meta-process."""

    _repr_html_ = _as_table

    alias: Alias
    behaviour: str
    """The name of its behaviour class."""
    state: MetaState
    history: tuple[tuple[MetaState, float], ...]
    """The last few changes of state, each with its time as ``time.perf_counter()`` counts."""
    process: PID
    """The process that owns it."""
    parent: PID | Alias
    """Its spawner: that process, or another meta-process."""
    children: tuple[Alias, ...]
    lanes: Mapping[str, int]
    """Messages waiting in each lane."""
    messages_in: int
    """Messages handled and queued."""
    messages_out: int
    """Messages sent."""
    dropped: int
    """Messages not accepted because its own mailbox was full."""
    backlog: int
    """Messages that the reader has sent and that are not delivered yet."""
    backlog_dropped: int
    """Messages dropped because the reader was too far ahead of its receivers."""
    reader_waits: bool
    """Backpressure: whether the reader waits for a slow receiver."""
    reader: str
    """``thread`` or ``task``."""
    thread: str | None
    """The name of its thread, as the operating system shows it."""
    thread_id: int | None
    """The id of its thread in the operating system."""
    stack: str
    """The call stack of the thread: the innermost frames, newest last."""
    callback: str | None
    """The callback that the handler runs."""
    message_type: str | None
    """The type of the message that the handler serves."""
    requests: int
    """Requests that the meta-process has sent and that are not answered yet."""
    monitored_by: tuple[PID, ...]
    linked_by: tuple[PID, ...]
    uptime: float
    """Seconds since its start."""
    stopping: bool


@dataclass(frozen=True, slots=True)
class BlockedReport:
    """Report of the watchdog: the event loop was blocked."""

    seconds: float
    """How long the loop had been blocked when the report was written."""
    process: PID | Alias | None
    """The process or meta-process that blocked the loop; None for another task."""
    name: str | None
    behaviour: str | None
    callback: str | None
    message_type: str | None
    stack: str
    starved: bool = False
    """True if the loop's thread was ready to run and mostly got no CPU time, because other threads
    or programs used the processor. Then process and callback only say where the loop stood, and are
    not the cause. Known on Linux only.
    """
    advice: str | None = None
    """The code to write instead; None outside callbacks, and if the loop is starved."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Snapshot of a node."""

    _repr_html_ = _as_table

    name: str
    creation: int
    """Identifies the start of this node, as in its PIDs."""
    uptime: float
    """Seconds since the node opened."""
    processes: int
    names: int
    """Registered names."""
    aliases: int
    """Aliases of processes and meta-processes."""
    metas: int
    """Meta-processes."""
    reader_threads: int
    """Reader threads of meta-processes, including abandoned threads until they end."""
    threads_abandoned: int
    """Threads that did not end when they were stopped."""
    dispatcher_threads: int
    """Threads in which plain callbacks of processes run."""
    relations: int
    """Links and monitors."""
    timers: int
    calls_in_flight: int
    dead_letters: Mapping[Why, int]
    """The number of dead letters by cause."""
    late_replies: int
    """Answers to calls that had timed out or were cancelled."""
    late_messages: int
    """Messages that arrived harmlessly after the end of a connection or receiver; see
    :class:`MayBeLate`. They are no dead letters.
    """
    spawned: int
    """Processes spawned so far."""
    crashed: int
    """Processes that crashed so far."""
    log_lines_lost: int
    """Lines of the log that neither the output nor standard error accepted."""
    times_blocked: int
    """How often the event loop was blocked."""
    last_blocked: BlockedReport | None
    max_processes: int | None
    max_reader_threads: int
    env: Mapping[str, object] | None
    """The settings; None unless the node was opened with ``expose_env``."""


class Ended(NamedTuple):
    """A process in an exit report."""

    pid: PID | Alias
    name: str | None
    behaviour: str
    reason: Reason | None

    def __str__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"{self.pid}{called} {self.behaviour}"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """Report of a node's shutdown."""

    seconds: float
    """The duration of the shutdown."""
    stopped: tuple[Ended, ...]
    """Processes that ended when asked (graceful shutdown)."""
    killed: tuple[Ended, ...]
    """Processes that had to be killed, or had a background task that had to be cut off."""
    abandoned: tuple[Ended, ...]
    """Processes that did not even end then, and were abandoned."""
    escalated: Ended | None = None
    """The supervisor that gave up and so stopped the node."""

    def __str__(self) -> str:
        parts = [f"{len(self.stopped)} stopped"]
        for end, processes in (("killed", self.killed), ("abandoned", self.abandoned)):
            if processes:
                parts.append(
                    f"{len(processes)} {end} "
                    f"({', '.join(map(str, processes[:10]))}"
                    f"{', …' if len(processes) > 10 else ''})"
                )
        if self.escalated is not None:
            parts.append(f"because {self.escalated} gave up: {self.escalated.reason}")
        return f"node down in {self.seconds:.3f} s: " + ", ".join(parts)


show_public_names(
    __name__, {"ergo_py.info": "BlockedReport ChildInfo MetaInfo NodeInfo ProcessInfo"}
)
