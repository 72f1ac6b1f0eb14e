"""`install`: put the functions of the C extension in place of their Python twins.

The package is complete without the extension. All classes start with the Python functions, and
`install` replaces some of them once, when the package is imported: all of them or none.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, Final

from trio.lowlevel import Task, current_task, enable_ki_protection

from ..messaging.calls import Calls
from ..messaging.router import Router
from ..messaging.waiters import TaskCaller
from ..processes.inline_calls import answer_now, note_error, note_late_reply, open_scopes
from ..processes.message_loop import NO_TURN, Turn
from ..processes.process import Process
from ..runtime.parking import PARKED, TaskPlaceholder
from ..tables.callbacks import check_plain, runs_callbacks
from ..tables.mailbox import Mailbox
from ..verbs.behaviour import Behaviour
from ..vocabulary.envelopes import Priority
from ..vocabulary.ids import PID
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.states import RUNNING, SLEEP

__all__ = ["is_fast"]

_INTERFACE: Final = 2
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
                "Calls": Calls,
                "Mailbox": Mailbox,
                "NORMAL": Priority.NORMAL,
                "NO_REPLY": NO_REPLY,
                "NO_TURN": NO_TURN,
                "PARKED": PARKED,
                "PID": PID,
                "Process": Process,
                "RUNNING": RUNNING,
                "Router": Router,
                "Router.send": Router.send,
                "SLEEP": SLEEP,
                "Task": Task,
                "TaskCaller": TaskCaller,
                "TaskPlaceholder": TaskPlaceholder,
                "Turn": Turn,
                "answer_now": answer_now,
                "check_plain": check_plain,
                "current_task": current_task,
                "note_error": note_error,
                "note_late_reply": note_late_reply,
                "open_scopes": open_scopes,
                "protected_answer": _protected(_speed.answer),
            }
        )
    except TypeError:
        return False
    Mailbox.main_type = _speed.MainLane
    Turn.begin_batch = _speed.batch
    Calls.short_cut = _speed.short_cut
    Behaviour.send = _speed.method(Behaviour, "Behaviour.send")  # type: ignore[method-assign]
    Router.send = _speed.method(Router, "Router.send")  # type: ignore[method-assign]
    return True


def _protected(answer: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """`answer_now` in C needs a frame of Python: trio looks there whether KeyboardInterrupt may be
    raised, and the watchdog whose callback runs.
    """

    @runs_callbacks
    @enable_ki_protection
    def answer_in_c(process: Process, caller: TaskCaller, request: object) -> Any:
        return answer(process, caller, request)

    return answer_in_c


def _has_gil() -> bool:
    # Python from 3.13 on may run without the GIL, which the extension needs.
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_enabled()


is_fast: Final = install()
"""Whether the extension is installed."""
