"""`RemoteNodes`: the interface of a network that the kernel uses, and the router of a node with a
network.

Another node is a receiver with a mailbox. So a message or a call to it takes the same way as any
other, with the same backpressure.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from ..runtime.bridge import get_ident
from ..tables.pending_calls import Caller
from ..tables.relations import Watched
from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import PID, Alias, ServiceName, Target
from ..vocabulary.messages import Published
from ..vocabulary.reasons import Reason
from .observer import ObservedRouter
from .receiver import Receiver
from .router import Router, check_priority

__all__ = [
    "Network",
    "NetworkRouter",
    "ObservedNetworkRouter",
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
    def is_strict(self) -> bool:
        """Whether messages between processes of a node are encoded, too."""
        ...

    def join_network(self, kernel: Any, /) -> RunningNetwork:
        """Make the network of a node that opens."""
        ...


class RemoteReceiver(Receiver, Protocol):
    """Another node, as the receiver of all messages to its processes."""

    def pack(self, to: Target, message: object) -> object:
        """Encode a message in the turn, and in the thread, of its sender.

        Raises:
            MessageTypeError: the message cannot travel.
        """
        ...

    def send(self, sender: PID | Alias, to: Target, message: object, priority: Priority) -> bool:
        """Send a message, on the loop."""
        ...

    def send_traced(
        self, sender: PID | Alias, to: Target, message: object, priority: Priority, context: Any, /
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

    def service(self, name: str, node: str, process: Any, /) -> Any:
        """The service of a child on another node, for the messages and calls of a process."""
        ...

    def service_receiver(self, address: ServiceName, /) -> Receiver:
        """Takes messages and calls of other nodes to the service of a child of this node."""
        ...

    def copied(self, to: object, message: object) -> object:
        """The message as another node would get it.

        Raises:
            MessageTypeError: the message cannot travel.
        """
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
        self, subscriber: PID, publication: Published, producer: PID, context: Any, /
    ) -> bool:
        """Send a publication to a subscribed node, with the context of its trace. False if it was
        dropped.
        """
        ...


class _RemoteAddresses:
    """Resolves addresses of other nodes. A mixin for routers."""

    __slots__ = ()

    def resolve(self: Any, to: Target) -> Receiver | None:
        remote: Any = self.remote
        if type(to) is PID and to.node != self.node and remote is not None:
            known: Receiver | None = remote.peers.get(to.node)
            if known is not None and not self.stopped:
                return known
        if isinstance(to, ServiceName):
            return _service(self, to)
        router: Any = super()
        found: Receiver | None = router.resolve(to)
        if (
            found is None
            and not self.stopped
            and not isinstance(to, str)
            and to.node not in ("", self.node)
        ):
            peer: Receiver = self.remote.peer(to.node)
            return peer
        return found

    def _send(
        self: Any, sender: PID | Alias, to: Target, message: object, priority: Priority
    ) -> bool:
        # Straight to another node: most messages that come here go there.
        if type(to) is PID and get_ident() == self.loop_thread and not self.stopped:
            peer: Any = None if self.remote is None else self.remote.peers.get(to.node)
            if peer is not None:
                if type(priority) is not Priority:
                    check_priority(priority)
                handed_over: bool = peer.send(sender, to, message, priority)
                return handed_over
        router: Any = super()
        taken: bool = router._send(sender, to, message, priority)
        return taken

    async def send_wait(
        self: Any,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        timeout: float | None,
    ) -> bool:
        receiver: Any = self.resolve(to)
        if receiver is not None and receiver.is_remote:
            self.note(sender, to, message)
            taken: bool = await receiver.send_wait(sender, to, message, priority, timeout)
            return taken
        router: Any = super()
        return bool(await router.send_wait(sender, to, message, priority, timeout))

    def _send_from_thread(
        self: Any,
        sender: PID | Alias,
        to: Target,
        message: object,
        priority: Priority,
        receiver: Any,
    ) -> bool:
        if receiver is not None and receiver.is_remote:
            message = receiver.pack(to, message)
        router: Any = super()
        taken: bool = router._send_from_thread(sender, to, message, priority, receiver)
        return taken


def _service(router: Any, to: ServiceName) -> Receiver | None:
    """The receiver for a service: another node, or the service of a child of this node."""
    if router.stopped or router.remote is None:
        return None
    found: Receiver = (
        router.remote.service_receiver(to)
        if to.node == router.node
        else router.remote.peer(to.node)
    )
    return found


class NetworkRouter(_RemoteAddresses, Router):
    """The router of a node with a network."""

    __slots__ = ()


class ObservedNetworkRouter(_RemoteAddresses, ObservedRouter):
    """The router of an observed node with a network."""

    __slots__ = ()
