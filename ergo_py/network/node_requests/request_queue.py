"""`RequestQueue`: the requests of another node that wait for a turn of the loop."""

from collections import deque
from typing import Final

from ..._core.vocabulary.errors import NotAllowedError
from ..protocol.operations import NodeRequest

__all__ = ["RequestQueue"]

_MOST: Final = 32 << 20
"""Most bytes of the requests of a node that wait: twice the largest, or 30,000 short requests."""
_EACH: Final = 1024
"""The bytes of a request beside its body, and more: the objects that hold it."""


class RequestQueue:
    """The requests of a single other node that wait, in their order. They wait as they came, not
    decoded and without tasks, so that their bytes bound the memory of all of them.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._requests: deque[NodeRequest] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._requests)

    def put(self, op: NodeRequest) -> None:
        """Let a request wait.

        Raises:
            NotAllowedError: too many bytes wait.
        """
        size = _EACH + len(op.body)
        if self._bytes + size > _MOST:
            raise NotAllowedError(
                f"the requests of {self._node!r} that wait for their turn here would have more "
                f"than {_MOST} bytes; ask later"
            )
        self._requests.append(op)
        self._bytes += size

    def take(self) -> NodeRequest:
        """Take the oldest request."""
        op = self._requests.popleft()
        self._bytes -= _EACH + len(op.body)
        return op

    def clear(self) -> None:
        """Forget all requests."""
        self._requests.clear()
        self._bytes = 0
