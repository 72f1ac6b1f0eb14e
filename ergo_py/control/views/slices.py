"""`encode_in_slices`: long answers become text some entries at a time, with pauses for the loop.
`read_again`: reads tables that the loop changes.
"""

import json
from collections.abc import Callable
from typing import Final, TypeVar

from ..._core.inspection.thread_slices import in_slices, pause
from ..protocol import ControlError, Encoded

__all__ = ["encode_in_slices", "in_slices", "pause", "read_again"]

T = TypeVar("T")

_TRIES: Final = 20
_ENTRIES: Final = 50
"""Entries of a list or an object that are encoded at a time."""


def encode_in_slices(value: object) -> Encoded:
    """JSON text of a value of JSON types. Long lists and objects are encoded some entries at a
    time, with pauses, since no other thread can run while the encoder works.
    """
    chunks: list[str] = []
    _encode(value, chunks)
    return Encoded("".join(chunks).encode(errors="replace"))


def _encode(value: object, chunks: list[str]) -> None:
    match value:
        case dict() if len(value) <= _ENTRIES:
            for number, (key, item) in enumerate(value.items()):
                chunks.append(f"{'{' if not number else ','}{_text(str(key))}:")
                _encode(item, chunks)
            chunks.append("}" if value else "{}")
        case list() if len(value) <= _ENTRIES:
            for number, item in enumerate(value):
                chunks.append("[" if not number else ",")
                _encode(item, chunks)
            chunks.append("]" if value else "[]")
        case dict():
            objects = (_text(dict(part)) for part in in_slices(list(value.items()), _ENTRIES))
            chunks.append("{" + ",".join(part[1:-1] for part in objects) + "}")
        case list():
            lists = (_text(part) for part in in_slices(value, _ENTRIES))
            chunks.append("[" + ",".join(part[1:-1] for part in lists) + "]")
        case _:
            chunks.append(_text(value))


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def read_again(read: Callable[[], T]) -> T:
    """The result of ``read``, which iterates over tables of the loop; tried again if the loop
    changes a table meanwhile.

    Raises:
        ControlError: the tables change all the time.
    """
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:  # a table changed its size while it was read
            pause()
    raise ControlError("busy", "the tables change faster than they can be read; try again")
