"""The programs of the operating system that this one has started, and that must not outlive it.

Meta-processes end theirs in order when they are stopped. When the program is left at once, nothing
of that runs, and programs that lead sessions of their own are reached by no terminal: so they are
known here.
"""

import atexit
import os
import signal
from typing import Final

__all__ = ["forget_group", "kill_groups", "note_group"]

_groups: Final[set[int]] = set()


def note_group(group: int) -> None:
    """Know a process group that this program has started. From any thread."""
    _groups.add(group)


def forget_group(group: int) -> None:
    """Know it no more: nothing is left of it, and its number may be given to others. From any
    thread.
    """
    _groups.discard(group)


def kill_groups() -> None:
    """Kill all of them. From a signal handler, too."""
    for group in tuple(_groups):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # nothing is left of it, or it has become another user's
            continue


# For a node that was left behind, and whose meta-processes were never stopped.
atexit.register(kill_groups)


def _forget_in_copy() -> None:
    """A forked copy of this program has started none of them."""
    _groups.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch - only Windows has none, and no fork either
    os.register_at_fork(after_in_child=_forget_in_copy)
