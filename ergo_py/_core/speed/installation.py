"""`install`: put the functions of the C extension in place of their Python twins.

The package is complete without the extension. All classes start with the Python functions, and
`install` replaces some of them once, when the package is imported: all of them or none.
"""

import os
import sys
from collections.abc import Callable
from typing import Final

from trio.lowlevel import Task

from ..messaging.router import Router
from ..processes.message_loop import Turn
from ..processes.process import Process
from ..runtime.parking import TaskPlaceholder
from ..tables.callbacks import check_plain
from ..tables.mailbox import Mailbox
from ..verbs.behaviour import Behaviour
from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import PID

__all__ = ["is_fast"]

_INTERFACE: Final = 1
"""The version of the extension that this module can install. An older build is not used."""


def install() -> bool:
    """Install the extension if it was built, unless the environment variable ``ERGO_PURE`` is set.
    Returns whether it is installed.
    """
    if os.environ.get("ERGO_PURE") or not _has_gil():
        return False
    try:
        from . import _speed  # noqa: PLC0415 - absent without a C compiler
    except ImportError:
        return False
    if _speed.INTERFACE != _INTERFACE:
        return False
    try:
        _speed.bind(
            {
                "Behaviour.send": Behaviour.send,
                "Mailbox": Mailbox,
                "NORMAL": Priority.NORMAL,
                "PID": PID,
                "Process": Process,
                "Router": Router,
                "Router.send": Router.send,
                "Task": Task,
                "TaskPlaceholder": TaskPlaceholder,
                "Turn": Turn,
                "check_plain": check_plain,
            }
        )
    except TypeError:
        return False
    Mailbox.main_type = _speed.MainLane
    Turn.begin_batch = _speed.batch
    Behaviour.send = _speed.method(Behaviour, "Behaviour.send")  # type: ignore[method-assign]
    Router.send = _speed.method(Router, "Router.send")  # type: ignore[method-assign]
    return True


def _has_gil() -> bool:
    # Python from 3.13 on may run without the GIL, which the extension needs.
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_enabled()


is_fast: Final = install()
"""Whether the extension is installed."""
