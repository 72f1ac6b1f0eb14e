"""`LineCutter` and `Text`: cut text that comes in pieces into lines, from programs, files and
terminals.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names

__all__ = ["MAX_LINE", "LineCutter", "Text"]

MAX_LINE: Final = 65_536
"""Characters after which an unfinished line is passed on in parts, so that no line fills the
memory.
"""


class LineCutter:
    """Turns chunks of bytes into ``(text, is_whole)`` pairs, without line ends.

    A line ends with a line feed, or a carriage return and a line feed. ``is_whole`` is False for a
    part of a line that is longer than ``max_line``; the rest of that line follows. A chunk may end
    in the middle of a character.
    """

    __slots__ = ("_after_part", "_decoder", "_rest", "max_line")

    def __init__(
        self, encoding: str = "utf-8", errors: str = "replace", max_line: int = MAX_LINE
    ) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._rest = ""
        self._after_part = False
        self.max_line: int = max_line

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        """The lines that are complete now.

        Raises:
            UnicodeDecodeError: the errors policy is strict, and the bytes are not text in this
                encoding.
        """
        return self._cut(self._decoder.decode(data))

    def end(self) -> list[tuple[str, bool]]:
        """The last line, if it does not end in a line feed. Nothing may follow.

        Raises:
            UnicodeDecodeError: as for :meth:`feed`.
        """
        lines = self._cut(self._decoder.decode(b"", final=True))
        rest, self._rest = self._rest, ""
        if rest or self._after_part:
            lines.append((rest, True))
        self._after_part = False
        return lines

    def _cut(self, text: str) -> list[tuple[str, bool]]:
        # The kept text is never longer than max_line, so joining it again and again stays cheap.
        *whole, self._rest = (self._rest + text).split("\n")
        lines: list[tuple[str, bool]] = []
        for line in whole:
            lines.append((self._without_head(lines, line.removesuffix("\r")), True))
            self._after_part = False
        self._rest = self._without_head(lines, self._rest)
        return lines

    def _without_head(self, lines: list[tuple[str, bool]], line: str) -> str:
        """Append the parts of a line that is too long, and return its last part."""
        while len(line) > self.max_line:
            lines.append((line[: self.max_line], False))
            line = line[self.max_line :]
            self._after_part = True
        return line


@dataclass(frozen=True, slots=True)
class Text:
    """How bytes are read as lines of text.

    Args:
        encoding: the encoding of the bytes.
        errors: how invalid bytes are treated, as in ``bytes.decode``: ``replace``, ``strict``,
            which ends the meta-process, ``ignore``, ``backslashreplace``, ``surrogateescape``.
        max_line: characters after which an unfinished line is passed on in parts.
    """

    encoding: str = "utf-8"
    errors: str = "replace"
    max_line: int = MAX_LINE

    def __post_init__(self) -> None:
        if not isinstance(self.encoding, str) or not _is_encoding_of_text(self.encoding):
            raise BadInputError(
                "Text(encoding)", self.encoding, 'the name of an encoding of text, such as "utf-8"'
            )
        if not isinstance(self.errors, str) or not _knows(codecs.lookup_error, self.errors):
            allowed = '"replace", "strict", "ignore", "backslashreplace" or "surrogateescape"'
            raise BadInputError("Text(errors)", self.errors, allowed)
        check_number("Text(max_line)", self.max_line, least=1, whole=True)

    def cutter(self) -> LineCutter:
        """Make the cutter of a stream."""
        return LineCutter(self.encoding, self.errors, self.max_line)


_WHOLE_ONLY: Final = frozenset({"idna", "punycode"})
"""Encodings of host names: they decode only whole names, and not pieces of a stream."""


def _is_encoding_of_text(name: str) -> bool:
    try:
        # Some codecs turn bytes into bytes or text into text: str.encode refuses those.
        codecs.getincrementaldecoder(name)("strict").decode("a\n".encode(name))
    except (LookupError, ValueError):
        return False
    return codecs.lookup(name).name not in _WHOLE_ONLY


def _knows(lookup: Callable[[str], object], name: str) -> bool:
    try:
        lookup(name)
    except LookupError:
        return False
    return True


show_public_names(__name__)
