"""`kernel_of`: the single place where the control socket reaches behind the node's methods."""

from time import perf_counter
from typing import Any

from .._core.inspection.snapshots import meta_info, process_info
from .._core.kernel import Kernel
from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.vocabulary.info import ApplicationInfo, BlockedReport, MetaInfo, ProcessInfo

__all__ = [
    "age_of",
    "application_infos",
    "blockages_of",
    "info_of",
    "kernel_of",
    "watchdog_waits_since",
]


def kernel_of(node: Any) -> Kernel:
    """The kernel of a node."""
    kernel: Kernel = node._kernel
    return kernel


def watchdog_waits_since(node: Any) -> float | None:
    """Since when the node's watchdog waits for a heartbeat; None if it does not wait."""
    watchdog = node._watchdog
    return None if watchdog is None else watchdog.asked


def age_of(node: Any) -> float:
    """Seconds since the node opened. From any thread."""
    born: float = node._born
    return perf_counter() - born


def blockages_of(node: Any) -> tuple[int, BlockedReport | None]:
    """How often the loop was blocked, and the last report. From any thread."""
    return node._blocked, node._last_blocked


def application_infos(node: Any) -> list[ApplicationInfo]:
    """The loaded applications. From any thread; the loop may change the table meanwhile."""
    infos: list[ApplicationInfo] = node._applications.infos()
    return infos


def info_of(node: Any, found: Process | Meta, children: int | None) -> ProcessInfo | MetaInfo:
    """The snapshot of a process, with at most ``children`` of its supervised children. From any
    thread; the loop may change the tables meanwhile.
    """
    if isinstance(found, Meta):
        return meta_info(found)
    return process_info(found, node._expose_env, children)
