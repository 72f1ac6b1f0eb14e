"""WebSocket frames: which bytes are a message, and which break the rules."""

import os
import random
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from ergo_py.web.parsing.deflate import (
    Deflate,
    Inflation,
    accepted_deflate,
    offered_deflate,
)
from ergo_py.web.parsing.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameError,
    WebSocketParser,
    encode_frame,
    is_close_code,
    mask,
    mask_in_python,
)
from ergo_py.web.parsing.handshake import HandshakeError, read_answer

KEY = b"\x01\x02\x03\x04"
MOST = 1000


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, key: bytes | None = KEY
) -> bytes:
    whole = encode_frame(opcode, payload, key)
    return bytes([(whole[0] & 0x0F) | (0x80 if fin else 0) | rsv]) + whole[1:]


def parse(
    *pieces: bytes, is_masked: bool = True, deflate: Deflate | None = None, most: int = MOST
) -> tuple[list[Any], FrameError | None]:
    parser = WebSocketParser(is_masked=is_masked, max_message=most, deflate=deflate)
    found: list[Any] = []
    for piece in pieces:
        events, error = parser.feed(piece)
        found += events
        while parser.has_more:
            events, error = parser.feed(b"")
            found += events
        if error is not None:
            return found, error
    return found, None


def code_of(*pieces: bytes, **options: Any) -> int:
    _, error = parse(*pieces, **options)
    assert error is not None
    return error.code


def inflate(packed: bytes, most: int, step: int = 1 << 16) -> bytes:
    inflation, found = Deflate().begin(packed, most), b""
    while not inflation.is_done:
        clear, _ = inflation.step(step)
        assert len(clear) <= step
        found += clear
    return found


# -- messages --------------------------------------------------------------------------------------


def test_messages_and_control_frames_are_cut() -> None:
    stream = (
        frame(TEXT, "hellö".encode())
        + frame(BINARY, b"\x00\xff")
        + frame(PING, b"p")
        + frame(PONG)
        + frame(CLOSE, b"\x0f\xa0bye")
    )

    assert parse(stream) == (
        [
            (TEXT, "hellö", 0),
            (BINARY, b"\x00\xff", 0),
            (PING, b"p", 0),
            (PONG, b"", 0),
            (CLOSE, "bye", 4000),
        ],
        None,
    )


def test_fragments_are_joined_with_control_frames_between() -> None:
    text = "aä€😀".encode()
    stream = (
        frame(TEXT, text[:2], fin=False)
        + frame(PING, b"x")
        + frame(0, text[2:7], fin=False)
        + frame(0, text[7:])
        + frame(BINARY, b"1", fin=False)
        + frame(0, b"2")
    )

    assert parse(stream)[0] == [(PING, b"x", 0), (TEXT, "aä€😀", 0), (BINARY, b"12", 0)]


def test_a_close_without_a_code_has_code_1005() -> None:
    assert parse(frame(CLOSE))[0] == [(CLOSE, "", 1005)]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 70000])
def test_lengths_of_all_three_forms(size: int) -> None:
    payload = os.urandom(size)

    for key in (KEY, None):
        stream = encode_frame(BINARY, payload, key)
        assert parse(stream, is_masked=key is not None, most=100_000)[0] == [(BINARY, payload, 0)]


def test_every_split_gives_the_same_messages() -> None:
    stream = frame(TEXT, b"a" * 130) + frame(BINARY, b"x", fin=False) + frame(0, b"y") + frame(PING)
    whole = parse(stream)

    for at in range(len(stream)):
        assert parse(stream[:at], stream[at:]) == whole
    assert parse(*(bytes([byte]) for byte in stream)) == whole


