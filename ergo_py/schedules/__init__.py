"""Schedules: jobs that run at times of the calendar."""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .scheduler import (
        MissedRuns,
        Overlap,
    )

__all__ = [
    "MissedRuns",
    "Overlap",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "scheduler": "MissedRuns Overlap",
        },
    )
