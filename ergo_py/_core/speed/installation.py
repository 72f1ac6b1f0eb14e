"""`install`: put the functions of the C extension in place of their Python twins.

The package is complete without the extension. All classes start with the Python functions, and
`install` replaces some of them once, when the package is imported: all of them or none.
"""

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import trio
from trio.lowlevel import Task, current_task

from .. import sources
from ..messaging.calls import NOT_MADE, Calls, UnfinishedCall
from ..messaging.clock import Clock
from ..messaging.publisher import Publisher
from ..messaging.receiver import NO_RECEIVER
from ..messaging.router import Router
from ..messaging.waiters import TaskCaller
from ..metas.handler import Handler
from ..metas.meta import Meta
from ..metas.outbox import Outbox
from ..processes.inline_calls import answer_now, note_error, note_late_reply, open_scopes
from ..processes.lifecycle import Lifecycle
from ..processes.message_loop import NO_TURN, Turn, serve, serve_in_place
from ..processes.process import Process
from ..runtime.handoff import Handoff, RunQueue
from ..runtime.parking import PARKED, TRAP, TaskPlaceholder, wake, wake_with
from ..tables.callbacks import check_plain, runs_callbacks
from ..tables.events import Event
from ..tables.mailbox import Mailbox
from ..tables.registry import Registry
from ..tables.timers import Owned, Timer, Timers
from ..verbs.behaviour import Behaviour
from ..vocabulary.envelopes import Priority
from ..vocabulary.errors import Reject
from ..vocabulary.ids import PID, Alias
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.states import RUNNING, SLEEP, STOPPING, WAIT_RESPONSE, MetaState

__all__ = [
    "bind_streams",
    "buffer_queue",
    "datagram_reader",
    "is_fast",
    "method",
    "stream_buffer",
    "trace_verb",
    "why_not_fast",
]

_loop: Final[Any] = trio._core._run
# Raised with each change of the slots that C reads or of the functions that it replaces: an
# editable install may still have the build of an earlier checkout, which knows other offsets.
_INTERFACE: Final = 19
"""The version of the extension that this module can install. An older build is not used."""


def install() -> str:
    """Install the extension if it was built, unless the environment variable ``ERGO_PURE`` is set.
    Returns why it is not installed; nothing if it is.
    """
    if os.environ.get("ERGO_PURE"):
        return "ERGO_PURE is set"
    if not _has_gil():
        return "this Python runs without the GIL"
    try:
        from . import _speed  # noqa: PLC0415 - absent without a C compiler
    except ImportError:
        return "it was not built"
    if _speed.INTERFACE != _INTERFACE:
        return f"it was built for interface {_speed.INTERFACE}, and this is interface {_INTERFACE}"
    try:
        # Before any class is changed: bind() looks up all slots first and sets none if a single
        # slot is missing, so the package never runs with a part of the extension.
        _speed.bind(_known_to_c())
    except TypeError as error:
        return f"a class is not as the extension knows it: {error}"
    Mailbox.main_type = _speed.MainLane
    Timers.heap_type = _speed.TimerHeap
    Turn.begin_batch = _speed.batch
    Calls.short_cut = _speed.short_cut
    # An inline call in C has no frame of `answer_now`: the watchdog finds the process in the
    # attribute `serving` of the calls, by the frame of `Calls.call`.
    runs_callbacks(Calls.call, "serving")
    Behaviour.call = _speed.method(Behaviour, "Behaviour.call")  # type: ignore[method-assign]
    Behaviour.send = _speed.method(Behaviour, "Behaviour.send")  # type: ignore[method-assign]
    Clock.arm_timer = _speed.method(Clock, "Clock.arm_timer")  # type: ignore[method-assign]
    Handoff.end_asleep = _speed.method(Handoff, "Handoff.end_asleep")  # type: ignore[method-assign]
    Handoff.serve = _speed.method(Handoff, "Handoff.serve")  # type: ignore[method-assign]
    Outbox.deliver = _speed.method(Outbox, "Outbox.deliver")  # type: ignore[method-assign]
    Publisher.deliver = _speed.method(Publisher, "Publisher.deliver")  # type: ignore[method-assign]
    Router.send = _speed.method(Router, "Router.send")  # type: ignore[method-assign]
    for name in ("settle", "settle_in"):
        setattr(TaskCaller, name, _speed.method(TaskCaller, f"TaskCaller.{name}"))
    Timer.cancel = _speed.method(Timer, "Timer.cancel")  # type: ignore[method-assign]
    return ""


