"""The errors of nodes that talk to one another."""

from typing import ClassVar, Literal

from .._core.vocabulary.errors import (
    CallError,
    ErgoError,
    LimitError,
    MailboxFullError,
    SendError,
)
from .._core.vocabulary.errors.base import Kinds
from .._core.vocabulary.public_names import show_public_names

__all__ = [
    "MessageError",
    "MessageTooLargeError",
    "MessageTypeError",
    "NetworkError",
    "NodeBusyError",
    "NodeNameTakenError",
    "NotPermittedError",
    "RemoteError",
    "StoreError",
    "TooManyCallsError",
    "UnreadableError",
]


class RemoteError(Exception):
    """An exception of another node whose class this node does not know."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        """The name of its class."""
        self.text = text


class NetworkError(ErgoError, OSError):
    """The network of a node cannot be opened. Nothing was started."""


class NodeNameTakenError(NetworkError):
    """A running node has this name already."""


class StoreError(ErgoError, OSError):
    """The store of names in a cluster cannot be reached, or refuses. A write may have been carried
    out nevertheless.
    """


class MessageError(Kinds, SendError):
    """A message cannot travel to another node. Nothing was sent.

    ``kind`` says why: a type in it cannot travel or is not listed (``"type"``, which is also a
    :class:`TypeError`), or it is larger than the carrier takes (``"too large"``).
    """

    kind: ClassVar[Literal["type", "too large"]]


class MessageTypeError(MessageError, TypeError):
    """A message cannot travel to another node. Nothing was sent."""

    kind = "type"


class MessageTooLargeError(MessageError):
    """A message is larger than the carrier takes. Nothing was sent."""

    kind = "too large"


class NodeBusyError(MailboxFullError):
    """Too many bytes wait for another node, and nothing was sent; or ``send_wait`` got no answer in
    its ``timeout``, and the message may still arrive.
    """

    def __init__(
        self,
        target: object,
        message: object,
        node: str,
        limit: int,
        timeout: float | None = None,
    ) -> None:
        # Not the constructor of the base class: its text names a mailbox and its options, and here
        # the backlog of the network is full.
        SendError.__init__(
            self,
            f"{limit} bytes wait for the node {node!r}, which is its backlog; send later, use "
            "`await send_wait(...)`, or open the network with a larger backlog="
            if timeout is None
            else f"no mailbox on {node!r} has taken the message to {target!r} within {timeout:g} "
            "s; it may still arrive: wait longer, or send less often",
            target,
            message,
        )
        self.limit = limit


class UnreadableError(CallError):
    """The other node, or this node, does not know a type in the request or in the answer."""


class TooManyCallsError(LimitError, CallError):
    """Too many calls between two nodes wait for an answer; see ``max_calls=`` of the network. The
    request was not handled.
    """

    kind = "calls"

    def __init__(self, text: str, limit: int, target: object, request: object) -> None:
        super().__init__(text, target, request)
        self.limit = limit


class NotPermittedError(CallError, PermissionError):
    """The other node does not permit this act to this node; see ``allow=`` of its network."""


show_public_names(__name__)
