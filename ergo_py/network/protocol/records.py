"""`Sending`, `Receiving` and `Deadlines`: the state of a session, in three records.

They decide nothing: `Session` reads and writes them. Each record has the numbers of a single
session, and `reset` begins with those of the next.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf
from operator import length_hint
from typing import Final

from .long_operations import LongOperations

__all__ = ["FRAME", "Deadlines", "Receiving", "Sending"]

FRAME: Final = 16 * 1024
"""Bytes of operations after which a frame is full, so that the receiver carries out a frame within
a time slice. A single operation may be longer.
"""
# Not measured. Without a limit, a long operation would not go on for as long as others send short
# operations, and 0 would let each part hold up the short operations behind it.
_OVERTAKERS: Final = 8
"""Frames of short operations that may overtake a part of a long one, if the window has little
room.
"""


class Sending:
    """The operations to the peer: those that wait, and those that it has not acknowledged."""

    __slots__ = (
        *("_overtakers", "_taken", "acknowledged", "long", "peer_inflates", "peer_window", "queue"),
        *("queued_bytes", "resent_at", "resent_from", "sent", "unacknowledged"),
        "unacknowledged_bytes",
    )

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()
        """Short operations that wait to be sent."""
        self.long: LongOperations = LongOperations()
        """Long operations that wait to be sent, and those behind them."""
        self._taken = 0
        """Short operations that were taken from the queue so far."""
        self._overtakers = 0
        """Frames of the queue since the last frame of long operations."""
        self.queued_bytes: int = 0
        """Bytes of all operations that wait to be sent."""
        self.unacknowledged: deque[bytes] = deque()
        """Operations that were sent, and that the peer has not acknowledged."""
        self.unacknowledged_bytes: int = 0
        """Their bytes."""
        self.reset()

    def reset(self) -> None:
        """Begin with another session."""
        self.peer_window: int = 0
        """How many bytes the peer takes before it acknowledges them."""
        self.peer_inflates: int = 0
        """Most bytes of a frame that is compressed for the peer; 0 without compression."""
        self.sent: int = 0
        """Operations given to the carrier."""
        self.acknowledged: int = 0
        """Operations that the peer has acknowledged."""
        self.resent_from: int = -1
        """The first operation that was last sent again."""
        self.resent_at: float = -inf
        """When it was sent again."""

    def grant(self, window: int) -> None:
        """Note the window of the peer; 0 if it has not changed."""
        self.peer_window = window or self.peer_window

    def agree(self, inflates: int) -> None:
        """Compress frames of at most so many bytes: both sides have asked for it."""
        self.peer_inflates = inflates

    def may_send_again(self, now: float, pause: float) -> bool:
        """Whether the operations that are not acknowledged are sent again now: not if the same were
        sent again within ``pause`` seconds.
        """
        first = self.acknowledged
        if first == self.resent_from and now < self.resent_at + pause:
            return False
        self.resent_from, self.resent_at = first, now
        return True

    def take_all(self, size: int) -> list[bytes]:
        """The operations that wait, of ``size`` bytes, which are sent now."""
        everything = list(self.queue)
        self.queue.clear()
        self._taken += len(everything)
        self.unacknowledged.extend(everything)
        self.queued_bytes = 0
        self.unacknowledged_bytes += size
        self.sent += len(everything)
        return everything

    @property
    def count(self) -> int:
        """How many operations wait to be sent."""
        return len(self.queue) + self.long.count

    def put_behind(self, op: bytes, sender: object, to: object, route: bytes, piece: int) -> None:
        """Queue a long operation, in parts of ``piece`` bytes; or a short one (``piece`` is 0)
        while long ones wait: behind them if it must not overtake them.
        """
        self.queued_bytes += len(op)
        if not piece and self.long.may_be_overtaken(sender, to):
            self.queue.append(op)
        else:
            self.long.add(op, self._taken + len(self.queue), sender, to, route, piece)

    def take_frame(self) -> list[bytes]:
        """The operations for a frame, which are sent now; none if the window has no room. Frames of
        short and of long operations take turns.
        """
        # 0 as long as no frame of the queue has gone since the last long frame: so the queue has
        # its turn.
        size = self.long.next_size(self._taken) if self._overtakers or not self.queue else 0
        if size:
            # Half of the window is left to short operations, until several frames of them went.
            insists = self._overtakers >= _OVERTAKERS or not self.peer_window // 2
            room = self.peer_window if insists else self.peer_window // 2
            room -= self.unacknowledged_bytes
            if not self.unacknowledged or size <= room:
                return self._take_long(size, min(FRAME, room))
            if insists:
                return []
        return self._take_short() if self.queue else []

    def _take_long(self, size: int, room: int) -> list[bytes]:
        """The next operation, or part, of ``size`` bytes, and further ones that ``room`` is left
        for.
        """
        ops: list[bytes] = []
        total = 0
        while size and (not ops or total + size <= room):
            ops.append(self.long.take())
            total += size
            size = self.long.next_size(self._taken)
        self._overtakers = 0
        self.unacknowledged.extend(ops)
        self.queued_bytes -= total
        # The bytes of the parts as they travel, with their heads: the window of the peer counts
        # these, and `queued_bytes` the bytes of the operation.
        self.unacknowledged_bytes += sum(map(len, ops))
        self.sent += len(ops)
        return ops

    def _take_short(self) -> list[bytes]:
        queue, waiting = self.queue, self.unacknowledged
        room = min(FRAME, self.peer_window - self.unacknowledged_bytes)
        count = size = 0
        for op in queue:
            size += len(op)
            if size > room:
                size -= len(op)
                break
            count += 1
        if not count:
            # A longer operation goes alone: in a frame, or in the whole window.
            size = len(queue[0])
            if waiting and self.unacknowledged_bytes + size > self.peer_window:
                return []
            count = 1
        ops = [queue.popleft() for _ in range(count)]
        self._taken += count
        self._overtakers += 1
        waiting.extend(ops)
        self.queued_bytes -= size
        self.unacknowledged_bytes += size
        self.sent += count
        return ops

    def frames_again(self) -> Iterator[tuple[int, list[bytes]]]:
        """The operations that are not acknowledged, in frames: each with the number of operations
        before it.
        """
        waiting, first, start = self.unacknowledged, self.acknowledged, 0
        while start < len(waiting):
            ops: list[bytes] = []
            size = 0
            # In frames as at the first time, not in a single frame: the receiver ends a session in
            # which a frame has more operations than it can carry out within a time slice.
            for op in islice(waiting, start, None):
                if ops and size + len(op) > FRAME:
                    break
                ops.append(op)
                size += len(op)
            yield first + start, ops
            start += len(ops)

    def acknowledge(self, count: int) -> int:
        """Forget operations that the peer has got. Returns how many are new."""
        news, waiting = count - self.acknowledged, self.unacknowledged
        # Frames overtake each other: an older frame acknowledges less than is known, and that is no
        # fault.
        if news <= 0:
            return 0
        self.acknowledged = count
        if count == self.sent:  # mostly the peer has got everything
            waiting.clear()
            self.unacknowledged_bytes = 0
            return news
        self.unacknowledged_bytes -= sum(len(waiting.popleft()) for _ in range(news))
        return news

    def give_up(self) -> list[bytes]:
        """Forget all operations: the session has ended. Returns them."""
        # In this order, the parts of a long operation that were sent come before those that were
        # not, and the whole message can be put together for its dead letter.
        lost = [*self.unacknowledged, *self.queue, *self.long.give_up()]
        self.unacknowledged.clear()
        self.queue.clear()
        self.queued_bytes = self.unacknowledged_bytes = 0
        return lost


class Receiving:
    """The operations of the peer, and the acknowledgements of them."""

    __slots__ = (
        *("ack_bytes", "arriving", "echo_at", "echo_heard_at", "known", "received"),
        *("told_window", "window"),
    )

    def __init__(self, window: int) -> None:
        self.window: int = window
        """How many bytes the peer may send before they are acknowledged."""
        self.told_window: int = 0
        """The same, as the peer knows it."""
        self.reset()

    def reset(self) -> None:
        """Begin with another session."""
        self.received: int = 0
        """Operations that were carried out."""
        self.arriving: tuple[int, Iterator[bytes]] | None = None
        """The operations of the frame that is carried out now: their number, and those that are
        left. `received` does not count them yet.
        """
        self.known: int = 0
        """How many operations the peer has sent, as far as its frames say."""
        self.ack_bytes: int = 0
        """Bytes received since the last acknowledgement."""
        self.echo_at: float = 0.0
        """The peer's moment of its last acknowledgement; 0 before the first."""
        self.echo_heard_at: float = 0.0
        """When that acknowledgement arrived here."""

    def grant(self, window: int) -> None:
        """Let the peer send this many bytes before they are acknowledged."""
        self.window = window

    def tell_window(self) -> int:
        """The window, which a frame tells the peer now."""
        self.told_window = self.window
        return self.window

    def note_known(self, last: int) -> None:
        """Note that the peer has sent so many operations."""
        if last > self.known:
            self.known = last

    def note_told(self) -> None:
        """Note that a frame acknowledges everything."""
        self.ack_bytes = 0

    def note_echo(self, at: float, now: float) -> None:
        """Note the peer's moment of an acknowledgement that has arrived."""
        # Two moments of different clocks, which are never compared: the echo returns the peer's own
        # moment plus a length of time here, so the clocks of the nodes need not agree.
        self.echo_at, self.echo_heard_at = at, now

    def begin(self, ops: list[bytes]) -> Iterator[bytes]:
        """The operations of a frame, which are carried out now."""
        arriving = iter(ops)
        self.arriving = len(ops), arriving
        return arriving

    def count_bytes(self, size: int) -> bool:
        """Count bytes that have arrived. True if they have to be acknowledged now."""
        self.ack_bytes += size
        # At a quarter of the window, so that the peer still has room for three quarters of it while
        # the acknowledgement travels.
        return self.ack_bytes * 4 >= self.window

    def count_arrived(self) -> int:
        """Count the operations that were carried out of the frame that has arrived. Returns how
        many they are.
        """
        if self.arriving is None:
            return 0
        size, left = self.arriving
        # The iterator knows how far it came. A counter that each operation raises would cost every
        # message a step of Python; a session counts frames instead of operations where it can.
        count = size - length_hint(left)
        self.arriving = None
        self.received += count
        return count

    def echo(self, now: float) -> float:
        """The peer's moment of its last acknowledgement, plus the time since it arrived."""
        return self.echo_at + (now - self.echo_heard_at) if self.echo_at else 0.0


