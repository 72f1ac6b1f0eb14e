"""The network of a node, for the parts of a cluster."""

from .._core.kernel import Kernel
from .._core.vocabulary.errors import NotAllowedError
from ..network.network import Network

__all__ = ["network_of"]


def network_of(kernel: Kernel) -> Network:
    """The network of a node.

    Raises:
        NotAllowedError: it has none.
    """
    network: object = kernel.router.remote
    if not isinstance(network, Network):
        raise NotAllowedError(
            f"the node {kernel.pid.node!r} has no network, and a cluster needs one; open it with "
            "`open_node(…, network=Local(types=[…]))`"
        )
    return network
