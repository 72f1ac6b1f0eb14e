"""`Health`: whether a node lives, is ready and has started, for the probes of an orchestrator. It
answers from any thread, also while the event loop is blocked.
"""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from .._core.inspection.census import list_living
from .._core.inspection.watchdog import look_at_loop
from .._core.kernel import Kernel
from .._core.messaging.requests import ask
from .._core.processes.process import Process
from .._core.runtime.bridge import Lock
from .._core.verbs.node_access import applications_of, check_node, kernel_of, watchdog_of
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import BadInputError, CallTimeoutError, NodeStoppedError
from .._core.vocabulary.ids import PID, Alias, Key, Name, Target
from .._core.vocabulary.info import Phase
from .._core.vocabulary.messages import Request
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_members, show_public_names

__all__ = ["Health", "HealthCheck"]

_PATIENCE: Final = 5.0
"""Seconds without a sign of life after which the loop counts as dead."""
_GLANCE: Final = 0.25
"""Seconds to wait for a sign of life before the answer."""
_DOWN: Final = 10.0
"""Seconds that a permanent child may be down before the node is not ready."""
_MAX_AGE: Final = 1.0
"""Seconds for which the answers of own checks serve again."""
_TARGETS: Final = (str, PID, Alias, Name, Key)
_SLICE: Final = 1000
"""Processes between two pauses of a thread that looks at all of them, so that the loop is not held
up by the lock of the interpreter.
"""


@dataclass(frozen=True, slots=True)
class HealthCheck(Request[object]):
    """Asks a process whether the part of the program that it stands for is healthy.

    The answer True means yes. A text says why not, and is shown to the probe; every other answer,
    a ``Reject``, a crash and no answer in time mean no::

        def handle_call(self, request: object, caller: Caller) -> object:
            match request:
                case Health.Check():
                    return True if self.connection.is_open else "no connection to the database"
    """


class Health:
    """Answers the probes of an orchestrator about a node.

    - ``/healthz``: 200 while the event loop gives a sign of life within 5 seconds; else 503 with
      the process that blocks it. It asks no process.
    - ``/readyz``: 200 if the node and its web servers are not stopping, every application runs, no
      permanent child has failed or has been down for longer than 10 seconds, the node has not left
      its network, and all own checks succeed; else 503 with the reasons.
    - ``/startupz``: 503 until the node is ready for the first time, then 200.

    For example::

        health = Health(node, checks={"database": "store"})
        Route("/readyz", to=HealthPage(health))

    Args:
        node: a node of this program.
        checks: names, and the addresses of processes that are asked ``Health.Check()``.
        check_timeout: seconds that a process has for its answer.

    Raises:
        BadInputError: the node is none, or a check is no address.
    """

    Check: TypeAlias = HealthCheck

    def __init__(
        self,
        node: Any,
        checks: Mapping[str, Target] | None = None,
        *,
        check_timeout: float = 2.0,
    ) -> None:
        self._node = check_node("Health(node)", node)
        self._kernel = kernel_of(self._node)
        self._loop_probe = _LoopProbe(self._node)
        if checks is not None and not isinstance(checks, Mapping):
            raise BadInputError("Health(checks)", checks, "a mapping, such as {'db': 'store'}")
        self._checks = dict(checks or {})
        for name, target in self._checks.items():
            if not isinstance(name, str) or not isinstance(target, _TARGETS):
                raise BadInputError(
                    f"Health(checks)[{name!r}]",
                    target,
                    "the address of a process: a name, a PID or an Alias",
                )
        check_number("Health(check_timeout)", check_timeout, least=0.001)
        self._check_timeout = check_timeout
        self._lock = Lock()
        self._failed_checks: list[str] = []
        self._checked_at: float | None = None

    def answer(self, path: str) -> tuple[int, bytes]:
        """The status and the JSON body of a probe. From any thread but the loop's, also while the
        loop is blocked.

        Args:
            path: ``/healthz``, ``/readyz`` or ``/startupz``, below any prefix.
        """
        match path.rpartition("/")[2]:
            case "healthz":
                return self._live()
            case "readyz":
                return self._ready()
            case "startupz":
                return self._started()
        return _answer(
            404, status="unknown", because=["there are /healthz, /readyz and /startupz here"]
        )

    # -- the probes --------------------------------------------------------------------------------

    def _live(self) -> tuple[int, bytes]:
        seconds = self._loop_probe.seconds_without_life()
        if seconds is None:
            return _answer(503, status="stopped")
        if seconds < _PATIENCE:
            return _answer(200, status="alive")
        report = look_at_loop(self._kernel.router.bridge, seconds)
        facts: dict[str, object] = {"seconds": round(seconds, 3)}
        if report is not None and report.process is not None:
            facts["by"] = {
                "process": str(report.process),
                "name": report.name,
                "behaviour": report.behaviour,
                "callback": report.callback,
                "message_type": report.message_type,
            }
        return _answer(503, status="blocked", **facts)

    def _ready(self) -> tuple[int, bytes]:
        because = self._why_not_ready()
        if because:
            return _answer(503, status="not ready", because=because)
        _started.add(self._kernel)
        return _answer(200, status="ready")

    def _started(self) -> tuple[int, bytes]:
        if self._kernel not in _started:
            status, body = self._ready()
            if status != 200:
                return status, body
        return _answer(200, status="started")

    def _why_not_ready(self) -> list[str]:
        kernel = self._kernel
        if self._node.stopping:
            return ["the node is stopping"]
        if kernel.draining:
            return ["the node is draining"]
        because = [
            f"the application {name!r} is {phase.value}"
            for name, phase in applications_of(self._node).phases().items()
            if phase is not Phase.RUNNING
        ]
        because += _draining_servers(kernel)
        because += _missing_children(kernel)
        if kernel.router.remote is not None and (why := kernel.router.remote.why_left):
            because.append(f"the node has left its network: {why}")
        seconds = self._loop_probe.seconds_without_life()
        if seconds is None:
            return ["the node has stopped"]
        if seconds >= _PATIENCE:
            # No process can answer.
            return [*because, f"the event loop is blocked for {seconds:.1f} s"]
        return because + self._ask_checks()

    # -- own checks --------------------------------------------------------------------------------

    def _ask_checks(self) -> list[str]:
        """Ask all processes at once, unless their last answers are young."""
        if not self._checks:
            return []
        with self._lock:
            now = perf_counter()
            if self._checked_at is None or now - self._checked_at > _MAX_AGE:
                asked = [(name, self._ask(to)) for name, to in self._checks.items()]
                end = now + self._check_timeout
                self._failed_checks = [
                    f"the check {name!r}: {text}"
                    for name, future in asked
                    if (text := self._verdict(future, end)) is not None
                ]
                self._checked_at = perf_counter()
            return list(self._failed_checks)

    def _ask(self, to: Target) -> "Future[Any] | str":
        kernel = self._kernel
        try:
            return ask(
                kernel.calls,
                kernel.router,
                kernel.pid,
                to,
                HealthCheck(),
                self._check_timeout,
                Priority.NORMAL,
            )
        except NodeStoppedError:
            return "the node has stopped"

    def _verdict(self, asked: "Future[Any] | str", end: float) -> str | None:
        """Why a check has failed; None if it has not. Nothing of an exception but its type is
        told, since its text may hold secrets.
        """
        if isinstance(asked, str):
            return asked
        try:
            value = asked.result(max(0.0, end - perf_counter()))
        except (FutureTimeoutError, CallTimeoutError):
            asked.cancel()
            return f"no answer within {self._check_timeout:g} s"
        except Exception as error:
            return type(error).__qualname__
        if value is True:
            return None
        return value if isinstance(value, str) else "the answer is not True"


