"""The single place where control sockets, metrics and probes reach behind the methods of a node.
All of it is for any thread: the loop may be blocked.
"""

from time import perf_counter
from typing import Any, Protocol, cast

from ..inspection.snapshots import meta_info, node_info, process_info
from ..inspection.watchdog import Watchdog
from ..kernel import Kernel
from ..metas.meta import Meta
from ..processes.process import Process
from ..vocabulary.errors import BadInputError
from ..vocabulary.info import ApplicationInfo, MetaInfo, NodeInfo, Phase, ProcessInfo
from .node import Node

__all__ = [
    "applications_of",
    "check_node",
    "figures_of",
    "info_of",
    "kernel_of",
    "watchdog_of",
]


class _Applications(Protocol):
    def infos(self) -> list[ApplicationInfo]: ...
    def phases(self) -> dict[str, Phase]: ...


def kernel_of(node: Node) -> Kernel:
    """The kernel of a node."""
    return node._kernel


def watchdog_of(node: Node) -> Watchdog | None:
    """The thread that watches the loop of a node, if there is one."""
    return node._watchdog


def figures_of(node: Node, metas: int, calls: int) -> NodeInfo:
    """The figures of a node as a whole, with the numbers of meta-processes and of waiting calls
    that a census has found.
    """
    return node_info(
        node._kernel,
        perf_counter() - node._born,
        node._blocked,
        node._last_blocked,
        node._expose_env,
        metas,
        calls,
    )


def applications_of(node: Node) -> _Applications:
    """The loaded applications. The loop may change the table while a thread reads it."""
    return cast(_Applications, cast(Any, node)._applications)


def info_of(node: Node, found: Process | Meta, children: int | None) -> ProcessInfo | MetaInfo:
    """The snapshot of a process, with at most ``children`` of its supervised children. The loop may
    change the tables meanwhile.
    """
    if isinstance(found, Meta):
        return meta_info(found)
    return process_info(found, node._expose_env, children)


def check_node(name: str, node: object) -> Node:
    """The node itself, also behind the node of `ergo_py.blocking` and `ergo_py.aio`.

    Raises:
        BadInputError: the value is no open node.
    """
    found = getattr(node, "_subject", node)
    if not isinstance(found, Node):
        raise BadInputError(name, node, "an open node, as `with open_node(…) as node` has it")
    return found
