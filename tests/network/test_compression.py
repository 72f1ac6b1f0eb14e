"""Compressed frames between nodes: who gets them, and frames that no honest node sends."""

import tracemalloc
import zlib
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import msgspec
import pytest

from ergo_py import Actor, BadInputError, MetaProcess
from ergo_py.network import Memory
from ergo_py.network.protocol.compression import INFLATED, SMALLEST, deflated, inflated
from ergo_py.network.protocol.frames import (
    Bye,
    Data,
    Deflated,
    Hello,
    encode_frame,
    read_frame,
)
from tests.network.pairs import Echo, make_network, network_of, two_nodes, until
from tests.network.test_nodes import Counter, Talker
from tests.network.test_session import End, carry, talk
from tests.support import running_node

LIMIT: Final = 4096
TEXT: Final = b"stock of screws; " * 200
NOISE: Final = Random(1).randbytes(3000)


def ends(one_inflates: int = LIMIT, other_inflates: int = LIMIT) -> tuple[End, End]:
    """Two ends of a session that is up."""
    one = End([11, 12, 13], 1 << 20, 1, one_inflates)
    other = End([21, 22, 23], 1 << 20, 2, other_inflates)
    one.session.connect()
    talk(one, other)
    return one, other


def sent(end: End, *ops: bytes) -> Data | Deflated:
    """The frame in which these operations go out."""
    end.push(*ops)
    (frame,) = end.frames
    assert isinstance(frame, Data | Deflated)
    return frame


def claimed(size: int, data: bytes, seq: int = 0) -> Deflated:
    """A compressed frame of the first end of a pair, written by hand."""
    return Deflated(11, 21, seq, 0, size, data)


def encoded_ops(*ops: bytes) -> bytes:
    return msgspec.msgpack.encode(list(ops))


@pytest.mark.parametrize(
    "one_inflates, other_inflates, kind",
    [(LIMIT, LIMIT, Deflated), (LIMIT, 0, Data), (0, LIMIT, Data), (0, 0, Data)],
)
def test_a_frame_is_compressed_if_both_ends_ask_for_it(
    one_inflates: int, other_inflates: int, kind: type
) -> None:
    one, other = ends(one_inflates, other_inflates)
    frame = sent(one, TEXT)
    talk(one, other)

    assert type(frame) is kind
    assert other.ops == [TEXT]
    assert other.events == ["up 1"]


def test_a_frame_is_compressed_if_it_becomes_smaller() -> None:
    one, other = ends()
    frames = []
    for op in (b"x" * (SMALLEST - 1), b"x" * SMALLEST, NOISE):
        frames.append(type(sent(one, op)))
        talk(one, other)

    assert frames == [Data, Deflated, Data]
    assert other.ops == [b"x" * (SMALLEST - 1), b"x" * SMALLEST, NOISE]


def test_frames_that_are_sent_again_are_compressed_too() -> None:
    one, other = ends()
    one.push(TEXT)
    one.take()
    one.push(b"next")
    carry(one, other)
    carry(other, one)

    assert [type(frame) for frame in one.frames] == [Deflated]
    talk(one, other)
    assert other.ops == [TEXT, b"next"]


def test_the_limit_of_the_receiver_counts_at_both_ends() -> None:
    body = b"x" * (LIMIT - len(encoded_ops(b"x" * 3000)) + 3000)
    exact, above = encoded_ops(body), encoded_ops(body + b"x")
    assert (len(exact), len(above)) == (LIMIT, LIMIT + 1)

    assert type(deflated(Data(1, 2, 0, 0, [body]), LIMIT)) is Deflated
    assert type(deflated(Data(1, 2, 0, 0, [body + b"x"]), LIMIT)) is Data
    assert inflated(claimed(LIMIT, zlib.compress(exact)), LIMIT).ops == [body]
    with pytest.raises(ValueError, match="a compressed frame of 4097 bytes; allowed are 4096"):
        inflated(claimed(LIMIT + 1, zlib.compress(above)), LIMIT)
    with pytest.raises(ValueError, match="another size than it tells"):
        inflated(claimed(LIMIT, zlib.compress(above)), LIMIT)


WHOLE: Final = encoded_ops(TEXT)
PACKED: Final = zlib.compress(WHOLE)