_started: Final[WeakSet[Kernel]] = WeakSet()
"""The nodes that were ready once."""


class _LoopProbe:
    """Tells for how long the loop of a node has given no sign of life. It asks only on request."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._bridge = kernel_of(node).router.bridge
        self._asked: float | None = None

    def seconds_without_life(self) -> float | None:
        """0.0 if the loop answers soon; None if the node has stopped."""
        if self._bridge.on_loop():
            return 0.0
        began = perf_counter()
        if self._asked is None:
            self._asked = began
            try:
                self._bridge.post(self._answer)
            except NodeStoppedError:
                self._asked = None
                return None
        while (asked := self._asked) is not None:
            now = perf_counter()
            if now - began > _GLANCE:
                watchdog = watchdog_of(self._node)
                earlier = None if watchdog is None else watchdog.asked
                return now - (asked if earlier is None else min(asked, earlier))
            sleep(0.002)
        return 0.0

    def _answer(self) -> None:
        """Runs on the loop."""
        self._asked = None


def _draining_servers(kernel: Kernel) -> list[str]:
    return [
        f"the {meta.callbacks.behaviour} is draining"
        for meta in list_living(kernel).metas
        if getattr(meta.behaviour, "is_draining", False) is True
    ]


def _missing_children(kernel: Kernel) -> list[str]:
    missing: list[str] = []
    for number, process in enumerate(list_living(kernel).processes, 1):
        if process.slots is not None:
            missing += _missing_below(process)
        if not number % _SLICE and not kernel.router.bridge.on_loop():
            sleep(0.001)
    return missing


def _missing_below(supervisor: Process) -> list[str]:
    behaviour = supervisor.behaviour_itself
    if behaviour is None:  # it has just ended
        return []
    above = supervisor.name or supervisor.callbacks.behaviour
    return [
        f"the child {name!r} of {above} is {phase.value}"
        for name, phase in behaviour.missing_children(_DOWN).items()
    ]


def _answer(code: int, /, **facts: object) -> tuple[int, bytes]:
    return code, json.dumps(facts, ensure_ascii=False).encode()


show_public_names(__name__)
show_members(Health)