@pytest.mark.parametrize("is_masked", [True, False])
def test_the_rest_of_a_parser_leads_another_to_the_same_state(is_masked: bool) -> None:
    """A message moves to the next program in the middle of a frame, of a letter, of a block."""
    key, packed = (KEY if is_masked else None), Deflate().compress(b"again " * 50)
    text = "ä€😀".encode()
    stream = (
        frame(TEXT, b"", fin=False, key=key)
        + frame(0, text[:4], fin=False, key=key)
        + frame(PING, b"are you there", key=key)
        + frame(0, text[4:], key=key)
        + frame(BINARY, packed[:7], fin=False, rsv=0x40, key=key)
        + frame(0, packed[7:], key=key)
        + frame(BINARY, b"ab", fin=False, key=key)
        + frame(0, b"c", key=key)
    )
    whole, error = parse(stream, is_masked=is_masked, deflate=Deflate())
    assert error is None
    assert [event[:2] for event in whole] == [
        (PING, b"are you there"),
        (TEXT, text.decode()),
        (BINARY, b"again " * 50),
        (BINARY, b"abc"),
    ]

    for at in range(len(stream) + 1):
        first = WebSocketParser(is_masked=is_masked, max_message=MOST, deflate=Deflate())
        before, error = first.feed(stream[:at])
        assert error is None
        assert not first.has_more
        after, error = parse(first.rest(), stream[at:], is_masked=is_masked, deflate=Deflate())
        assert (before + after, error) == (whole, None)


