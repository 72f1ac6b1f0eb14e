"""Fuzzing targets for streams: the framings, and the bytes of a NATS server."""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from hypothesis import strategies as st

from benchmarks.targets.target import Target, in_pieces, spliced
from ergo_py.meta import (
    Delimiter,
    FixedLength,
    Framing,
    FramingError,
    LengthHeader,
    Netstring,
    Raw,
    Varint,
)
from ergo_py.network.carriers.nats.wire import ServerParser, WireError

__all__ = ["TARGETS"]

_FRAMINGS: Final[dict[str, Callable[[int], Framing]]] = {
    "raw": lambda _most: Raw(),
    "delimiter": lambda most: Delimiter(b"\r\n", max_frame=most),
    "fixed length": lambda most: FixedLength(3 if most < 1000 else most),
    "length header": lambda most: LengthHeader(max_frame=most),
    "netstring": lambda most: Netstring(max_frame=most),
    "varint": lambda most: Varint(max_frame=most),
}
"""The framings, by the bytes of the longest frame."""
_SHORT: Final = 40
_LONG: Final = 1 << 18


def _cut(framing: Framing, pieces: list[bytes]) -> tuple[list[bytes], str]:
    """The frames of a stream, and why there are no more."""
    decoder, frames = framing.decoder(), list[bytes]()
    for piece in pieces:
        try:
            frames += decoder.feed(piece)
        except FramingError as error:
            return [*frames, *error.frames], re.sub(r"\d+", "n", str(error))[:60]
    return frames, "more"


def _read_framing(make: Callable[[int], Framing], data: bytes) -> str:
    """The first byte says how the rest is cut into pieces, and whether frames may be long."""
    framing = make(_LONG if data[:1] >= b"\x80" else _SHORT)
    stream, pieces = in_pieces(data)
    frames, end = _cut(framing, pieces)
    whole, whole_end = _cut(framing, [stream])
    assert b"".join(frames) == b"".join(whole), "frames depend on how the stream comes"
    assert isinstance(framing, Raw) or frames == whole, "frames depend on how the stream comes"
    assert (end == "more") == (whole_end == "more"), "errors depend on how the stream comes"
    for frame in set(frames):
        try:
            again = framing.encode(frame)
        except FramingError:
            continue
        assert _cut(framing, [again])[0] == (
            [frame] if frame or not isinstance(framing, Raw) else []
        ), "no round trip"
    return f"{min(len(frames), 3)} frames, {whole_end}"


def _streams(make: Callable[[int], Framing]) -> st.SearchStrategy[bytes]:
    """A few frames, and some bytes after them."""
    frame = st.binary(min_size=3, max_size=3).map(lambda each: each.replace(b"\r", b"x"))
    return st.tuples(
        st.binary(min_size=1, max_size=1),
        st.lists(frame.map(make(_SHORT).encode), max_size=4),
        st.binary(max_size=8),
    ).map(lambda parts: parts[0] + b"".join(parts[1]) + parts[2])


# -- NATS ------------------------------------------------------------------------------------------


def _read(pieces: list[bytes]) -> tuple[list[object], str]:
    parser, found = ServerParser(), list[object]()
    for piece in pieces:
        try:
            for operation in parser.feed(piece):
                found.append(operation)
        except WireError as error:
            return found, re.sub(r"b['\"].*|\d+", "n", str(error))[:60]
    return found, "more"


def nats_server(data: bytes) -> str:
    """The bytes of a server. The first byte says how the rest is cut into pieces."""
    stream, pieces = in_pieces(data)
    found, end = _read(pieces)
    whole, whole_end = _read([stream])
    assert found == whole, "operations depend on how the stream comes"
    assert (end == "more") == (whole_end == "more"), "errors depend on how the stream comes"
    return f"{min(len(found), 3)} operations, {whole_end}"


_SERVER_OPERATIONS = (
    b"PING\r\n",
    b"+OK\r\n",
    b"pong\r\n",
    b"MSG a 1 5\r\nhello\r\n",
    b"MSG a.b 12 back 0\r\n\r\n",
    b"HMSG x.y 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    b"HMSG x 2 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b'INFO {"headers":true,"max_payload":10,"connect_urls":["a:1"]}\r\n',
    b"-ERR 'Permissions Violation for Publish'\r\n",
)
_SERVER_STREAMS = st.builds(
    lambda first, some, at, new: spliced(bytes([first]) + b"".join(some), at, 1 if new else 0, new),
    st.integers(0, 255),
    st.lists(st.sampled_from(_SERVER_OPERATIONS), min_size=1, max_size=4),
    st.integers(1, 200),
    st.sampled_from((b"", b"", b"\r", b"\n", b" ", b"9", b"-", b"x", b"\xff")),
)

TARGETS: Final[dict[str, Target]] = {
    **{
        f"framing {name}": Target(partial(_read_framing, make), _streams(make))
        for name, make in _FRAMINGS.items()
    },
    "nats server": Target(nats_server, _SERVER_STREAMS),
}
