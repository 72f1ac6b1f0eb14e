"""`WebSocketParser`: cuts the bytes of a peer into WebSocket messages (RFC 6455). `encode_frame`:
the other direction. Neither does any I/O.
"""

import codecs
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

from .deflate import Deflate, Inflation

__all__ = [
    "BINARY",
    "CLOSE",
    "PING",
    "PONG",
    "TEXT",
    "FrameError",
    "WebSocketParser",
    "encode_frame",
    "is_close_code",
    "mask",
    "mask_in_python",
]

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

_CONTROL: Final = frozenset((CLOSE, PING, PONG))
_DATA: Final = frozenset((CONTINUATION, TEXT, BINARY))
_STEP: Final = 64 * 1024
"""Bytes to read and to make while a message is inflated in one step. The rest waits, so that
neither many small frames nor few bytes that become megabytes block the loop.
"""
_FRAME: Final = 128
"""Bytes of a step that a frame counts for at least: 512 small frames are a step."""
_PLAIN: Final = 4
"""Bytes of a frame that count as much as a byte of a message that is inflated."""
_FRAGMENTS: Final = 1024
"""Frames that any message may have, beside a frame for each ``_FRAGMENT`` bytes of
``max_message``.
"""
_FRAGMENT: Final = 64
_NO_CODE: Final = 1005
_SHORT: Final = 256
"""Bytes up to which a payload is masked as a single integer."""

Event = tuple[int, Any, int]
"""A message or a control frame: TEXT with its text; BINARY, PING and PONG with their bytes; CLOSE
with its reason and code.
"""


def is_close_code(code: int) -> bool:
    """Whether a close frame may have this code (RFC 6455, section 7.4)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


class FrameError(Exception):
    """The bytes of the peer break the rules. ``code`` is for the close frame that tells it."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@cache
def _table(byte: int) -> bytes:
    return bytes(each ^ byte for each in range(256))


