"""Streams: events as async iterators, and replies in parts."""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .events import (
        EventStream,
    )
    from .parts import (
        CalledStream,
        PartStream,
    )

__all__ = [
    "CalledStream",
    "EventStream",
    "PartStream",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "events": "EventStream",
            "parts": "CalledStream PartStream",
        },
    )
