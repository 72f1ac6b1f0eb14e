"""Framing: the decoder restores the sent frames, however the stream is cut, and no stream of bytes
does harm.
"""

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ergo_py import BadInputError, ErgoError
from ergo_py.meta.parsing.decoder import Decoder, FramingError
from ergo_py.meta.parsing.framing import (
    Delimiter,
    FixedLength,
    Framing,
    LengthHeader,
    Netstring,
    Raw,
    Varint,
)

FRAMINGS: list[Framing] = [
    FixedLength(1),
    FixedLength(7),
    *(
        LengthHeader(size=size, byteorder=order, includes_header=includes, max_frame=200)
        for size in (1, 2, 4, 8)
        for order in ("big", "little")
        for includes in (False, True)
    ),
    LengthHeader(size=2, position=3, header=8, max_frame=200),
    LengthHeader(size=2, position=1, header=4, includes_header=True, strip=False, max_frame=200),
    Delimiter(b"\n", max_frame=200),
    Delimiter(b"\r\n", max_frame=200),
    Delimiter(b"aab", max_frame=5, keep=True),
    Netstring(max_frame=200),
    Varint(max_frame=200),
]


def feed_all(decoder: Decoder, pieces: Sequence[bytes]) -> tuple[list[bytes], str | None]:
    """All frames of a stream, and the error that ended it, if any."""
    frames: list[bytes] = []
    for piece in pieces:
        try:
            frames += decoder.feed(piece)
        except FramingError as error:
            return frames + list(error.frames), str(error)
    return frames, None


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[begin:end] for begin, end in pairwise(ends)] or [b""]


def sendable(framing: Framing, frames: list[bytes]) -> list[bytes]:
    """Those frames that this framing can carry."""
    match framing:
        case FixedLength(size):
            return [(frame * size)[:size] if frame else bytes(size) for frame in frames]
        case LengthHeader(strip=False):
            return [framing.encode(bytes(framing.header_size) + frame) for frame in frames]
    able = []
    for frame in frames:
        try:
            framing.encode(frame)
        except FramingError:
            continue
        kept = framing.delimiter if isinstance(framing, Delimiter) and framing.keep else b""
        able.append(frame.removesuffix(kept) + kept)
    return able


framings = st.sampled_from(FRAMINGS)
places = st.lists(st.integers(0, 1000), max_size=20)
# Short alphabets, so that delimiters, digits, colons and zero lengths come up by themselves.
streams = st.one_of(
    st.binary(max_size=300),
    st.text("aab\r\n", max_size=60).map(str.encode),
    st.text("0123:,x", max_size=60).map(str.encode),
)


@given(
    framings,
    st.lists(st.one_of(st.binary(max_size=60), st.text("aab\n\r", max_size=8).map(str.encode))),
    places,
)
def test_decoding_restores_the_frames_however_the_stream_is_cut(
    framing: Framing, frames: list[bytes], places: list[int]
) -> None:
    sent = sendable(framing, frames)
    stream = b"".join(framing.encode(frame) for frame in sent)

    got, error = feed_all(framing.decoder(), cut(stream, places))

    assert (got, error) == (sent, None)


@given(framings, streams, places)
@example(Delimiter(b"aab", max_frame=5, keep=True), b"aaab", [2])
@example(Netstring(max_frame=200), b"007:", [1])
def test_any_bytes_give_the_same_frames_and_the_same_end_however_they_are_cut(
    framing: Framing, stream: bytes, places: list[int]
) -> None:
    whole, error = feed_all(framing.decoder(), [stream])

    pieces = feed_all(framing.decoder(), cut(stream, places))
    single = feed_all(framing.decoder(), [stream[i : i + 1] for i in range(len(stream))])

    assert pieces[0] == single[0] == whole
    assert (pieces[1] is None) == (single[1] is None) == (error is None)


@pytest.mark.parametrize("framing", FRAMINGS, ids=repr)
def test_the_decoder_returns_at_most_the_requested_number_of_frames(framing: Framing) -> None:
    (frame,) = sendable(
        framing, [bytes([65] * size) for size in (1, 7, 5) if _takes(framing, size)][:1]
    )
    decoder, stream = framing.decoder(), framing.encode(frame) * 10

    turns = [decoder.feed(stream + framing.encode(frame)[:1], 3)]
    while decoder.has_more:
        turns.append(decoder.feed(b"", 3))

    counts = [len(turn) for turn in turns if turn]
    assert counts in ([3, 3, 3, 1], [3, 3, 3, 2])
    assert all(type(one) is bytes for turn in turns for one in turn)


