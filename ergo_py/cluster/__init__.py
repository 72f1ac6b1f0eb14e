"""Clusters: names, singletons and groups of all nodes of a network.

``Cluster(node)`` registers and finds processes of any node by name, and has groups with members on
several nodes; `Singleton` runs a child on a single node at a time; `Spread` forwards messages to
the members of a group. Needs the extra ``ergo_py[network]``.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .errors import ClusterNameTakenError, LeaseLostError, NoMembersError
    from .names import Cluster
    from .singleton import Singleton, lease_of
    from .spread import Spread

__all__ = [
    "Cluster",
    "ClusterNameTakenError",
    "LeaseLostError",
    "NoMembersError",
    "Singleton",
    "Spread",
    "lease_of",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "errors": "ClusterNameTakenError LeaseLostError NoMembersError",
            "names": "Cluster",
            "singleton": "Singleton lease_of",
            "spread": "Spread",
        },
    )
