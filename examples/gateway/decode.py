"""The decoder: a program of its own. It reads frames from its input and prints a line of JSON for
each.

A frame holds a source, a number, a quantity and a value, and a checksum of all these. A line is a
list of the four, or ``null`` for an invalid frame. A value that is not finite is invalid: JSON and
the database have no NaN. On the wire to this program each frame has its length in front, in two
bytes.

It knows nothing of actors, and could be written in any language.
"""

import json
import sys
import zlib
from math import isfinite
from struct import Struct, unpack

QUANTITIES = ("temperature", "pressure", "humidity")

_BODY = Struct("!IIBd")
_CHECKSUM = Struct("!I")


def encode(source: int, number: int, quantity: str, value: float) -> bytes:
    """The frame of a device: the ``number``-th reading of ``source``."""
    body = _BODY.pack(source, number, QUANTITIES.index(quantity), value)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def decode(frame: bytes) -> tuple[int, int, str, float] | None:
    """The inverse; None for an invalid frame."""
    body, checksum = frame[: _BODY.size], frame[_BODY.size :]
    if len(frame) != _BODY.size + _CHECKSUM.size or checksum != _CHECKSUM.pack(zlib.crc32(body)):
        return None
    source, number, quantity, value = _BODY.unpack(body)
    if quantity >= len(QUANTITIES) or not isfinite(value):
        return None
    return source, number, QUANTITIES[quantity], value


def main() -> None:
    while header := sys.stdin.buffer.read(2):
        (length,) = unpack("!H", header)
        print(json.dumps(decode(sys.stdin.buffer.read(length))), flush=True)


if __name__ == "__main__":
    main()
