"""`Session`: the protocol between two nodes, without I/O.

A carrier may lose, double and reorder frames, and it may break and come back. A session delivers
each operation once and in order, or ends; if it ends, the peer has got a prefix.

Each side chooses a fresh random number for each session, and a frame counts only if it carries
both numbers. So no frame of an earlier session, or of an earlier start of a node, has an effect.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import inf
from operator import length_hint
from typing import Final, Protocol

from ..traffic.totals import Totals
from .frames import VERSION, Ack, Bye, Data, Frame, Hello
from .operations import parts_of

__all__ = ["Owner", "Session", "State", "Timing"]

_FRAME: Final = 16 * 1024
"""Bytes of operations after which a frame is full, so that the receiver carries out a frame within
a time slice. A single operation may be longer.
"""

PART_HEAD: Final = 4096
"""Bytes of a part that are left for everything except its piece of an operation."""
_OFFERS: Final = 8
"""How many answered invitations are remembered."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The limits of sessions, in seconds and bytes."""

    beat: float = 1.0
    """An idle session sends an acknowledgement this often, as its heartbeat."""
    patience: float = 5.0
    """A peer that is silent for this long is down."""
    repeat: float = 0.2
    """An invitation, or a request to send again, is repeated after this time."""
    ack_delay: float = 0.05
    """An acknowledgement waits this long for data to go with."""
    window: int = 1 << 20
    """How many bytes the peer may send before they are acknowledged."""


class State(Enum):
    """The state of a session."""

    IDLE = "idle"
    OPENING = "opening"
    UP = "up"


class Owner(Protocol):
    """The user of a session: the peer of a node."""

    def transmit(self, frame: Frame, /) -> None:
        """Give a frame to the carrier, which may lose it."""

    def session_up(self, creation: int, /) -> None:
        """Note that the session is up with this start of the peer's node."""

    def deliver(self, op: bytes, /) -> None:
        """Take an operation of the peer."""

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes], /) -> None:
        """Note that the session has ended, or could not begin. The peer has not acknowledged the
        ``lost`` operations.
        """


