"""How replies are written in RESP, the protocol of Redis. ``examples/guide/framing.py`` cuts the
commands out of the stream.
"""

from collections.abc import Iterable

__all__ = ["NIL", "OK", "Command", "array", "bulk", "error", "integer"]

Command = list[bytes]
OK, NIL = b"+OK\r\n", b"$-1\r\n"


def integer(number: int) -> bytes:
    return b":%d\r\n" % number


def bulk(value: bytes | None) -> bytes:
    return NIL if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def array(replies: Iterable[bytes]) -> bytes:
    parts = list(replies)
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def error(text: str) -> bytes:
    return b"-%b\r\n" % " ".join(text.split()).encode(errors="replace")
