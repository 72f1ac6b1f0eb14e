"""Why did it die: the last processes and meta-processes that ended, and what is known of their last
moments.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter, time
from typing import Any, Final

from ..vocabulary.envelopes import EXIT, FAILED, KILL, STOP, Envelope
from ..vocabulary.ids import PID, Alias
from ..vocabulary.reasons import Normal, Reason, Shutdown, error_of, is_failure

__all__ = ["Obituaries", "Obituary"]

_WELL: Final = frozenset({Normal, Shutdown})
"""The same as ``is_failure`` says, and faster: every process that ends pays for it."""
_WAITING: Final = 5
"""How many of the messages that it had not come to are named."""


@dataclass(frozen=True, slots=True)
class Obituary:
    """One process or meta-process that ended. No message is kept, only types: messages may hold
    secrets.
    """

    pid: PID | Alias
    name: str | None
    behaviour: str
    reason: Reason
    at: float
    """When it began to end, on ``time.time``'s clock."""
    uptime: float
    """Seconds it had lived."""
    handled: int
    """Messages it had handled."""
    callback: str | None = None
    """The callback it ended in; None if it was idle."""
    message_type: str | None = None
    """The type of what it was handling."""
    waiting: tuple[str, ...] = ()
    """The types of the next messages that it did not come to."""
    left: int = 0
    """How many messages it did not come to."""
    recent: tuple[str, ...] = ()
    """The types of the last messages it handled, newest last; only if the node was opened with
    ``recent_messages``.
    """
    restarts: int = 0
    """How often its supervisor had started it again before."""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than by itself or because it was asked to."""
        return is_failure(self.reason)

    @property
    def traceback(self) -> str:
        """What Python would have printed about the exception it ended of; empty if it was none."""
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
    """Three rings, so that neither many that just finished nor many that peers have ended push out
    the one that failed.
    """

    __slots__ = ("_failed", "_others", "_outside", "_sites")

    def __init__(self, capacity: int) -> None:
        # Mostly nobody asks: so only the facts are kept, and put together when they are read.
        self._failed: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self._others: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        self._outside: deque[tuple[Any, ...]] = deque(maxlen=capacity)
        """Meta-processes that have ended with a failure that is not theirs."""
        self._sites: dict[PID | Alias, tuple[str, str | None]] = {}

    def note_crash(self, one: Any, callback: str, message_type: str | None) -> None:
        """Keep where an exception was raised, until the process comes to its end."""
        if one.reason is None:
            self._sites[one.id] = (callback, message_type)

    def note(self, one: Any) -> None:
        """Keep what is known of a process or meta-process whose reason is set and that has begun to
        end.
        """
        reason = one.reason
        facts = (
            one.id,
            one.name,
            one.callbacks.behaviour,
            reason,
            time(),
            perf_counter() - one.born,
            one.handled,
        )
        if type(reason) in _WELL:
            self._others.append(facts)
            return
        crashed_at = self._sites.pop(one.id, None)
        # What has crashed by itself has failed, whatever happened to it besides.
        ring = self._outside if crashed_at is None and one.blameless else self._failed
        site = crashed_at or _site(one)
        left = len(one.mailbox)
        waiting = _waiting(one.mailbox.urgent, one.mailbox.system, one.mailbox.main) if left else ()
        recent = _recent(one) if one.kernel.watches else ()
        ring.append((*facts, *site, waiting, left, recent, _restarts(one)))

    def reason_of(self, one: object) -> Reason | None:
        """Why a process or meta-process ended, by its PID or alias; None if it is not among those
        remembered.
        """
        rings = chain(reversed(self._failed), reversed(self._outside), reversed(self._others))
        return next((facts[3] for facts in rings if facts[0] == one), None)

    def failed(self, count: int | None = None) -> list[Obituary]:
        """The last ones that failed, newest last."""
        return _last([Obituary(*facts) for facts in self._failed], count)

    def all(self, count: int | None = None) -> list[Obituary]:
        """The last ones of all kinds, newest last."""
        found = [Obituary(*facts) for facts in chain(self._failed, self._outside, self._others)]
        return _last(sorted(found, key=lambda one: one.at), count)


def _site(one: Any) -> tuple[str | None, str | None]:
    """What it was doing. What ended it (a kill, an exit) is no work of its own."""
    handling = one.handling
    if handling is None or handling[0] in (EXIT, STOP, KILL, FAILED):
        return (None, None) if handling is not None else (one.current_callback(), None)
    return one.current_callback(), type(handling[3]).__qualname__


def _recent(one: Any) -> tuple[str, ...]:
    watch = one.kernel.watches.get(one.id)
    return () if watch is None or watch.recent is None else tuple(watch.recent)


def _restarts(one: Any) -> int:
    slot: Any = getattr(one, "slot", None)
    supervisor = getattr(slot, "supervisor", None) and slot.supervisor.behaviour
    return 0 if supervisor is None else supervisor.restarts_of(slot.name)


def _waiting(*lanes: Sequence[Envelope]) -> tuple[str, ...]:
    return tuple(type(payload).__qualname__ for payload in islice(_payloads(lanes), _WAITING))


def _payloads(lanes: Iterable[Sequence[Envelope]]) -> Iterator[object]:
    for lane in lanes:
        # By index, and without a copy of what may be a long lane: other threads may append to it or
        # take from it meanwhile.
        for index in range(min(_WAITING, len(lane))):
            try:
                envelope = lane[index]
            except IndexError:  # the worker thread of a meta-process has taken it
                break
            yield envelope[3]


def _last(these: list[Obituary], count: int | None) -> list[Obituary]:
    return these if count is None else these[max(0, len(these) - count) :]
