"""`Heartbeat`: detects a blocked event loop. A thread posts a heartbeat to the loop, and reads the
loop's stack if the answer is overdue.
"""

from time import perf_counter

from .._core.inspection.watchdog import look_at_loop
from .._core.verbs.node import Node
from .._core.verbs.node_access import kernel_of, watchdog_of
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.info import BlockedReport

__all__ = ["Heartbeat"]


class Heartbeat:
    """Checks the loop only on request."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._bridge = kernel_of(node).router.bridge
        self._asked: float | None = None
        """When the unanswered heartbeat was posted; None without an unanswered heartbeat."""
        self._delay = 0.0

    def ask(self) -> None:
        """Post a heartbeat, unless an earlier heartbeat is unanswered."""
        if self._asked is not None:
            return
        self._asked = perf_counter()
        try:
            self._bridge.post(self._answer)
        except NodeStoppedError:
            self._asked = None

    def _answer(self) -> None:
        """Runs on the loop."""
        asked = self._asked
        if asked is not None:
            self._delay = perf_counter() - asked
        self._asked = None

    @property
    def delay(self) -> float:
        """Seconds that the loop took to answer the last heartbeat, or has taken so far."""
        asked = self._asked
        return self._delay if asked is None else max(self._delay, perf_counter() - asked)

    @property
    def overdue(self) -> float:
        """Seconds since when a heartbeat is unanswered; 0 if there is none."""
        asked = self._asked
        return 0.0 if asked is None else perf_counter() - asked

    def blocked_report(self, patience: float) -> BlockedReport | None:
        """Report the code that blocks the loop, if a heartbeat is unanswered for ``patience``
        seconds.
        """
        asked, now = self._asked, perf_counter()
        if asked is None or now - asked < patience:
            return None
        # The watchdog may have been waiting for longer.
        watchdog = watchdog_of(self._node)
        if watchdog is not None and (earlier := watchdog.asked) is not None:
            asked = min(asked, earlier)
        return look_at_loop(self._bridge, now - asked)
