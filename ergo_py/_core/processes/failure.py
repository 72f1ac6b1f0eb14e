"""`account_for` and its relatives: crash or resume after an exception in a callback or a background
task of a process.
"""

from typing import TYPE_CHECKING, Any

from ..runtime.cancel_scopes import left_open
from ..tables.child_slot import ChildSlot, Decision
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import EVENT, STARTED, STOP, kind_name
from ..vocabulary.errors import CallFailedError
from ..vocabulary.hints import MAY_NEED_HINT, explain
from ..vocabulary.reasons import Crashed, Reason, is_a
from ..vocabulary.text import shortened

if TYPE_CHECKING:
    from .process import Process

__all__ = ["account_for", "account_for_open", "account_for_task"]


def account_for(process: "Process", error: BaseException) -> Reason | None:
    """Log and count an exception that left a callback. Returns the reason to end with, or None to
    resume.
    """
    slot = process.slot
    # Inlined _resumes(), for most failures.
    is_plain = is_a(error, Exception) and (slot is None or slot.rules.decide is None)
    resumes = not is_plain and _resumes(process, error)
    # Only for exceptions that may have a hint: each restart would pay for the search.
    if is_a(error, MAY_NEED_HINT):
        explain(error, process.behaviour)
    reason = Crashed(error)
    kind, _, ref, payload = process.turn.handling or (STOP, None, None, None)
    callback = kind_name(kind)
    has_message = payload is not None or kind <= EVENT
    message_type = type(payload).__qualname__ if has_message else None
    event = "process failed and goes on" if resumes else "process crashed"
    if process.kernel.log.wants("error"):
        advice = "" if resumes else _advice(process)
        process.kernel.log_crash(process, event, callback, message_type, reason, advice)
    if resumes:
        if isinstance(ref, Caller):
            ref.settle(None, CallFailedError(ref.to, ref.request, reason))
        return None
    process.kernel.note_crash(process, reason)
    process.kernel.lifetimes.obituaries.note_crash(process, callback, message_type)
    if isinstance(ref, Caller):
        # This caller learns of the crash at once; the callers of queued calls learn of it after
        # terminate.
        ref.fail_begun(reason)
    return reason


def account_for_open(process: "Process", nurseries: list[Any]) -> Reason:
    """Crash a process whose callback left a nursery or cancel scope open: the process would sleep
    inside of it.
    """
    handling = process.turn.handling
    kind = STARTED if handling is None else handling[0]
    error = left_open(process.callbacks.behaviour, kind_name(kind), nurseries)
    return account_for(process, error) or Crashed(error)


def account_for_task(process: "Process", name: str, error: BaseException) -> Reason | None:
    """Log and count an exception that left a background task. Returns the reason to end with, or
    None to resume without the task.
    """
    resumes = _resumes(process, error)
    explain(error, process.behaviour)
    reason = Crashed(error)
    advice = "" if resumes else _advice(process)
    process.log.error(
        "a background task failed, and the process goes on"
        if resumes
        else "a background task crashed its process",
        task=name,
        error=shortened(str(reason)),
        exception=shortened(reason.traceback),
        **({"advice": advice} if advice else {}),
    )
    if resumes:
        return None
    process.kernel.note_crash(process, reason)
    process.kernel.lifetimes.obituaries.note_crash(process, f"task {name}", None)
    return reason


def _advice(process: "Process") -> str:
    """The way to restart a process that the node has spawned without a supervisor."""
    if process.slot is not None or process.parent is not None:
        return ""
    behaviour = process.callbacks.behaviour.rpartition(".")[2]
    spec = f"ChildSpec({process.name or behaviour.lower()!r}, {behaviour})"
    return f"it is not supervised, so it does not come back: await node.supervise([{spec}])"


def _resumes(process: "Process", error: BaseException) -> bool:
    """Whether the process resumes after an error. KeyboardInterrupt and SystemExit also end the
    node.
    """
    slot = process.slot
    if not is_a(error, Exception):
        process.kernel.pass_on(error)
        return False
    if slot is None or slot.rules.decide is None:
        return False
    return _decide(process, slot, error) is Decision.RESUME


def _decide(process: "Process", slot: ChildSlot, error: Exception) -> Decision:
    try:
        decision = slot.judge(error)
    except Exception as problem:
        process.log.error(
            "decide failed, so the process ends", exception=Crashed(problem).traceback
        )
        # A rule that fails must not keep a process alive that may be broken: it ends, and its
        # supervisor decides.
        return Decision.RESTART
    if decision is Decision.RESUME:
        slot.count_resumed()
    return decision
