"""`HANDLERS`: what a process does with each kind of envelope, except for messages, calls and the
signals that end it, which its message loop serves itself.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..messaging.observer import Delivered
from ..tables.callbacks import check_plain, diagnostics
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import (
    CHILD_EXIT,
    CONTROL,
    DOWN,
    END_NOTICE,
    EVENT,
    EXIT,
    FENCE,
    INSPECT,
    LOG,
    LOOK,
    NOTICE,
    RESPONSE,
    STARTED,
    TRACED,
    TRACED_CALL,
    Envelope,
)
from ..vocabulary.messages import Down, Exit
from ..vocabulary.reasons import Crashed, Normal, Reason

if TYPE_CHECKING:
    from .process import Process

__all__ = ["HANDLERS", "answer_inspection", "callback", "is_inspection"]


async def _handle_traced(process: "Process", sender: Any, ref: Any, payload: Any) -> None:
    """Serve a message, a call or an event of a sampled trace inside a span."""
    kernel, turn = process.kernel, process.turn
    if kernel.observer is not None:
        kernel.observer(Delivered(process.id, sender, payload))
    tracing = kernel.tracing
    # Other kinds than CALL and MESSAGE: a thread must not serve the next envelopes, too.
    if isinstance(ref, Caller):
        turn.handle_again((TRACED_CALL, sender, ref, payload))
        with tracing.serve(process, ref.mark, "handle_call", payload), kernel.trace_sends(process):
            await kernel.calls.serve(process, ref, callback, process, "handle_call", payload, ref)
    elif ref.kind == EVENT:
        turn.handle_again((EVENT, sender, None, payload))
        message = payload.message
        with tracing.serve(process, ref, "handle_event", message), kernel.trace_sends(process):
            await callback(process, "handle_event", payload)
    else:
        turn.handle_again((TRACED, sender, ref, payload))
        is_batch = "handle_batch" in process.callbacks.defined
        name = "handle_batch" if is_batch else "handle_message"
        with tracing.serve(process, ref, name, payload), kernel.trace_sends(process):
            await callback(process, "handle_message", payload, sender)


async def _handle_event(process: "Process", sender: Any, _ref: object, publication: object) -> None:
    if process.kernel.observer is not None:
        process.kernel.observer(Delivered(process.id, sender, publication))
    await callback(process, "handle_event", publication)


async def _handle_exit(
    process: "Process", source: Any, relation: Any, reason: Reason
) -> Reason | None:
    if relation is not None:
        # The relation was removed while its signal waited in the mailbox: after `unlink`, nothing
        # of it is delivered.
        if not process.kernel.relations.deliver(relation):
            return None
        if isinstance(reason, Normal) and not process.trap_exit:
            # As in Erlang: the normal end of a linked process is no reason to die.
            return None
    parent = process.kernel.pid if process.parent is None else process.parent.id
    if process.trap_exit and source != parent:
        await callback(process, "handle_message", Exit(source, reason), source)
        return None
    return reason


async def _handle_down(process: "Process", source: Any, relation: Any, reason: Reason) -> None:
    if process.kernel.relations.deliver(relation):
        await callback(process, "handle_message", Down(source, reason), source)


async def _handle_notice(process: "Process", sender: object, _ref: object, notice: object) -> None:
    await callback(process, "handle_message", notice, sender)


async def _handle_child_exit(
    process: "Process", child: object, _ref: object, reason: Reason
) -> None:
    await callback(process, "handle_child_exit", child, reason)


async def _handle_end_notice(
    process: "Process", _sender: object, _ref: object, signal: Envelope
) -> Reason | None:
    # The notice has left the main lane: a lane without notices may be left to a successor as a
    # whole.
    process.mailbox.count_end_notice()
    # A crash of the callback is reported with the callback's own name.
    process.turn.handle_again(signal)
    kind, source, ref, payload = signal
    return await HANDLERS[kind](process, source, ref, payload)


async def _handle_response(
    process: "Process", _asker: object, _ref: object, response: object
) -> None:
    await callback(process, "handle_response", response)


async def _handle_inspect(
    process: "Process", _sender: object, caller: Caller, items: tuple[str, ...]
) -> None:
    """Run ``handle_inspect`` and reply with its items as strings."""
    keywords = {"asker": caller.pid} if process.callbacks.takes_asker else {}
    try:
        told = diagnostics(process, await callback(process, "handle_inspect", *items, **keywords))
    except Exception as error:
        # An inspection must not kill the inspected process.
        process.log.error("handle_inspect raised", exception=Crashed(error).traceback)
        process.kernel.calls.reply(caller, None, error)
    else:
        process.kernel.calls.reply(caller, told, None)


async def _handle_log(process: "Process", _sender: object, _ref: object, record: object) -> None:
    await callback(process, "handle_log", record)


def _handle_control(
    process: "Process", sender: Any, caller: Any, operation: Any
) -> "Coroutine[Any, Any, None]":
    control: Coroutine[Any, Any, None] = process.behaviour._control(sender, caller, operation)
    return control


async def _handle_started(
    process: "Process", _sender: object, _ref: object, _payload: object
) -> None:
    """Run the first callbacks in the process's own task, before any message."""
    reason = process.slot.successor_of if process.slot is not None else None
    if reason is not None and "post_restart" in process.callbacks.defined:
        await callback(process, "post_restart", reason)
    if "post_start" in process.callbacks.defined:
        await callback(process, "post_start")


