"""Process groups of the programs that this program has started, and that must not outlive it.

Meta-processes end their programs in order when they are stopped. If this program exits at once,
that cleanup does not run, and no terminal signal reaches programs that lead their own session. So
their groups are registered here, and killed at exit.
"""

import atexit
import os
import signal
from typing import Final

__all__ = ["forget_group", "kill_groups", "note_group"]

_groups: Final[dict[int, None]] = {}


def note_group(group: int) -> None:
    """Register a process group that this program has started. From any thread."""
    _groups[group] = None


def forget_group(group: int) -> None:
    """Unregister a group: all its processes have exited, and the system may reuse its number. From
    any thread.
    """
    _groups.pop(group, None)


def kill_groups() -> None:
    """Kill all registered groups. Safe in a signal handler."""
    for group in tuple(_groups):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # all its processes have exited, or another user has the number now
            continue


# For a node that was never closed, so that its meta-processes were never stopped.
atexit.register(kill_groups)


def _forget_in_copy() -> None:
    """Clear the table in a forked copy of this program, which has started none of the groups."""
    _groups.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_forget_in_copy)
