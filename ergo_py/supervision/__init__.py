"""Supervisors: child specifications, restart strategies, pools, and the driver that performs their
decisions.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .._core.tables.child_slot import (
        Decision,
        Fate,
        Redirect,
    )
    from .specs import (
        AutoShutdown,
        Budget,
    )

__all__ = [
    "AutoShutdown",
    "Budget",
    "Decision",
    "Fate",
    "Redirect",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "specs": "AutoShutdown Budget",
            "ergo_py._core.tables.child_slot": "Decision Fate Redirect",
        },
    )
