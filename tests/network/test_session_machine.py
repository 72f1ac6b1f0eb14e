"""The session between two nodes as a state machine: Hypothesis chooses each frame that arrives, is
lost, doubled or overtaken, each moment, and each restart.

The model is a list of the operations that each start of a node has pushed. The simulation beside
this file runs for longer; here Hypothesis finds short histories, and makes a failing one shorter.
"""

from itertools import count
from math import inf

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ergo_py.network.protocol.frames import (
    VERSION,
    Ack,
    Bye,
    Data,
    Frame,
    Hello,
    encode_frame,
    read_frame,
)
from ergo_py.network.protocol.session import Session, State, Timing
from tests.support import THOROUGH

WINDOW = 60
TIMING = Timing(beat=1.0, patience=5.0, repeat=0.2, ack_delay=0.05, window=WINDOW)


_numbers, _few = st.integers(90, 110), st.integers(0, 3)
_foreign = st.integers(900, 999)
STRAY = st.one_of(
    st.builds(
        Hello,
        st.sampled_from((VERSION, VERSION + 1)),
        st.integers(0, 9),
        st.integers(1, 200),
        st.sampled_from((0, 101, 150)),
        st.just(WINDOW),
    ),
    st.builds(Data, _foreign, _numbers, _few, _few, st.just([b"0:0:foreign"])),
    st.builds(Ack, _foreign, _numbers, _few, _few, st.booleans()),
    st.builds(Bye, _foreign, _numbers, st.just("foreign")),
)
"""Frames of another session, or of none."""


class End:
    """A node, as an end of sessions. ``creation`` changes with each start."""

    def __init__(self, world: "SessionMachine", number: int) -> None:
        self.world = world
        self.number = number
        self.pushed: dict[int, list[bytes]] = {}
        self.lost: set[bytes] = set()
        self.delivered: list[bytes] = []
        """All operations of the peer, of all its starts, in the order of their arrival."""
        self.start()

    def start(self) -> None:
        """Start again: nothing of the start before is left."""
        self.creation = next(self.world.creations)
        self.pushed[self.creation] = []
        self.current: list[bytes] | None = None
        """The operations that the session has delivered; None without a session."""
        self.session = Session(
            self,
            self.creation,
            TIMING,
            lambda: self.world.now,
            lambda: next(self.world.numbers),
        )

    @property
    def peer(self) -> "End":
        return self.world.ends[1 - self.number]

    def push(self, size: int) -> None:
        """Push an operation that tells its start and its number."""
        mine = self.pushed[self.creation]
        mine.append(b"%d:%d:%s" % (self.creation, len(mine), b"x" * size))
        self.session.push(mine[-1])
        self.session.flush()

    # -- owner of the session ----------------------------------------------------------------------

    def transmit(self, frame: Frame) -> None:
        self.world.flying[1 - self.number].append(encode_frame(frame))

    def session_up(self, creation: int) -> None:
        assert self.current is None, "up twice"
        self.current = []

    def deliver(self, op: bytes) -> None:
        assert self.current is not None, "an operation without a session"
        self.current.append(op)
        creation = int(op.split(b":")[0])
        sent = self.peer.pushed[creation]
        first = sent.index(self.current[0])
        assert self.current == sent[first : first + len(self.current)], "a hole or a mixture"
        assert op not in self.delivered, "twice"
        self.delivered.append(op)

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes]) -> None:
        self.current = None
        self.lost.update(lost)