@pytest.mark.parametrize(
    "size, data, why",
    [
        (len(WHOLE), PACKED[:-1], "another size"),
        (len(WHOLE), PACKED[: len(PACKED) // 2], "another size"),
        (len(WHOLE), PACKED + b"x", "another size"),
        (len(WHOLE), PACKED + PACKED, "another size"),
        (len(WHOLE) - 1, PACKED, "another size"),
        (len(WHOLE) + 1, PACKED, "another size"),
        (len(WHOLE), b"", "another size"),
        (0, PACKED, "a compressed frame of 0 bytes"),
        (-1, PACKED, "a compressed frame of -1 bytes"),
        (1 << 62, PACKED, "allowed are 4096"),
        (len(WHOLE), NOISE, "cannot be inflated"),
        (len(TEXT), zlib.compress(TEXT), "not the operations of a frame"),
        (4096, zlib.compress(b"\x91" * 4096), "not the operations of a frame"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "_",
)
def test_a_frame_that_cannot_be_inflated_ends_the_session(size: int, data: bytes, why: str) -> None:
    one, other = ends()
    other.session.receive(claimed(size, data))

    assert len(other.events) == 2
    assert why in other.events[1]
    assert other.ops == []
    talk(one, other)
    one.push(TEXT)
    talk(one, other)
    assert other.ops == [TEXT]


def test_a_hundred_bombs_take_the_memory_of_a_single_frame() -> None:
    one, other = ends(INFLATED, INFLATED)
    bomb = zlib.compress(bytes(32 * INFLATED), 9)
    one.take()
    tracemalloc.start()
    try:
        for seq in range(100):
            other.session.receive(claimed(INFLATED, bomb, seq))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # zlib may double its buffer once more before it compares.
    assert peak < 4 * INFLATED
    assert other.events == ["up 1", "down a compressed frame has another size than it tells"]
    assert {type(frame) for frame in other.take()} == {Bye}


def test_a_frame_of_no_session_is_not_inflated() -> None:
    one, other = ends()
    other.session.receive(Deflated(99, 21, 0, 0, len(WHOLE), PACKED))
    other.session.receive(Deflated(11, 99, 0, 0, 1 << 62, b"no stream"))

    assert other.events == ["up 1"]
    assert other.ops == []
    assert [type(frame) for frame in other.take()] == [Bye, Bye]
    one.push(TEXT)
    talk(one, other)
    assert other.ops == [TEXT]


def test_a_compressed_frame_that_was_not_agreed_on_ends_the_session() -> None:
    _one, other = ends(other_inflates=0)
    other.session.receive(claimed(len(WHOLE), PACKED))

    assert other.events == ["up 1", "down it sends a compressed frame, which was not agreed on"]
    assert other.ops == []


class OldHello(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """`Hello` of a version that knows no compression."""

    version: int
    creation: int
    mine: int
    yours: int
    window: int


def test_a_node_of_an_older_version_gets_no_compressed_frames() -> None:
    one = End([11], 1 << 20, 1, LIMIT)
    one.session.connect()
    (invitation,) = one.take()
    assert isinstance(invitation, Hello)
    read = msgspec.msgpack.decode(encode_frame(invitation), type=OldHello)
    assert (read.mine, read.window) == (11, 1 << 20)
    answer = msgspec.msgpack.encode(OldHello(1, 2, 21, read.mine, 1 << 20))
    one.session.receive(read_frame(answer))
    one.take()

    assert one.events == ["up 2"]
    assert type(sent(one, TEXT)) is Data


# -- whole nodes -----------------------------------------------------------------------------------


class Source(MetaProcess):
    """Sends a large message as soon as it starts."""

    def __init__(self, to: Any) -> None:
        self.to = to

    async def start(self) -> None:
        self.send(self.to, Echo(TEXT * 100))


class Hearing(Actor):
    """Keeps the values that it gets."""

    def __init__(self, heard: list[object]) -> None:
        self.heard = heard

    def handle_message(self, message: Echo, sender: Any) -> None:
        self.heard.append(message.value)


async def test_large_values_travel_compressed_in_each_network(networks: Any) -> None:
    text, heard = TEXT.decode() * 1000, list[object]()
    assert len(text) > 8 * INFLATED
    async with two_nodes(networks(compress=True)) as (a, b):
        assert await a.call(await b.spawn(Counter), Echo(text)) == text
        hearing, talker = await b.spawn(Hearing, heard), await a.spawn(Talker, [])
        await a.call(talker, lambda me: me.spawn_meta(Source(hearing)))
        await until(lambda: heard)

        assert heard == [TEXT * 100]
        there, here = a.network().peers["b@test"], b.network().peers["a@test"]
        assert there.bytes_out < len(text) / 4
        assert here.bytes_out < len(text) / 4
        assert there.sessions == 1


async def test_nodes_with_and_without_compression_talk(meeting_place: Path) -> None:
    text = TEXT.decode() * 200
    plain, packed = (make_network("local", meeting_place, compress=each) for each in (False, True))
    async with (
        running_node("a@test", network=packed) as a,
        running_node("b@test", network=plain) as b,
        running_node("c@test", network=packed) as c,
    ):
        for node in (b, c):
            assert await a.call(await node.spawn(Counter), Echo(text)) == text
        peers = a.network().peers
        assert peers["b@test"].bytes_out > len(text) > 10 * peers["c@test"].bytes_out
        assert network_of(a).context.timing.inflates == INFLATED


def test_compress_is_true_or_false() -> None:
    with pytest.raises(BadInputError, match="compress"):
        Memory(compress=cast(Any, "no"))
