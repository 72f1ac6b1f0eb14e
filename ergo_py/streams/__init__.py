"""Streams: events as async iterators, and replies in parts."""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .parts import PartStream

__all__ = [
    "PartStream",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "parts": "PartStream",
        },
    )
