"""Clusters: names, singletons and groups of all nodes of a network.

``Cluster(node)`` registers and finds processes of any node by name, and has groups with members on
several nodes; `Singleton` runs a child on a single node at a time; `Spread` forwards messages to
the members of a group. Needs the extra ``ergo_py[network]``.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .names import Cluster
    from .singleton import Singleton
    from .spread import Spread

__all__ = [
    "Cluster",
    "Singleton",
    "Spread",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "names": "Cluster",
            "singleton": "Singleton",
            "spread": "Spread",
        },
    )