class Session(Totals):
    """The session with a single peer. It ends and begins again as often as needed."""

    def __init__(
        self,
        owner: Owner,
        creation: int,
        timing: Timing,
        clock: Callable[[], float],
        fresh: Callable[[], int],
        longest: int = 1 << 30,
    ) -> None:
        super().__init__()
        self._owner = owner
        self._creation = creation
        self._timing = timing
        self._clock = clock
        self._fresh = fresh
        self._longest = longest
        """Most bytes of an operation. Longer ones are sent in parts."""
        self.state = State.IDLE
        self.is_due_earlier = False
        """Since the session is up, a deadline was set that may be earlier than `next_deadline` was.
        The owner asks for it, and calls `note_deadline`.
        """
        self.queued_bytes = 0
        """Bytes of operations that wait to be sent."""
        self.unacknowledged_bytes = 0
        self._queue: deque[bytes] = deque()
        self._unacknowledged: deque[bytes] = deque()
        self.window = timing.window
        """How many bytes the peer may send before they are acknowledged."""
        self._told_window = 0
        """The same, as the peer knows it."""
        self.round_trip: float | None = None
        """Seconds that a frame took to the peer and back, the last time; None if unknown."""
        self._offers: dict[tuple[int, int], Hello] = {}
        """Answered invitations by (our number, the peer's number). The first frame with such a pair
        begins a session.
        """
        self._now = clock()
        """The last moment that the clock has told. It may be a heartbeat ago."""
        self._reset()

    def _reset(self) -> None:
        self._mine = 0
        self._yours = 0
        self._inviting = False
        self._peer_window = 0
        self._sent = 0
        """Operations given to the carrier, in this session."""
        self._acknowledged = 0
        self._received = 0
        self._arriving: tuple[int, Iterator[bytes]] | None = None
        """The operations of the frame that is carried out now: their number, and those that are
        left. `_received` does not count them yet.
        """
        self._known = 0
        """How many operations the peer has sent, as far as its frames say."""
        self._ack_bytes = 0
        """Bytes received since the last acknowledgement."""
        self._opened_at = inf
        self._hello_at = inf
        self._heard_at = inf
        self._beat_at = inf
        self._ack_at = inf
        self._resend_at = inf
        self._resent_at = -inf
        self._resent_from = -1
        """The first operation that was last sent again, and when."""
        self._echo_at = 0.0
        """The peer's moment of its last acknowledgement; 0 before the first."""
        self._echo_heard_at = 0.0

    # -- operations of the owner -------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a session nor an attempt to begin one."""
        return self.state is State.IDLE

    @property
    def unacknowledged(self) -> int:
        """Operations that were sent and are not acknowledged."""
        return len(self._unacknowledged)

    @property
    def queued(self) -> int:
        """Operations that wait to be sent."""
        return len(self._queue)

    def push(self, op: bytes) -> None:
        """Queue an operation. It goes out with the next :meth:`flush`. Without a session, this
        invites the peer.
        """
        length = len(op)
        if length > self._longest:
            for part in parts_of(op, self._longest - PART_HEAD):
                self.push(part)
            return
        self._queue.append(op)
        self.sent += 1
        self.queued_bytes += length
        if not self._inviting and self.state is not State.UP:
            self._invite()

    def connect(self) -> None:
        """Invite the peer to a session, unless there is one."""
        if not self._inviting and self.state is not State.UP:
            self._invite()

    def flush(self) -> None:
        """Send queued operations, as many as the peer's window has room for."""
        if self.state is not State.UP:
            return
        queue, waiting = self._queue, self._unacknowledged
        size = self.queued_bytes
        if queue and size <= _FRAME and self.unacknowledged_bytes + size <= self._peer_window:
            # Mostly everything goes in a single frame. Inlined _send_data().
            everything = list(queue)
            queue.clear()
            waiting.extend(everything)
            self.queued_bytes = self._ack_bytes = 0
            self.unacknowledged_bytes += size
            first, self._sent = self._sent, self._sent + len(everything)
            self._ack_at = inf
            if self._resend_at == inf:
                self.is_due_earlier = False  # it was the acknowledgement, which goes with the frame
            self._beat_at = self._now + self._timing.beat
            self._owner.transmit(Data(self._mine, self._yours, first, self._received, everything))
            return
        while queue:
            room = min(_FRAME, self._peer_window - self.unacknowledged_bytes)
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
                if waiting and self.unacknowledged_bytes + size > self._peer_window:
                    return
                count = 1
            ops = [queue.popleft() for _ in range(count)]
            waiting.extend(ops)
            self.queued_bytes -= size
            self.unacknowledged_bytes += size
            first, self._sent = self._sent, self._sent + count
            self._send_data(first, ops)

    def say_again(self) -> None:
        """Tell the peer the state of the session: the carrier has connected again."""
        if self.state is State.UP:
            self._send_ack(resend=False)
            # The break may have taken the whole patience, and the next frame of the peer may be a
            # heartbeat away.
            timing = self._timing
            self._heard_at = max(self._heard_at, self._now + 2 * timing.beat - timing.patience)
        elif self._inviting:
            self._send_hello()

    def grant(self, window: int) -> None:
        """Let the peer send this many bytes before they are acknowledged."""
        self.window = window
        if self.state is State.UP and window != self._told_window:
            self._send_ack(resend=False)

    def close(self, why: str, is_orderly: bool) -> None:
        """End the session, and tell the peer."""
        if self.state is State.UP:
            self._owner.transmit(Bye(self._mine, self._yours, why, is_orderly))
        self._end(why, is_orderly)

    def fail(self, why: str) -> None:
        """End the session or the attempt to open it: the carrier says that the peer is gone."""
        self._end(why, False)

    # -- time --------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """The moment at which :meth:`tick` has to be called next."""
        if self.state is State.UP:
            return min(
                self._heard_at + self._timing.patience,
                self._beat_at,
                self._ack_at,
                self._resend_at,
            )
        return min(self._opened_at + self._timing.patience, self._hello_at)

    def note_deadline(self) -> None:
        """Note that the owner knows the next deadline."""
        self.is_due_earlier = False

    def tick(self) -> None:
        """Act on all deadlines that have come."""
        now = self._now = self._clock()
        if self.state is State.OPENING:
            if now >= self._opened_at + self._timing.patience:
                self._end("it does not answer", False)
            elif now >= self._hello_at:
                self._send_hello()
        elif self.state is State.UP:
            if now >= self._heard_at + self._timing.patience:
                self._owner.transmit(Bye(self._mine, self._yours, "silent for too long"))
                self._end("it is silent", False)
                return
            if now >= self._resend_at:
                self._ask_again(now)
            if now >= self._ack_at or now >= self._beat_at:
                self._send_ack(resend=False)

    # -- frames of the peer ------------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        """Take a frame of the peer."""
        if type(frame) is Data:
            mine, yours = frame.yours, frame.mine
            is_ours = self.state is State.UP and mine == self._mine and yours == self._yours
            if is_ours or self._belongs(yours, mine):
                self._receive_data(frame)
                if self._queue:
                    self.flush()  # an acknowledgement makes room in the window
            return
        match frame:
            case Hello():
                self._receive_hello(frame)
            case Ack():
                if self._belongs(frame.mine, frame.yours):
                    self._receive_ack(frame)
                    self.flush()
            case Bye():
                # An answer to an invitation carries no number of the peer: it refuses.
                is_ours = frame.yours == self._mine and frame.mine == self._yours
                if is_ours and (self.state is State.UP or self._inviting):
                    self._end(frame.reason, frame.is_orderly)

    def _receive_hello(self, hello: Hello) -> None:
        if hello.version != VERSION:
            if not hello.yours:
                why = f"it speaks version {VERSION} of the protocol, not {hello.version}"
                self._owner.transmit(Bye(0, hello.mine, why))
            return
        if hello.yours:
            if self.state is State.OPENING and self._inviting and hello.yours == self._mine:
                self._begin(self._mine, hello)
                # The peer is up with the first frame that carries its number.
                if self._yours and not self._sent:
                    self._send_ack(resend=False)
            return
        if self.state is State.IDLE:
            self.state = State.OPENING
            self._mine = self._fresh()
            self._opened_at = self._clock()
        if self.state is State.OPENING or hello.mine == self._yours:
            mine = self._mine
        else:
            # The peer has lost this session, or this is an old frame. The session continues until
            # the peer confirms the new number.
            mine = next((m for m, theirs in self._offers if theirs == hello.mine), 0)
            mine = mine or self._fresh()
        self._offer(mine, hello)

    def _offer(self, mine: int, hello: Hello) -> None:
        self._offers[mine, hello.mine] = hello
        if len(self._offers) > _OFFERS:
            del self._offers[next(iter(self._offers))]
        self._told_window = self.window
        self._owner.transmit(Hello(VERSION, self._creation, mine, hello.mine, self.window))

    def _belongs(self, theirs: int, mine: int) -> bool:
        """Whether a frame belongs to the session. The first frame that confirms an answered
        invitation begins a session.
        """
        if self.state is State.UP and mine == self._mine and theirs == self._yours:
            return True
        hello = self._offers.get((mine, theirs))
        if hello is None:
            # The peer believes in a session that is over here, or that this start of the node never
            # had.
            self._owner.transmit(Bye(mine, theirs, "it does not know the session"))
            return False
        if self.state is State.UP:
            self._end("it has begun another session", False)
        self._begin(mine, hello)
        return self.state is State.UP and self._mine == mine

    def _receive_data(self, data: Data) -> None:
        mine, ack, seq, news = self._mine, data.ack, data.seq, data.ops
        now = self._now = self._clock()
        if ack == self._sent:
            # Inlined _acknowledge(): mostly the peer has got everything.
            self.confirmed += ack - self._acknowledged
            self._acknowledged = ack
            self._unacknowledged.clear()
            self.unacknowledged_bytes = 0
        elif not self._acknowledge(ack):
            return
        self._heard_at = now
        last = seq + len(news)
        if last > self._known:
            self._known = last
        if seq != self._received:
            if seq > self._received:
                self._miss(now)
                return
            news = news[self._received - seq :]
        if not news:
            self._send_ack(resend=False)
            return
        arriving, deliver = iter(news), self._owner.deliver
        self._arriving = len(news), arriving
        for op in arriving:
            deliver(op)
            if self._mine != mine:
                return  # the session has ended, and _end() has counted what was carried out
        self._note_arrived()
        self._ack_bytes += sum(map(len, news))
        if self._received >= self._known:
            self._resend_at = inf
        if self._ack_bytes * 4 >= self.window:
            self._send_ack(resend=False)
        elif self._ack_at == inf:
            self._ack_at = now + self._timing.ack_delay
            self.is_due_earlier = True

    def _note_arrived(self) -> None:
        """Count the operations that were carried out of the frame that has arrived."""
        if self._arriving is not None:
            size, left = self._arriving
            count = size - length_hint(left)
            self._arriving = None
            self._received += count
            self.received += count

    def _receive_ack(self, ack: Ack) -> None:
        now = self._now = self._clock()
        if not self._acknowledge(ack.ack):
            return
        self._heard_at = now
        self._known = max(self._known, ack.last)
        self._peer_window = ack.window or self._peer_window
        if ack.at:
            self._echo_at, self._echo_heard_at = ack.at, now
        if ack.echo:
            self.round_trip = max(0.0, now - ack.echo)
        if ack.resend:
            self._send_again(now)
        if self._known > self._received:
            self._miss(now)

    def _acknowledge(self, count: int) -> bool:
        """Forget operations that the peer has got. False if the peer is wrong about them."""
        if count > self._sent:
            self.close("it acknowledges operations that were never sent", False)
            return False
        news, waiting = count - self._acknowledged, self._unacknowledged
        if news > 0:
            self.confirmed += news
            self._acknowledged = count
            self.unacknowledged_bytes -= sum(len(waiting.popleft()) for _ in range(news))
        return True

    def _miss(self, now: float) -> None:
        """Ask the peer once for the operations that are missing, and again if they do not come."""
        if self._resend_at == inf:
            self._ask_again(now)

    def _ask_again(self, now: float) -> None:
        self._resend_at = now + self._timing.repeat
        self.is_due_earlier = True
        self._send_ack(resend=True)

    def _send_again(self, now: float) -> None:
        first = self._acknowledged
        if first == self._resent_from and now < self._resent_at + self._timing.repeat / 2:
            return  # a doubled frame, or a hostile peer: others ask later for the same again
        self._resent_from, self._resent_at = first, now
        waiting = self._unacknowledged
        start = 0
        while start < len(waiting):
            ops: list[bytes] = []
            size = 0
            for op in islice(waiting, start, None):
                if ops and size + len(op) > _FRAME:
                    break
                ops.append(op)
                size += len(op)
            self._send_data(first + start, ops)
            start += len(ops)
        self.resent += start

    # -- states ------------------------------------------------------------------------------------

    def _invite(self) -> None:
        if self.state is State.IDLE:
            self.state = State.OPENING
            self._mine = self._fresh()
        self._opened_at = self._clock()
        self._inviting = True
        self._send_hello()

    def _begin(self, mine: int, hello: Hello) -> None:
        # A late frame that confirms an older invitation must not begin that session.
        self._offers.clear()
        self._reset()
        now = self._now = self._clock()
        self.state = State.UP
        self._mine, self._yours = mine, hello.mine
        self._peer_window = hello.window
        self.sessions += 1
        self._heard_at = now
        self._beat_at = now + self._timing.beat
        self._owner.session_up(hello.creation)
        self.flush()

    def _end(self, why: str, is_orderly: bool) -> None:
        # A peer that answered an invitation and was never up has no operations: the invitation was
        # an old frame.
        is_told = self.state is State.UP or self._inviting
        self._note_arrived()
        if self.state is State.UP:
            confirmed = self._acknowledged
            self.remember_end(self._mine, self._yours, self._received, confirmed, self._sent)
        self.unconfirmed += len(self._unacknowledged)
        self.unsent += len(self._queue)
        for pair in [pair for pair in self._offers if pair[0] == self._mine]:
            del self._offers[pair]
        self._reset()
        self.state = State.IDLE
        lost = [*self._unacknowledged, *self._queue]
        self._unacknowledged.clear()
        self._queue.clear()
        self.queued_bytes = self.unacknowledged_bytes = 0
        if is_told:
            self._owner.session_down(why, is_orderly, lost)

    # -- sending -----------------------------------------------------------------------------------

    def _send_hello(self) -> None:
        self._hello_at = self._clock() + self._timing.repeat
        self._told_window = self.window
        self._owner.transmit(Hello(VERSION, self._creation, self._mine, 0, self.window))

    def _send_data(self, first: int, ops: list[bytes]) -> None:
        self._note_sent()
        self._owner.transmit(Data(self._mine, self._yours, first, self._received, ops))

    def _send_ack(self, resend: bool) -> None:
        now = self._now = self._clock()
        self._note_sent()
        echo = self._echo_at + (now - self._echo_heard_at) if self._echo_at else 0.0
        self._told_window = self.window
        told = (self._received, self._sent, resend, self.window, now, echo)
        self._owner.transmit(Ack(self._mine, self._yours, *told))

    def _note_sent(self) -> None:
        self._ack_bytes = 0
        self._ack_at = inf
        # The last known moment: the heartbeat comes early rather than late, and a frame costs no
        # look at the clock.
        self._beat_at = self._now + self._timing.beat
