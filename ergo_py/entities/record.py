"""`Record`: the content of an entity's row. Its state, the messages that it owes, and the commands
that it has done are written together.

Only data: no clock, no store, no process.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from ..entity_handles import Address
from ..network.messages.codec import msgspec
from .errors import EntityStoreError

__all__ = ["Origin", "Owed", "Record", "size_of_mark"]

K = TypeVar("K")
V = TypeVar("V")

_LAYOUT: Final = 1
_OWED: Final = 26
_DONE: Final = 16
_SEEN: Final = 24
"""About how many bytes a message, an answer and a mark have in a record, besides their texts and
contents.
"""


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class Origin(NamedTuple):
    """The numbering of the messages of an entity. An entity that was deleted and made again has
    another birth, and counts from the beginning.
    """

    kind: str
    key: str
    birth: int


def size_of_mark(origin: Origin) -> int:
    """About how many bytes a mark has in a record."""
    return _SEEN + _size(origin.kind) + _size(origin.key)


class Owed(msgspec.Struct, array_like=True):
    """A message that an entity owes: to another entity, or to itself (a job or a timer)."""

    number: int
    """Its number; numbers grow."""
    kind: str
    """The kind of the receiver; empty for the entity itself."""
    key: str
    message: bytes
    name: str = ""
    """The name of a timer, which replaces another of this name."""
    due: float = 0.0
    """The moment of the wall clock before which it stays here; 0 for at once."""
    attempts: int = 0
    """The attempts that were counted. The first is not counted: it costs no write."""
    is_parked: bool = False
    """It is kept, and not tried any more."""
    may_have_arrived: bool = False
    """It is parked, and its receiver has not told yet whether it has taken effect."""

    def count(self, most: int) -> bool:
        """Count an attempt. False if it was the last: the message is parked."""
        self.attempts += 1
        self.is_parked = self.attempts >= most
        # A message to itself has not: it would have been removed with its effect.
        self.may_have_arrived = self.is_parked and bool(self.kind)
        return not self.is_parked

    def settle(self) -> None:
        """Note that it has not taken effect: it was parked before its receiver could handle it."""
        self.may_have_arrived = False

    def unpark(self) -> None:
        """Try it again under its number, as if it had never been tried."""
        self.attempts, self.is_parked, self.may_have_arrived = 0, False, False

    def again(self, number: int) -> "Owed":
        """The same message under another number, as if it had never been tried."""
        return Owed(number, self.kind, self.key, self.message, self.name)

    @property
    def size(self) -> int:
        """About how many bytes it has in a record."""
        texts = _size(self.kind) + _size(self.key) + _size(self.name)
        return _OWED + texts + len(self.message)

    @property
    def outlives_owner(self) -> bool:
        """Whether it is still delivered when its entity is deleted: a message to another entity,
        and not a timer.
        """
        return bool(self.kind) and not self.name

    @property
    def keeps_place(self) -> bool:
        """Whether later messages to its receiver come after it. A timer takes its place when it
        fires, and a parked message that has not arrived when it is tried again: each gets a new
        number then.
        """
        return not self.due and (not self.is_parked or self.may_have_arrived)

    @property
    def target(self) -> Address | None:
        """The receiver; None for the entity itself."""
        return Address(self.kind, self.key) if self.kind else None


class _Layout(msgspec.Struct, array_like=True):
    layout: int
    state: bytes | None
    birth: int
    last: int
    owed: list[Owed]
    seen: list[tuple[str, str, int, int]]
    done: list[tuple[str, float, bytes | None]]


_NOTHING: Final = ()
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})
"""Stands for an empty dict of a record: most records of entities that are awake have no others."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Layout).decode


