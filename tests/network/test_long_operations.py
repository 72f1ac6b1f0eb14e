"""Long operations travel in parts: which operations overtake them, and that no receiver notices."""

import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergo_py import PID, Actor, Alias, Caller, Name, Overflow
from ergo_py._core.vocabulary.envelopes import Lane
from ergo_py.network.messages.codec import msgspec
from ergo_py.network.protocol.frames import Data
from ergo_py.network.protocol.long_operations import PART_HEAD, PIECE, LongOperations
from ergo_py.network.protocol.operations import (
    Answer,
    Call,
    ConfirmedSend,
    Failed,
    Part,
    encode_operation,
    read_operation,
)
from ergo_py.network.protocol.session import State, Timing
from tests.network.pairs import Add, Total, make_network, network_of, two_nodes, until
from tests.network.test_session import End, talk

A, B = PID("a@test", 1, 1), PID("a@test", 1, 2)
C, D = PID("b@test", 1, 3), PID("b@test", 1, 4)
BY_NAME, BY_ALIAS = Name("c", "b@test"), Alias("b@test", 1, 5)
LONG, SHORT = PART_HEAD + 6_000, 10


def pair(window: int) -> tuple[End, End]:
    """Two ends of a session whose parts have 1,000 bytes of an operation."""
    one, other = (End([number], window, number, longest=PART_HEAD + 1_000) for number in (1, 2))
    one.session.connect()
    talk(one, other)
    assert one.session.state is other.session.state is State.UP
    return one, other


def settle(one: End, other: End) -> None:
    """Carry all frames, and let the time pass in which acknowledgements wait."""
    talk(one, other)
    while one.session.queued or one.session.unacknowledged:
        for end in (one, other):
            end.now += 0.05
            end.session.tick()
        talk(one, other)
        assert one.now < 4.0, "nothing arrives any more"


def operation(number: int, size: int) -> bytes:
    """An operation that tells its number."""
    return encode_operation([99, number, b"x" * size])


def delivered(ops: Iterable[bytes]) -> list[int]:
    """The numbers of whole operations, in the order in which the last byte of each arrived."""
    found, parts = [], b""
    for op in ops:
        if op[1] == 15:
            part: Any = read_operation(op)
            assert isinstance(part, Part)
            parts += part.data
            if not part.is_last:
                continue
            found.append(decoded(parts))
            parts = b""
        else:
            found.append(decoded(op))
    assert not parts
    return found


def decoded(op: bytes) -> int:
    tag, number, data = msgspec.msgpack.decode(op)
    assert tag == 99
    assert set(data) <= {ord("x")}
    return int(number)


@pytest.mark.parametrize(
    "sender,to,overtakes",
    [
        (A, C, False),
        (A, D, True),
        (A, BY_NAME, False),
        (A, BY_ALIAS, False),
        (B, C, True),
        (B, BY_NAME, True),
        (None, C, False),
        (None, D, True),
        (None, BY_NAME, False),
        (A, None, False),
    ],
)
def test_a_short_operation_overtakes_unless_its_receiver_could_notice(
    sender: Any, to: Any, overtakes: bool
) -> None:
    one, other = pair(window=8_000)
    one.session.push(operation(0, LONG), A, C)
    one.session.flush()
    one.session.push(operation(1, SHORT), sender, to)
    one.session.flush()
    settle(one, other)

    assert delivered(other.ops) == ([1, 0] if overtakes else [0, 1])
    assert (one.session.queued, one.session.queued_bytes) == (0, 0)


def test_a_message_does_not_overtake_a_long_answer_to_its_receiver() -> None:
    one, other = pair(window=8_000)
    one.session.push(operation(0, LONG), None, C)
    one.session.push(operation(1, SHORT), A, C)
    one.session.push(operation(2, SHORT), A, D)
    one.session.flush()
    settle(one, other)

    assert delivered(other.ops) == [2, 0, 1]


def test_a_long_operation_does_not_overtake_short_operations_before_it() -> None:
    one, other = pair(window=80_000)
    for number in range(20):
        one.session.push(operation(number, 3_000), A, C)
    one.session.push(operation(20, LONG), A, C)
    one.session.flush()
    settle(one, other)

    assert delivered(other.ops) == list(range(21))


