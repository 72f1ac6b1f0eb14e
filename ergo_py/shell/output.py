"""What ``ergo`` writes: nothing that moves the cursor of a terminal, and only letters that its
encoding has.
"""

import codecs
import io
import json
import sys
from typing import Final

from .._core.vocabulary.text import printable_lines

__all__ = ["complain", "escape_json", "prepare", "say", "say_json", "show"]

_STAND_INS: Final = dict(zip("…→↓·µ×├└│─", "~>v.ux|`|-", strict=True))
"""One letter for each that the tables and trees are drawn with, so that columns stay where they
are.
"""


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """For letters that the encoding of a terminal does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    told = "".join(
        _STAND_INS.get(one) or one.encode("ascii", "backslashreplace").decode() for one in missing
    )
    return told, error.end


codecs.register_error("ergo_stand_in", _stand_in)


def prepare() -> None:
    """Have every letter written somehow, also in a locale that knows only ASCII, instead of ending
    with an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ergo_stand_in")


def say(text: str) -> None:
    """Print a text, of which no part can move the cursor."""
    sys.stdout.write(f"{printable_lines(text)}\n")


def show(text: str) -> None:
    """Print what a screen has made; what comes from a node is printable in it already."""
    sys.stdout.write(f"{text}\n")


def say_json(value: object) -> None:
    """Print for programs."""
    sys.stdout.write(escape_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")


def complain(text: str) -> None:
    """Print a text where errors go."""
    sys.stderr.write(f"{printable_lines(text)}\n")


def escape_json(text: str) -> str:
    """The same JSON, without what a terminal may take for a command, and in letters that the
    encoding of the output has.
    """
    encoding = sys.stdout.encoding or "utf-8"
    if text.isascii() or _is_plain(text, encoding):
        return text
    return "".join(
        one if one == "\n" or _is_plain(one, encoding) else json.dumps(one)[1:-1] for one in text
    )


def _is_plain(text: str, encoding: str) -> bool:
    if not text.isprintable():
        return False
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
