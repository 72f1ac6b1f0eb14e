"""The session between two nodes: a simulation with faults, and each rule by hand."""

from math import inf, nan

import pytest

from ergo_py.network.protocol.frames import (
    NOT_A_FRAME,
    Ack,
    Bye,
    Data,
    Frame,
    Hello,
    encode_frame,
    read_frame,
)
from ergo_py.network.protocol.long_operations import PART_HEAD
from ergo_py.network.protocol.records import FRAME
from ergo_py.network.protocol.session import Session, State, Timing
from tests.network.simulation import Simulation
from tests.support import THOROUGH

_SEEDS = 20_000 if THOROUGH else 250
_GROUPS = 10


@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_session_keeps_its_promises_on_a_faulty_carrier(group: int) -> None:
    for seed in range(group, _SEEDS, _GROUPS):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


class End:
    """An end of a session whose frames a test carries by hand."""

    def __init__(
        self,
        numbers: list[int],
        window: int = 1000,
        creation: int = 1,
        inflates: int = 0,
        longest: int = 1 << 30,
    ) -> None:
        self.now = 0.0
        self.frames: list[Frame] = []
        self.ops: list[bytes] = []
        self.events: list[str] = []
        self.lost: list[bytes] = []
        timing = Timing(1.0, 5.0, 0.2, 0.05, window, inflates)
        fresh = iter(numbers).__next__
        self.session = Session(self, creation, timing, lambda: self.now, fresh, longest)

    def transmit(self, frame: Frame) -> None:
        self.frames.append(frame)

    def session_up(self, creation: int) -> None:
        self.events.append(f"up {creation}")

    def deliver(self, op: bytes) -> None:
        self.ops.append(op)

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes]) -> None:
        self.events.append(f"down {why}")
        self.lost += lost

    def take(self) -> list[Frame]:
        """The frames since the last time."""
        frames, self.frames = self.frames, []
        return frames

    def push(self, *ops: bytes) -> None:
        for op in ops:
            self.session.push(op)
        self.session.flush()


def carry(sender: End, receiver: End) -> None:
    for frame in sender.take():
        receiver.session.receive(read_frame(encode_frame(frame)))


def talk(one: End, other: End) -> None:
    while one.frames or other.frames:
        carry(one, other)
        carry(other, one)


def pair(window: int = 1000) -> tuple[End, End]:
    """Two ends of a session that is up."""
    one, other = End([11, 12, 13], window, 1), End([21, 22, 23], window, 2)
    one.session.connect()
    talk(one, other)
    assert one.session.state is other.session.state is State.UP
    return one, other


@pytest.mark.parametrize("sizes", [[FRAME + PART_HEAD - 1, 1], [1 << 20]], ids=["some", "one"])
def test_the_longest_frames_of_honest_nodes_arrive(sizes: list[int]) -> None:
    _one, other = pair()
    ops = [bytes(size) for size in sizes]
    other.session.receive(Data(11, 21, 0, 0, ops))

    assert other.ops == ops
    assert other.events == ["up 1"]


def test_a_frame_of_more_operations_than_a_node_sends_ends_the_session() -> None:
    """It would be carried out in a single step: 16 MiB of small operations take seconds."""
    _one, other = pair()
    other.session.receive(Data(11, 21, 0, 0, [b"one"] * FRAME))

    assert other.ops == []
    assert other.events == ["up 1", "down it sends more operations in a frame than a node does"]


@pytest.mark.parametrize("echo, seconds", [(-inf, 5.0), (-1e9, 5.0), (inf, 0.0), (nan, 0.0)])
def test_a_time_that_no_clock_tells_is_no_time_of_a_frame(echo: float, seconds: float) -> None:
    _one, other = pair()
    other.session.receive(Ack(11, 21, 0, 0, False, 0, nan, echo))

    assert other.session.round_trip == seconds


def test_an_invitation_and_its_answer_bring_both_ends_up() -> None:
    one, other = pair()

    assert (one.events, other.events) == (["up 2"], ["up 1"])


def test_the_first_operations_travel_with_the_frame_that_brings_the_peer_up() -> None:
    one, other = End([11]), End([21])
    one.push(b"a", b"b")
    carry(one, other)
    carry(other, one)
    carry(one, other)

    assert other.ops == [b"a", b"b"]


