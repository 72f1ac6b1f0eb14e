"""`Framing`: how a stream of bytes is cut into frames. Pure functions of the bytes: no socket and
no waiting.

A framing says how a stream is cut, and serves any number of connections; each connection asks it
for a ``decoder`` of its own. A header never makes the decoder allocate memory: it keeps the bytes
as they come, and a frame that would be too long is an error at its header.

The framings here are written with the same two classes that a protocol of your own needs:
:class:`Framing` and :class:`Decoder`.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from .decoder import Decoder, FramingError, take

__all__ = [
    "Delimiter",
    "FixedLength",
    "Framing",
    "LengthHeader",
    "Netstring",
    "Raw",
    "Varint",
]

_MEBI: Final = 1024 * 1024


class Framing(ABC):
    """How a stream is cut into frames. Subclass it, and :class:`Decoder`, for a protocol of your
    own.
    """

    __slots__ = ()

    @abstractmethod
    def decoder(self) -> Decoder:
        """Make the decoder of a stream; called once for each connection."""

    @abstractmethod
    def encode(self, frame: bytes) -> bytes:
        """Turn a frame into the bytes from which the other side cuts that frame again.

        Raises:
            FramingError: the frame cannot be sent with this framing.
        """


# -- raw -------------------------------------------------------------------------------------------


class _RawDecoder(Decoder):
    __slots__ = ()

    def feed(self, data: bytes, most: int = sys.maxsize) -> Sequence[bytes]:
        return (data,) if data else ()

    def cut(self, stream: bytes | bytearray, frames: list[bytes], most: int) -> int:
        raise AssertionError("raw streams are not cut")


@dataclass(frozen=True, slots=True)
class Raw(Framing):
    """No frames: the bytes of each read are passed on as they come, in pieces of any size."""

    def decoder(self) -> Decoder:
        """Make the decoder of a stream."""
        return _RawDecoder()

    def encode(self, frame: bytes) -> bytes:
        """The bytes themselves."""
        return bytes(frame)


# -- fixed length ----------------------------------------------------------------------------------


class _FixedDecoder(Decoder):
    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def cut(self, stream: bytes | bytearray, frames: list[bytes], most: int) -> int:
        size = self._size
        whole = min(len(stream) // size, most) * size
        frames.extend(take(stream, begin, begin + size) for begin in range(0, whole, size))
        return whole


@dataclass(frozen=True, slots=True)
class FixedLength(Framing):
    """Every frame has the same ``size``."""

    size: int

    def __post_init__(self) -> None:
        check_number("FixedLength(size)", self.size, least=1, whole=True)

    def decoder(self) -> Decoder:
        """Make the decoder of a stream."""
        return _FixedDecoder(self.size)

    def encode(self, frame: bytes) -> bytes:
        """Turn a frame into bytes for the other side to cut; a frame of another size is a
        ``FramingError``.
        """
        if len(frame) != self.size:
            raise FramingError(f"a frame of {len(frame)} bytes; every frame has {self.size}")
        return bytes(frame)


# -- a header that says how long -------------------------------------------------------------------


class _HeaderDecoder(Decoder):
    __slots__ = ("_framing",)

    def __init__(self, framing: "LengthHeader") -> None:
        super().__init__()
        self._framing = framing

    def cut(self, stream: bytes | bytearray, frames: list[bytes], most: int) -> int:
        framing = self._framing
        header, first, last = framing.header_size, framing.position, framing.position + framing.size
        extra = 0 if framing.includes_header else header
        skip = header if framing.strip else 0
        order, longest, read = framing.byteorder, framing.max_frame, int.from_bytes
        have, begin = len(stream), 0
        while have - begin >= header and len(frames) < most:
            length = read(stream[begin + first : begin + last], order) + extra
            if length < header:
                raise FramingError(
                    f"a frame of {length} bytes is said to include its header of {header}"
                )
            if length - header > longest:
                raise FramingError(
                    f"a frame of {length - header} bytes; at most {longest} are allowed"
                )
            end = begin + length
            if end > have:
                self.wanted = length
                break
            frames.append(take(stream, begin + skip, end))
            begin = end
        return begin


@dataclass(frozen=True, slots=True)
class LengthHeader(Framing):
    """Every frame begins with a header that holds its length.

    Args:
        size: bytes of the length: 1, 2, 4 or 8.
        position: where in the header the length is.
        header: bytes of the whole header; by default it ends where the length ends.
        byteorder: ``big`` or ``little``.
        includes_header: whether the length counts the header, too.
        strip: deliver frames without their header.
        max_frame: bytes of the longest frame, not counting the header.
    """

    size: int = 4
    position: int = 0
    header: int | None = None
    byteorder: Literal["big", "little"] = "big"
    includes_header: bool = False
    strip: bool = True
    max_frame: int = _MEBI

    def __post_init__(self) -> None:
        if self.size not in (1, 2, 4, 8):
            raise BadInputError("LengthHeader(size)", self.size, "1, 2, 4 or 8")
        check_number("LengthHeader(position)", self.position, least=0, whole=True)
        if self.header is not None:
            check_number(
                "LengthHeader(header)", self.header, least=self.position + self.size, whole=True
            )
        if self.byteorder not in ("big", "little"):
            raise BadInputError("LengthHeader(byteorder)", self.byteorder, "'big' or 'little'")
        check_number("LengthHeader(max_frame)", self.max_frame, least=1, whole=True)

    @property
    def header_size(self) -> int:
        """Bytes of the whole header."""
        return self.position + self.size if self.header is None else self.header

    def decoder(self) -> Decoder:
        """Make the decoder of a stream."""
        return _HeaderDecoder(self)

    def encode(self, frame: bytes) -> bytes:
        """Turn a frame into bytes for the other side to cut; a frame that is too long is a
        ``FramingError``.
        """
        # With strip=False, the frame brings its header, and only the length in it is filled in.
        header = self.header_size
        begin = bytearray(header) if self.strip else bytearray(frame[:header])
        if len(begin) < header:
            raise FramingError(
                f"a frame of {len(frame)} bytes; it must begin with its header of {header} bytes"
            )
        body = frame if self.strip else frame[header:]
        length = len(body) + (header if self.includes_header else 0)
        if len(body) > self.max_frame or length >= 1 << (8 * self.size):
            raise FramingError(f"a frame of {len(body)} bytes is too long to be sent")
        begin[self.position : self.position + self.size] = length.to_bytes(
            self.size, self.byteorder
        )
        return bytes(begin) + body


# -- a delimiter -----------------------------------------------------------------------------------


class _DelimiterDecoder(Decoder):
    __slots__ = ("_delimiter", "_keep", "_most", "_seen")

    def __init__(self, framing: "Delimiter") -> None:
        super().__init__()
        self._delimiter = framing.delimiter
        self._keep = len(framing.delimiter) if framing.keep else 0
        self._most = framing.max_frame
        self._seen = 0

    def cut(self, stream: bytes | bytearray, frames: list[bytes], most: int) -> int:
        delimiter, keep, longest, width = (
            self._delimiter,
            self._keep,
            self._most,
            len(self._delimiter),
        )
        begin = 0
        # Do not search the same bytes again; but a delimiter may have been cut in two.
        look = max(0, self._seen - width + 1)
        while len(frames) < most and (end := stream.find(delimiter, look)) >= 0:
            if end - begin > longest:
                raise FramingError(f"a line of {end - begin} bytes; at most {longest} are allowed")
            frames.append(take(stream, begin, end + keep))
            begin = look = end + width
        if len(frames) == most:
            self._seen = 0
            return begin
        left = len(stream) - begin
        # Too long by now, even if the rest ends with all but the last byte of a delimiter.
        if left - width + 1 > longest:
            raise FramingError(f"a line of more than {longest} bytes")
        self._seen = left
        return begin


@dataclass(frozen=True, slots=True)
class Delimiter(Framing):
    """Frames end with a ``delimiter``, such as lines. With ``keep`` it stays at their end."""

    delimiter: bytes = b"\n"
    max_frame: int = 64 * 1024
    keep: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, bytes) or not self.delimiter:
            raise BadInputError(
                "Delimiter(delimiter)", self.delimiter, "bytes that are not empty, such as b'\\n'"
            )
        check_number("Delimiter(max_frame)", self.max_frame, least=1, whole=True)

    def decoder(self) -> Decoder:
        """Make the decoder of a stream."""
        return _DelimiterDecoder(self)

    def encode(self, frame: bytes) -> bytes:
        """Turn a frame into bytes for the other side to cut; a frame that is too long, or contains
        the delimiter, is a ``FramingError``.
        """
        body = frame.removesuffix(self.delimiter) if self.keep else frame
        whole = bytes(body) + self.delimiter
        # Search the whole, not only the frame: the frame's end and the delimiter may form an
        # earlier delimiter.
        if whole.find(self.delimiter) != len(body):
            raise FramingError("a frame cannot contain its delimiter")
        if len(body) > self.max_frame:
            raise FramingError(f"a line of {len(body)} bytes; at most {self.max_frame} are allowed")
        return whole


# -- netstrings ------------------------------------------------------------------------------------


class _NetstringDecoder(Decoder):
    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def cut(self, stream: bytes | bytearray, frames: list[bytes], most: int) -> int:
        have, begin = len(stream), 0
        while begin < have and len(frames) < most:
            body = self._body(stream, begin)
            if body is None:
                break
            first, length = body
            end = first + length
            if end >= have:
                self.wanted = end + 1 - begin
                break
            if stream[end] != 0x2C:
                raise FramingError("a netstring does not end with a comma")
            frames.append(take(stream, first, end))
            begin = end + 1
        return begin

    def _body(self, stream: bytes | bytearray, begin: int) -> tuple[int, int] | None:
        """Where the content begins, and its length; None if the length is not complete."""
        digits = len(str(self._most))
        colon = stream.find(b":", begin, begin + digits + 1)
        text = bytes(stream[begin : colon if colon >= 0 else begin + digits])
        if not (text.isdigit() or (colon < 0 and not text)) or (text[:1] == b"0" and len(text) > 1):
            raise FramingError("a netstring begins with its length in digits and a colon")
        if colon < 0:
            if len(stream) - begin > digits:
                raise FramingError(f"the length of a netstring has more than {digits} digits")
            return None
        if int(text) > self._most:
            raise FramingError(
                f"a netstring of {int(text)} bytes; at most {self._most} are allowed"
            )
        return colon + 1, int(text)


@dataclass(frozen=True, slots=True)
class Netstring(Framing):
    """``5:hello,``: length in digits, colon, content, comma."""

    max_frame: int = _MEBI

    def __post_init__(self) -> None:
        check_number("Netstring(max_frame)", self.max_frame, least=1, whole=True)

    def decoder(self) -> Decoder:
        """Make the decoder of a stream."""
        return _NetstringDecoder(self.max_frame)

    def encode(self, frame: bytes) -> bytes:
        """Turn a frame into bytes for the other side to cut; a frame that is too long is a
        ``FramingError``.
        """
        if len(frame) > self.max_frame:
            raise FramingError(
                f"a netstring of {len(frame)} bytes; at most {self.max_frame} are allowed"
            )
        return b"%d:%b," % (len(frame), frame)


# -- varints ---------------------------------------------------------------------------------------


class _VarintDecoder(Decoder):
    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def cut(self, stream: bytes | bytearray, frames: list[bytes], most: int) -> int:
        have, begin = len(stream), 0
        while begin < have and len(frames) < most:
            length = shift = 0
            at = begin
            while at < have:
                byte = stream[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if length > self._most:
                    raise FramingError(
                        f"a frame of {length} bytes or more; at most {self._most} are allowed"
                    )
                if byte < 0x80:
                    break
                shift += 7
                if shift >= 70:
                    raise FramingError("a length of more than ten bytes")
            else:
                break
            if at + length > have:
                self.wanted = at + length - begin
                break
            frames.append(take(stream, at, at + length))
            begin = at + length
        return begin


@dataclass(frozen=True, slots=True)
class Varint(Framing):
    """The length comes first, seven bits a byte, lowest first: the delimited format of protocol
    buffers.
    """

    max_frame: int = _MEBI

    def __post_init__(self) -> None:
        check_number("Varint(max_frame)", self.max_frame, least=1, whole=True)

    def decoder(self) -> Decoder:
        """Make the decoder of a stream."""
        return _VarintDecoder(self.max_frame)

    def encode(self, frame: bytes) -> bytes:
        """Turn a frame into bytes for the other side to cut; a frame that is too long is a
        ``FramingError``.
        """
        if len(frame) > self.max_frame:
            raise FramingError(
                f"a frame of {len(frame)} bytes; at most {self.max_frame} are allowed"
            )
        header, left = bytearray(), len(frame)
        while left > 0x7F:
            header.append(0x80 | (left & 0x7F))
            left >>= 7
        header.append(left)
        return bytes(header) + frame


show_public_names(__name__)