def test_half_of_the_window_is_left_to_short_operations() -> None:
    one, other = pair(window=8_000)
    one.session.push(operation(0, LONG), A, C)
    one.session.flush()
    first = one.take()
    one.session.push(operation(1, 2_000), B, D)
    one.session.flush()

    (frame,) = one.take()
    assert isinstance(frame, Data)
    assert delivered(frame.ops) == [1]
    one.frames = [*first, frame]
    settle(one, other)
    assert delivered(other.ops) == [1, 0]


def test_two_parts_are_on_the_way_in_half_of_the_default_window() -> None:
    window = Timing().window
    one, other = (End([number], window, number) for number in (1, 2))
    one.session.connect()
    talk(one, other)
    one.session.push(operation(0, 6 * PIECE), A, C, b"r" * (PART_HEAD - 100))
    one.session.flush()

    assert window // 2 >= 2 * (PIECE + PART_HEAD)
    assert one.session.unacknowledged == 2
    assert 2 * PIECE < one.session.unacknowledged_bytes <= window // 2
    settle(one, other)
    assert delivered(other.ops) == [0]


@pytest.mark.parametrize("sender", [None, A])
def test_an_operation_overtakes_without_a_look_at_each_operation_that_waits(sender: Any) -> None:
    waiting = LongOperations()
    for number in range(200):
        waiting.add(b"op", 0, sender or PID("a@test", 1, number), PID("b@test", 1, number), b"", 0)
    events: list[str] = []

    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: events.append(event))
    overtakes = [waiting.may_be_overtaken(sender, PID("b@test", 2, n)) for n in range(100)]
    sys.setprofile(before)

    assert overtakes == [True] * 100
    assert len(events) < 100 * 50


