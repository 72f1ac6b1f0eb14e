"""`DeadLetters`: counts of undelivered messages, and a record of the last few, by default without
contents. `MissedAddresses`: warnings of addresses that look like mistakes.
"""

import gc
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Final, Protocol

from ..vocabulary.envelopes import Envelope
from ..vocabulary.hints import near
from ..vocabulary.ids import PID, Alias, Name, local_name
from ..vocabulary.messages import DeadLetter, MayBeLate, Published, Why
from ..vocabulary.options import KeepMessages
from ..vocabulary.reasons import Reason
from ..vocabulary.text import shown

__all__ = ["DeadLetters", "MissedAddresses"]

_ENDED: Final = frozenset({Why.NO_PROCESS, Why.STOPPING, Why.UNHANDLED_AT_EXIT})
"""Causes that mean the receiver has ended or is ending."""
_SHARED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType)
"""Objects of the program: a message refers to them, and they are no part of its size."""
_ENCODED: Final = object()
"""Stands for a message that this node has not decoded."""
_MANY: Final = 10
"""Messages to the same address that look like a mistake of their sender."""
_WARNINGS: Final = 5
"""Most warnings of a node: programs that use names as keys miss many."""
_ADDRESSES: Final = 100
"""Addresses whose messages are counted."""
_NAMES: Final = 100
"""Names that are compared with a missing name; a comparison with more would hold up the loop: 100
take a millisecond.
"""
_COMPARED: Final = 20
"""Missing names of a node that are compared: a program that uses names as keys misses many."""
_ALIKE: Final = 0.8
_WORD: Final = 4
"""Letters of a word that can be misspelled: orders-us is no misspelled orders-eu."""
_NAMED: Final = (PID, Name, str)
"""Addresses of processes. A message to the alias of a connection may well be late."""
_WORDS: Final = re.compile(r"[^\W\d_]+")


class DeadLetters:
    """Counts by cause, and a ring buffer of the last ones. Adding must stay cheap: senders may
    flood a process that has ended.
    """

    __slots__ = ("_kept", "_messages", "_miss", "_number", "announce", "counts", "late")

    def __init__(self, keep: int | KeepMessages) -> None:
        self.counts: Counter[Why] = Counter()
        self.late: int = 0
        """Messages that came after the end of their receiver and are declared harmless then; see
        :class:`MayBeLate`.
        """
        self.announce: Callable[[DeadLetter], None] | None = None
        """Called with each dead letter, if the node publishes them."""
        self._miss: Callable[[object], None] | None = None
        capacity = keep if isinstance(keep, int) else keep.count
        # maxlen: the ring drops its oldest entry on purpose; the counts stay complete.
        self._kept: deque[tuple[PID | Alias, object, str, Why, float, int]] = deque(maxlen=capacity)
        self._messages = None if isinstance(keep, int) else _Messages(keep)
        """The messages themselves, if the node keeps them."""
        self._number = 0

    def announce_to(self, function: Callable[[DeadLetter], None] | None) -> None:
        """Call ``function`` with each dead letter from now on; None calls none."""
        self.announce = function

    def tell_of_misses(self, function: Callable[[object], None]) -> None:
        """Call ``function`` with the address of each message that found no process."""
        self._miss = function

    @property
    def total(self) -> int:
        """The number of dead letters since the node started."""
        return self.counts.total()

    def add(self, sender: PID | Alias, target: object, message: object, why: Why) -> None:
        """Count an undelivered message, and record its sender, target and type."""
        self.add_type(sender, target, type(message), why, message)

    def add_type(
        self,
        sender: PID | Alias,
        target: object,
        kind: type,
        why: Why,
        message: object = _ENCODED,
    ) -> None:
        """Count an undelivered message of a type, which may still be encoded."""
        if issubclass(kind, MayBeLate) and why in _ENDED:
            self.late += 1
            return
        self.counts[why] += 1
        self._number += 1
        entry = (sender, target, kind.__qualname__, why, time.time(), self._number)
        self._kept.append(entry)
        if self._messages is not None:
            self._messages.put(self._number, message)
        if why is Why.NO_PROCESS and self._miss is not None:
            self._miss(target)
        if self.announce is not None:
            self.announce(DeadLetter(*entry))

    def add_all(self, envelopes: Sequence[Envelope], target: object, why: Why) -> None:
        """Count the messages that a receiver left unhandled. Faster than `add` for each of them."""
        if self.announce is not None or self._messages is not None:
            for _, sender, _, message in envelopes:
                self.add(sender, target, message, why)
            return
        dead = (
            # Not isinstance(), which reads `message.__class__`: a lazy proxy asks the object behind
            # it, and an unbound proxy raises. That exception would end the node.
            [each for each in envelopes if not issubclass(type(each[3]), MayBeLate)]
            if why in _ENDED
            else envelopes
        )
        self.late += len(envelopes) - len(dead)
        if dead:
            self.counts[why] += len(dead)
            now = time.time()
            self._kept.extend(
                [
                    (sender, target, type(message).__qualname__, why, now, number)
                    for number, (_, sender, _, message) in enumerate(dead, self._number + 1)
                ]
            )
            self._number += len(dead)

    def last(self, count: int | None = None) -> list[DeadLetter]:
        """The most recent dead letters, newest last."""
        skip = 0 if count is None else max(0, len(self._kept) - count)
        return [DeadLetter(*entry) for entry in islice(self._kept, skip, None)]

    def message_of(self, number: int, default: object) -> object:
        """The message of a dead letter; ``default`` if it is not kept."""
        return default if self._messages is None else self._messages.get(number, default)

    def take(self, number: int, default: object) -> object:
        """Hand out the message of a dead letter, and forget it; ``default`` if it is not kept."""
        return default if self._messages is None else self._messages.pop(number, default)