def _known_to_c() -> dict[str, Any]:
    """The classes, functions and constants that the extension looks up, by name."""
    return {
        **_classes_known_to_c(),
        # The Python functions are read here, before install() replaces them: C calls them for all
        # that it does not handle itself.
        "Behaviour.call": Behaviour.call,
        "Behaviour.send": Behaviour.send,
        "Calls.call": Calls.call,
        # None with a trio without the class: bind() raises for it, and the package runs in pure
        # Python.
        "CancelStatus": getattr(_loop, "CancelStatus", None),
        "Clock.arm_timer": Clock.arm_timer,
        "Handoff.end_asleep": Handoff.end_asleep,
        "Handoff.serve": Handoff.serve,
        "META_SLEEP": MetaState.SLEEP,
        "NORMAL": Priority.NORMAL,
        "NOT_MADE": NOT_MADE,
        "NO_RECEIVER": NO_RECEIVER,
        "NO_REPLY": NO_REPLY,
        "NO_TURN": NO_TURN,
        "Outbox.deliver": Outbox.deliver,
        "PARKED": PARKED,
        "PID": PID,
        "Publisher.deliver": Publisher.deliver,
        "RUNNING": RUNNING,
        "Reject": Reject,
        "Router.send": Router.send,
        "SLEEP": SLEEP,
        "STOPPING": STOPPING,
        "TRAP": TRAP,
        "TaskCaller.settle": TaskCaller.settle,
        "TaskCaller.settle_in": TaskCaller.settle_in,
        "Timer.cancel": Timer.cancel,
        "WAIT_RESPONSE": WAIT_RESPONSE,
        "abort": TRAP.abort_func,
        "answer_now": answer_now,
        "begin_wait": Lifecycle.begin_wait,
        "check_plain": check_plain,
        "current_task": current_task,
        "note_error": note_error,
        "note_late_reply": note_late_reply,
        "open_scopes": open_scopes,
        "perf_counter": perf_counter,
        "serve": serve,
        "serve_in_place": serve_in_place,
        "sources": sources.__dict__,
        "wake": wake,
        "wake_with": wake_with,
    }


def _classes_known_to_c() -> dict[str, Any]:
    """The classes whose instances the extension knows, by name."""
    return {
        "Alias": Alias,
        "Calls": Calls,
        "Clock": Clock,
        "Event": Event,
        "Handler": Handler,
        "Handoff": Handoff,
        "Mailbox": Mailbox,
        "Meta": Meta,
        "Outbox": Outbox,
        "Owned": Owned,
        "Process": Process,
        "Publisher": Publisher,
        "Registry": Registry,
        "Router": Router,
        "RunQueue": RunQueue,
        "Task": Task,
        "TaskCaller": TaskCaller,
        "TaskPlaceholder": TaskPlaceholder,
        "Timer": Timer,
        "Timers": Timers,
        "Turn": Turn,
        "UnfinishedCall": UnfinishedCall,
    }


def _has_gil() -> bool:
    # Python from 3.13 on may run without the GIL, which the extension needs.
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_enabled()


# When this module is imported, before a node makes its first object: mailboxes, calls and timers
# read in their constructors which twin they use.
why_not_fast: Final = install()
"""Why the extension is not installed; empty if it is."""
is_fast: Final = not why_not_fast
"""Whether the extension is installed."""


def _class(name: str) -> Any:
    if not is_fast:
        return None
    from . import _speed  # noqa: PLC0415 - as above

    return getattr(_speed, name)


datagram_reader: Final = _class("DatagramReader")
"""The class that reads many datagrams with a single system call; None without the extension, and on
a system without such a call.
"""
buffer_queue: Final = _class("BufferQueue")
stream_buffer: Final = _class("StreamBuffer")
"""The classes for threads that read streams without the GIL; None without the extension, and on a
system without an eventfd.
"""
bind_streams: Final = _class("bind_streams")
"""Looks up the classes of stream connections; None without the extension."""
method: Final = _class("method")
"""Makes the method that replaces a Python function; None without the extension."""
trace_verb: Final = _class("trace_verb")
"""Makes the verb `call` of a behaviour in a traced node; None without the extension."""