@pytest.mark.parametrize("size", [5, 200, 70_000])
def test_the_rest_of_a_parser_is_not_masked_again(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a megabyte, and is for a program, not for a browser."""
    parser = WebSocketParser(is_masked=True, max_message=size, deflate=None)
    begun = frame(BINARY, bytes(size), fin=False, key=bytes(4))
    assert parser.feed(begun + b"\x80") == ([], None)
    monkeypatch.delattr("ergo_py.web.parsing.frames.mask")

    assert parser.rest() == begun + b"\x80"


def test_many_small_messages_take_several_steps() -> None:
    parser = WebSocketParser(is_masked=False, max_message=10, deflate=None)
    events, error = parser.feed(encode_frame(TEXT, b"x") * 1_300)

    assert (len(events), parser.has_more, error) == (512, True, None)
    assert parser.unfinished == (1_300 - 512) * 3
    assert len(parser.feed(b"")[0]) == 512
    assert len(parser.feed(b"")[0]) == 1_300 - 1_024
    assert not parser.has_more


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_frames_that_complete_no_message_take_several_steps(opcode: int) -> None:
    parser = WebSocketParser(is_masked=True, max_message=1000, deflate=None)
    parser.feed(frame(opcode, b"x", fin=False))
    empty = frame(0, fin=False)

    assert parser.feed(empty * 1000) == ([], None)
    assert (parser.has_more, parser.unfinished) == (True, (1000 - 512) * len(empty) + 1)
    assert parser.feed(b"") == ([], None)
    assert (parser.has_more, parser.unfinished) == (False, 1)


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("rsv", [0, 0x40])
@pytest.mark.parametrize("payload", [b"", b"x"])
def test_the_frames_of_a_message_are_bounded(opcode: int, rsv: int, payload: bytes) -> None:
    most = 64_000
    start, piece = frame(opcode, fin=False, rsv=rsv), frame(0, payload, fin=False)

    assert parse(start, piece * 2023, deflate=Deflate(), most=most) == ([], None)
    assert code_of(start, piece * 2024, deflate=Deflate(), most=most) == 1009
    # The frames of an earlier message do not count.
    twice = (start + piece * 2022 + frame(0)) * 2
    if not rsv:
        kind = (TEXT, (payload * 2022).decode(), 0) if opcode == TEXT else None
        assert parse(twice, most=most) == ([kind or (BINARY, payload * 2022, 0)] * 2, None)


def test_fragments_of_no_bytes_are_not_kept() -> None:
    parser = WebSocketParser(is_masked=True, max_message=1 << 20, deflate=None)
    parser.feed(frame(BINARY, b"x", fin=False))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            parser.feed(frame(0, fin=False) * 500)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 4_000


# -- refusals --------------------------------------------------------------------------------------

BROKEN = {
    "unmasked": frame(TEXT, b"x", key=None),
    "reserved bit 2": frame(TEXT, b"x", rsv=0x20),
    "reserved bit 3": frame(TEXT, b"x", rsv=0x10),
    "compressed without agreement": frame(TEXT, b"x", rsv=0x40),
    "reserved data opcode": frame(3, b"x"),
    "reserved control opcode": frame(11),
    "fragmented ping": frame(PING, b"x", fin=False),
    "long ping": frame(PING, b"x" * 126),
    "continuation of nothing": frame(0, b"x"),
    "message inside a message": frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"),
    "length of 16 bits for 125": b"\x82\xfe\x00\x7d" + KEY + b"x" * 125,
    "length of 64 bits for 126": b"\x82\xff" + (126).to_bytes(8, "big") + KEY + b"x" * 126,
    "length with its highest bit": b"\x82\xff\x80" + bytes(7) + KEY,
    "close of a single byte": frame(CLOSE, b"x"),
    **{
        f"close code {code}": frame(CLOSE, code.to_bytes(2, "big"))
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
    },
}


@pytest.mark.parametrize("stream", BROKEN.values(), ids=BROKEN)
def test_a_breach_of_framing_is_1002(stream: bytes) -> None:
    assert code_of(stream) == 1002
    assert code_of(*(bytes([byte]) for byte in stream)) == 1002


def test_a_masked_frame_of_a_server_is_1002() -> None:
    assert code_of(frame(TEXT, b"x"), is_masked=False) == 1002


@pytest.mark.parametrize(
    "stream",
    [
        frame(TEXT, b"\xff"),
        frame(TEXT, b"\xed\xa0\x80"),
        frame(TEXT, b"\xc3", fin=False) + frame(0, b"x"),
        frame(TEXT, b"\xc3", fin=False) + frame(0, b""),
        frame(TEXT, b"a\xff", fin=False),
        frame(CLOSE, b"\x03\xe8\xff"),
    ],
)
def test_bytes_that_are_not_utf_8_are_1007(stream: bytes) -> None:
    assert code_of(stream) == 1007


def test_a_long_message_is_1009_before_it_has_come() -> None:
    assert parse(frame(BINARY, b"x" * MOST))[1] is None
    assert code_of(frame(BINARY, b"x" * (MOST + 1))[:10]) == 1009
    parts = frame(BINARY, b"x" * MOST, fin=False) + frame(0, b"x")
    assert code_of(parts[:-3]) == 1009


def test_messages_before_an_error_are_returned() -> None:
    found, error = parse(frame(TEXT, b"x") + frame(3))

    assert found == [(TEXT, "x", 0)]
    assert error is not None


# -- the mask --------------------------------------------------------------------------------------


@given(st.binary(max_size=600), st.binary(min_size=4, max_size=4))
def test_both_masks_agree_and_undo_themselves(data: bytes, key: bytes) -> None:
    masked = mask_in_python(data, key)

    assert masked == mask(data, key)
    assert masked == bytes(byte ^ key[number % 4] for number, byte in enumerate(data))
    assert mask_in_python(masked, key) == data


# -- compression -----------------------------------------------------------------------------------


def test_compressed_messages_are_inflated() -> None:
    deflate = Deflate()
    packed = deflate.compress(b"hello" * 50)
    stream = frame(TEXT, packed[:5], fin=False, rsv=0x40) + frame(0, packed[5:])

    assert parse(stream, deflate=deflate) == ([(TEXT, "hello" * 50, 0)], None)
    assert parse(frame(TEXT, b"plain"), deflate=deflate) == ([(TEXT, "plain", 0)], None)


def test_a_bomb_is_1009_and_is_not_inflated_whole() -> None:
    deflate = Deflate()
    bomb = deflate.compress(bytes(50_000_000))

    assert len(bomb) < 60_000
    assert code_of(frame(BINARY, bomb, rsv=0x40), deflate=deflate, most=100_000) == 1009


@given(st.binary(max_size=200), st.integers(1, 300), st.integers(1, 500), st.booleans())
def test_a_message_is_the_same_in_steps_of_any_size(
    data: bytes, times: int, step: int, is_last: bool
) -> None:
    made = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = made.compress(data * times)
    # RFC 7692 allows a block that says it is the last, and then an empty block.
    packed += made.flush() + b"\0" if is_last else made.flush(zlib.Z_SYNC_FLUSH)[:-4]

    assert inflate(packed, 1 << 17, step) == data * times


def test_bytes_after_the_last_block_are_not_read_on_and_on() -> None:
    made = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = made.compress(b"hello") + made.flush() + bytes(100_000)
    inflation = Deflate().begin(packed, 1000)

    assert inflation.step(1000)[0] == b"hello"
    assert inflation.is_done


def test_blocks_without_a_byte_are_a_part_of_a_step() -> None:
    inflation = Deflate().begin(b"\0\0\0\xff\xff" * 10_000 + b"\0", 1000)
    steps = 0
    while not inflation.is_done:
        clear, cost = inflation.step(1000)
        assert (clear, cost <= 16 * 1024) == (b"", True)
        steps += 1

    assert steps == 4


class Steps:
    """Counts the bytes that are inflated in each step of a parser."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[int] = []
        original = Inflation.step

        def count(inflation: Inflation, most: int) -> tuple[bytes, int]:
            clear, cost = original(inflation, most)
            self.made[-1] += len(clear)
            return clear, cost

        monkeypatch.setattr(Inflation, "step", count)

    def run(self, parser: WebSocketParser, stream: bytes) -> list[Any]:
        events, error = self._step(parser, stream)
        while parser.has_more and error is None:
            more, error = self._step(parser, b"")
            events += more
        assert error is None
        return events

    def _step(self, parser: WebSocketParser, data: bytes) -> tuple[list[Any], FrameError | None]:
        self.made.append(0)
        return parser.feed(data)


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("number", [1, 3, 100])
@pytest.mark.parametrize("in_fragments", [False, True])
def test_each_step_makes_few_bytes_of_many_bombs(
    opcode: int, number: int, in_fragments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 18
    bomb = Deflate().compress(bytes(size))
    one = frame(opcode, bomb, rsv=0x40)
    if in_fragments:
        one = frame(opcode, bomb[:9], fin=False, rsv=0x40) + frame(0, bomb[9:])
    parser = WebSocketParser(is_masked=True, max_message=size, deflate=Deflate())
    steps = Steps(monkeypatch)
    events = steps.run(parser, one * number)

    assert [(kind, len(content)) for kind, content, _ in events] == [(opcode, size)] * number
    assert max(steps.made) <= 64 * 1024
    assert sum(steps.made) == size * number
    assert len(steps.made) >= 4 * number


def test_frames_between_bombs_come_in_their_order() -> None:
    bomb = frame(BINARY, Deflate().compress(bytes(200_000)), rsv=0x40)
    stream = frame(PING, b"1") + bomb + frame(PING, b"2") + bomb + frame(CLOSE)
    events, error = parse(stream, deflate=Deflate(), most=200_000)

    assert error is None
    assert [kind for kind, _, _ in events] == [PING, BINARY, PING, BINARY, CLOSE]


def test_bytes_that_come_while_a_message_is_inflated_wait() -> None:
    parser = WebSocketParser(is_masked=True, max_message=1 << 20, deflate=Deflate())
    assert parser.feed(frame(TEXT, Deflate().compress(b"a" * 100_000), rsv=0x40)) == ([], None)
    assert parser.has_more

    assert parser.feed(frame(TEXT, b"b")) == ([(TEXT, "a" * 100_000, 0), (TEXT, "b", 0)], None)
    assert not parser.has_more


def test_a_bomb_that_breaks_a_rule_ends_at_the_step_that_sees_it() -> None:
    text = b"a" * 100_000 + b"\xff" + b"a" * 100_000
    parser = WebSocketParser(is_masked=True, max_message=1 << 20, deflate=Deflate())
    assert parser.feed(frame(TEXT, Deflate().compress(text), rsv=0x40))[1] is None
    _, error = parser.feed(b"")

    assert error is not None
    assert error.code == 1007


def test_a_message_that_is_not_compressed_as_it_says_is_1007() -> None:
    deflate = Deflate()

    assert code_of(frame(TEXT, b"\xff\xff\xff", rsv=0x40), deflate=deflate) == 1007
    packed = deflate.compress(b"\xff")
    assert code_of(frame(TEXT, packed, rsv=0x40), deflate=deflate) == 1007


def test_a_compressed_continuation_or_ping_is_1002() -> None:
    deflate = Deflate()

    assert code_of(frame(PING, rsv=0x40), deflate=deflate) == 1002
    parts = frame(TEXT, b"x", fin=False) + frame(0, b"x", rsv=0x40)
    assert code_of(parts, deflate=deflate) == 1002


@given(st.binary(max_size=3000), st.integers(9, 15))
def test_any_message_survives_compression(data: bytes, bits: int) -> None:
    packed = Deflate(bits).compress(data)

    assert inflate(packed, 3000) == data
    assert zlib.decompressobj(-bits).decompress(packed + b"\0\0\xff\xff") == data


ALONE = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"


@pytest.mark.parametrize(
    "offer,answer",
    [
        ("permessage-deflate", ALONE),
        ("permessage-deflate; client_max_window_bits", ALONE),
        ("x, permessage-deflate; client_max_window_bits=10", ALONE),
        ("permessage-deflate; client_no_context_takeover", ALONE),
        ("permessage-deflate; server_max_window_bits=10", f"{ALONE}; server_max_window_bits=10"),
        ("permessage-deflate; server_max_window_bits=8, permessage-deflate", ALONE),
        ("permessage-deflate; client_max_window_bits=7, permessage-deflate", ALONE),
        ("permessage-deflate; a=b, permessage-deflate", ALONE),
        ("permessage-deflate; server_max_window_bits=8", None),
        ("permessage-deflate; server_max_window_bits=16", None),
        ("permessage-deflate; client_max_window_bits=7", None),
        ("permessage-deflate; a=b", None),
        ("permessage-deflate; server_no_context_takeover=1", None),
        ("permessage-deflate; a; a", None),
        ("x-webkit-deflate-frame", None),
        ("", None),
    ],
)
def test_the_first_offer_that_can_be_kept_is_accepted(offer: str, answer: str | None) -> None:
    accepted = accepted_deflate(offer)

    assert (None if accepted is None else accepted[1]) == answer
    if accepted is not None:
        assert inflate(accepted[0].compress(b"x" * 100), 100) == b"x" * 100


def test_a_client_takes_only_an_answer_to_its_offer() -> None:
    assert offered_deflate(None) == (ALONE, None)
    assert offered_deflate(ALONE)[1] is not None
    for wrong in (
        "permessage-deflate",
        "other",
        f"{ALONE}; x",
        f"{ALONE}; client_max_window_bits=8",
    ):
        with pytest.raises(ValueError, match="the server answers"):
            offered_deflate(wrong)


# -- judges ----------------------------------------------------------------------------------------

_PAYLOADS = st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
_FRAMES = st.builds(
    frame,
    st.sampled_from([0, TEXT, BINARY, CLOSE, PING, PONG, 3, 11]),
    _PAYLOADS,
    fin=st.booleans() | st.just(True),
    rsv=st.sampled_from([0, 0, 0, 0x40, 0x20]),
)


def _judged_by_wsproto(stream: bytes) -> tuple[list[Any], bool]:
    connection = Connection(ConnectionType.SERVER)
    found: list[Any] = []
    parts: list[Any] = []
    try:
        connection.receive_data(stream)
        for event in connection.events():
            match event:
                case TextMessage() | BytesMessage():
                    parts.append(event.data)
                    if event.message_finished and isinstance(event, TextMessage):
                        found.append((TEXT, "".join(parts), 0))
                        parts = []
                    elif event.message_finished:
                        found.append((BINARY, b"".join(map(bytes, parts)), 0))
                        parts = []
                case Ping() | Pong():
                    kind = PING if isinstance(event, Ping) else PONG
                    found.append((kind, bytes(event.payload), 0))
                case CloseConnection():
                    found.append((CLOSE, event.reason or "", int(event.code)))
                    return found, True
    except Exception:
        return found, False
    return found, True


@given(st.lists(_FRAMES, max_size=5))
def test_wsproto_sees_the_same_messages_in_any_frames(frames: list[bytes]) -> None:
    stream = b"".join(frames)
    found, error = parse(stream)
    if CLOSE in [event[0] for event in found]:
        found = found[: [event[0] for event in found].index(CLOSE) + 1]
        error = None
    judged, is_valid = _judged_by_wsproto(stream)

    if error is None and is_valid:
        assert found == judged
    elif error is None:
        # wsproto refuses close codes that IANA has added since.
        assert found[: len(judged)] == judged
        assert found[-1][0] == CLOSE


@given(_PAYLOADS, st.sampled_from([TEXT, BINARY, PING]), st.booleans())
def test_websockets_reads_our_frames(payload: bytes, opcode: int, is_client: bool) -> None:
    whole = encode_frame(opcode, payload, KEY if is_client else None)

    def read() -> Any:
        reader = bytearray(whole)

        def exactly(size: int) -> Any:
            yield from ()
            taken = bytes(reader[:size])
            del reader[:size]
            return taken

        try:
            steps = Frame.parse(exactly, mask=is_client)
            next(steps)
        except StopIteration as done:
            return done.value
        raise ConnectionClosedError(None, None)

    parsed = read()
    assert (parsed.opcode, bytes(parsed.data), parsed.fin) == (Opcode(opcode), payload, True)


@pytest.mark.parametrize("size", [0, 1, 5, 1_024, 1_025, 70_001])
def test_the_mask_in_python_is_an_exclusive_or(size: int) -> None:
    data, key = random.Random(size).randbytes(size), b"\x01\x80\xff\x00"

    masked = mask_in_python(data, key)

    assert masked == bytes(byte ^ key[place % 4] for place, byte in enumerate(data))


def test_an_answer_with_too_many_fields_is_refused() -> None:
    head = b"\r\n".join([b"HTTP/1.1 101 x", *[b"X: y"] * 200])

    with pytest.raises(HandshakeError, match="more than"):
        read_answer(head, "key")


def test_close_codes_are_those_of_the_standard_and_of_programs() -> None:
    allowed = [code for code in range(65_536) if is_close_code(code)]

    assert allowed == [*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)]


def test_the_bytes_of_a_message_in_fragments_are_unfinished() -> None:
    parser = WebSocketParser(is_masked=False, max_message=100, deflate=None)
    parser.feed(b"\x01\x03abc\x00\x05de")

    assert parser.unfinished == 3 + 4


def test_a_message_may_be_inflated_to_its_limit() -> None:
    deflate = Deflate()
    packed = deflate.compress(bytes(1000))

    assert inflate(packed, 1000) == bytes(1000)
    with pytest.raises(OverflowError):
        inflate(packed, 999)


def test_a_client_takes_all_parameters_of_an_answer() -> None:
    answer = (
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover; "
        "server_max_window_bits=12; client_max_window_bits=10"
    )

    assert offered_deflate(answer)[1] is not None


def test_an_inflation_counts_each_compressed_byte_once() -> None:
    packed = Deflate().compress(bytes(range(256)) * 1000)
    inflation = Deflate().begin(packed, 1 << 20)
    read = made = 0

    while not inflation.is_done:
        clear, cost = inflation.step(1000)
        made += len(clear)
        read += cost - len(clear)

    assert made == 256_000
    assert read == len(packed) + 4  # the end of a block, which the sender leaves out
