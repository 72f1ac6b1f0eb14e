"""`Addresses`: the processes of a node by their PIDs, names, aliases and keys."""

from itertools import islice
from typing import Final

from ..tables.directory import Directory
from ..tables.registry import Registry
from ..vocabulary.errors import ProcessUnknownError, TargetTypeError
from ..vocabulary.ids import PID, Alias, Key, Name, Target
from ..vocabulary.reasons import NoNode, NoProcess, Reason
from .receiver import AnyProcess, Receiver

__all__ = ["Addresses"]

_NAMES: Final = 1000
"""Most names that an unknown name is compared with."""


class Addresses:
    """Resolves addresses. A base class of the router, and not a part of it: every send reads
    ``processes``.
    """

    __slots__ = ("directory", "node", "processes", "registry")

    def __init__(self, node: str) -> None:
        self.node = node
        self.processes: dict[PID, AnyProcess] = {}
        """All processes of the node."""
        self.registry: Registry[Receiver] = Registry()
        self.directory = Directory()

    def resolve(self, to: Target) -> Receiver | None:
        """Find the receiver at an address; None if there is none.

        Raises:
            TargetTypeError: ``to`` is not an address.
        """
        if type(to) is PID:
            return self.processes.get(to)
        if isinstance(to, str):
            return self.registry.names.get(to)
        if isinstance(to, Alias):
            return self.registry.aliases.get(to)
        if isinstance(to, Name):
            return self.registry.names.get(to.name) if to.node in ("", self.node) else None
        if isinstance(to, Key):
            pid = self.directory.find(to) if to.node in ("", self.node) else None
            return None if pid is None else self.processes.get(pid)
        raise TargetTypeError(to)

    def unknown(self, to: Target, what: str = "process") -> ProcessUnknownError:
        """The error for an address without a process. It proposes a name that is nearly the
        same.
        """
        return ProcessUnknownError(to, what, self.names_beside(to))

    def names_beside(self, to: Target) -> tuple[str, ...]:
        """Names to compare a missing name with: a copy, since errors are kept, and not all, since a
        node may have very many.
        """
        if not isinstance(to, str) and (
            isinstance(to, PID | Alias) or to.node not in ("", self.node)
        ):
            return ()
        return tuple(islice(self.registry.names, _NAMES))

    def missing(self, to: Target) -> Reason:
        """The reason why there is no receiver at ``to``."""
        node = self.node if isinstance(to, str) else (to.node or self.node)
        return NoProcess() if node == self.node else NoNode(node)
