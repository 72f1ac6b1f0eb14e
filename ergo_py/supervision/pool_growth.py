"""`PoolGrowth`: when a pool of bounded size adds a worker, and when it removes one."""

from typing import Final

from .._core.processes.process import Process
from .._core.vocabulary.states import State

__all__ = ["PoolGrowth"]

_CALM: Final = 10
"""A worker leaves when one was free at so many looks in a row. Growing has to be faster than
shrinking: a missing worker delays work, and a spare worker only takes memory.
"""


class PoolGrowth:
    """The number of workers between two bounds, by the time that messages wait.

    The pool looks at its workers every ``wait`` seconds, from the first message that finds its
    worker busy until the pool is back at its least size. If the newest such message of a look still
    waits at the next, a worker is missing. Only the newest message counts: a further worker gets
    new messages, and does not help the messages that are in the mailboxes already.
    """

    __slots__ = ("_after", "_calm", "_least", "_most", "_newest", "_sample", "is_looking", "wait")

    def __init__(self, least: int, most: int, wait: float) -> None:
        self._least = least
        self._most = most
        self.wait: float = wait
        self.is_looking: bool = False
        """Whether a timer is going to fire for the next look."""
        self._newest: Process | None = None
        """The worker of the last message that found its worker busy."""
        self._sample: Process | None = None
        """The worker of the newest message at the last look."""
        self._after = 0
        """Messages for the worker of the sample since then. The sample still waits if more messages
        than these are in the mailbox.
        """
        self._calm = 0
        """Looks in a row at which a worker was free."""

    def note(self, worker: Process) -> bool:
        """Note a message for a busy worker. True if the pool has to begin to look."""
        self._newest = worker
        if worker is self._sample:
            self._after += 1
        begins, self.is_looking = not self.is_looking, True
        return begins

    def look(self, workers: list[Process]) -> int:
        """The change of the number of workers that is due: 1, 0 or -1."""
        waits = self._sample is not None and len(self._sample.mailbox.main) > self._after
        self._sample, self._newest, self._after = self._newest, None, 0
        self._calm = self._calm + 1 if any(is_free(worker) for worker in workers) else 0
        if waits and len(workers) < self._most:
            # The next sample is a message that the further worker could have got.
            self._sample = None
            return 1
        if self._calm >= _CALM and len(workers) > self._least:
            self._calm = 0
            return -1
        return 0

    def continues(self, workers: list[Process]) -> bool:
        """Whether the pool has to look again."""
        self.is_looking = (
            self._sample is not None or self._newest is not None or len(workers) > self._least
        )
        return self.is_looking


def is_free(worker: Process) -> bool:
    """Whether a worker waits for a message."""
    return worker.state is State.SLEEP and not worker.mailbox.main
