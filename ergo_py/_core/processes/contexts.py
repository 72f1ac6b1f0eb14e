"""`adopt`: carries context variables from a thread back to the process. All callbacks of a process
share its context, in any thread.
"""

from contextvars import Context
from typing import Final

__all__ = ["adopt"]

_NOTHING: Final = object()


def adopt(changed: Context, before: Context) -> None:
    """Set in the current context the variables that ``changed``, a copy of ``before``, has set
    since.
    """
    for variable, value in changed.items():
        if before.get(variable, _NOTHING) is not value:
            variable.set(value)
