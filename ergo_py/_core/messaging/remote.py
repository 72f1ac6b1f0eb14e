"""`RemoteNodes`: the interface of a network that the kernel uses.

Another node is a receiver with a mailbox. So a message or a call to it takes the same way as any
other, with the same backpressure.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from ..tables.pending_calls import Caller
from ..tables.relations import Watched
from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import PID, Alias, ServiceName, Target
from ..vocabulary.messages import Published
from ..vocabulary.reasons import Reason
from .hooks import Hook
from .receiver import Receiver

__all__ = [
    "Network",
    "RemoteNodes",
    "RemoteReceiver",
    "RunningNetwork",
]


class RunningNetwork(Protocol):
    """The network of a running node."""

    async def open(self) -> None:
        """Join the network; raise if that fails."""

    async def close(self, seconds: float) -> None:
        """Send what is queued, for at most ``seconds``, and leave the network."""


class Network(Protocol):
    """The description of a network, as ``open_node(network=…)`` takes it."""

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks of a node that joins it."""
        ...

    def join_network(self, kernel: Any, /) -> RunningNetwork:
        """Make the network of a node that opens."""
        ...


class RemoteReceiver(Receiver, Protocol):
    """Another node, as the receiver of all messages to its processes."""

    def pack(self, to: Target, message: object) -> object:
        """Encode a message in the turn, and in the thread, of its sender.

        Raises:
            MessageError: of kind ``"type"``; the message cannot travel.
        """
        ...

    def send(self, sender: PID | Alias, to: Target, message: object, priority: Priority) -> bool:
        """Send a message, on the loop."""
        ...

    def send_traced(
        self,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        context: object,
        /,
    ) -> bool:
        """Send a message with the context of its trace, on the loop."""
        ...

    def take_call(self, caller: Caller, priority: Priority) -> bool:
        """Send a call, on the loop. False if it has to wait for room."""
        ...

    async def send_wait(
        self,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        timeout: float | None,
    ) -> bool:
        """Send a message, and wait until the receiver's mailbox has taken it."""
        ...

    def send_exit(self, sender: PID, to: Target, reason: Reason) -> None:
        """Ask a process there to end."""

    def send_kill(self, to: Target) -> None:
        """Kill a process there."""

    @property
    def node(self) -> str:
        """The name of the node."""
        ...

    async def inspect(
        self, verb: str, to: Target, items: tuple[str, ...], timeout: float
    ) -> dict[str, str]:
        """Call ``handle_inspect`` of a process or meta-process there."""
        ...

    async def wait_ended(self, to: Target) -> Reason:
        """Wait until a process or meta-process there has ended."""
        ...


class RemoteNodes(Protocol):
    """The other nodes of a network."""

    @property
    def peers(self) -> Mapping[str, RemoteReceiver]:
        """The nodes that are known by now, by their names."""
        ...

    @property
    def why_left(self) -> str:
        """Why this node has left its network; empty while it is a member. From any thread."""
        ...

    def nodes(self) -> list[str]:
        """The names of the connected nodes."""
        ...

    async def discover(self, seconds: float) -> list[str]:
        """The names of all nodes of the network that can be reached."""
        ...

    def suspect(self, waiting: object) -> None:
        """Search for a ring of calls over several nodes, in a while: a process here calls a process
        that waits. ``waiting`` is the call, or the calling process.
        """

    def peer(self, node: str) -> RemoteReceiver:
        """The other node of this name. It is connected on first use."""
        ...

    def service(self, name: str, node: str, process: object, /) -> Any:
        """The service of a child on another node, for the messages and calls of a process."""
        ...

    def service_receiver(self, address: ServiceName, /) -> Receiver:
        """Takes messages and calls of other nodes to the service of a child of this node."""
        ...

    def watch(self, target: Watched, watcher: PID) -> None:
        """Tell the kernel when the target ends: a process here has linked to it or monitors it.
        A watched event also sends its publications.
        """

    def unwatch(self, target: Watched) -> None:
        """End the watch: no process here watches the target any more."""

    def tell(self, watcher: PID, target: object, reason: Reason) -> None:
        """Tell another node that a process it watches here has ended."""

    def publish(
        self, subscriber: PID, publication: Published, producer: PID, context: object, /
    ) -> bool:
        """Send a publication to a subscribed node, with the context of its trace. False if it was
        dropped.
        """
        ...
