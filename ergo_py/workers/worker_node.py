"""`WorkerNode`: a node in a program of its own, as a supervised child.

Each program has an interpreter, and a lock, of its own. So the processes of several worker nodes
use several processor cores at the same time.
"""

import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import trio

from .._core.runtime.dispatcher_threads import allowed_cpus
from .._core.vocabulary.dispatchers import check_cpu
from .._core.vocabulary.errors import BadInputError, ErgoError
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from ..actor import Actor
from ..meta.programs.messages import PortErrorLine, PortExited, PortLine
from ..meta.programs.options import StopTimes
from ..network.carriers.local import Local
from ..node import Node
from ..supervision.specs import Backoff, ChildSpec
from .references import reference_of
from .worker_port import WorkerPort, module_path

__all__ = ["WorkerFailedError", "WorkerNode", "core_count", "worker_nodes"]

Start = Callable[[Node], Awaitable[object]]

READY: Final = "ergo: the worker node is ready"
"""The line with which a worker program reports that its node is ready."""

_BACKOFF: Final = Backoff(0.1, 30.0)
_GRACE: Final = 10.0
"""Seconds that a worker node has to close in order after the end of this program."""
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical"})
_OWN: Final = frozenset({"timestamp", "level", "event", "node", "worker"})
"""Fields of a line that the log of this node writes itself."""
_LINES: Final = 20
"""How many of the last lines of a program an error shows."""


class WorkerFailedError(ErgoError):
    """The program of a worker node has ended by itself. ``lines`` are the last that it printed."""

    def __init__(self, node: str, ending: str, lines: Collection[str]) -> None:
        super().__init__(f"the program of node {node} has ended {ending}")
        self.node = node
        self.lines: tuple[str, ...] = tuple(lines)
        if lines:
            self.add_note("Its last lines:\n" + "\n".join(lines))


class _Progress:
    """What the program of a worker node has reached. The actor of its output writes it."""

    def __init__(self) -> None:
        self.changed = trio.Event()
        self.failure: WorkerFailedError | None = None

    def ready(self) -> None:
        """The node is ready."""
        self.changed.set()

    def ended(self, failure: WorkerFailedError) -> None:
        """The program has ended."""
        self.failure = failure
        self.changed.set()


class _Output(Actor):
    """Takes the lines of a worker program: they go to the log."""

    def __init__(self, node: str, progress: _Progress) -> None:
        self._node = node
        self._progress = progress
        self._lines: deque[str] = deque(maxlen=_LINES)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case PortLine(line=line) if line == READY:
                self._progress.ready()
            case PortLine(line=line) | PortErrorLine(line=line):
                self._lines.append(line)
                level = "info" if isinstance(message, PortLine) else "warning"
                level, event, fields = _read_log(line) or (level, line, {})
                getattr(self.log, level)(event, worker=self._node, **fields)
            case PortExited(status=status, signal=number):
                ending = f"with status {status}" if number is None else f"by signal {number}"
                failure = WorkerFailedError(self._node, ending, self._lines)
                self._progress.ended(failure)
                self.send(self.parent, failure)


def _read_log(line: str) -> tuple[str, str, dict[str, object]] | None:
    """Level, text and fields of a line that the log of a worker node has written; None if its
    program has printed the line.
    """
    try:
        record = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    match record:
        case {"timestamp": str(), "level": str(level), "event": str(event), **rest}:
            if level in _LEVELS:
                rest["process"] = rest.pop("pid", None)
                return level, event, {str(key): rest[key] for key in rest if key not in _OWN}
    return None