def conflicts(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Whether a receiver could see that two operations have changed places."""
    (sender, to), (other_sender, other_to) = first, second
    if to is None or other_to is None:
        return True
    if None not in (sender, other_sender) and sender != other_sender:
        return False
    return not (type(to) is type(other_to) is PID and to != other_to)


PAIRS = st.tuples(st.sampled_from([A, B, None]), st.sampled_from([C, D, C, D, C, D, BY_NAME, None]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(PAIRS, st.sampled_from([SHORT, SHORT, LONG]), st.booleans()), max_size=25),
    st.sampled_from([500, 3_000, 20_000]),
)
def test_every_operation_arrives_once_and_no_order_that_a_receiver_sees_changes(
    pushed: list[tuple[tuple[Any, Any], int, bool]], window: int
) -> None:
    one, other = pair(window)
    for number, ((sender, to), size, is_flushed) in enumerate(pushed):
        one.session.push(operation(number, size), sender, to)
        if is_flushed:
            one.session.flush()
            assert one.session.unacknowledged_bytes <= max(window, LONG)
    one.session.flush()
    settle(one, other)

    found = delivered(other.ops)
    assert sorted(found) == list(range(len(pushed)))
    assert one.session.totals.confirmed == len(other.ops)
    place = {number: index for index, number in enumerate(found)}
    for later, (second, size, _) in enumerate(pushed):
        for earlier, (first, _, _) in enumerate(pushed[:later]):
            if conflicts(first, second) or size == LONG:
                assert place[earlier] < place[later], (earlier, later)


def test_a_flood_of_short_operations_does_not_stop_a_long_operation() -> None:
    one, other = pair(window=2_000)
    flying: deque[Any] = deque()
    one.session.push(operation(0, LONG), A, C)
    for number in range(1, 400):
        # More is pushed than arrives, and several frames are on the way: each acknowledgement makes
        # room for a short operation, and not for a part.
        for _ in range(2):
            one.session.push(operation(number, 300), B, D)
            one.session.flush()
        sent = one.take()
        flying.extend(sent)
        if len(flying) > 4 or not sent:
            other.session.receive(flying.popleft())
        for frame in other.take():
            one.session.receive(frame)

    assert one.session.queued > 0
    assert 0 in delivered(other.ops)


def test_the_end_of_a_session_gives_back_the_rest_of_a_long_operation() -> None:
    one, _ = pair(window=4_000)
    long = operation(0, LONG)
    one.session.push(long, A, C, b"route")
    one.session.push(operation(1, SHORT), A, C)
    one.session.flush()
    one.session.fail("cut")

    assert delivered(one.lost) == [0, 1]
    parts: list[Any] = [read_operation(op) for op in one.lost[:-1]]
    assert {part.route for part in parts} == {b"route"}
    assert b"".join(part.data for part in parts) == long
    assert (one.session.queued, one.session.queued_bytes) == (0, 0)
    assert one.session.totals.unconfirmed + one.session.totals.unsent == len(one.lost)


class Sink(Actor):
    """Notes what it gets."""

    def __init__(self, got: list[Any]) -> None:
        self.got = got

    def handle_message(self, message: Any, sender: Any) -> None:
        self.got.append(message)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return len(self.got)


async def test_a_call_is_answered_while_a_long_message_to_another_process_is_on_its_way() -> None:
    got: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        sink, other = await b.spawn(Sink, got), await b.spawn(Sink, [])
        await a.call(sink, Total())
        large = b"x" * (12 << 20)
        a.send(sink, large)
        a.send(sink, Add(1))

        assert await a.call(other, Total()) == 0
        assert got == []
        assert await a.call(sink, Total()) == 2
        assert got == [large, Add(1)]


async def test_a_message_is_confirmed_while_a_long_message_is_on_its_way() -> None:
    got: list[Any] = []
    async with two_nodes(make_network("memory")) as (a, b):
        sink, other = await a.spawn(Sink, got), await b.spawn(Sink, [])
        await b.call(sink, Total())
        b.send(sink, b"x" * (12 << 20))

        assert await a.send_wait(other, Add(1))
        assert got == []


async def test_confirmations_and_failures_are_answers_to_the_process_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_nodes(make_network("memory", allow="send,call")) as (a, b):
        sink = await b.spawn(Sink, [])
        refusing = await b.spawn(Sink, [], mailbox_size=1, overflow=Overflow.RAISE)
        waiting = await b.spawn(Sink, [], mailbox_size=1, overflow=Overflow.WAIT)
        for pid in (refusing, waiting):
            await b.suspend(pid)
            b.send(pid, Add(0))
        await a.call(sink, Total())
        connection = network_of(b).connections["a@test"]
        routes = network_of(a).peers["b@test"].routes
        body = network_of(a).context.types.encode(Add(1))
        answers: list[Any] = []
        push = connection.session.push

        def note(op: bytes, sender: object = None, to: object = None, route: bytes = b"") -> None:
            if isinstance(read_operation(op), Answer | Failed):
                answers.append((sender, to))
            push(op, sender, to, route)

        def take(kind: type, to: PID, sender: PID = A, body: bytes = body) -> None:
            op = kind(len(answers) + 1, routes.find(Lane.MAIN, sender, to), body)
            connection.deliver(encode_operation(op))

        monkeypatch.setattr(connection.session, "push", note)
        missing, stranger = PID("b@test", 1, 999), PID("c@test", 1, 1)

        take(ConfirmedSend, sink)
        take(ConfirmedSend, missing)
        take(ConfirmedSend, sink, body=b"unreadable")
        take(ConfirmedSend, refusing)
        take(Call, missing)
        assert answers == [(None, A)] * 5
        take(ConfirmedSend, sink, stranger)
        take(Call, sink, stranger)
        assert answers[5:] == [(None, stranger)] * 2
        take(ConfirmedSend, waiting)
        monkeypatch.setattr(network_of(b).context.limits, "calls", 1)
        take(ConfirmedSend, waiting)
        take(Call, sink)
        connection.executor.refuse_calls()
        take(Call, sink)
        assert answers[7:] == [(None, A)] * 3
        await b.resume(waiting)
        await until(lambda: len(answers) == 11)
        assert answers[10] == (None, A)
