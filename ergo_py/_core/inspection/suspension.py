"""``suspend`` and ``resume``: a suspended process serves signals, but no messages."""

from functools import partial
from typing import TYPE_CHECKING, Final

from trio.lowlevel import Task

from ..processes.envelope_handlers import HANDLERS
from ..processes.message_loop import AGAIN
from ..runtime.parking import park
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import ENDS, EXIT, FENCE, INSPECT, LOOK, Envelope
from ..vocabulary.reasons import Reason
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
    watch.suspend()
    # A call to a sleeping process may be answered inline. A suspended process must not answer.
    inline = process.allow_inline_calls(False)
    try:
        return await _hold(process, watch)
    finally:
        watch.resume()
        # Another class may have taken the place of its own meanwhile.
        process.allow_inline_calls(inline and process.callbacks.answers_at_once)
        drop_if_unused(process, watch)


async def _hold(process: "Process", watch: Watch) -> Reason | None:
    task, callbacks_changed = process.task, False
    assert isinstance(task, Task)
    while watch.suspended:
        envelope = process.mailbox.take_signal(partial(_is_served, process))
        if envelope is not None:
            process.turn.handle_again(envelope)
            reason = (
                envelope[3]
                if envelope[0] in ENDS
                else await HANDLERS[envelope[0]](process, *envelope[1:])
            )
            if reason is AGAIN:
                callbacks_changed = True
            elif reason is not None:
                return reason
            continue
        envelope = None
        process.end_turn()
        await park(task)
        process.begin_turn()
    return AGAIN if callbacks_changed else None


_SERVED: Final = frozenset({LOOK, INSPECT, *ENDS, FENCE})


def _is_served(process: "Process", envelope: Envelope) -> bool:
    """Whether a suspended process still serves a signal: an inspection or its end."""
    if envelope[0] != EXIT:
        return envelope[0] in _SERVED
    parent = process.kernel.pid if process.parent is None else process.parent.id
    is_trapped = process.trap_exit and envelope[1] != parent
    return not is_trapped


async def resume(process: "Process", caller: Caller) -> None:
    """Resume a process. Answers whether the process was suspended."""
    watch = process.kernel.watches.get(process.id)
    was = watch is not None and watch.suspended
    if watch is not None:
        watch.resume()
    caller.settle(was, None)
