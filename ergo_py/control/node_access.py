"""`kernel_of`: the single place where the control socket reaches behind the node's methods."""

from typing import Any

from .._core.kernel import Kernel

__all__ = ["kernel_of", "watchdog_waits_since"]


def kernel_of(node: Any) -> Kernel:
    """The kernel of a node."""
    kernel: Kernel = node._kernel
    return kernel


def watchdog_waits_since(node: Any) -> float | None:
    """Since when the node's watchdog waits for a heartbeat; None if it does not wait."""
    watchdog = node._watchdog
    return None if watchdog is None else watchdog.asked