def mask_in_python(data: bytes, key: bytes) -> bytes:
    """Mask or unmask a payload with the four bytes of ``key``."""
    size = len(data)
    if size <= _SHORT:
        whole = int.from_bytes((key * (size // 4 + 1))[:size], "little")
        return (int.from_bytes(data, "little") ^ whole).to_bytes(size, "little")
    masked = bytearray(size)
    for place in range(4):
        masked[place::4] = data[place::4].translate(_table(key[place]))
    return bytes(masked)


mask: Callable[[bytes, bytes], bytes] = mask_in_python
with suppress(ImportError):
    from websockets.speedups import apply_mask as mask  # in C, if that package is installed


def encode_frame(
    opcode: int, payload: bytes, key: bytes | None = None, *, compressed: bool = False
) -> bytes:
    """A whole frame. ``key`` is the mask of a client, four random bytes."""
    first = 0x80 | opcode | (0x40 if compressed else 0)
    if key is None:
        return _head(first, 0, len(payload)) + payload
    return _head(first, 0x80, len(payload)) + key + mask(payload, key)


def _head(first: int, bit: int, size: int) -> bytes:
    """The head of a frame, without its key. ``bit`` says whether the frame is masked."""
    if size < 126:
        return bytes((first, bit | size))
    if size < 65536:
        return struct.pack("!BBH", first, bit | 126, size)
    return struct.pack("!BBQ", first, bit | 127, size)


class WebSocketParser:
    """Cuts a stream into messages. A text is checked frame by frame."""

    __slots__ = (
        "_compressed",
        "_decoder",
        "_deflate",
        "_fragments",
        "_have",
        "_inflation",
        "_is_masked",
        "_left",
        "_max",
        "_need",
        "_opcode",
        "_parts",
        "_pieces",
        "_size",
        "has_more",
    )

    def __init__(self, *, is_masked: bool, max_message: int, deflate: Deflate | None) -> None:
        """``is_masked`` says that the peer is a client, and so has to mask."""
        self._is_masked = is_masked
        self._max = max_message
        self._deflate = deflate
        self._pieces: list[bytes] = []
        """Bytes of an incomplete frame, which are joined once it is complete."""
        self._have = 0
        self._need = 2
        """Bytes without which the next frame cannot be cut."""
        self._opcode = CONTINUATION
        """The kind of the message whose fragments come, if any."""
        self._compressed = False
        self._parts: list[Any] = []
        self._size = 0
        self._fragments = 0
        """Frames of the message whose fragments come."""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._inflation: Inflation | None = None
        """The message that is inflated, if any."""
        self._left = 0
        """Bytes that are left of the step."""
        self.has_more: bool = False
        """There may be more messages than were returned: call ``feed(b"")``."""

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete frame or message."""
        return self._have + self._size

    def rest(self) -> bytes:
        """The bytes of an incomplete message, which lead another parser to the same state: the
        frames that were taken as a single frame, and the bytes after them. Not while a message is
        inflated.
        """
        if self._opcode == CONTINUATION:
            return b"".join(self._pieces)
        taken: list[bytes] = (
            self._parts
            if self._decoder is None
            else ["".join(self._parts).encode(), self._decoder.getstate()[0]]
        )
        # Not the last frame of its message. A key of zeros leaves the payload as it is.
        first = self._opcode | (0x40 if self._compressed else 0)
        bit, key = (0x80, bytes(4)) if self._is_masked else (0, b"")
        head = _head(first, bit, sum(map(len, taken)))
        return b"".join((head, key, *taken, *self._pieces))

    def feed(self, data: bytes) -> tuple[list[Event], FrameError | None]:
        """The events that these bytes complete, as far as one step goes, and the error after them,
        if any.
        """
        if data:
            self._pieces.append(data)
            self._have += len(data)
        events: list[Event] = []
        self.has_more = False
        if self._have < self._need and self._inflation is None:
            return events, None
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        at, error = 0, None
        self._left = _STEP
        try:
            while self._left > 0:
                end = at if self._inflate(events) else self._cut(whole, at, events)
                if end < 0:
                    break
                at = end
            else:
                self.has_more = True
        except FrameError as problem:
            error = problem
        rest = whole[at:] if at else whole
        self._pieces = [rest] if rest else []
        self._have = len(rest)
        return events, error

    def _cut(self, data: bytes, at: int, events: list[Event]) -> int:
        """Cut a frame at ``at``. Returns its end; -1 if it is not complete."""
        left = len(data) - at
        if left < 2:
            self._need = 2
            return -1
        first, second = data[at], data[at + 1]
        opcode, size, body = first & 0x0F, second & 0x7F, at + 2
        self._check_frame(first, second, opcode, size)
        if size >= 126:
            width = 2 if size == 126 else 8
            if left < 2 + width:
                self._need = 2 + width
                return -1
            size = int.from_bytes(data[body : body + width], "big")
            if size < 126 or (width == 8 and size < 65536) or size >> 63:
                raise FrameError(1002, "the length is not written in the shortest form")
            body += width
        if opcode in _DATA and self._size + size > self._max:
            raise FrameError(1009, f"a message is longer than {self._max} bytes")
        key = b""
        if self._is_masked:
            key = data[body : body + 4]
            body += 4
        end = body + size
        if len(data) < end:
            self._need = end - at
            return -1
        self._need = 2
        self._left -= max(_FRAME, size // _PLAIN)
        payload = data[body:end]
        if key and payload:
            payload = mask(payload, key)
        if opcode in _CONTROL:
            events.append(_control(opcode, payload))
        else:
            self._take(first, opcode, payload, events)
        return end

    def _check_frame(self, first: int, second: int, opcode: int, size: int) -> None:
        if first & 0x30 or (
            first & 0x40 and (self._deflate is None or opcode not in (TEXT, BINARY))
        ):
            raise FrameError(1002, "a reserved bit is set")
        if bool(second & 0x80) is not self._is_masked:
            raise FrameError(
                1002, "a frame is not masked" if self._is_masked else "a frame is masked"
            )
        if opcode in _CONTROL:
            if not first & 0x80:
                raise FrameError(1002, "a control frame in fragments")
            if size > 125:
                raise FrameError(1002, "a control frame over 125 bytes")
        elif opcode not in _DATA:
            raise FrameError(1002, f"the opcode {opcode} is reserved")
        elif (opcode == CONTINUATION) is (self._opcode == CONTINUATION):
            raise FrameError(
                1002,
                "a continuation of nothing"
                if opcode == CONTINUATION
                else "a message inside a message",
            )

    def _take(self, first: int, opcode: int, payload: bytes, events: list[Event]) -> None:
        """Take a frame of a message."""
        is_last = bool(first & 0x80)
        if opcode != CONTINUATION:
            self._compressed = bool(first & 0x40)
            if is_last:
                self._end_message(opcode, payload, events)
                return
            self._opcode = opcode
            if opcode == TEXT and not self._compressed:
                self._decoder = _new_decoder()
        self._fragments += 1
        if self._fragments > _FRAGMENTS + self._max // _FRAGMENT:
            raise FrameError(1009, f"a message is in more than {self._fragments - 1} frames")
        self._size += len(payload)
        if payload or is_last:
            self._add(payload, is_last)
        if not is_last:
            return
        opcode, self._opcode, self._size, self._fragments = self._opcode, CONTINUATION, 0, 0
        if self._compressed:
            self._end_message(opcode, b"".join(self._take_parts()), events)
        else:
            self._end_parts(events)

    def _add(self, payload: bytes, is_last: bool) -> None:
        """Add a piece of a message."""
        if self._decoder is None:
            self._parts.append(payload)
            return
        try:
            self._parts.append(self._decoder.decode(payload, is_last))
        except UnicodeDecodeError:
            raise FrameError(1007, "a text is not UTF-8") from None

    def _take_parts(self) -> list[Any]:
        parts, self._parts = self._parts, []
        return parts

    def _end_parts(self, events: list[Event]) -> None:
        """Make a message of its pieces."""
        parts = self._take_parts()
        if self._decoder is None:
            events.append((BINARY, b"".join(parts), 0))
        else:
            self._decoder = None
            events.append((TEXT, "".join(parts), 0))

    def _end_message(self, opcode: int, payload: bytes, events: list[Event]) -> None:
        """Make a message of all its bytes, or begin to inflate it."""
        if self._compressed:
            assert self._deflate is not None
            self._inflation = self._deflate.begin(payload, self._max)
            self._decoder = _new_decoder() if opcode == TEXT else None
        elif opcode == BINARY:
            events.append((BINARY, payload, 0))
        else:
            try:
                events.append((TEXT, payload.decode(), 0))
            except UnicodeDecodeError:
                raise FrameError(1007, "a text is not UTF-8") from None

    def _inflate(self, events: list[Event]) -> bool:
        """Go on to inflate a message, as far as the step allows. False if there is none."""
        inflation = self._inflation
        if inflation is None:
            return False
        try:
            clear, cost = inflation.step(self._left)
        except OverflowError:
            raise FrameError(1009, f"a message is longer than {self._max} bytes") from None
        except ValueError as error:
            raise FrameError(1007, str(error)) from None
        self._left -= cost
        self._add(clear, inflation.is_done)
        if inflation.is_done:
            self._inflation = None
            self._end_parts(events)
        return True


def _new_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")()


def _control(opcode: int, payload: bytes) -> Event:
    if opcode != CLOSE:
        return opcode, payload, 0
    if not payload:
        return CLOSE, "", _NO_CODE
    if len(payload) == 1:
        raise FrameError(1002, "a close frame of a single byte")
    code = int.from_bytes(payload[:2], "big")
    if not is_close_code(code):
        raise FrameError(1002, f"the close code {code} is not allowed")
    try:
        return CLOSE, payload[2:].decode(), code
    except UnicodeDecodeError:
        raise FrameError(1007, "the reason of a close is not UTF-8") from None
