"""Schedules: jobs that run at times of the calendar."""

from typing import TYPE_CHECKING, Final

from .._core.vocabulary.public_names import load_on_first_use

__all__: Final[list[str]] = []

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, {})
