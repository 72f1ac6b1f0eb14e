"""`LongOperations`: operations that travel in parts, and those that must not overtake them.

A long operation would hold up all operations behind it for as long as it travels. So messages,
calls and answers of other processes may overtake it, between two of its parts. An operation waits
here behind it if it could change an order that a receiver sees.
"""

from collections import deque
from typing import Final

from ..._core.vocabulary.ids import PID
from .operations import encode_part

__all__ = ["LONG", "PART_HEAD", "PIECE", "LongOperations"]

_PART: Final = 256 * 1024
"""Most bytes of a part: a quarter of the default window. Parts take half of the window, so two of
them are on the way at once. With a single one, the sender would wait for the acknowledgement of
each part. Measured with messages of 16 MiB: they take less processor time than as a whole, and a
fifth more in parts of 64 KiB; calls beside them take as long with both.
"""
PART_HEAD: Final = 4096
"""Bytes of a part that are left for everything except its piece of an operation."""
PIECE: Final = _PART - PART_HEAD
"""Most bytes of an operation in a part."""
LONG: Final = 5 * _PART
"""Operations with more bytes travel in parts. A megabyte travels whole: in parts, it would take a
third more processor time, and other operations wait for it for a millisecond.
"""


class _Waiting:
    """An operation that waits, and how much of it is taken."""

    __slots__ = ("after", "begin", "number", "op", "piece", "route", "sender", "to")

    def __init__(
        self, op: bytes, after: int, sender: object, to: object, route: bytes, piece: int
    ) -> None:
        self.op = memoryview(op)
        self.after = after
        """The operation must not go before so many short operations went."""
        self.sender = sender
        self.to = to
        self.route = route
        self.piece = piece
        """Bytes of a part; 0 if the operation travels whole."""
        self.begin = self.number = 0

    @property
    def count(self) -> int:
        """How many operations the peer gets of it."""
        return -(-len(self.op) // self.piece) if self.piece else 1


class _Receivers:
    """The receivers of operations that wait."""

    __slots__ = ("_counts", "_unsure")

    def __init__(self) -> None:
        self._counts: dict[object, int] = {}
        """How many operations wait for each receiver."""
        self._unsure = 0
        """How many operations wait for receivers that are no PIDs. Counted, since each operation
        that may overtake would look at all receivers otherwise.
        """

    def add(self, to: object) -> None:
        self._counts[to] = self._counts.get(to, 0) + 1
        self._unsure += type(to) is not PID

    def remove(self, to: object) -> None:
        self._counts[to] -= 1
        if not self._counts[to]:
            del self._counts[to]
        self._unsure -= type(to) is not PID

    def __bool__(self) -> bool:
        return bool(self._counts)

    def may_include(self, to: object) -> bool:
        """Whether an operation may wait for the same receiver. Only different PIDs surely are
        different receivers: a name may be that of any process.
        """
        counts = self._counts
        return bool(counts) and (type(to) is not PID or self._unsure > 0 or to in counts)


class LongOperations:
    """Long operations, and those behind them, in their order."""

    __slots__ = ("_by_sender", "_fences", "_of_all", "_waiting", "count")

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._by_sender: dict[object, _Receivers] = {}
        """The receivers of each sender; the sender None stands for an unknown one."""
        self._of_all = _Receivers()
        """The receivers of all senders together: an answer is of an unknown sender, and would look
        at the table of each sender otherwise.
        """
        self._fences = 0
        """How many operations wait that nothing may overtake."""
        self.count: int = 0
        """How many operations, or parts, wait."""

    def add(
        self, op: bytes, after: int, sender: object, to: object, route: bytes, piece: int
    ) -> None:
        """Put an operation behind all others here. ``after`` short operations have to go before it;
        ``piece`` is 0 if it is short itself. Without a receiver ``to``, nothing overtakes it.
        """
        waiting = _Waiting(op, after, sender, to, route, piece)
        self._waiting.append(waiting)
        self.count += waiting.count
        if to is None:
            self._fences += 1
        else:
            if sender not in self._by_sender:
                self._by_sender[sender] = _Receivers()
            self._by_sender[sender].add(to)
            self._of_all.add(to)

    def may_be_overtaken(self, sender: object, to: object) -> bool:
        """Whether an operation may go before all that wait here: there is none of the same sender
        to the same receiver.
        """
        if self._fences or to is None:
            return False
        if sender is None:
            return not self._of_all.may_include(to)
        tables = self._by_sender
        # An operation of an unknown sender may be of this sender: its order has to hold, too.
        return not any(each in tables and tables[each].may_include(to) for each in (sender, None))

    def next_size(self, taken: int) -> int:
        """The bytes that go next; 0 if other operations have to go first: ``taken`` short
        operations went so far.
        """
        if not self._waiting or self._waiting[0].after > taken:
            return 0
        first = self._waiting[0]
        left = len(first.op) - first.begin
        return min(left, first.piece) if first.piece else left

    def take(self) -> bytes:
        """The next operation, or the next part of it."""
        first = self._waiting[0]
        self.count -= 1
        if not first.piece:
            self._forget(self._waiting.popleft())
            return bytes(first.op)
        end = first.begin + first.piece
        is_last = end >= len(first.op)
        # A slice of the view: the encoder copies the piece anyway, and a slice of bytes would copy
        # each byte of a long message a second time.
        part = encode_part(first.number, is_last, first.route, first.op[first.begin : end])
        first.begin, first.number = end, first.number + 1
        if is_last:
            self._forget(self._waiting.popleft())
        return part

    def _forget(self, waiting: _Waiting) -> None:
        if waiting.to is None:
            self._fences -= 1
            return
        self._of_all.remove(waiting.to)
        receivers = self._by_sender[waiting.sender]
        receivers.remove(waiting.to)
        if not receivers:
            del self._by_sender[waiting.sender]

    def give_up(self) -> list[bytes]:
        """Forget all operations. Returns them, in parts."""
        # In parts, as `count` has counted them: the accounts of lost operations have to add up, and
        # the receiver of the list finds the parts that were sent before at its beginning.
        return [self.take() for _ in range(self.count)]
