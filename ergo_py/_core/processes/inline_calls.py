"""`answer_now`: a call to a sleeping process, served inline in the caller's task."""

from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from trio.lowlevel import Task, enable_ki_protection

from ..messaging.waiters import TaskCaller
from ..runtime.cancel_scopes import CancelScopes
from ..tables.callbacks import check_plain, runs_callbacks
from ..vocabulary.envelopes import CALL, FAILED
from ..vocabulary.errors import Reject
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.reasons import Reason, is_a
from ..vocabulary.states import RUNNING, SLEEP
from .failure import account_for, account_for_open
from .message_loop import NO_TURN

if TYPE_CHECKING:
    from trio._core._run import CancelStatus

    from .process import Process

__all__ = ["answer_now", "note_error", "note_late_reply", "open_scopes"]


@runs_callbacks
@enable_ki_protection
def answer_now(process: "Process", caller: TaskCaller, request: object) -> CancelScopes | None:
    """Serve a call inline: run ``handle_call`` of this process in the caller's task. The process
    still handles a single message at a time, because it sleeps and a plain function cannot be
    interrupted.

    Returns the cancel scopes that ``handle_call`` left open; the caller's task has to close them.
    """
    task: Any = caller.task
    status, left = task._cancel_status, None
    turn, begun = process.turn, perf_counter()
    if turn is NO_TURN:
        turn = process.own_turn()
    turn.woken = begun  # hot path: Turn.begin
    turn.handling = (CALL, caller.pid, caller, request)  # hot path: Turn.handle
    turn.handled += 1  # hot path: Turn.handle
    process.state = RUNNING  # hot path: Process.begin_turn
    # Inlined Calls.serve(), without the wake-up of the caller.
    try:
        reply: object = process.behaviour.handle_call(request, caller)
        if type(reply) is CoroutineType:
            check_plain(process, "handle_call", reply)
    except BaseException as error:
        note_error(process, caller, error)
    else:
        # handle_call may have replied already, by `reply`: its return value is late then.
        if reply is NO_REPLY or caller.settled:
            note_late_reply(process, caller, reply)
        else:
            # The caller is not asleep yet, and needs no wake-up.
            caller.settled = True  # hot path: Caller.settle
            caller.value = reply  # hot path: Caller.settle
    # A comparison instead of a snapshot: each inline call would pay for the object.
    if task._cancel_status is not status:
        left = open_scopes(process, task, status)
    turn.running_time += perf_counter() - begun  # hot path: Turn.end
    turn.woken = 0.0  # hot path: Turn.end
    turn.handling = None  # hot path: Turn.end
    process.state = SLEEP  # hot path: Process.end_turn
    return left


# The C extension calls these three, too.


def note_error(process: "Process", caller: TaskCaller, error: BaseException) -> None:
    """Reply with the error of a `Reject`; any other exception of ``handle_call`` is a failure."""
    if is_a(error, Reject):
        process.kernel.calls.reply(caller, None, error.error)
        return
    reason = account_for(process, error)
    if reason is not None:
        _end_in_sleep(process, reason)


def note_late_reply(process: "Process", caller: TaskCaller, reply: object) -> None:
    """Defer the call, or count a reply to a call that is settled already."""
    if reply is NO_REPLY:
        caller.defer(process)
    else:
        process.kernel.calls.count_late_reply()


def open_scopes(process: "Process", task: Task, status: "CancelStatus") -> CancelScopes:
    """Return the cancel scopes that ``handle_call`` left open in the caller's task."""
    left = CancelScopes.since(task, status)
    if process.accepting:
        # As in the process's own turn: the reply counts, and then the process crashes.
        _end_in_sleep(process, account_for_open(process, left.nurseries()))
    return left


def _end_in_sleep(process: "Process", reason: Reason) -> None:
    """End a process that failed in its caller's turn. It refuses calls at once, so that no other
    caller waits for an ending process.
    """
    process.refuse()
    process.end(FAILED, reason)
