"""`Session`: the protocol between two nodes, without I/O.

A carrier may lose, double and reorder frames, and it may break and come back. A session delivers
each operation once and in order, or ends; if it ends, the peer has got a prefix.

Each side chooses a fresh random number for each session, and a frame counts only if it carries
both numbers. So no frame of an earlier session, or of an earlier start of a node, has an effect.

The rule for this module: it decides from frames, operations as bytes and the time which frame goes
out. It waits for nothing, and knows no kernel, no process, and no operation but a part of a long
one. A number of a session belongs to `records`, a sum over all sessions to `Totals`. So a test can
compare two sessions with a naive model, over a carrier that loses, doubles and reorders.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, Protocol

from ..traffic.totals import Totals
from .compression import deflated, inflated
from .frames import VERSION, Ack, Bye, Data, Deflated, Frame, Hello
from .long_operations import LONG, PART_HEAD, PIECE
from .records import FRAME, Deadlines, Receiving, Sending

__all__ = ["Owner", "Session", "State", "Timing"]

# An honest peer has a single invitation under way and repeats it under the same number, so further
# entries come of late frames, and of programs that start again in quick succession. A hostile peer
# can invent numbers without end. Not measured: a forgotten answer costs the peer a further
# invitation.
_OFFERS: Final = 8
"""How many answered invitations are remembered."""
# Without it, a frame of 16 MiB of small operations took 16 s in a single step, and a compressed
# frame of 549 bytes a quarter of a second.
_TOGETHER: Final = FRAME + PART_HEAD
"""Most bytes of several operations in a frame: a frame is carried out in a single step, and small
operations cost far more than their bytes.
"""


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
    inflates: int = 0
    """Most bytes that a compressed frame of the peer may inflate to; 0 without compression."""


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


class Session:
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
        self._owner = owner
        """The user of the session."""
        self._creation = creation
        """Identifies the start of this node."""
        self._timing = timing
        """The limits, in seconds and bytes."""
        self._clock = clock
        """Tells the time."""
        self._fresh = fresh
        """Chooses a number for a new session."""
        self._short = min(LONG, longest)
        """Most bytes of an operation that travels whole. Longer ones are sent in parts."""
        self._piece = min(PIECE, longest - PART_HEAD)
        """Most bytes of an operation in a part."""
        self.state: State = State.IDLE
        """Whether there is a session, or an attempt to begin one."""
        self.is_due_earlier: bool = False
        """Since the session is up, a deadline was set that may be earlier than `next_deadline` was.
        The owner asks for it, and calls `note_deadline`.
        """
        self.totals: Totals = Totals()
        """The operations of all sessions with the peer."""
        self.sending: Sending = Sending()
        """The operations to the peer, in this session."""
        self._receiving = Receiving(timing.window)
        """The operations of the peer, in this session."""
        self._deadlines = Deadlines()
        """The moments at which this session has to act."""
        self.round_trip: float | None = None
        """Seconds that a frame took to the peer and back, the last time; None if unknown."""
        self._offers: dict[tuple[int, int], Hello] = {}
        """Answered invitations by (our number, the peer's number). The first frame with such a pair
        begins a session.
        """
        self._now = clock()
        """The last moment that the clock has told. It may be a heartbeat ago."""
        self._mine = 0
        """Our number of the session, or of the invitation; 0 without both."""
        self._yours = 0
        """The peer's number of the session; 0 before it is known."""
        self._inviting = False
        """This side has invited the peer, and waits for its answer."""

    def _reset(self) -> None:
        self._mine = self._yours = 0
        self._inviting = False
        # Not its queue: operations that were pushed before the session began go out with it. Only
        # `_end` takes them away, by `give_up`.
        self.sending.reset()
        self._receiving.reset()
        self._deadlines.reset()

    # -- operations of the owner -------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a session nor an attempt to begin one."""
        return self.state is State.IDLE

    @property
    def sent(self) -> int:
        """Operations that were given to all sessions with this start of the peer's node."""
        return self.totals.ended + self.unacknowledged + self.queued

    @property
    def unacknowledged(self) -> int:
        """Operations that were sent and are not acknowledged."""
        return len(self.sending.unacknowledged)

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of operations that were sent and are not acknowledged."""
        return self.sending.unacknowledged_bytes

    @property
    def queued(self) -> int:
        """Operations that wait to be sent."""
        return self.sending.count

    @property
    def queued_bytes(self) -> int:
        """Bytes of operations that wait to be sent."""
        return self.sending.queued_bytes

    @property
    def window(self) -> int:
        """How many bytes the peer may send before they are acknowledged."""
        return self._receiving.window

    def push(self, op: bytes, sender: object = None, to: object = None, route: bytes = b"") -> None:
        """Queue an operation. It goes out with the next :meth:`flush`. Without a session, this
        invites the peer.

        An operation with a receiver ``to`` may overtake long operations to other receivers, and
        those of other senders. A ``sender`` of None may be any. The ``route`` of a message travels
        with each of its parts.
        """
        length, sending = len(op), self.sending
        if length > self._short or sending.long.count:
            piece = self._piece if length > self._short else 0
            sending.put_behind(op, sender, to, route, piece)
        else:
            sending.queue.append(op)
            # hot path: the bytes of Sending.queue, for each operation
            sending.queued_bytes += length
        if self.state is not State.UP:
            self.connect()

    def connect(self) -> None:
        """Invite the peer to a session, unless there is one."""
        # Not if OPENING: a node that has only answered an invitation invites as well when it gets
        # operations of its own, since its answer may be lost. It does so under the number of its
        # answer. Invitations that cross so lead to the same pair of numbers on both sides.
        if self._inviting or self.state is State.UP:
            return
        if self.state is State.IDLE:
            self.state = State.OPENING
            self._mine = self._fresh()
        self._deadlines.open(self._clock())
        self._inviting = True
        self._send_hello()

    def flush(self) -> None:
        """Send queued operations, as many as the peer's window has room for."""
        if self.state is not State.UP:
            return
        sending = self.sending
        queue, size = sending.queue, sending.queued_bytes
        if (
            queue
            and size <= FRAME
            and sending.unacknowledged_bytes + size <= sending.peer_window
            and not sending.long.count
        ):
            # Mostly everything goes in a single frame. Inlined _send_data().
            first, receiving, deadlines = sending.sent, self._receiving, self._deadlines
            # Behind the read of `sent`, which take_all() raises: a frame tells the number of
            # operations before its first.
            everything = sending.take_all(size)
            receiving.note_told()
            if deadlines.resend_at == inf:
                self.is_due_earlier = False  # it was the acknowledgement, which goes with the frame
            deadlines.note_sent(self._now + self._timing.beat)
            frame = Data(self._mine, self._yours, first, receiving.received, everything)
            most = sending.peer_inflates
            self._owner.transmit(deflated(frame, most) if most else frame)
            return
        while queue or sending.long.count:
            first = sending.sent
            ops = sending.take_frame()
            if not ops:
                return
            self._send_data(first, ops)

    def say_again(self) -> None:
        """Tell the peer the state of the session: the carrier has connected again."""
        if self.state is State.UP:
            self._send_ack(resend=False)
            # The break may have taken the whole patience, and the next frame of the peer may be a
            # heartbeat away.
            timing = self._timing
            heard = self._now + 2 * timing.beat - timing.patience
            self._deadlines.hear(max(self._deadlines.heard_at, heard))
        elif self._inviting:
            self._send_hello()

    def grant(self, window: int) -> None:
        """Let the peer send this many bytes before they are acknowledged."""
        self._receiving.grant(window)
        if self.state is State.UP and window != self._receiving.told_window:
            self._send_ack(resend=False)

    def close(self, why: str, is_orderly: bool) -> None:
        """End the session, and tell the peer."""
        if self.state is State.UP:
            # Before `_end`, which forgets the numbers: without them the peer takes the farewell for
            # that of another session, and drops it.
            self._owner.transmit(Bye(self._mine, self._yours, why, is_orderly))
        self._end(why, is_orderly)

    def fail(self, why: str) -> None:
        """End the session or the attempt to open it: the carrier says that the peer is gone."""
        self._end(why, False)

    # -- time --------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """The moment at which :meth:`tick` has to be called next."""
        due, patience = self._deadlines, self._timing.patience
        if self.state is State.UP:
            return min(due.heard_at + patience, due.beat_at, due.ack_at, due.resend_at)
        return min(due.opened_at + patience, due.hello_at)

    def note_deadline(self) -> None:
        """Note that the owner knows the next deadline."""
        self.is_due_earlier = False

    def tick(self) -> None:
        """Act on all deadlines that have come."""
        now = self._now = self._clock()
        if self.state is State.OPENING:
            if now >= self._deadlines.opened_at + self._timing.patience:
                self._end("it does not answer", False)
            elif now >= self._deadlines.hello_at:
                self._send_hello()
        elif self.state is State.UP:
            if now >= self._deadlines.heard_at + self._timing.patience:
                # If only the way to here is cut, the farewell arrives, and the peer need not wait
                # for its own patience.
                self._owner.transmit(Bye(self._mine, self._yours, "silent for too long"))
                self._end("it is silent", False)
                return
            if now >= self._deadlines.resend_at:
                self._ask_again(now)
            if now >= self._deadlines.ack_at or now >= self._deadlines.beat_at:
                self._send_ack(resend=False)

    # -- frames of the peer ------------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        """Take a frame of the peer."""
        # Data first, without `match` and without a call of `_belongs`: nearly all frames of a busy
        # session are Data.
        if type(frame) is Data:
            mine, yours = frame.yours, frame.mine
            is_ours = self.state is State.UP and mine == self._mine and yours == self._yours
            if is_ours or self._belongs(yours, mine):
                self._receive_data(frame)
                if self.sending.queued_bytes:
                    self.flush()  # an acknowledgement makes room in the window
            return
        match frame:
            case Hello():
                self._receive_hello(frame)
            case Ack():
                if self._belongs(frame.mine, frame.yours):
                    self._receive_ack(frame)
                    self.flush()
            case Deflated():
                if self._belongs(frame.mine, frame.yours):
                    # Behind `_belongs`: a frame of no session must not make this node inflate 256
                    # KiB.
                    self._receive_deflated(frame)
            case Bye():
                # An answer to an invitation carries no number of the peer: it refuses.
                is_ours = frame.yours == self._mine and frame.mine == self._yours
                if is_ours and (self.state is State.UP or self._inviting):
                    self._end(frame.reason, frame.is_orderly)

    def _receive_hello(self, hello: Hello) -> None:
        if hello.version != VERSION:
            # Only the sender of an invitation waits for a word; the sender of an answer does not.
            if not hello.yours:
                why = f"it speaks version {VERSION} of the protocol, not {hello.version}"
                self._owner.transmit(Bye(0, hello.mine, why))
            return
        if hello.yours:
            if self.state is State.OPENING and self._inviting and hello.yours == self._mine:
                self._begin(self._mine, hello)
                # The peer is up with the first frame that carries its number.
                if self._yours and not self.sending.sent:
                    self._send_ack(resend=False)
            return
        if self.state is State.IDLE:
            self.state = State.OPENING
            self._mine = self._fresh()
            # The answer to an invitation has the deadline of an attempt, too: an old invitation,
            # which its sender will not confirm, would otherwise keep this side OPENING.
            self._deadlines.open(self._clock())
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
        window = self._receiving.tell_window()
        told = (mine, hello.mine, window, self._timing.inflates)
        self._owner.transmit(Hello(VERSION, self._creation, *told))

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
            # The peer confirms a newer number only after it has given up the session. Its loss is
            # told before the next session begins, so that nothing of the old session arrives after
            # that.
            self._end("it has begun another session", False)
        self._begin(mine, hello)
        # Not True: `_begin` has told the owner, which may have closed the session in the same step.
        return self.state is State.UP and self._mine == mine

    def _receive_data(self, data: Data) -> None:
        mine, ack, seq, news = self._mine, data.ack, data.seq, data.ops
        receiving, deadlines = self._receiving, self._deadlines
        now = self._now = self._clock()
        # Before the look at `seq`: the acknowledgement is true, whether the operations of the frame
        # are missing, new or doubled.
        if not self._acknowledge(ack):
            return
        size = sum(map(len, news))
        if size > _TOGETHER and len(news) > 1:
            self.close("it sends more operations in a frame than a node does", False)
            return
        deadlines.hear(now)
        receiving.note_known(seq + len(news))
        if seq != receiving.received:
            if seq > receiving.received:
                # The frame is dropped, not kept until the gap is closed: the peer sends all
                # operations after the gap again, so a kept frame would save nothing.
                self._miss(now)
                return
            news = news[receiving.received - seq :]
        # A double means that the acknowledgement may be lost, and these bytes fill the window of
        # the peer until it hears of them.
        if not news:
            self._send_ack(resend=False)
            return
        deliver = self._owner.deliver
        for op in receiving.begin(news):
            deliver(op)
            if self._mine != mine:
                return  # the session has ended, and _end() has counted what was carried out
        self.totals.count_received(receiving.count_arrived())
        if receiving.received >= receiving.known:
            deadlines.ask_again(inf)
        if receiving.count_bytes(size):
            self._send_ack(resend=False)
        elif deadlines.acknowledge_by(now + self._timing.ack_delay):
            self.is_due_earlier = True

    def _receive_deflated(self, frame: Deflated) -> None:
        if not self._timing.inflates:
            self.close("it sends a compressed frame, which was not agreed on", False)
            return
        try:
            data = inflated(frame, self._timing.inflates)
        except ValueError as error:
            self.close(str(error), False)
            return
        self.receive(data)

    def _receive_ack(self, ack: Ack) -> None:
        now = self._now = self._clock()
        if not self._acknowledge(ack.ack):
            return
        self._deadlines.hear(now)
        receiving, sending = self._receiving, self.sending
        # No later frame shows a gap at the end of a flood. The heartbeat does, as it tells how many
        # operations the peer has sent.
        receiving.note_known(ack.last)
        sending.grant(ack.window)
        if ack.at:
            receiving.note_echo(ack.at, now)
        if ack.echo:
            # The peer says what it likes; no answer of a living peer takes longer.
            self.round_trip = min(max(0.0, now - ack.echo), self._timing.patience)
        if ack.resend:
            self._send_again(now)
        if receiving.known > receiving.received:
            self._miss(now)

    def _acknowledge(self, count: int) -> bool:
        """Forget operations that the peer has got. False if the peer is wrong about them."""
        # Else the peer could make room in the window, and have operations counted as confirmed,
        # that never went out.
        if count > self.sending.sent:
            self.close("it acknowledges operations that were never sent", False)
            return False
        self.totals.count_confirmed(self.sending.acknowledge(count))
        return True

    def _miss(self, now: float) -> None:
        """Ask the peer once for the operations that are missing, and again if they do not come."""
        # Each frame behind a gap shows the same gap: a request for each would have the peer send
        # everything again as often.
        if self._deadlines.resend_at == inf:
            self._ask_again(now)

    def _ask_again(self, now: float) -> None:
        self._deadlines.ask_again(now + self._timing.repeat)
        self.is_due_earlier = True
        self._send_ack(resend=True)

    def _send_again(self, now: float) -> None:
        sending = self.sending
        # An honest peer asks again after `repeat`, so each of its requests is honoured. With the
        # whole time as the pause, a request that comes a moment early would be lost.
        if not sending.may_send_again(now, self._timing.repeat / 2):
            return  # a doubled frame, or a hostile peer: others ask later for the same again
        for start, ops in sending.frames_again():
            self._send_data(start, ops)
            self.totals.count_resent(len(ops))

    # -- states ------------------------------------------------------------------------------------

    def _begin(self, mine: int, hello: Hello) -> None:
        # A late frame that confirms an older invitation must not begin that session.
        self._offers.clear()
        self._reset()
        now = self._now = self._clock()
        self.state = State.UP
        self._mine, self._yours = mine, hello.mine
        self.sending.grant(hello.window)
        self.sending.agree(min(self._timing.inflates, hello.inflates))
        self.totals.count_session()
        self._deadlines.hear(now)
        self._deadlines.note_sent(now + self._timing.beat)
        self._owner.session_up(hello.creation)
        self.flush()

    def _end(self, why: str, is_orderly: bool) -> None:
        # A peer that answered an invitation and was never up has no operations: the invitation was
        # an old frame.
        is_told = self.state is State.UP or self._inviting
        sending, receiving, totals = self.sending, self._receiving, self.totals
        # An operation may have ended the session in the middle of its frame: those up to it have
        # arrived, and the others have not. The accounts of both nodes agree only if this counts
        # before `_reset`.
        totals.count_received(receiving.count_arrived())
        if self.state is State.UP:
            totals.remember_end(
                self._mine, self._yours, receiving.received, sending.acknowledged, sending.sent
            )
        totals.count_lost(len(sending.unacknowledged), sending.count)
        # A late frame that confirms an answer of this attempt would begin a session under a number
        # that was told as ended.
        for pair in [pair for pair in self._offers if pair[0] == self._mine]:
            del self._offers[pair]
        self._reset()
        # Before the owner is told: an operation that it pushes in that step belongs to the next
        # session, and a session that still looked UP would take it without inviting the peer.
        self.state = State.IDLE
        lost = sending.give_up()
        if is_told:
            self._owner.session_down(why, is_orderly, lost)

    # -- sending -----------------------------------------------------------------------------------

    def _send_hello(self) -> None:
        self._deadlines.repeat_hello(self._clock() + self._timing.repeat)
        window = self._receiving.tell_window()
        told = (self._mine, 0, window, self._timing.inflates)
        self._owner.transmit(Hello(VERSION, self._creation, *told))

    def _send_data(self, first: int, ops: list[bytes]) -> None:
        self._note_sent()
        frame = Data(self._mine, self._yours, first, self._receiving.received, ops)
        most = self.sending.peer_inflates
        self._owner.transmit(deflated(frame, most) if most else frame)

    def _send_ack(self, resend: bool) -> None:
        now = self._now = self._clock()
        self._note_sent()
        receiving = self._receiving
        window, sent, echo = receiving.tell_window(), self.sending.sent, receiving.echo(now)
        told = (receiving.received, sent, resend, window, now, echo)
        self._owner.transmit(Ack(self._mine, self._yours, *told))

    def _note_sent(self) -> None:
        self._receiving.note_told()
        # The last known moment: the heartbeat comes early rather than late, and a frame costs no
        # look at the clock.
        self._deadlines.note_sent(self._now + self._timing.beat)
