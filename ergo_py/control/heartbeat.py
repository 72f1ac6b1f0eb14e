"""Whether the loop moves: asked for a sign of life by a thread, which looks at the loop's stack if
none comes.
"""

from time import perf_counter
from typing import Any

from .._core.inspection.watchdog import look_at_loop
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.info import BlockedReport

__all__ = ["Heartbeat"]


class Heartbeat:
    """Asks only while somebody wants to know."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._bridge = node._router.bridge
        self._asked: float | None = None
        """When the loop was asked for a sign of life that has not come."""

    def ask(self) -> None:
        """Ask, unless an answer is awaited already."""
        if self._asked is not None:
            return
        self._asked = perf_counter()
        try:
            self._bridge.post(self._answer)
        except NodeStoppedError:
            self._asked = None

    def _answer(self) -> None:
        """On the loop."""
        self._asked = None

    def who_blocks(self, patience: float) -> BlockedReport | None:
        """Who keeps the loop from running, if it has given no sign of life for ``patience``
        seconds.
        """
        asked, now = self._asked, perf_counter()
        if asked is None or now - asked < patience:
            return None
        # The watchdog may have been waiting for longer.
        watchdog = self._node._watchdog
        if watchdog is not None and watchdog.asked is not None:
            asked = min(asked, watchdog.asked)
        return look_at_loop(self._bridge, now - asked)
