"""Context variables: a process has a context of its own, which its callbacks share wherever they
run.
"""

from contextvars import Context
from typing import Final

__all__ = ["adopt"]

_NOTHING: Final = object()


def adopt(changed: Context, before: Context) -> None:
    """Set, in the present context, what was set in a copy of ``before`` since it was made."""
    for variable, value in changed.items():
        if before.get(variable, _NOTHING) is not value:
            variable.set(value)
