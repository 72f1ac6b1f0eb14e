"""`Obituaries`: post-mortem records of the last processes and meta-processes that ended."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from time import perf_counter
from typing import Any, Final

from ..vocabulary.envelopes import END_NOTICE, ENDS, EXIT, Envelope
from ..vocabulary.ids import PID, Alias
from ..vocabulary.late_methods import dataclass
from ..vocabulary.public_names import show_public_names
from ..vocabulary.reasons import Normal, Reason, Shutdown, error_of, is_failure

__all__ = ["Obituaries", "Obituary"]

_WELL: Final = frozenset({Normal, Shutdown})
"""Reasons that are no failure. A faster `is_failure`: each process that ends pays for this test."""
_ENDS: Final = (EXIT, *ENDS)
"""The signals that end a process."""
_NOWHERE: Final = (None, None)
"""The site of a process that was busy with nothing."""
_WAITING: Final = 5
"""The number of unhandled messages whose types a record names."""


@dataclass(frozen=True, slots=True)
class Obituary:
    """Post-mortem record of a process or meta-process. It keeps the types of messages and never the
    messages, which may hold secrets.
    """

    pid: PID | Alias
    name: str | None
    behaviour: str
    reason: Reason
    at: float
    """When the process began to end, as ``time.time()`` counts."""
    uptime: float
    """Seconds from its start to its end."""
    handled: int
    """Number of messages the process handled."""
    callback: str | None = None
    """The callback the process ended in; None if it was idle."""
    message_type: str | None = None
    """The type of the message the process was handling."""
    waiting: tuple[str, ...] = ()
    """The types of the first messages still queued."""
    left: int = 0
    """Number of messages still queued."""
    recent: tuple[str, ...] = ()
    """The types of the last messages handled, newest last; only if the node was opened with
    ``recent_messages``.
    """
    restarts: int = 0
    """How often its supervisor had restarted it before."""

    @property
    def failed(self) -> bool:
        """Whether the process failed: it ended neither by itself nor by a request to stop."""
        return is_failure(self.reason)

    @property
    def traceback(self) -> str:
        """The formatted traceback of the exception that ended the process; empty without an
        exception.
        """
        reason: Any = self.reason
        while error_of(reason) is not None and not hasattr(reason, "traceback"):
            reason = reason.reason
        return str(getattr(reason, "traceback", ""))

    def __str__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        where = f" in {self.callback}" if self.callback else ""
        what = f" of {self.message_type}" if self.message_type else ""
        return f"{self.pid}{called} {self.behaviour}{where}{what}: {self.reason}"


class Obituaries:
    """Three ring buffers: neither many normal ends nor many connections that peers ended push out
    the process that failed.
    """

    __slots__ = ("_failed", "_others", "_outside", "_sites")

    def __init__(self, capacity: int) -> None:
        # Records are rarely read: keep plain tuples, and build `Obituary` objects on reading.
        self._failed: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self._others: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self._outside: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        """Meta-processes that ended with a failure of their peer or owner."""
        self._sites: dict[PID | Alias, tuple[str, str | None]] = {}
        """Callback and message type of a crash, until `note` records the end of the process."""

    def note_crash(self, process: Any, callback: str, message_type: str | None) -> None:
        """Remember the callback that raised, until the process begins to end."""
        if process.reason is None:
            self._sites[process.id] = (callback, message_type)

    def note(self, process: Any, handled: int, handling: Envelope | None) -> None:
        """Record a process or meta-process that has begun to end, how many messages it handled, and
        which it handles now. Its ``reason`` must be set.
        """
        reason = process.reason
        facts = (
            process.id,
            process.name,
            process.callbacks.behaviour,
            reason,
            time.time(),
            perf_counter() - process.born,
            handled,
        )
        if type(reason) in _WELL:
            self._others.append(facts)
            return
        crashed_at = self._sites.pop(process.id, None)
        # A crash of its own code is a failure, even if the peer or the owner ended it as well.
        ring = self._outside if crashed_at is None and process.blameless else self._failed
        # A signal that ended it (a kill, an exit) is no work that it was busy with.
        is_told = handling is not None and handling[0] in _ENDS
        site = crashed_at or (_NOWHERE if is_told else _site(process, handling))
        box = process.mailbox
        left = len(box) if box.main or box.ahead or box.log else 0
        waiting = _waiting(box.urgent, box.system, box.main) if left else ()
        recent = _recent(process) if process.kernel.watches else ()
        slot = getattr(process, "slot", None)
        restarts = 0 if slot is None else slot.restarts
        ring.append((*facts, *site, waiting, left, recent, restarts))

    def reason_of(self, address: object) -> Reason | None:
        """The reason a process or meta-process ended with, by its PID or alias; None without a
        record.
        """
        rings = chain(reversed(self._failed), reversed(self._outside), reversed(self._others))
        return next((facts[3] for facts in rings if facts[0] == address), None)

    def has_named(self, name: str) -> bool:
        """Whether a recorded process or meta-process had this name."""
        return any(facts[1] == name for facts in chain(self._failed, self._outside, self._others))

    def failed(self, count: int | None = None) -> list[Obituary]:
        """The last failures, newest last."""
        return _last([Obituary(*facts) for facts in self._failed], count)

    def all(self, count: int | None = None) -> list[Obituary]:
        """The last ends of all kinds, newest last."""
        found = [Obituary(*facts) for facts in chain(self._failed, self._outside, self._others)]
        return _last(sorted(found, key=lambda obituary: obituary.at), count)


def _site(process: Any, handling: Envelope | None) -> tuple[str | None, str | None]:
    """The callback and the message that the process was busy with."""
    message = None if handling is None else type(handling[3]).__qualname__
    return process.current_callback(), message


def _recent(process: Any) -> tuple[str, ...]:
    watch = process.kernel.watches.get(process.id)
    return () if watch is None or watch.recent is None else tuple(watch.recent)


def _waiting(*lanes: Sequence[Envelope]) -> tuple[str, ...]:
    return tuple(type(payload).__qualname__ for payload in islice(_payloads(lanes), _WAITING))


def _payloads(lanes: Iterable[Sequence[Envelope]]) -> Iterator[object]:
    for lane in lanes:
        # Read by index, without a copy, since a lane may be long. An iterator would raise when
        # another thread appends to the lane or takes from it.
        for index in range(min(_WAITING, len(lane))):
            try:
                envelope = lane[index]
            except IndexError:  # the worker thread of a meta-process took the envelope
                break
            # The notice of an end shows its reason, like a signal in another lane.
            yield envelope[3][3] if envelope[0] == END_NOTICE else envelope[3]


def _last(obituaries: list[Obituary], count: int | None) -> list[Obituary]:
    return obituaries if count is None else obituaries[max(0, len(obituaries) - count) :]


show_public_names(__name__)
