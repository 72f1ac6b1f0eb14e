"""`lost_messages`: the messages among the operations that a node has not confirmed."""

from collections.abc import Callable, Iterator
from typing import Any

from ..._core.vocabulary.ids import PID, Alias
from .operations import (
    ConfirmedSend,
    Part,
    Send,
    decode_operation,
    decode_route,
    receiver_of,
    sender_of,
)

__all__ = ["Unreadable", "lost_messages"]


class Unreadable:
    """Stands for a message that this node cannot read, in the list of dead letters."""

    def __init__(self, why: str) -> None:
        self.why = why


def lost_messages(
    lost: list[bytes],
    node: str,
    type_of: Callable[[bytes], type | None],
    decode: Callable[[bytes], object],
) -> Iterator[tuple[PID | Alias, Any, type] | None]:
    """Sender, receiver and type of each operation to ``node`` that is a message; None for each
    other operation, so that the caller can pause.
    """
    for route, kind in _routes(lost, type_of):
        if route is None:
            yield None
        else:
            found = decode_route(route)
            yield sender_of(found.sender), receiver_of(found.to, node, decode), kind


def _routes(
    lost: list[bytes], type_of: Callable[[bytes], type | None]
) -> Iterator[tuple[bytes | None, type]]:
    parts: list[memoryview] = []
    for data in lost:
        op = decode_operation(data)
        if isinstance(op, Part):
            parts.append(op.data)
            if not op.is_last:
                yield None, Unreadable
                continue
            whole, has_first = b"".join(parts), op.number + 1 == len(parts)
            parts.clear()
            if not has_first:  # the other node has got its beginning
                # Only the parts of a message have its route: the caller of a long request is told
                # by its call, and no process looks for a lost answer.
                yield op.route or None, Unreadable
                continue
            op = decode_operation(whole)
        if isinstance(op, Send | ConfirmedSend):
            yield op.route, type_of(op.body) or Unreadable
        else:
            yield None, Unreadable
