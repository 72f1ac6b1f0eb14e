"""`type_of`: the type of an encoded value, without decoding it. A dead letter keeps the type of its
message only, so the content is not worth the time.
"""

from collections.abc import Callable
from typing import Any, Final

from .closed_types import MARK
from .codec import Ext, msgspec

__all__ = ["type_of"]

_RANGES: Final[tuple[tuple[int, type | None], ...]] = (
    (0x80, int),
    (0x90, dict),
    (0xA0, list),
    (0xC0, str),
    (0xC1, type(None)),
    (0xC2, None),  # a closed message
    (0xC4, bool),
    (0xC7, bytes),
    (0xCA, Ext),
    (0xCC, float),
    (0xD4, int),
    (0xD9, Ext),
    (0xDC, str),
    (0xDE, list),
    (0xE0, dict),
    (0x100, int),
)
"""The types of MessagePack: each with the first of the bytes that begin other types."""

_TYPES: Final = tuple(next(kind for end, kind in _RANGES if lead < end) for lead in range(256))
_read_ext: Final[Callable[[Any], Ext]] = msgspec.msgpack.Decoder(Ext).decode


class _Named(msgspec.Struct, array_like=True):
    """The content of an extension that begins with a name. The rest is skipped."""

    name: str


_read_named: Final[Callable[[Any], _Named]] = msgspec.msgpack.Decoder(_Named).decode


def type_of(
    data: bytes | memoryview, of_code: Callable[[int, Callable[[], str]], type | None]
) -> type | None:
    """The type of the value with these bytes; None if it is unknown. ``of_code`` tells the type of
    an extension by its code and, if it asks for that, its name on the wire.
    """
    try:
        if data[0] == MARK:
            end = 2 + data[1]
            return of_code(MARK, lambda: bytes(data[2:end]).decode())
        kind = _TYPES[data[0]]
        if kind is not Ext:
            return kind
        found = _read_ext(data)
        return of_code(found.code, lambda: _read_named(found.data).name)
    except (msgspec.MsgspecError, IndexError, UnicodeDecodeError):
        return None
