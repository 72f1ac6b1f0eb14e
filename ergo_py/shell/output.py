"""Output of ``ergo``: free of terminal control sequences, and limited to the characters of the
terminal's encoding.
"""

import codecs
import errno
import io
import json
import os
import sys
from contextlib import suppress
from typing import IO, Final

from .._core.vocabulary.text import printable, printable_lines
from .exit_codes import Leave, Status

__all__ = [
    "ask_terminal",
    "complain",
    "discard",
    "drop_lost_output",
    "escape_json",
    "flush",
    "is_lost_output",
    "open_closed_streams",
    "prepare",
    "say",
    "say_json",
    "show",
]

_STAND_INS: Final = dict(zip("…→↓·µ×├└│─", "~>v.ux|`|-", strict=True))
"""A single ASCII character for each drawing character of tables and trees, so that columns stay
aligned.
"""


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replaces characters that the terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    replaced = "".join(
        _STAND_INS.get(character) or character.encode("ascii", "backslashreplace").decode()
        for character in missing
    )
    return replaced, error.end


codecs.register_error("ergo_stand_in", _stand_in)


def prepare() -> None:
    """Replace characters that the encoding lacks, also in an ASCII locale, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ergo_stand_in")


def open_closed_streams() -> None:
    """Open the standard streams that the caller has closed, before a socket gets their numbers:
    nothing to read, output that cannot be written, and complaints that nobody reads.
    """
    for name, mode, flags in _STREAMS:
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, stream)


def flush(stream: IO[str]) -> None:
    """Write the rest of an output, unless a program has closed or removed the stream."""
    if not getattr(stream, "closed", True):
        stream.flush()


def drop_lost_output() -> None:
    """Prevent an error when Python flushes at its end what could not be written before."""
    for stream in (sys.stdout, sys.stderr):
        try:
            flush(stream)
        except OSError:
            discard(stream)


def discard(stream: IO[str]) -> None:
    """Let a stream take all output, and drop it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_lost_output(error: OSError) -> bool:
    """Whether the output cannot be written: its reader has closed the pipe, a disk is full, or the
    caller has closed the stream.
    """
    return isinstance(error, BrokenPipeError) or error.errno in _CANNOT_WRITE


_CANNOT_WRITE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""The errors of a full or failing disk, to which the output was directed, and of a stream that the
caller has closed.
"""

_STREAMS: Final = (
    ("stdin", "r", os.O_RDONLY),
    ("stdout", "w", os.O_RDONLY),  # each write fails
    ("stderr", "w", os.O_WRONLY),
)


def say(text: str) -> None:
    """Print a text, without terminal control sequences."""
    sys.stdout.write(f"{printable_lines(text)}\n")


def show(text: str) -> None:
    """Print the output of a screen, which has made text from nodes printable."""
    sys.stdout.write(f"{text}\n")


def say_json(value: object) -> None:
    """Print JSON, for programs."""
    sys.stdout.write(escape_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")


def complain(text: str) -> None:
    """Print a text to stderr. If it cannot be written, the exit status alone tells."""
    with suppress(OSError):
        sys.stderr.write(f"{printable_lines(text)}\n")


def ask_terminal(question: str, *, yes: bool) -> None:
    """Ask whether an act is meant, unless the command line has said ``--yes``.

    Raises:
        Leave: it is not, or there is no terminal to ask at.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Leave(Status.NOT_CONFIRMED, f"{question}? there is no terminal to ask at: say --yes")
    sys.stdout.write(printable(f"{question}? [y/N] "))
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Leave(Status.NOT_CONFIRMED, "nothing was done")


def escape_json(text: str) -> str:
    """Escape characters that a terminal may interpret, or that the output's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    if text.isascii() or _is_plain(text, encoding):
        return text
    return "".join(
        character
        if character == "\n" or _is_plain(character, encoding)
        else json.dumps(character)[1:-1]
        for character in text
    )


def _is_plain(text: str, encoding: str) -> bool:
    if not text.isprintable():
        return False
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