class SessionMachine(RuleBasedStateMachine):
    """Two ends, and the frames between them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.creations = count(1)
        self.numbers = count(100)
        self.flying: list[list[bytes]] = [[], []]
        self.ends: list[End] = []
        self.ends += [End(self, 0), End(self, 1)]

    ends_ = st.integers(0, 1)

    @rule(end=ends_, size=st.sampled_from((0, 0, 20, 100)), times=st.integers(1, 4))
    def push(self, end: int, size: int, times: int) -> None:
        for _ in range(times):
            self.ends[end].push(size)

    @initialize(both=st.booleans(), is_up=st.booleans())
    def connect(self, both: bool, is_up: bool) -> None:
        self.ends[0].session.connect()
        if both:
            self.ends[1].session.connect()
        if is_up:
            self.carry_all()

    @precondition(lambda self: any(self.flying))
    @rule(data=st.data(), fate=st.sampled_from(("arrive", "arrive", "arrive", "lose", "double")))
    def carry(self, data: st.DataObject, fate: str) -> None:
        to = data.draw(st.sampled_from([end for end in (0, 1) if self.flying[end]]))
        # Mostly the oldest frame; sometimes a later frame overtakes.
        last = len(self.flying[to]) - 1
        index = data.draw(st.one_of(st.just(0), st.integers(0, last)))
        frame = self.flying[to][index]
        if fate != "double":
            del self.flying[to][index]
        if fate != "lose":
            self._arrive(to, frame)

    @precondition(lambda self: any(self.flying))
    @rule()
    def carry_all(self) -> None:
        for _ in range(50):
            if not any(self.flying):
                return
            for to in (0, 1):
                frames, self.flying[to] = self.flying[to], []
                for frame in frames:
                    self._arrive(to, frame)

    @rule(seconds=st.sampled_from((0.05, 0.2, 1.0, 2.5, 5.0)))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(data=st.data(), end=ends_)
    def fail(self, data: st.DataObject, end: int) -> None:
        session = self.ends[end].session
        match data.draw(st.sampled_from(("stray", "again", "restart", "gone", "close"))):
            case "stray":
                self._arrive(end, encode_frame(data.draw(STRAY)))
            case "again":
                session.say_again()
            case "restart":
                self.ends[end].start()
            case "gone":
                session.fail("the carrier says so")
            case "close":
                session.close("asked to", data.draw(st.booleans()))

    def _arrive(self, to: int, frame: bytes) -> None:
        self.ends[to].session.receive(read_frame(frame))

    def _pass(self, seconds: float) -> None:
        """Let time pass, with all deadlines on the way."""
        until = self.now + seconds
        while (moment := min(end.session.next_deadline() for end in self.ends)) <= until:
            self.now = max(self.now, moment)
            for end in self.ends:
                if end.session.next_deadline() <= self.now:
                    end.session.tick()
                    end.session.flush()
        self.now = until

    @invariant()
    def no_more_bytes_than_the_window_are_on_the_way(self) -> None:
        for end in self.ends:
            session = end.session
            assert session.unacknowledged <= 1 or session.unacknowledged_bytes <= WINDOW
            assert session.queued_bytes >= 0

    @invariant()
    def an_operation_that_is_forgotten_has_arrived_or_is_told_as_lost(self) -> None:
        for end in self.ends:
            sent = end.pushed[end.creation]
            held = end.session.queued + end.session.unacknowledged
            forgotten = sent[: len(sent) - held]
            assert set(forgotten) <= {*end.peer.delivered, *end.lost}

    @invariant()
    def the_operations_add_up(self) -> None:
        for end in self.ends:
            session, totals = end.session, end.session.totals
            parts = (totals.confirmed, totals.unconfirmed, totals.unsent)
            assert session.sent == sum(parts) + session.unacknowledged + session.queued
            assert session.sent == len(end.pushed[end.creation])

    @invariant()
    def a_session_that_is_not_idle_has_a_deadline(self) -> None:
        for end in self.ends:
            is_idle = end.session.state is State.IDLE
            assert (end.session.next_deadline() == inf) == is_idle

    def teardown(self) -> None:
        """Without faults, each end reaches the other."""
        for flying in self.flying:
            flying.clear()
        for _ in range(30):
            self._pass(0.5)
            self.carry_all()
        for end in self.ends:
            end.push(0)
        for _ in range(30):
            self._pass(0.2)
            self.carry_all()
        for end in self.ends:
            assert end.session.state is State.UP
            assert end.pushed[end.creation][-1] in end.peer.delivered
            assert not end.session.queued
            assert not end.session.unacknowledged


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=2000 if THOROUGH else 60,
    stateful_step_count=60 if THOROUGH else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