class WorkerNode(Actor):
    """Runs a node in a program of its own. ``init`` returns when that node is ready. The actor
    crashes with `WorkerFailedError` when the program ends, so that its supervisor starts another.

    The program opens the node, awaits ``start(node)``, and serves until this actor stops, or the
    program of this actor ends. It closes its node in order then, within 10 seconds; a program whose
    loop is stuck ends after that time, and on Linux after 29 seconds even if its code holds the
    lock of the interpreter. The lines that it prints and logs appear in the log of this node: log
    lines at their level, other lines at the level ``info``, and lines of its error output at the
    level ``warning``.
    """

    def __init__(
        self,
        name: str,
        start: Start,
        network: Local,
        control: str = "",
        cpu: int | None = None,
    ) -> None:
        """Describe the node.

        Args:
            name: the name of the node, such as ``"worker-1@here"``.
            start: an async function at the top of a module. It gets the new node.
            network: the network that the node joins; the same as that of this node.
            control: the permissions of its control socket, as of ``open_node``.
            cpu: the CPU that its loop is pinned to; None for any. If that is impossible, the node
                logs a warning and uses any CPU.
        """
        check_cpu("cpu", cpu)
        self._name = name
        self._start = start
        self._network = network
        self._control = control
        self._cpu = cpu

    async def init(self) -> None:
        """Start the program, and wait until its node is ready."""
        settings = {
            "name": self._name,
            "start": reference_of(self._start, "start"),
            "types": [reference_of(entry, "types") for entry in self._network.types],
            "network": self._network.settings,
            "control": self._control,
            "cpu": self._cpu,
            "grace": _GRACE,
            "path": module_path(),
        }
        progress = _Progress()
        output = await self.spawn(_Output, self._name, progress)
        port = WorkerPort(
            "ergo_py.workers",
            json.dumps(settings),
            stop=StopTimes(close=3.0),
            receiver=output,
        )
        await self.spawn_meta(port, stop_timeout=10.0)
        await progress.changed.wait()
        if progress.failure is not None:
            raise progress.failure

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        """Crash if the program has ended."""
        if isinstance(message, WorkerFailedError):
            raise message

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """Show the name of the node."""
        return {"node": self._name}


def core_count() -> int:
    """The number of cores that this program may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(allowed_cpus())
    return os.cpu_count() or 1


def worker_nodes(
    start: Start,
    network: Local,
    *,
    count: int | None = None,
    name: str = "worker",
    place: str = "here",
    backoff: Backoff = _BACKOFF,
    control: str = "",
    ready_timeout: float = 60.0,
    cpus: Sequence[int] | None = None,
) -> list[ChildSpec]:
    """Specs of ``count`` worker nodes, as children of a supervisor: ``name-1@place`` and so on.

    For example::

        network = Local(types=[messages])
        async with open_node("shop@here", network=network) as node:
            await node.supervise(worker_nodes(worker.start, network, count=4))
            total = await node.call(Name("stock", "worker-3@here"), Total())

    Args:
        start: an async function at the top of a module; each program awaits it with its node.
        network: the network of all these nodes.
        count: how many; None for the number of cores that this program may use.
        name: the first part of their names.
        place: the part after the ``@``.
        backoff: the delays before a program that has ended is started again.
        control: the permissions of their control sockets, as of ``open_node``.
        ready_timeout: seconds that a program may take until its node is ready.
        cpus: the CPUs that the loops of the nodes are pinned to, one for each node; None for any.

    Raises:
        BadInputError: a value is invalid, or another program could not import ``start``.
    """
    cpu_of_each = _cpu_of_each(count, cpus)
    if not isinstance(network, Local):
        raise BadInputError("network", network, "the Local(types=[…]) of this node")
    reference_of(start, "start")
    for entry in network.types:
        reference_of(entry, "types")
    return [
        ChildSpec(
            f"{name}-{number}",
            WorkerNode,
            f"{name}-{number}@{place}",
            start,
            network,
            control,
            cpu,
            backoff=backoff,
            shutdown=15.0,
            init_timeout=ready_timeout,
        )
        for number, cpu in enumerate(cpu_of_each, start=1)
    ]


def _cpu_of_each(count: int | None, cpus: Sequence[int] | None) -> Sequence[int | None]:
    if count is None:
        count = core_count() if cpus is None else len(cpus)
    check_number("count", count, least=1, whole=True)
    if cpus is None:
        return [None] * count
    for cpu in cpus:
        check_cpu("cpus", cpu)
        if hasattr(os, "sched_getaffinity") and cpu not in (allowed := allowed_cpus()):
            listed = ", ".join(map(str, sorted(allowed)))
            raise BadInputError("cpus", cpu, f"CPUs that this program may use: {listed}")
    if len(cpus) != count:
        raise BadInputError("cpus", cpus, f"a CPU for each of the {count} nodes")
    return cpus


show_public_names(__name__)
