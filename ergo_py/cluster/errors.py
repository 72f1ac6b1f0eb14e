"""The errors of clusters."""

from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.ids import PID, Name

__all__ = ["ClusterNameTakenError", "LeaseLostError", "NoMembersError"]


class ClusterNameTakenError(ErgoError):
    """A process of the cluster has this name already. Nothing was changed."""

    def __init__(self, name: str, holder: PID | Name | None, node: str, lease: float) -> None:
        super().__init__(
            f"the name {name!r} belongs to {holder or 'a process'} of node {node!r}; if that node "
            f"is gone, the name is free at most {lease:g} s after another node has noticed"
        )
        self.name = name
        self.holder = holder
        """The process that has it, if its node has told."""
        self.node = node


class LeaseLostError(ErgoError):
    """The lease of a singleton has expired: another node may run it by now."""


class NoMembersError(ErgoError):
    """The group of a `Spread` has no member that this node knows."""
