"""The single place where telemetry reaches behind the methods of a node."""

from typing import Any

from .._core.inspection.watchdog import Watchdog
from .._core.kernel import Kernel
from .._core.verbs.node import Node
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.info import Phase

__all__ = [
    "application_phases",
    "check_node",
    "kernel_of",
    "times_blocked",
    "uptime_of",
    "watchdog_of",
]


def kernel_of(node: Any) -> Kernel:
    """The kernel of a node."""
    kernel: Kernel = node._kernel
    return kernel


def watchdog_of(node: Any) -> Watchdog | None:
    """The thread that watches the loop of a node, if there is one."""
    watchdog: Watchdog | None = node._watchdog
    return watchdog


def times_blocked(node: Any) -> int:
    """How often the watchdog has found the loop blocked."""
    return int(node._blocked)


def uptime_of(node: Any, now: float) -> float:
    """Seconds since the node was opened; ``now`` as ``perf_counter`` counts."""
    return now - float(node._born)


def application_phases(node: Any) -> dict[str, Phase]:
    """The phases of the loaded applications, by name. From any thread."""
    phases: dict[str, Phase] = node._applications.phases()
    return phases


def check_node(name: str, node: Any) -> Any:
    """The node itself, also behind the node of `ergo_py.blocking` and `ergo_py.aio`.

    Raises:
        BadInputError: the value is no open node.
    """
    found = getattr(node, "_node", node)
    if not isinstance(found, Node):
        raise BadInputError(name, node, "an open node, as `with open_node(…) as node` has it")
    return found