def test_two_invitations_at_the_same_time_begin_a_single_session() -> None:
    one, other = End([11, 12], creation=1), End([21, 22], creation=2)
    one.push(b"a")
    other.push(b"b")
    talk(one, other)

    assert (one.ops, other.ops) == ([b"b"], [b"a"])
    assert (one.events, other.events) == (["up 2"], ["up 1"])


def test_a_frame_counts_only_if_both_numbers_fit() -> None:
    _one, other = pair()
    other.session.receive(Data(99, 21, 0, 0, [b"foreign"]))
    other.session.receive(Data(11, 99, 0, 0, [b"foreign"]))
    other.session.receive(Bye(99, 21, "foreign"))

    assert other.ops == []
    assert other.events == ["up 1"]
    assert all(isinstance(frame, Bye) for frame in other.take())


def test_only_an_echo_of_the_own_number_is_believed() -> None:
    one = End([11])
    one.session.connect()
    one.session.receive(Hello(1, 2, 21, 99, 1000))

    assert one.session.state is State.OPENING


def test_an_invitation_does_not_end_a_session_before_it_is_confirmed() -> None:
    one, other = pair()
    other.session.receive(Hello(1, 7, 77, 0, 1000))
    assert other.events == ["up 1"]
    one.push(b"a")
    carry(one, other)
    assert other.ops == [b"a"]

    other.take()
    other.session.receive(Hello(1, 7, 78, 0, 1000))
    (answer,) = other.take()
    assert isinstance(answer, Hello)
    assert answer.yours == 78
    other.session.receive(Data(78, answer.mine, 0, 0, [b"new"]))

    assert other.events == ["up 1", "down it has begun another session", "up 7"]
    assert other.ops == [b"a", b"new"]


def test_a_gap_asks_once_and_again_after_a_while() -> None:
    one, other = pair()
    one.push(b"a")
    one.take()
    one.push(b"b")
    carry(one, other)
    one.push(b"c")
    carry(one, other)
    assert [frame.resend for frame in other.take() if isinstance(frame, Ack)] == [True]

    other.now = 0.2
    other.session.tick()
    (again,) = other.take()
    assert isinstance(again, Ack)
    assert again.resend
    one.session.receive(again)
    carry(one, other)
    assert other.ops == [b"a", b"b", b"c"]
    assert other.session.next_deadline() > 0.2


def test_the_same_operations_are_sent_again_once_in_a_while() -> None:
    """A peer that asks for them a thousand times gets them once."""
    one, other = pair()
    one.push(b"a")
    one.take()
    one.push(b"b")
    carry(one, other)
    (ask,) = (frame for frame in other.take() if isinstance(frame, Ack))
    assert ask.resend
    for _ in range(1000):
        one.session.receive(ask)
    assert len(one.take()) == 1
    one.now = 0.2
    one.session.receive(ask)
    carry(one, other)
    assert other.ops == [b"a", b"b"]


def test_a_heartbeat_finds_the_lost_end_of_a_flood() -> None:
    one, other = pair()
    one.push(b"a")
    one.take()
    one.now = 1.0
    one.session.tick()
    carry(one, other)
    talk(other, one)

    assert other.ops == [b"a"]


def test_doubles_are_acknowledged_and_dropped() -> None:
    one, other = pair()
    one.push(b"a")
    (data,) = one.take()
    other.session.receive(data)
    other.session.receive(data)

    assert other.ops == [b"a"]
    (ack,) = other.take()
    assert isinstance(ack, Ack)
    assert ack.ack == 1


def test_no_more_bytes_than_the_window_are_on_the_way() -> None:
    one, other = pair(window=10)
    one.push(b"12345", b"67890", b"x")
    assert one.session.unacknowledged == 2
    assert one.session.queued == 1
    talk(one, other)

    assert other.ops == [b"12345", b"67890", b"x"]
    assert one.session.queued_bytes == 0


def test_an_operation_longer_than_the_window_goes_alone() -> None:
    one, other = pair(window=4)
    one.push(b"1", b"0123456789", b"2")
    other.now = 0.06
    talk(one, other)
    other.session.tick()
    talk(one, other)

    assert other.ops == [b"1", b"0123456789", b"2"]


def test_a_silent_peer_is_down_after_the_patience() -> None:
    one, _ = pair()
    one.push(b"a")
    one.now = 5.0
    assert one.session.next_deadline() <= one.now
    one.session.tick()

    assert one.events[-1] == "down it is silent"
    assert one.lost == [b"a"]
    assert one.session.state is State.IDLE