def _takes(framing: Framing, size: int) -> bool:
    return not isinstance(framing, FixedLength) or framing.size == size


@given(framings, streams, places, st.integers(1, 5))
def test_a_bound_on_the_frames_of_a_turn_does_not_change_the_frames(
    framing: Framing, stream: bytes, places: list[int], most: int
) -> None:
    decoder, frames, error, longest = framing.decoder(), list[bytes](), False, 0
    for piece in cut(stream, places):
        data = piece
        while not error:
            try:
                found = decoder.feed(data, most)
            except FramingError as failure:
                found, error = failure.frames, True
            frames += found
            longest, data = max(longest, len(found)), b""
            if not decoder.has_more:
                break

    whole, whole_error = feed_all(framing.decoder(), [stream])

    assert frames == whole
    assert error == (whole_error is not None)
    assert longest <= most
    assert not decoder.has_more


@given(st.sampled_from([Raw(), *FRAMINGS]), st.lists(streams, max_size=8))
def test_any_bytes_at_all_end_in_frames_or_in_a_framing_error(
    framing: Framing, pieces: list[bytes]
) -> None:
    decoder = framing.decoder()

    for piece in pieces:
        try:
            frames = decoder.feed(piece)
        except FramingError as error:
            frames = error.frames

        assert all(type(frame) is bytes for frame in frames)
        assert sum(map(len, frames)) <= sum(map(len, pieces)) + 8 * len(frames)
    assert decoder.unfinished <= sum(map(len, pieces))


@given(streams, places)
def test_raw_framing_passes_its_input_on(stream: bytes, places: list[int]) -> None:
    pieces = [piece for piece in cut(stream, places) if piece]

    frames, error = feed_all(Raw().decoder(), pieces)

    assert frames == pieces
    assert error is None


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_are_equal_to_the_parts_of_bytes_split(lines: list[bytes]) -> None:
    stream = b"\n".join(lines)

    decoder = Delimiter(b"\n", max_frame=10_000).decoder()
    frames, _ = feed_all(decoder, [stream])

    *complete, rest = stream.split(b"\n")
    assert frames == complete
    assert (decoder.rest(), decoder.unfinished) == (rest, len(rest))


@pytest.mark.parametrize(
    "framing,hostile",
    [
        (LengthHeader(size=8), b"\xff" * 8),
        (LengthHeader(size=4, includes_header=True), b"\x00\x00\x00\x00"),
        (LengthHeader(size=4, includes_header=True), b"\x00\x00\x00\x03"),
        (LengthHeader(size=4, max_frame=100), b"\x00\x00\x00\x65"),
        (Delimiter(b"\n", max_frame=10), b"x" * 11),
        (Netstring(max_frame=100), b"101:"),
        (Netstring(), b"99999999999999999999"),
        (Netstring(), b"-1:"),
        (Netstring(), b"01:x,"),
        (Netstring(), b":"),
        (Netstring(), b"1:xy"),
        (Varint(max_frame=100), b"\x65"),
        (Varint(), b"\xff" * 9),
        (Varint(), b"\x80" * 10),
    ],
    ids=str,
)
def test_a_hostile_header_is_an_error_at_once(framing: Framing, hostile: bytes) -> None:
    decoder = framing.decoder()

    with pytest.raises(FramingError) as caught:
        decoder.feed(hostile)

    assert isinstance(caught.value, ErgoError)
    assert isinstance(caught.value, ValueError)


def test_a_header_alone_allocates_no_memory() -> None:
    decoder = LengthHeader(size=8, max_frame=1 << 40).decoder()
    tracemalloc.start()

    decoder.feed((1 << 39).to_bytes(8, "big"))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000


def test_frames_before_a_framing_error_are_not_lost() -> None:
    decoder = LengthHeader(size=1, max_frame=10).decoder()

    with pytest.raises(FramingError) as caught:
        decoder.feed(b"\x02ab\x01c\xff")

    assert caught.value.frames == [b"ab", b"c"]


def test_a_decoder_stays_failed_after_a_framing_error() -> None:
    decoder = LengthHeader(size=1, max_frame=10).decoder()
    with pytest.raises(FramingError):
        decoder.feed(b"\xff")

    with pytest.raises(FramingError, match="at most 10"):
        decoder.feed(b"\x01a")

    assert decoder.unfinished == 0


