"""The single place where telemetry reaches behind the methods of a node."""

from typing import Any

from .._core.inspection.watchdog import Watchdog
from .._core.kernel import Kernel

__all__ = ["kernel_of", "times_blocked", "uptime_of", "watchdog_of"]


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
