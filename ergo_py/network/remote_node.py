"""`RemoteNode`: another node of the network, as ``node.at("b@site")`` returns it."""

from dataclasses import dataclass

import trio

from .._core.kernel import Kernel
from .._core.runtime.bridge import get_ident
from .._core.verbs.common import check_timeout
from .._core.vocabulary.errors import NotAllowedError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.options import check_name
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason
from ..service import Service
from .network import Network
from .node_names import check_other_node
from .node_requests.verbs import RemoteVerbs
from .outgoing.look import Ping
from .outgoing.peer import Peer

__all__ = ["RemoteNode"]


@dataclass(frozen=True)
class WhereIs:
    """The request of :meth:`RemoteNode.whereis`, as errors show it."""

    name: str


class RemoteNode(RemoteVerbs):
    """Another node of the network: for everything that is about the node, and not about a process
    of it. Processes of it are reached by their addresses, such as ``Name("stock", "b@site")``.

    The handle connects when it asks the node for something, and survives the node's restarts.
    """

    def __init__(self, kernel: Kernel, network: Network, name: str) -> None:
        check_other_node(name, kernel.pid.node)
        self._kernel = kernel
        self._network = network
        self.name = name
        """The name of the node."""

    def __repr__(self) -> str:
        return f"<RemoteNode {self.name}>"

    @property
    def is_connected(self) -> bool:
        """Whether there is a session with the node now. From any thread."""
        return self._kernel.router.bridge.run(lambda: self.name in self._network.nodes())

    async def ping(self, *, timeout: float | None = 5.0) -> float:
        """Send a message to the node and back, behind everything that waits for it. Returns the
        seconds that it took.

        Raises:
            TargetDownError: there is no connection to the node, with the reason `NoNode`.
            CallTimeoutError: the node did not answer in time.
        """
        peer = self._peer("ping", timeout)
        began = trio.current_time()
        await peer.ask("ping", Ping(), None, timeout)
        return trio.current_time() - began

    async def whereis(self, name: str, *, timeout: float | None = 5.0) -> PID | None:
        """The PID of the process with this name there; None if there is none.

        Raises:
            TargetDownError: there is no connection to the node, with the reason `NoNode`.
            CallTimeoutError: the node did not answer in time.
        """
        peer = self._peer("whereis", timeout)
        found = await peer.ask("whereis", WhereIs(check_name(name)), name, timeout)
        return found if isinstance(found, PID) else None

    def service(self, name: str) -> Service:
        """The service of a supervised child there, which survives its restarts and those of the
        node. Whether there is such a child shows with the first message. From any thread; in an
        actor, ``self.service(name, node)`` sends in the name of the actor.
        """
        return self._network.service(name, self.name, None)

    async def wait_up(self, *, timeout: float | None = None) -> None:
        """Wait until the node can be reached. It may start later than this call.

        Raises:
            CallTimeoutError: the node was not reached within ``timeout`` seconds.
        """
        self._peer("wait_up", timeout)
        await self._network.wait_up(self.name, timeout)

    async def wait_down(self) -> Reason:
        """Wait until the node is lost, and return the reason, as a monitor of the node gets it.
        Returns at once if the node cannot be reached.
        """
        return await self._peer("wait_down", None).wait_down()

    def _peer(self, verb: str, timeout: float | None) -> Peer:
        check_timeout(timeout)
        router = self._kernel.router
        # First: a node that has stopped says so in every thread.
        if router.stopped:
            router.bridge.check_open()
        if get_ident() != router.loop_thread:
            raise NotAllowedError(
                f"{verb} of another node belongs on this node's own loop, and this is another "
                "thread; use send or call_from_thread, or "
                f"`ergo_py.blocking.handle(node).at({self.name!r}).{verb}(…)`"
            )
        return self._network.peer(self.name)


show_public_names(__name__)