class Record:
    """The content of a row."""

    __slots__ = ("birth", "done", "last", "owed", "rest", "seen", "state")

    def __init__(self) -> None:
        self.state: bytes | None = None
        """The encoded state; None for an entity without one: it is new, or was deleted."""
        self.birth: int = 0
        """Tells this entity from an earlier one of the same key; 0 before its first message."""
        self.last: int = 0
        """The number of the last message that it has owed."""
        self.owed: Mapping[int, Owed] = _NONE
        """The messages that it owes, in order."""
        self.seen: Mapping[Origin, int] = _NONE
        """The number of the last message of each entity that has taken effect here."""
        self.done: Mapping[str, tuple[float, bytes | None]] = _NONE
        """The ids of commands: when they were taken or answered, and their encoded answers, or None
        for an answer that is deferred. The oldest first.
        """
        self.rest: int = 0
        """About how many bytes the record has besides the state."""

    @classmethod
    def decode(cls, data: bytes) -> "Record":
        """The record with these bytes.

        Raises:
            EntityStoreError: they are not a record.
        """
        try:
            read = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EntityStoreError(f"a stored record cannot be read: {error}") from None
        if read.layout != _LAYOUT:
            raise EntityStoreError(
                f"a stored record has the layout {read.layout}, and this version of ergo_py reads "
                f"{_LAYOUT}; use the version that wrote it, or a later one"
            )
        record = cls()
        record.state, record.birth, record.last = read.state, read.birth, read.last
        record.rest = len(data) - len(read.state or b"")
        if read.owed:
            record.owed = {each.number: each for each in read.owed}
        if read.seen:
            record.seen = {Origin(kind, key, birth): n for kind, key, birth, n in read.seen}
        if read.done:
            record.done = {each: (moment, answer) for each, moment, answer in read.done}
        return record

    def copy(self) -> "Record":
        """A copy, to try changes on."""
        copy = Record()
        copy.state, copy.birth, copy.last, copy.rest = self.state, self.birth, self.last, self.rest
        copy.owed, copy.seen, copy.done = dict(self.owed), dict(self.seen), dict(self.done)
        return copy

    def sizes(self) -> dict[str, int]:
        """About how many bytes each part has, by a name for errors."""
        return {
            "the state": len(self.state or b""),
            "messages and timers": sum(each.size for each in self.owed.values()),
            "answers to commands with ids": sum(
                _DONE + _size(id) + len(answer or b"") for id, (_, answer) in self.done.items()
            ),
            "marks of messages": sum(size_of_mark(origin) for origin in self.seen),
        }

    def encode(self) -> bytes | None:
        """Its bytes; None if nothing is left to keep, so that the row can go."""
        state, owed, seen, done = self.state, self.owed, self.seen, self.done
        if not (owed or seen or done):
            if state is None:
                return None
            # Most records: a tuple has the bytes of a `_Layout`, and costs half as much.
            return _encode((_LAYOUT, state, self.birth, self.last, _NOTHING, _NOTHING, _NOTHING))
        return _encode(
            _Layout(
                _LAYOUT,
                state,
                self.birth,
                self.last,
                list(owed.values()),
                [(kind, key, birth, n) for (kind, key, birth), n in seen.items()],
                [(each, moment, answer) for each, (moment, answer) in done.items()],
            )
        )

    def keep(self, state: bytes) -> None:
        """Keep another state."""
        self.state = state

    def delete(self) -> None:
        """Keep nothing but the messages to other entities that it owes, and its marks."""
        self.state = None
        self.done = _NONE
        self.owed = {number: each for number, each in self.owed.items() if each.outlives_owner}
        self.rest = sum(self.sizes().values())

    def begin_numbers(self, birth: int) -> None:
        """Begin to number messages, under this birth."""
        self.birth = birth

    def due(self) -> float | None:
        """The moment at which it has work to do; None for none. A message that is due at once has
        the moment 0.
        """
        if not self.owed:
            return None
        return min((each.due for each in self.owed.values() if not each.is_parked), default=None)

    def count_owed(self, now: float) -> int:
        """How many messages are owed at a moment, without parked messages and later timers. From
        any thread.
        """
        return sum(each.due <= now and not each.is_parked for each in list(self.owed.values()))

    def owe(self, owed: Iterable[Owed]) -> None:
        """Owe further messages. A timer replaces another of its name."""
        for each in owed:
            if each.name:
                self.cancel(each.name)
            self.owed = _with(self.owed, each.number, each)
            self.rest += each.size
            self.last = max(self.last, each.number)

    def renumber(self, number: int) -> None:
        """Owe a message under a new number, behind all others, as if it had never been tried."""
        again = self.owed[number].again(self.last + 1)
        self.drop(number)
        self.owe([again])

    def drop(self, number: int) -> None:
        """Owe a message no longer."""
        owed = self.owed.get(number)
        if owed is not None:
            self.owed = _without(self.owed, number)
            self._shrink(owed.size)

    def see(self, origin: Origin, number: int) -> None:
        """Note that a message of another entity has taken effect."""
        if origin not in self.seen:
            self.rest += size_of_mark(origin)
        self.seen = _with(self.seen, origin, number)

    def forget_seen(self, origin: Origin) -> None:
        """Forget the messages of another entity."""
        if origin in self.seen:
            self.seen = _without(self.seen, origin)
            self._shrink(size_of_mark(origin))

    def remember(self, id: str, moment: float, answer: bytes | None) -> None:
        """Note that a command is done, or with None that it was taken, and is not answered yet."""
        self.forget(id)  # the oldest first, also if it was taken long before its answer
        self.done = _with(self.done, id, (moment, answer))
        self.rest += _DONE + _size(id) + len(answer or b"")

    def forget(self, id: str) -> None:
        """Forget the id of a command."""
        if id in self.done:
            _, answer = self.done[id]
            self.done = _without(self.done, id)
            self._shrink(_DONE + _size(id) + len(answer or b""))

    def cancel(self, name: str) -> bool:
        """Cancel a timer by its name. False if there is none."""
        for number, each in self.owed.items():
            if each.name == name:
                self.drop(number)
                return True
        return False

    def before(self, number: int) -> Owed | None:
        """The message before this one to the same receiver; None if it is the first."""
        target = self.owed[number].target
        return max(
            (
                each
                for each in self.owed.values()
                if each.number < number and each.target == target and each.keeps_place
            ),
            key=lambda each: each.number,
            default=None,
        )

    def forget_done(self, before: float, most: int) -> None:
        """Forget ids of commands: those from before a moment, and the oldest of too many."""
        for each, (moment, _) in list(self.done.items()):
            if moment >= before and len(self.done) <= most:
                break
            self.forget(each)

    def _shrink(self, size: int) -> None:
        # Nothing is left in most cases: errors of the estimates do not add up.
        self.rest = max(0, self.rest - size) if self.owed or self.seen or self.done else 0


def _with(kept: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """The same with another entry: the same dict, unless it is `_NONE`."""
    changed = kept if isinstance(kept, dict) else {}
    changed[key] = value
    return changed


def _without(kept: Mapping[K, V], key: K) -> Mapping[K, V]:
    """The same without an entry; `_NONE` if it was the last."""
    if isinstance(kept, dict):
        kept.pop(key, None)
    return kept or _NONE