class Ends(Protocol):
    """The records of ended processes."""

    def reason_of(self, address: object) -> Reason | None: ...
    def has_named(self, name: str) -> bool: ...


class MissedAddresses:
    """Counts the messages to each address without a process, and warns at the first message to a
    misspelled name or to an address of another node with the same name, and at the tenth to any
    address.

    A message to a process that has ended is no mistake by itself: a process may end at any time.
    """

    __slots__ = ("_advice", "_compared", "_counts", "_left", "_names", "_obituaries", "_warn")

    def __init__(
        self,
        names: Collection[str],
        obituaries: Ends,
        advice: Callable[[object], str],
        warn: Callable[[str], None],
    ) -> None:
        self._names = names
        self._advice = advice
        self._obituaries = obituaries
        self._warn = warn
        self._compared = 0
        self._counts: dict[object, int] = {}
        self._left = _WARNINGS

    def note(self, target: object) -> None:
        """Count a message to an address without a process."""
        if not self._left or type(target) not in _NAMED:
            return
        counts = self._counts
        count = counts[target] = counts.get(target, 0) + 1
        if count not in (1, _MANY):
            return
        if len(counts) > _ADDRESSES:
            counts.clear()
        text = self._mistaken(target) if count == 1 else self._ended(target)
        if text is not None:
            self._left -= 1
            self._warn(text)

    def _mistaken(self, target: object) -> str | None:
        name = local_name(target)
        if name is not None:
            return self._misspelled(name)
        advice = self._advice(target)
        return f"`send` returned False: {advice}" if advice else None

    def _misspelled(self, name: str) -> str | None:
        if self._compared == _COMPARED or len(self._names) > _NAMES:
            return None
        if self._obituaries.has_named(name):
            return None
        self._compared += 1
        meant = near(name, self._names, _ALIKE)
        if meant is None or not _may_be_meant(name, meant):
            return None
        return f"no process is named {name!r}, so `send` returned False; did you mean {meant!r}?"

    def _ended(self, target: object) -> str:
        reason = self._obituaries.reason_of(target)
        ended = "there is none" if reason is None else f"it has ended ({reason})"
        instead = (
            "`monitor` tells of an end, and the name of a supervised child outlives it"
            if local_name(target) is None
            else "if it is a child that restarts, `service` of its name waits for the successor"
        )
        return (
            f"{_MANY} messages to {shown(target)} found no process: {ended}, so `send` returned "
            f"False; {instead}"
        )


def _may_be_meant(name: str, known: str) -> bool:
    """Whether a name may be a misspelled other one. Keys differ in their numbers, or in a short
    word: session-7 and session-8, orders-us and orders-eu, 3fa9 and 3fb9.
    """
    mine, others = _WORDS.findall(name), _WORDS.findall(known)
    if len(mine) != len(others):
        return "".join(mine) == name  # not a key of letters and digits
    pairs = zip(mine, others, strict=True)
    return any(a != b and max(len(a), len(b)) >= _WORD for a, b in pairs)


class _Messages:
    """The messages of the newest dead letters, by number, of a bounded size."""

    __slots__ = ("_bytes", "_keep", "_kept")

    def __init__(self, keep: KeepMessages) -> None:
        self._keep = keep
        self._kept: dict[int, tuple[object, int]] = {}
        """Each message with its size, oldest first."""
        self._bytes = 0

    def put(self, number: int, message: object) -> None:
        """Keep the message of the newest dead letter, and forget old ones that have no room."""
        if message is not _ENCODED and type(message) is not Published:
            size = _size(message, self._keep.bytes)
            if size <= self._keep.bytes:
                self._kept[number] = message, size
                self._bytes += size
        oldest = number - self._keep.count
        while self._kept and (self._bytes > self._keep.bytes or next(iter(self._kept)) <= oldest):
            self.pop(next(iter(self._kept)), None)

    def get(self, number: int, default: object) -> object:
        """The message of a dead letter."""
        return self._kept.get(number, (default, 0))[0]

    def pop(self, number: int, default: object) -> object:
        """Forget the message of a dead letter, and return it."""
        message, size = self._kept.pop(number, (default, 0))
        self._bytes -= size
        return message


def _size(message: object, most: int) -> int:
    """Estimate the bytes of a message with everything that it refers to. Stops above ``most``."""
    # The garbage collector's view runs no code of the message: a lazy proxy would ask the object
    # behind it. `__sizeof__` is looked up in the type.
    size, seen, left = 0, set[int](), [message]
    while left and size <= most:
        each = left.pop()
        if id(each) in seen or issubclass(type(each), _SHARED):
            continue
        seen.add(id(each))
        try:
            size += sys.getsizeof(each)
        except Exception:
            return most + 1  # a faulty `__sizeof__`: of unknown size, so not kept
        left += gc.get_referents(each)
    return size
