"""`Limits`: how many open calls and watches a node keeps for each other node, and the largest
values that travel.
"""

from collections.abc import Callable
from typing import Final

from ..._core.vocabulary.errors import CallError
from ..._core.vocabulary.options import check_number
from ..errors import TooManyCallsError

__all__ = [
    "ADDRESS",
    "ANSWERS",
    "LARGEST",
    "LARGEST_ANSWER",
    "TOO_MANY_CALLS",
    "TOO_MANY_WATCHES",
    "Budget",
    "Limits",
    "too_large",
]

# 4 KiB of the 16 MiB are left for the longest route of an operation.
LARGEST: Final = (16 << 20) - 4096
"""Most bytes of a message, a request, an answer or a publication, in each kind of network."""
# Not measured: a node may ask for sixteen of the largest answers at once.
ANSWERS: Final = 16 * LARGEST
"""Bytes of answers that may wait for a node, beside its backlog. A node that asks for more, and
takes none of them, loses its session.
"""
LARGEST_ANSWER: Final = 16 << 20
"""Most bytes of the answer to a request to a node itself, which travels in chunks."""
ADDRESS: Final = 2048
"""Most bytes of a name or a key in an address."""
TOO_MANY_CALLS = "too many calls"
TOO_MANY_WATCHES = "too many watches"
"""Causes of a refusal, in the accounts."""


class Budget:
    """Counts something that another node may use up: so much at once, and as much in a second."""

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._rate = rate
        self._now = now
        self._left = rate
        self._counted_at = now()

    def take(self, cost: float = 1.0) -> bool:
        """Use a part of it. False if too little is left."""
        now = self._now()
        # At most the budget of a second: a node that was silent for an hour must not do the work of
        # that hour in a single step.
        self._left = min(self._rate, self._left + (now - self._counted_at) * self._rate)
        self._counted_at = now
        if self._left < cost:
            return False
        self._left -= cost
        return True


class Limits:
    """The limits of a node. They count in both directions: for calls and watches of another node
    here, and for calls and watches of this node there.
    """

    def __init__(self, max_calls: int, max_watches: int) -> None:
        check_number("max_calls", max_calls, least=1, whole=True)
        check_number("max_watches", max_watches, least=1, whole=True)
        self.calls = max_calls
        self.watches = max_watches

    def call_error(
        self, keeper: str, asker: str, callee: str, to: object = None, request: object = None
    ) -> CallError:
        """The error of a call of the node ``asker`` that the node ``keeper`` refuses."""
        return TooManyCallsError(
            f"{self.calls} calls of {asker!r} to {callee!r} wait for an answer, which is the limit "
            f"of {keeper!r}; call again when some are answered, or open the network of {keeper!r} "
            "with a larger max_calls=",
            self.calls,
            to,
            request,
        )

    def watch_text(self, keeper: str, asker: str, target: str) -> str:
        """Says why the node ``keeper`` refuses a watch of the node ``asker``."""
        return (
            f"{asker!r} watches {self.watches} processes, names and events of {target!r}, which is "
            f"the limit of {keeper!r}; end watches that are no longer needed, or open the network "
            f"of {keeper!r} with a larger max_watches="
        )


def too_large(what: str, body: bytes, to: object) -> str:
    """Says that a value is too large to travel."""
    return (
        f"{what} of {len(body)} bytes is too large for {to!r}; allowed are {LARGEST} bytes: send "
        "it in parts"
    )
