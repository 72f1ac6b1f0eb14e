"""`Chunks`: answers that are larger than a message, handed out in chunks."""

from itertools import count
from typing import Final

from ..._core.vocabulary.errors import NotAllowedError
from ..access.limits import LARGEST_ANSWER

__all__ = ["Chunks"]

_CHUNK: Final = 256 << 10
"""Most bytes of a chunk."""
_KEPT: Final = 4
"""How many answers are kept until all their chunks are fetched."""


class Chunks:
    """The answers to a single other node that it has not fetched completely."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._kept: dict[int, bytes] = {}

    def first(self, answer: bytes) -> list[object]:
        """The size of an answer, its number, and its first chunk.

        Raises:
            NotAllowedError: the answer is too large.
        """
        if len(answer) > LARGEST_ANSWER:
            raise NotAllowedError(
                f"the answer has {len(answer)} bytes, and the limit between nodes is "
                f"{LARGEST_ANSWER}; ask for less: for single processes, or with a smaller count"
            )
        number = next(self._numbers)
        chunk = answer[:_CHUNK]
        if len(chunk) < len(answer):
            self._kept[number] = answer
            if len(self._kept) > _KEPT:
                # A node that fetches the first chunk only must not keep its answers here, of 16 MiB
                # each: the oldest gives way, and its reader asks again.
                del self._kept[next(iter(self._kept))]
        return [len(answer), number, chunk]

    def next(self, number: int, offset: int) -> bytes:
        """The chunk at ``offset``.

        Raises:
            NotAllowedError: the answer is no longer kept.
        """
        answer = self._kept.get(number)
        if answer is None:
            raise NotAllowedError("the rest of the answer is no longer kept; ask again")
        end = offset + _CHUNK
        if end >= len(answer):
            del self._kept[number]
        return answer[offset:end]
