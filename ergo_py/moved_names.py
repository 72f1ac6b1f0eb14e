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


def _names(package: str, module: str, names: str) -> Iterator[Moved]:
    """Names that another module has."""
    for name in names.split():
        yield Moved(f"{package}.{name}", module, name, f"from {module} import {name}")


def _members(package: str, module: str, owner: str, names: str) -> Iterator[Moved]:
    """Constants that are members of an enum."""
    for name in names.split():
        path = f"{owner}.{name}"
        yield Moved(f"{package}.{name}", module, path, f"from {module} import {owner}; {path}")


def _dispatchers() -> Iterator[Moved]:
    for name, path, call in (
        ("PINNED", "PINNED", "Threads()"),
        ("Pinned", "pinned", "Threads(cpu=0)"),
        ("Pod", "pod", 'Threads("name")'),
        ("POOL", "Threads", 'Threads("name", 4)'),
        ("ThreadPool", "Threads", 'Threads("name", 4)'),
    ):
        yield Moved(f"ergo_py.{name}", __name__, path, f"from ergo_py import Threads; {call}")


def _child_errors() -> Iterator[Moved]:
    line = "from ergo_py.errors import ChildError"
    yield Moved("ergo_py.SupervisionError", "ergo_py.errors", "ChildError", line)
    for name, kind in (
        ("ChildUnknownError", "unknown"),
        ("ChildExistsError", "exists"),
        ("TooManyChildrenError", "too many"),
        ("ChildRunningError", "running"),
        ("ChildNotRunningError", "not running"),
        ("ChildDisabledError", "disabled"),
        ("ChildEnabledError", "enabled"),
        ("ChildBusyError", "busy"),
    ):
        with_kind = f"{line}  # its kind is {kind!r}"
        yield Moved(f"ergo_py.{name}", "ergo_py._core.vocabulary.errors", name, with_kind)


MOVED: Final[Mapping[str, Moved]] = {
    moved.old: moved
    for moved in (
        *_names(
            "ergo_py",
            "ergo_py.errors",
            "ApplicationError ApplicationNeededError ApplicationStartError "
            "ApplicationUnknownError BehaviourError CallFailedError CallbackError "
            "ControlSocketError DeadlockError EscalationError EventTakenError EventUnknownError "
            "InitTimeoutError KeyTakenError MethodUnknownError NameUnknownError "
            "ProcessUnknownError RelationExistsError RelationUnknownError SendError "
            "ServiceBusyError ServiceError ServiceGoneError ServiceTimeoutError TargetTypeError "
            "TaskEndedError TaskError TaskTimeoutError TooManyProcessesError "
            "TooManyReadersError TooManyTasksError UnhandledCallError",
        ),
        *_names(
            "ergo_py",
            "ergo_py.info",
            "CallbackStatistics Statistics Trace TraceEntry Delivered Sent Sight Spawned "
            "Stopped BackgroundTask is_fast Obituary Timer Queued Dispatcher ApplicationInfo "
            "BlockedReport ChildInfo Ended EventInfo ExitReport MetaInfo NodeInfo Phase "
            "ProcessInfo Restarted RestartRecord SupervisorInfo NoReply MetaState State JobInfo "
            "ChildCount TreeNode",
        ),
        *_names("ergo_py", "ergo_py.groups", "Entry"),
        *_names("ergo_py", "ergo_py.meta", "Counter Flag"),
        *_names("ergo_py", "ergo_py.methods", "MethodCall MethodCast cast"),
        *_names(
            "ergo_py",
            "ergo_py.supervision",
            "SupervisorHandle PoolHandle AutoShutdown Budget Decision Fate Redirect",
        ),
        *_names("ergo_py", "ergo_py.schedules", "MissedRuns Overlap"),
        *_names(
            "ergo_py",
            "ergo_py.state_machine",
            "EventTimeout MachineState NamedTimeout StateMethod StateTimeout state",
        ),
        *_names("ergo_py", "ergo_py.tasks", "Task TaskResult FailedItem MapStream"),
        *_names("ergo_py", "ergo_py.streams", "EventStream CalledStream PartStream"),
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
        *_members("ergo_py.web", "ergo_py.web", "Body", "STREAM WHOLE"),
        Moved("ergo_py.BRUTAL", __name__, "BRUTAL", "0.0"),
        Moved("ergo_py.INFINITE", "math", "inf", "from math import inf; inf"),
        *_dispatchers(),
        *_child_errors(),
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
