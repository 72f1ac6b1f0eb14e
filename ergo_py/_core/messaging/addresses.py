"""`Addresses`: the processes of a node by their PIDs, names, aliases and keys, and other nodes."""

from itertools import islice
from typing import Final, TypeVar

from ..open_nodes import open_nodes
from ..tables.directory import Directory
from ..tables.registry import Registry
from ..vocabulary.errors import ProcessUnknownError, TargetTypeError
from ..vocabulary.ids import PID, Alias, Key, Name, ServiceName, Target
from ..vocabulary.reasons import NoNode, NoProcess, Reason
from .receiver import AnyProcess, Receiver
from .remote import RemoteNodes

__all__ = ["Addresses"]

E = TypeVar("E", bound=Exception)

# A program that uses names as keys misses names all the time: the comparison with all of them took
# milliseconds for each.
_NAMES: Final = 1000
"""Most names that an unknown name is compared with."""


class Addresses:
    """Resolves addresses. A base class of the router, and not a part of it: every send reads
    ``processes``.
    """

    __slots__ = ("creation", "directory", "node", "processes", "registry", "remote", "stopped")

    def __init__(self, node: str, creation: int) -> None:
        self.node: str = node
        self.creation: int = creation
        self.processes: dict[PID, AnyProcess] = {}
        """All processes of the node."""
        self.registry: Registry[Receiver] = Registry()
        self.directory: Directory = Directory()
        self.remote: RemoteNodes | None = None
        """The other nodes of the network; None for a node without a network."""
        self.stopped: bool = False
        """Whether the node is down: it resolves no address of another node."""

    def join_network(self, remote: RemoteNodes) -> None:
        """Resolve addresses of other nodes from now on."""
        self.remote = remote

    def resolve(self, to: Target) -> Receiver | None:
        """Find the receiver at an address: a process or meta-process of this node, or the other
        node that the address names. None if there is none.

        Raises:
            TargetTypeError: ``to`` is not an address.
        """
        found: Receiver | None = None
        # The most frequent address first, and by its type: isinstance() would be a part of the cost
        # of each lookup.
        if type(to) is PID:
            found = self.processes.get(to)
        elif isinstance(to, str):
            return self.registry.names.get(to)
        elif isinstance(to, Alias):
            found = self.registry.aliases.get(to)
        elif isinstance(to, Name):
            if to.node in ("", self.node):
                return self.registry.names.get(to.name)
        elif isinstance(to, Key):
            if to.node in ("", self.node):
                pid = self.directory.find(to)
                return None if pid is None else self.processes.get(pid)
        # The address of a service comes from other nodes only. Without a network it is as wrong as
        # any other object.
        elif self.remote is None or not isinstance(to, ServiceName):
            raise TargetTypeError(to)
        if found is not None or self.remote is None or self.stopped:
            return found
        return self._resolve_elsewhere(self.remote, to)

    def _resolve_elsewhere(
        self, remote: RemoteNodes, to: PID | Alias | Name | Key | ServiceName
    ) -> Receiver | None:
        if to.node not in ("", self.node):
            return remote.peer(to.node)
        return remote.service_receiver(to) if isinstance(to, ServiceName) else None

    def unknown(self, to: Target, what: str = "process") -> ProcessUnknownError:
        """The error for an address without a process. It proposes a name that is nearly the
        same.
        """
        return self.explained(ProcessUnknownError(to, what, self.names_beside(to)), to)

    def explained(self, error: E, to: Target) -> E:
        """Add the advice about an address to its error."""
        advice = self.advice(to)
        if advice:
            error.add_note(f"hint: {advice}")
        return error

    def advice(self, to: object) -> str:
        """What to write if ``to`` is of another open node of this program with the same name;
        empty if it is not.
        """
        return open_nodes.advice(to, self.node, self.creation)

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