def test_empty_frames_are_frames() -> None:
    assert LengthHeader(size=2).decoder().feed(b"\0\0\0\0") == [b"", b""]
    assert Delimiter().decoder().feed(b"\n\n") == [b"", b""]
    assert Netstring().decoder().feed(b"0:,0:,") == [b"", b""]
    assert Varint().decoder().feed(b"\0\0") == [b"", b""]


def test_a_long_frame_in_many_pieces_is_put_together() -> None:
    frame = bytes(range(256)) * 16_384
    for framing in (
        LengthHeader(max_frame=1 << 23),
        Netstring(max_frame=1 << 23),
        Varint(max_frame=1 << 23),
        FixedLength(len(frame)),
        Delimiter(b"<end>", max_frame=1 << 23),
    ):
        stream = framing.encode(frame)
        decoder = framing.decoder()

        frames, error = feed_all(
            decoder, [stream[i : i + 1000] for i in range(0, len(stream), 1000)]
        )

        assert error is None
        assert frames == [frame]
        assert decoder.unfinished == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedLength(0),
        lambda: LengthHeader(size=3),
        lambda: LengthHeader(position=-1),
        lambda: LengthHeader(size=4, position=2, header=5),
        lambda: LengthHeader(byteorder="middle"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: LengthHeader(max_frame=0),
        lambda: Delimiter(b""),
        lambda: Delimiter("\n"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        lambda: Delimiter(max_frame=0),
        lambda: Netstring(0),
        lambda: Varint(max_frame=-1),
    ],
)
def test_an_invalid_framing_is_refused_when_it_is_created(make: Any) -> None:
    with pytest.raises(BadInputError):
        make()


@pytest.mark.parametrize(
    "framing,frame",
    [
        (FixedLength(3), b"ab"),
        (LengthHeader(size=1, max_frame=1000), b"x" * 256),
        (LengthHeader(max_frame=10), b"x" * 11),
        (LengthHeader(strip=False), b"abc"),
        (Delimiter(b"\n"), b"a\nb"),
        (Delimiter(b"aba"), b"ab"),
        (Delimiter(b"\n", max_frame=2), b"abc"),
        (Netstring(2), b"abc"),
        (Varint(2), b"abc"),
    ],
)
def test_a_frame_that_the_peer_could_not_decode_is_not_encoded(
    framing: Framing, frame: bytes
) -> None:
    with pytest.raises(FramingError):
        framing.encode(frame)


def test_a_too_long_line_is_refused_even_if_it_came_at_once() -> None:
    decoder = Delimiter(b"\n", max_frame=4).decoder()

    with pytest.raises(FramingError, match="a line of 5 bytes; at most 4"):
        decoder.feed(b"12345\nmore")


def test_raw_framing_sends_bytes_unchanged() -> None:
    encoded = Raw().encode(b"anything\n\x00")

    assert encoded == b"anything\n\x00"


def test_a_length_header_in_two_pieces_is_read() -> None:
    decoder = Varint(max_frame=1000).decoder()

    frames = [decoder.feed(b"\xac"), decoder.feed(b"\x02" + b"x" * 300)]

    assert [list(some) for some in frames] == [[], [b"x" * 300]]


# -- a custom framing that is wrong ----------------------------------------------------------------


class Wrong(Decoder):
    """Appends a single frame, or none, and returns an impossible number of bytes."""

    def __init__(self, frames: int, used: Any) -> None:
        super().__init__()
        self.frames = frames
        self.used = used

    def cut(self, stream: bytes | bytearray, frames: list[Any], most: int) -> int:
        frames += [b"frame"] * self.frames
        used: int = self.used
        return used


@pytest.mark.parametrize(
    "frames, used, allowed",
    [
        (0, -1, "how many of the 3 bytes its frames took"),
        (0, 4, "how many of the 3 bytes its frames took"),
        (0, None, "how many of the 3 bytes its frames took"),
        (0, 1.0, "how many of the 3 bytes its frames took"),
        (1, 0, "how many of the 3 bytes its frames took (at least 1)"),
    ],
)
def test_an_invalid_number_of_bytes_is_refused(frames: int, used: Any, allowed: str) -> None:
    with pytest.raises(BadInputError) as caught:
        Wrong(frames, used).feed(b"abc")

    assert caught.value.what == f"the result of Wrong.cut, which has appended {frames} frames"
    assert caught.value.given == used
    assert caught.value.allowed == allowed
