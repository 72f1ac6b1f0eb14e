"""Worker nodes: further nodes in programs of their own, so that processes use all cores of a
machine; and `ProcessCalls`: functions in programs of their own. Needs the extra
``ergo_py[network]``.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .process_calls import Compute, ProcessCalls
    from .worker_node import worker_nodes

__all__ = [
    "Compute",
    "ProcessCalls",
    "worker_nodes",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "process_calls": "Compute ProcessCalls",
            "worker_node": "worker_nodes",
        },
    )