def test_a_peer_that_does_not_answer_loses_the_queue() -> None:
    one = End([11])
    one.push(b"a")
    for step in range(1, 30):
        one.now = 0.2 * step
        if one.now >= one.session.next_deadline():
            one.session.tick()

    assert one.events == ["down it does not answer"]
    assert one.lost == [b"a"]
    assert sum(isinstance(frame, Hello) for frame in one.take()) > 20


def test_an_answered_invitation_that_is_never_confirmed_is_forgotten_in_silence() -> None:
    other = End([21])
    other.session.receive(Hello(1, 1, 11, 0, 1000))
    other.now = 5.0
    other.session.tick()

    assert other.events == []
    assert other.session.state is State.IDLE


def test_a_farewell_ends_the_session_of_the_peer() -> None:
    one, other = pair()
    one.push(b"a")
    one.session.close("asked to", True)
    carry(one, other)

    assert other.ops == [b"a"]
    assert other.events[-1] == "down asked to"


def test_frames_of_an_ended_session_are_answered_with_a_farewell() -> None:
    one, other = pair()
    other.session.fail("gone")
    one.push(b"a")
    carry(one, other)
    carry(other, one)

    assert other.ops == []
    assert one.events[-1] == "down it does not know the session"


def test_another_version_is_refused_by_name() -> None:
    one, other = End([11]), End([21])
    other.session.receive(Hello(9, 1, 11, 0, 1000))
    one.session.connect()
    carry(other, one)

    assert one.events == ["down it speaks version 1 of the protocol, not 9"]


def test_an_acknowledgement_of_unsent_operations_ends_the_session() -> None:
    one, _other = pair()
    one.session.receive(Ack(21, 11, 5, 0, False))

    assert one.events[-1] == "down it acknowledges operations that were never sent"


def test_a_late_frame_of_an_earlier_attempt_begins_no_session() -> None:
    one, other = End([11, 12]), End([21, 22])
    one.push(b"old")
    carry(one, other)
    carry(other, one)
    late = one.take()
    one.session.fail("gone")
    one.push(b"new")
    talk(one, other)
    assert other.ops == [b"new"]
    for frame in late:
        other.session.receive(frame)

    assert other.ops == [b"new"]
    assert other.events == ["up 1"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\x07",
        b"\x95\x01\x02",
        b"\xff" * 40,
        b"\x94\x03\x01\x02\xa1\xff",
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(NOT_A_FRAME):
        read_frame(data)


def test_operations_of_a_frame_count_up_to_the_operation_that_ends_the_session() -> None:
    one, other = pair()

    def deliver(op: bytes) -> None:
        other.ops.append(op)
        if op == b"bad":
            other.session.close("it is unreadable", False)

    other.deliver = deliver  # type: ignore[method-assign]
    one.push(b"good", b"bad", b"never seen")
    carry(one, other)

    assert other.ops == [b"good", b"bad"]
    assert other.session.totals.received == 2
    assert [count for _, _, count in other.session.totals.arrived()] == [2]


def test_an_acknowledgement_that_goes_with_data_leaves_no_deadline() -> None:
    one, other = pair()
    one.push(b"question")
    carry(one, other)
    assert other.session.is_due_earlier
    assert other.session.next_deadline() == pytest.approx(0.05)

    other.push(b"answer")
    assert not other.session.is_due_earlier
    assert other.session.next_deadline() == pytest.approx(1.0)

    carry(other, one)
    one.session.note_deadline()
    assert not one.session.is_due_earlier


def test_a_missing_operation_keeps_its_deadline_when_data_is_sent() -> None:
    one, other = pair()
    one.push(b"lost")
    one.take()
    one.push(b"found")
    carry(one, other)

    other.push(b"anything")

    assert other.session.is_due_earlier
    assert other.session.next_deadline() == pytest.approx(0.2)


def test_a_heartbeat_is_never_late() -> None:
    one, other = pair()
    one.now = other.now = 0.9
    one.push(b"after a while")
    assert one.session.next_deadline() <= 0.9 + 1.0
    one.now = 1.0
    one.take()
    one.session.tick()
    assert [type(frame) for frame in one.take()] == [Ack]
    assert one.session.next_deadline() == pytest.approx(2.0)
