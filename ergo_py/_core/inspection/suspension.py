"""``suspend`` and ``resume``: a suspended process serves signals, but no messages."""

from time import perf_counter
from typing import TYPE_CHECKING, Final

from trio.lowlevel import Task

from ..processes import message_loop
from ..runtime.parking import park
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import EXIT, FAILED, FENCE, INSPECT, KILL, LOOK, STOP, Envelope
from ..vocabulary.reasons import Reason
from ..vocabulary.states import State
from .callback_watch import Watch, drop_if_unused, watch_of

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = ["resume", "suspend"]


async def suspend(process: "Process", caller: Caller) -> Reason | None:
    """Suspend a process: it serves only signals until ``resume``."""
    watch = watch_of(process)
    caller.settle(not watch.suspended, None)
    if watch.suspended:
        return None
    watch.suspended = True
    # A call to a sleeping process may be answered inline. A suspended process must not answer.
    inline, process.inline = process.inline, False
    try:
        return await _hold(process, watch)
    finally:
        watch.suspended = False
        process.inline = inline
        drop_if_unused(process, watch)


async def _hold(process: "Process", watch: Watch) -> Reason | None:
    task, callbacks_changed = process.task, False
    assert isinstance(task, Task)
    while watch.suspended:
        envelope = _next_signal(process)
        if envelope is not None:
            process.handling = envelope
            reason = await message_loop.handle_other(process, envelope)
            if reason is message_loop.AGAIN:
                callbacks_changed = True
            elif reason is not None:
                return reason
            continue
        process.handling = envelope = None
        process.enter(State.SLEEP)
        process.running_time += perf_counter() - process.woken
        process.woken = 0.0
        await park(task)
        process.woken = perf_counter()
        process.enter(State.RUNNING)
    return message_loop.AGAIN if callbacks_changed else None


def _next_signal(process: "Process") -> Envelope | None:
    """The next signal that a suspended process still serves: an inspection or its end."""
    box = process.mailbox
    for lane in (box.urgent, box.system):
        for index, envelope in enumerate(lane):
            kind = envelope[0]
            if kind in _SERVED or (kind == EXIT and not _is_trapped(process, envelope)):
                del lane[index]
                box.ahead = bool(box.urgent or box.system)
                return envelope
    return None


_SERVED: Final = frozenset({LOOK, INSPECT, KILL, STOP, FAILED, FENCE})


def _is_trapped(process: "Process", envelope: Envelope) -> bool:
    parent = process.kernel.pid if process.parent is None else process.parent.id
    return process.trap_exit and envelope[1] != parent


async def resume(process: "Process", caller: Caller) -> None:
    """Resume a process. Answers whether the process was suspended."""
    watch = process.kernel.watches.get(process.id)
    was = watch is not None and watch.suspended
    if watch is not None:
        watch.suspended = False
    caller.settle(was, None)
