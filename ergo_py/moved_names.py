"""`find_moved`: public names that have moved to another place, or have left, and what to
write instead. Loaded when a program asks a package for a name that it does not have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Final
from warnings import warn

from ._core.vocabulary.dispatchers import Threads

__all__ = ["MOVED", "Moved", "find_moved"]

_REMOVED_IN: Final = "0.2"


@dataclass(frozen=True, slots=True)
class Moved:
    """An old name. It works until the next minor version."""

    old: str
    """The package and the name."""
    module: str
    """The module that has its value."""
    path: str
    """The value in the module: a name, or a name and a member."""
    line: str
    """The line to write instead."""

    def value(self) -> object:
        """Warn the program that uses the name, and return its value."""
        warn(
            f"{self.old} is deprecated, and ergo_py {_REMOVED_IN} removes it; write: {self.line}",
            DeprecationWarning,
            stacklevel=3,
        )
        found: object = reduce(getattr, self.path.split("."), import_module(self.module))
        return found


def pinned(cpu: int | None = None) -> Threads:
    """The old name of a thread of its own."""
    return Threads(cpu=cpu)


def pod(name: str, cpu: int | None = None) -> Threads:
    """The old name of a thread that several processes share."""
    return Threads(name, cpu=cpu)


PINNED: Final = Threads()
BRUTAL: Final = 0.0


def _names(packages: str, module: str, names: str) -> Iterator[Moved]:
    """Names that another module has."""
    for name in names.split():
        for package in packages.split():
            yield Moved(f"{package}.{name}", module, name, f"from {module} import {name}")


def _members(package: str, module: str, owner: str, names: str) -> Iterator[Moved]:
    """Names that are members of a class now, or of an enum."""
    for name in names.split():
        path = f"{owner}.{name}"
        line = f"from {module} import {owner.partition('.')[0]}; {path}"
        yield Moved(f"{package}.{name}", module, path, line)


def _dispatchers() -> Iterator[Moved]:
    for name, path, call in (
        ("PINNED", "PINNED", "Threads()"),
        ("Pinned", "pinned", "Threads(cpu=0)"),
        ("Pod", "pod", 'Threads("name")'),
        ("POOL", "Threads", 'Threads("name", 4)'),
        ("ThreadPool", "Threads", 'Threads("name", 4)'),
    ):
        yield Moved(f"ergo_py.{name}", __name__, path, f"from ergo_py import Threads; {call}")


_ERRORS: Final = "ergo_py._core.vocabulary.errors"
_KINDS: Final = (
    (
        "ergo_py",
        _ERRORS,
        "ergo_py.errors ChildError",
        {
            "ChildUnknownError": "unknown",
            "ChildExistsError": "exists",
            "TooManyChildrenError": "too many",
            "ChildRunningError": "running",
            "ChildNotRunningError": "not running",
            "ChildDisabledError": "disabled",
            "ChildEnabledError": "enabled",
            "ChildBusyError": "busy",
        },
    ),
    (
        "ergo_py ergo_py.errors",
        _ERRORS,
        "ergo_py.errors ApplicationError",
        {
            "ApplicationNeededError": "needed",
            "ApplicationStartError": "start",
            "ApplicationUnknownError": "unknown",
        },
    ),
    (
        "ergo_py ergo_py.errors",
        _ERRORS,
        "ergo_py.errors EventError",
        {"EventTakenError": "taken", "EventUnknownError": "unknown"},
    ),
    (
        "ergo_py ergo_py.errors",
        _ERRORS,
        "ergo_py.errors RelationError",
        {"RelationExistsError": "exists", "RelationUnknownError": "unknown"},
    ),
    (
        "ergo_py ergo_py.errors",
        _ERRORS,
        "ergo_py.errors ServiceError",
        {
            "ServiceBusyError": "busy",
            "ServiceGoneError": "gone",
            "ServiceTimeoutError": "timeout",
        },
    ),
    (
        "ergo_py ergo_py.errors",
        _ERRORS,
        "ergo_py.errors TaskError",
        {
            "TaskEndedError": "ended",
            "TaskTimeoutError": "timeout",
            "TooManyTasksError": "too many",
        },
    ),
    (
        "ergo_py ergo_py.errors",
        _ERRORS,
        "ergo_py.errors LimitError",
        {"TooManyProcessesError": "processes", "TooManyReadersError": "readers"},
    ),
    (
        "ergo_py.network",
        "ergo_py.network.errors",
        "ergo_py.errors LimitError",
        {"TooManyCallsError": "calls"},
    ),
    (
        "ergo_py.network",
        "ergo_py.network.errors",
        "ergo_py.network MessageError",
        {"MessageTypeError": "type", "MessageTooLargeError": "too large"},
    ),
    (
        "ergo_py.entities",
        "ergo_py.entities.errors",
        "ergo_py.entities StateError",
        {
            "StateTypeError": "type",
            "StateTooLargeError": "too large",
            "StateUnreadableError": "unreadable",
        },
    ),
)
"""Errors that are kinds of another: old packages, private module, package and name of the error,
kinds.
"""


def _kinds() -> Iterator[Moved]:
    line = "from ergo_py.errors import ChildError"
    yield Moved("ergo_py.SupervisionError", "ergo_py.errors", "ChildError", line)
    for packages, module, error, kinds in _KINDS:
        home, _, family = error.partition(" ")
        for package in packages.split():
            for name, kind in kinds.items():
                line = f"from {home} import {family}  # its kind is {kind!r}"
                yield Moved(f"{package}.{name}", module, name, line)


_RESULTS: Final = (
    (
        "ergo_py.aio",
        "ergo_py.facades.handles",
        "AsyncioGroup AsyncioPool AsyncioRegistry AsyncioService AsyncioSupervisor AsyncioTimer",
    ),
    ("ergo_py.aio", "ergo_py.facades.streams", "AsyncioStream"),
    ("ergo_py.aio", "ergo_py.aio.context", "OpenNode"),
    (
        "ergo_py.blocking",
        "ergo_py.facades.handles",
        "BlockingPool BlockingService BlockingSupervisor",
    ),
    ("ergo_py.blocking", "ergo_py.facades.streams", "BlockingStream"),
    ("ergo_py.blocking", "ergo_py.blocking.loop_thread", "OwnedNode"),
    ("ergo_py.blocking", "ergo_py.blocking.tasks", "BlockingTask"),
    ("ergo_py.cluster", "ergo_py.cluster.group_keeper", "ClusterGroup"),
    ("ergo_py.cluster", "ergo_py.cluster.lease", "Lease"),
    (
        "ergo_py ergo_py.info",
        "ergo_py._core.inspection.trace",
        "CallbackStatistics Statistics Trace TraceEntry",
    ),
    ("ergo_py ergo_py.info", "ergo_py._core.processes.background_task", "BackgroundTask"),
    ("ergo_py ergo_py.info", "ergo_py._core.tables.obituaries", "Obituary"),
    ("ergo_py ergo_py.info", "ergo_py._core.verbs.node_inspection", "Queued"),
    (
        "ergo_py ergo_py.info",
        "ergo_py._core.vocabulary.info",
        "ApplicationInfo Ended EventInfo ExitReport Phase Restarted RestartRecord SupervisorInfo",
    ),
    ("ergo_py ergo_py.info", "ergo_py._core.vocabulary.states", "MetaState"),
    ("ergo_py ergo_py.info", "ergo_py.schedules.job", "JobInfo"),
    ("ergo_py ergo_py.info", "ergo_py.supervision.supervisor", "ChildCount"),
    ("ergo_py ergo_py.info", "ergo_py.supervision.tree", "TreeNode"),
    ("ergo_py ergo_py.streams", "ergo_py.streams.events", "EventStream"),
    ("ergo_py ergo_py.streams", "ergo_py.streams.parts", "CalledStream"),
    ("ergo_py ergo_py.tasks", "ergo_py.tasks.stream", "MapStream"),
    ("ergo_py ergo_py.supervision", "ergo_py.supervision.handle", "SupervisorHandle"),
    ("ergo_py ergo_py.supervision", "ergo_py.supervision.pool", "PoolHandle"),
    ("ergo_py.telemetry", "ergo_py.telemetry.figures", "BehaviourFigures Figures LoopDelay"),
    ("ergo_py.testing", "ergo_py.testing.alone", "Ask"),
    ("ergo_py.testing", "ergo_py.testing.crashes", "ExpectedCrash"),
    ("ergo_py.testing", "ergo_py.testing.faults", "Fault"),
    ("ergo_py.testing", "ergo_py.testing.leaks", "LeakError"),
    ("ergo_py.testing", "ergo_py.testing.probes", "Received"),
    (
        "ergo_py.testing",
        "ergo_py.testing.records.notes",
        "Armed Called Publication Requested Sent Spawned StartedTask",
    ),
    ("ergo_py.testing", "ergo_py.testing.settlement", "UnsettledError"),
    ("ergo_py.testing", "ergo_py.testing.task_order", "RaceError"),
    ("ergo_py.testing", "ergo_py.testing.world.checkers", "Checker"),
    ("ergo_py.testing", "ergo_py.testing.world.clock", "StandstillError"),
    ("ergo_py.testing", "ergo_py.testing.world.disk", "WorldDisk WorldFile"),
    ("ergo_py.testing", "ergo_py.testing.world.history", "Event History Lifetime Operation"),
    ("ergo_py.testing", "ergo_py.testing.world.linearizability", "Model"),
    ("ergo_py.testing", "ergo_py.testing.world.node", "WorldNode"),
    ("ergo_py.testing", "ergo_py.testing.world.outside", "OutsideError"),
    ("ergo_py.testing", "ergo_py.testing.world.plan", "Plan PlannedFault"),
    ("ergo_py.testing", "ergo_py.testing.world.simulation", "Simulation SimulationError"),
    ("ergo_py.testing", "ergo_py.testing.world.world", "CheckError"),
    ("ergo_py ergo_py.state_machine", "ergo_py.state_machine.states", "StateMethod"),
    ("ergo_py.workers", "ergo_py.workers.worker_node", "WorkerFailedError WorkerNode"),
    ("ergo_py.network", "ergo_py.network.errors", "NodeBusyError"),
    ("ergo_py.network", "ergo_py.network.remote_node", "RemoteNode"),
    ("ergo_py.network", "ergo_py.network.traffic.info", "NetworkInfo PeerInfo"),
    ("ergo_py.entities", "ergo_py.entities.entity", "EntityTimer"),
    ("ergo_py.entities", "ergo_py.entity_handles", "EntityKindUnknownError"),
    ("ergo_py.meta", "ergo_py.meta.files.directory_scan", "Change"),
    ("ergo_py.meta", "ergo_py.meta.sockets.datagrams", "UDPFault"),
    ("ergo_py.meta", "ergo_py.meta.sockets.messages", "Cause TLSFacts"),
    ("ergo_py.meta", "ergo_py.meta.sockets.options", "StreamOptions"),
)
"""Packages, module and names of types that programs receive, read, and never construct."""


def _results() -> Iterator[Moved]:
    for packages, module, names in _RESULTS:
        yield from _names(packages, module, names)


_MESSAGES: Final = (
    (
        "ergo_py.meta",
        "TCP",
        "TCP",
        "Close Connected Data Disconnected Frames ProtocolError Secured Send Set StartTLS",
    ),
    ("ergo_py.meta", "UDP", "UDP", "Data Failed Join Leave Send"),
    (
        "ergo_py.meta",
        "Port",
        "Port",
        "CloseInput Data ErrorData ErrorLine Exited InputLost Line Resize Signal Started Write",
    ),
    ("ergo_py.meta", "FileReader", "File", "Data Ended Line Rotated Truncated"),
    ("ergo_py.meta", "FileWriter", "File", "Reopen Sync Write"),
    ("ergo_py.meta", "Descriptors", "Fd", "Lost Readable Writable"),
    ("ergo_py.meta", "StandardInput", "Stdin", "Ended Line"),
    ("ergo_py.meta", "Signals", "Signal", "Received"),
    ("ergo_py.meta", "DirectoryWatch", "Path", "Changed"),
    ("ergo_py.devices", "Device", "Device", "ClosedError Data Lost Opened Send"),
    ("ergo_py.web", "WS", "WS", "Binary Close Connected Disconnected Send Text Upgrade"),
)
"""Messages that are members of a class now: package, class, begin of the old names, members."""


def _message(package: str, old: str, path: str) -> Moved:
    line = f"from {package} import {path.partition('.')[0]}; {path}"
    return Moved(f"{package}.{old}", package, path, line)


def _messages() -> Iterator[Moved]:
    for package, owner, begin, members in _MESSAGES:
        for member in members.split():
            yield _message(package, f"{begin}{member}", f"{owner}.{member}")
    yield _message("ergo_py.meta", "WatchFd", "Descriptors.Watch")
    yield _message("ergo_py.meta", "UnwatchFd", "Descriptors.Unwatch")
    yield _message("ergo_py.meta", "ProgramFailedError", "Port.FailedError")
    yield _message("ergo_py.devices", "DeviceBridge", "Device")
    yield _message("ergo_py.telemetry", "HealthCheck", "Health.Check")
    yield Moved(
        "ergo_py.testing.recording",
        "ergo_py.testing.replay",
        "recording",
        "from ergo_py.testing import Tape  # tape.recording(Behaviour)",
    )
    yield _message("ergo_py.cluster", "NoMembersError", "Spread.NoMembersError")
    yield _message("ergo_py.cluster", "ClusterNameTakenError", "Cluster.TakenError")
    yield _message("ergo_py.cluster", "LeaseLostError", "Singleton.LeaseLostError")
    yield _message("ergo_py.cluster", "lease_of", "Singleton.lease_of")
    yield _message("ergo_py.workers", "ProcessLostError", "ProcessCalls.LostError")
    yield _message("ergo_py.testing.bridges", "DEVICE_RULES", "DeviceRig.RULES")
    yield _message("ergo_py.testing.bridges", "SOURCE_RULES", "SourceRig.RULES")
    yield _message("ergo_py.web", "Accept", "WS.Accept")
    yield _message("ergo_py.web", "HTTPGone", "HTTPRequest.Gone")
    yield _message("ergo_py.web", "SentEvent", "Response.Event")


_OPTIONS: Final = (
    ("ergo_py.meta", "ergo_py.meta", "TCP", "KeepAlive WhenFull WhenSlow"),
    ("ergo_py.meta", "ergo_py.meta", "Port", "StopTimes Terminal"),
    ("ergo_py.testing", "ergo_py.testing", "Replay", "ME Recording"),
    ("ergo_py.testing", "ergo_py.testing", "World", "all_answered at_most_one kept linearizable"),
    ("ergo_py.web", "ergo_py.web", "HTTPRequest", "ReadBody"),
    ("ergo_py.web", "ergo_py.web", "Response", "End Write"),
    ("ergo_py.web", "ergo_py.web", "Route", "Body"),
    ("ergo_py", "ergo_py", "Job", "MissedRuns Overlap"),
    ("ergo_py.schedules", "ergo_py", "Job", "MissedRuns Overlap"),
    ("ergo_py", "ergo_py", "StateMachine", "EventTimeout NamedTimeout StateTimeout"),
    ("ergo_py.state_machine", "ergo_py", "StateMachine", "EventTimeout NamedTimeout StateTimeout"),
)
"""Messages and options that are members of a class now, under the same name: old package, package
and name of the class, members.
"""


def _options() -> Iterator[Moved]:
    for package, module, owner, names in _OPTIONS:
        yield from _members(package, module, owner, names)


MOVED: Final[Mapping[str, Moved]] = {
    moved.old: moved
    for moved in (
        *_names(
            "ergo_py",
            "ergo_py.errors",
            "ApplicationError BehaviourError CallFailedError CallbackError ControlSocketError "
            "DeadlockError EscalationError InitTimeoutError KeyTakenError MethodUnknownError "
            "NameUnknownError ProcessUnknownError SendError ServiceError TargetTypeError "
            "TaskError UnhandledCallError",
        ),
        *_names(
            "ergo_py",
            "ergo_py.info",
            "Delivered Sent Sight Spawned Stopped is_fast Timer "
            "Dispatcher BlockedReport ChildInfo MetaInfo NodeInfo ProcessInfo NoReply State",
        ),
        *_names("ergo_py", "ergo_py.groups", "Entry"),
        *_names("ergo_py", "ergo_py.meta", "Counter Flag"),
        *_names("ergo_py", "ergo_py.methods", "MethodCall MethodCast cast"),
        *_names(
            "ergo_py",
            "ergo_py.supervision",
            "AutoShutdown Budget Decision Fate Redirect",
        ),
        *_names(
            "ergo_py",
            "ergo_py.state_machine",
            "MachineState state",
        ),
        *_names("ergo_py", "ergo_py.tasks", "Task TaskResult FailedItem"),
        *_names("ergo_py", "ergo_py.streams", "PartStream"),
        *_members(
            "ergo_py",
            "ergo_py",
            "Strategy",
            "ALL_FOR_ONE ONE_FOR_ONE REST_FOR_ONE SIMPLE_ONE_FOR_ONE",
        ),
        *_members(
            "ergo_py",
            "ergo_py",
            "RestartPolicy",
            "ALWAYS NEVER ON_FAILURE PERMANENT TEMPORARY TRANSIENT",
        ),
        *_members("ergo_py", "ergo_py", "Routing", "BY_KEY LEAST_LOADED ROUND_ROBIN"),
        *_members("ergo_py", "ergo_py.supervision", "Decision", "ESCALATE RESTART RESUME STOP"),
        *_members("ergo_py", "ergo_py.supervision", "Fate", "DEAD_LETTER DROP KEEP"),
        *_members("ergo_py.web", "ergo_py.web", "Route.Body", "STREAM WHOLE"),
        *_options(),
        Moved("ergo_py.BRUTAL", __name__, "BRUTAL", "0.0"),
        Moved("ergo_py.INFINITE", "math", "inf", "from math import inf; inf"),
        *_dispatchers(),
        *_kinds(),
        *_results(),
        *_messages(),
    )
}
"""The old names, each with its new place."""

_LEFT: Final = {
    "ergo_py.telemetry.StatsdReporter": (
        "MetricsPage or register for Prometheus, instrument for OpenTelemetry: they have the same "
        "metrics, and their collectors export to statsd"
    ),
}
"""Names that are gone, each with its replacement."""


def find_moved(package: str, name: str) -> Moved | None:
    """The new place of a name that a package had; None if it never had the name.

    Raises:
        ImportError: the name has left, and has no new place. The text names the replacement.
    """
    old = f"{package}.{name}"
    if old in _LEFT:
        raise ImportError(f"{old} has left ergo_py; use instead: {_LEFT[old]}", name=package)
    return MOVED.get(old)