async def _handle_fence(
    _process: "Process", _sender: object, caller: Caller, _payload: object
) -> None:
    caller.settle(None, None)


async def _handle_look(
    process: "Process", _sender: object, caller: Caller, request: Any
) -> Reason | None:
    return await request(process, caller)  # type: ignore[no-any-return]


_Handler = Callable[["Process", Any, Any, Any], Coroutine[Any, Any, Reason | None]]
HANDLERS: Final[Mapping[int, _Handler]] = {
    TRACED: _handle_traced,
    EVENT: _handle_event,
    EXIT: _handle_exit,
    DOWN: _handle_down,
    CHILD_EXIT: _handle_child_exit,
    INSPECT: _handle_inspect,
    RESPONSE: _handle_response,
    LOG: _handle_log,
    CONTROL: _handle_control,
    STARTED: _handle_started,
    FENCE: _handle_fence,
    LOOK: _handle_look,
    NOTICE: _handle_notice,
    END_NOTICE: _handle_end_notice,
}
"""The handler of each kind, whose result is the reason if the process has to end. `serve` itself
handles MESSAGE and CALL, and ends the process with the payload of `ENDS`.
"""


async def answer_inspection(process: "Process") -> bool:
    """Take an inspection out of the mailbox, and answer it beside the envelope in progress. False
    if none waits.
    """
    box = process.mailbox
    envelope = box.take_signal(is_inspection)
    if envelope is None:
        return False
    try:
        await _handle_inspect(process, *envelope[1:])
    except BaseException:
        # Cancelled in the middle: put the request back, so that it fails with the rest of the
        # mailbox.
        box.push_first(envelope)
        raise
    process.turn.count_aside()
    return True


def is_inspection(envelope: Envelope) -> bool:
    """Whether an envelope is an inspection."""
    return envelope[0] == INSPECT


async def callback(process: "Process", name: str, *args: object, **keywords: object) -> Any:
    """Call a callback of the behaviour, and await it if it is async."""
    unmatched = process.judge() if name == "handle_message" else None
    if unmatched is not None and id(type(args[0])) not in unmatched.seen:
        unmatched.look(args[0])
    # By name and at each call: the behaviour may be wrapped by a watch or a dispatcher meanwhile.
    result = getattr(process.behaviour, name)(*args, **keywords)
    if name in process.callbacks.asynchronous:
        return await result
    check_plain(process, name, result)
    return result
