"""`Local`: a network of the nodes of one user on one machine, over Unix sockets.

Each node listens at a file in a directory that only its user may enter. A node connects to another
with its first frame and sends on that connection; frames of the other arrive on a connection that
the other has made. The operating system vouches for the user at the other end.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from ..._core.kernel import Kernel
from ..._core.vocabulary.options import Rereadable
from ..._core.vocabulary.public_names import show_public_names
from ..access.permits import Allow
from ..access.spawns import SpawnList
from ..network import Network
from ..settings import NetworkSettings
from .local_carrier import LocalCarrier

__all__ = ["Local"]


class Local:
    """The network of all nodes of this user on this machine.

    For example::

        async with open_node("shop@here", network=Local(types=[messages])) as node:
            total = await node.call(Name("counter", "stock@here"), Total())

    It opens no port. Nothing is encrypted, since nothing leaves the machine.

    Args:
        types: the classes of messages that travel, or modules that define them.
        directory: where the nodes of this network meet; None for a directory of the user.
            Nobody else may enter it.
        beat: seconds between the heartbeats of an idle session.
        patience: a node that is silent for this many seconds is down. A program that ends is
            noticed at once.
        backlog: bytes that may wait for a node before ``send`` refuses.
        window: bytes that may be on the way to a node.
        spawns: the behaviours that other nodes may start here, by name, as in
            ``spawns={"worker": Worker}``. A node needs the permit ``spawn`` as well.
        allow: the acts that other nodes are permitted, by patterns of their names; the name
            itself counts first, then the longest pattern that fits. The permits are ``send``,
            ``call``, ``watch``, ``exit``, ``forward``, which all nodes have by ``default``, and
            ``look``, ``kill``, ``spawn``, as in ``allow={"ops@*": "default,look"}``; or
            a function that returns this, which ``node.reload()`` calls again.
        max_calls: calls between two nodes, in each direction, that may wait for an answer.
        max_watches: processes, names and events of a node that another node may watch.
        compress: compress frames from 1 KiB on to other nodes that ask for this, too, if they
            become smaller. It costs time of the loop, and saves bytes of a slow line.

    Raises:
        BadInputError: a value is invalid.
    """

    def __init__(
        self,
        *,
        types: Iterable[type | ModuleType] = (),
        directory: str | os.PathLike[str] | None = None,
        beat: float = 1.0,
        patience: float = 5.0,
        backlog: int = 16 << 20,
        window: int = 1 << 20,
        spawns: SpawnList | None = None,
        allow: Rereadable[Allow] | None = None,
        max_calls: int = 100_000,
        max_watches: int = 100_000,
        compress: bool = False,
    ) -> None:
        self.types: tuple[type | ModuleType, ...] = (
            tuple(types) if isinstance(types, Iterable) else types
        )
        """The listed types."""
        self._settings = NetworkSettings(
            *(self.types, beat, patience, backlog, window, spawns, allow, max_calls, max_watches),
            compress=compress,
        )
        self._directory = None if directory is None else Path(directory)
        self.hooks: tuple[()] = ()
        """Messages between processes of a node are never encoded."""
        self.settings: dict[str, str | float | int | bool | None] = {
            "directory": None if directory is None else os.fspath(self._directory or ""),
            "beat": beat,
            "patience": patience,
            "backlog": backlog,
            "window": window,
            "max_calls": max_calls,
            "max_watches": max_watches,
            "compress": compress,
        }
        """The other arguments, as another program takes them."""

    def join_network(self, kernel: Kernel) -> Network:
        """Make the network of a node that opens."""
        return self._settings.make(kernel, LocalCarrier(kernel, self._directory))


show_public_names(__name__)
