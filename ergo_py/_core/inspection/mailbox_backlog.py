"""``Backlogs``: warns about mailboxes that grow too long.

The watchdog's thread checks some mailboxes at a time, so that sending a message costs nothing
extra.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..vocabulary.ids import PID

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = ["Backlogs"]

_AT_A_TIME: Final = 2_000
"""How many processes each check covers. It takes less than a millisecond."""


class Backlogs:
    """Warns once when a mailbox holds more than ``limit`` messages, and again only after the
    mailbox has fallen below half of ``limit``.
    """

    def __init__(
        self, processes: "Mapping[PID, Process]", limit: int, warn: "Callable[[Process, int], None]"
    ) -> None:
        self._processes = processes
        self._limit = limit
        self._warn = warn
        self._warned: dict[PID, None] = {}
        self._next: Iterator[PID] = iter(())

    def look(self) -> None:
        """Check the next processes, and recheck the processes with a warning. Always from the same
        thread.
        """
        for pid in tuple(self._warned):
            process = self._processes.get(pid)
            if process is None or _depth(process) * 2 < self._limit:
                del self._warned[pid]
        pids = list(islice(self._next, _AT_A_TIME))
        if not pids:
            # list() copies the keys in a single step, so the loop may start and end processes
            # meanwhile.
            self._next = iter(list(self._processes))
            pids = list(islice(self._next, _AT_A_TIME))
        for pid in pids:
            process = self._processes.get(pid)
            if process is not None and pid not in self._warned:
                depth = _depth(process)
                if depth > self._limit:
                    self._warned[pid] = None
                    self._warn(process, depth)


def _depth(process: "Process") -> int:
    box = process.mailbox
    return len(box.main) + len(box.system) + len(box.urgent)
