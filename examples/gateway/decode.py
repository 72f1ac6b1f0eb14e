"""The decoder: a program of its own. It answers each line of its input with a line.

A frame holds a source, a number, a quantity and a value, and a checksum of all these. A line of the
input is a list of frames in JSON, as hexadecimal numbers. The answer is a list of lists with the
four, and ``null`` for each invalid frame. A value that is not finite is invalid: JSON and the
database have no NaN.

It knows nothing of actors, and could be written in any language.
"""

import json
import sys
import zlib
from math import isfinite
from struct import Struct

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
    for line in sys.stdin:
        print(json.dumps([decode(bytes.fromhex(frame)) for frame in json.loads(line)]), flush=True)


if __name__ == "__main__":
    main()
