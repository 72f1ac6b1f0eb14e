"""Networks of nodes: messages, calls, links, monitors and events between nodes.

``open_node("a@shop", network=Local(types=[messages]))`` joins the network of this user on this
machine; ``network=NATS("nats://host", …)`` joins a network of any machines. Needs the extra
``ergo_py[network]``, and for credentials of NATS ``ergo_py[nats]``.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .carriers.local import Local
    from .carriers.memory import Memory
    from .carriers.nats.nats_network import NATS
    from .errors import (
        MessageError,
        NetworkError,
        NodeNameTakenError,
        NotPermittedError,
        RemoteError,
        StoreError,
        UnreadableError,
    )

__all__ = [
    "NATS",
    "Local",
    "Memory",
    "MessageError",
    "NetworkError",
    "NodeNameTakenError",
    "NotPermittedError",
    "RemoteError",
    "StoreError",
    "UnreadableError",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "errors": (
                "MessageError NetworkError NodeNameTakenError NotPermittedError RemoteError "
                "StoreError UnreadableError"
            ),
            "carriers.local": "Local",
            "carriers.memory": "Memory",
            "carriers.nats.nats_network": "NATS",
        },
    )