class Deadlines:
    """The moments at which a session has to act, and the moments from which they are counted."""

    __slots__ = ("ack_at", "beat_at", "heard_at", "hello_at", "opened_at", "resend_at")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Wait for nothing."""
        self.opened_at: float = inf
        """When the attempt to begin a session began."""
        self.hello_at: float = inf
        """When the invitation is repeated."""
        self.heard_at: float = inf
        """When the last frame of the peer arrived."""
        self.beat_at: float = inf
        """When the next heartbeat is due."""
        self.ack_at: float = inf
        """When an acknowledgement goes out without data."""
        self.resend_at: float = inf
        """When missing operations are asked for again."""

    def open(self, now: float) -> None:
        """An attempt to begin a session has begun."""
        self.opened_at = now

    def repeat_hello(self, at: float) -> None:
        """Repeat the invitation at this moment."""
        self.hello_at = at

    def hear(self, now: float) -> None:
        """A frame of the peer has arrived."""
        self.heard_at = now

    def note_sent(self, beat_at: float) -> None:
        """A frame goes out, with an acknowledgement."""
        self.ack_at = inf
        self.beat_at = beat_at

    def acknowledge_by(self, at: float) -> bool:
        """Acknowledge at this moment at the latest. False if an acknowledgement is due anyway."""
        # The first operation of several decides the moment: each further operation would put the
        # acknowledgement off, and the peer's window would fill.
        if self.ack_at != inf:
            return False
        self.ack_at = at
        return True

    def ask_again(self, at: float) -> None:
        """Ask again at this moment for missing operations; ``inf`` if none is missing."""
        self.resend_at = at
