"""Supervised one-shot work: `run_task`, `map_stream` and `TaskSupervisor`."""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .handle import (
        Task,
        TaskResult,
    )
    from .stream import FailedItem

__all__ = [
    "FailedItem",
    "Task",
    "TaskResult",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "handle": "Task TaskResult",
            "stream": "FailedItem",
        },
    )
