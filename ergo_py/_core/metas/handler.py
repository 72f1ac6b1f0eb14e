"""The handler of a meta-process: serves its messages.

An ``async def`` callback runs on the loop, a plain ``def`` callback in a worker thread.
"""

from collections.abc import Callable
from contextvars import Context
from time import perf_counter
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import Task, checkpoint, current_task, enable_ki_protection

from ..messaging.observer import Delivered
from ..runtime.bridge import get_ident
from ..runtime.cancel_scopes import CancelScopes, left_open
from ..runtime.parking import park
from ..tables.callbacks import check_plain, runs_callbacks
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import CALL, EVENT, FENCE, INSPECT, MESSAGE, RESPONSE, Envelope
from ..vocabulary.errors import Reject, TargetDownError
from ..vocabulary.ids import PID, Target
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.states import MetaState
from .reader import in_reader

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["inspect", "may_inspect_inline", "serve", "wait_in_callback"]

_Answer = tuple[dict[str, str] | None, BaseException | None]

_BURST: Final = 64
_SLICE: Final = 0.001
_CALLBACK: Final = {MESSAGE: "handle_message", CALL: "handle_call", RESPONSE: "handle_response"}


async def serve(meta: "Meta", task: Task) -> None:
    """Serve messages until the meta-process is ending, or the handler has retired after idling."""
    box, lingering = meta.mailbox, meta.kernel.idle_handlers
    observer = meta.kernel.observer
    left, end = _BURST, perf_counter() + _SLICE
    while meta.reason is None:
        envelope = box.pop()
        if envelope is None:
            if box.waiters and box.admit_waiters():
                continue
            if meta.has_retired():
                return
            # Go to sleep. There must be no await between the look at the lanes and park(), which
            # marks the task as sleeping: a sender that sees no mark does not wake the task.
            meta.handling = envelope = None
            meta.enter(MetaState.SLEEP)
            lingering.add(meta)
            await park(task)
            lingering.discard(meta)
            if meta.reason is not None or (meta.has_retired() and not len(box)):
                return
            meta.enter(MetaState.RUNNING)
            left, end = _BURST, perf_counter() + _SLICE
            continue
        meta.handling = envelope
        meta.handled += 1
        if box.waiters:
            box.admit_waiters()
        if observer is not None and envelope[0] <= EVENT:
            observer(Delivered(meta.id, envelope[1], envelope[3]))
        await _handle(meta, envelope)
        left -= 1
        if left <= 0 or perf_counter() >= end:
            await checkpoint()
            left, end = _BURST, perf_counter() + _SLICE


@runs_callbacks
async def _handle(meta: "Meta", envelope: Envelope) -> None:
    kind, sender, ref, payload = envelope
    if kind == INSPECT:
        _inspect(meta, ref, payload)
        return
    if kind == FENCE:
        ref.settle(None, None)
        return
    name = _CALLBACK[kind]
    callbacks, behaviour = meta.callbacks, meta.behaviour
    is_async = name in callbacks.asynchronous
    if not is_async and name in callbacks.defined:
        await _serve_in_worker(meta, envelope)
    elif kind == MESSAGE:
        result = behaviour.handle_message(payload, sender)
        if is_async:
            await result
    elif kind == CALL:
        # The default handle_call is plain, but raises: only an async handle_call is awaited.
        await meta.kernel.calls.serve(meta, ref, behaviour.handle_call, payload, ref)
    else:
        result = behaviour.handle_response(payload)
        if is_async:
            await result


async def wait_in_callback(meta: "Meta", waits: Callable[[], bool]) -> None:
    """Let an async callback wait for a condition, and answer inspections meanwhile.

    Each ``meta.wake()`` checks the condition again. Returns when ``waits()`` is False or the
    meta-process is ending.
    """
    box, task = meta.mailbox, current_task()
    while waits() and meta.reason is None:
        # The urgent lane holds inspections only: user messages go to the other two lanes.
        while box.urgent:
            _, _, caller, items = box.pop_ahead()
            _inspect(meta, caller, items)
        await park(task)


async def _serve_in_worker(meta: "Meta", envelope: Envelope) -> None:
    """Serve a burst in a worker thread."""
    try:
        # Shielded: a thread cannot be cancelled, only abandoned. The termination decides when.
        with trio.CancelScope(shield=True) as meta.worker_scope:
            await meta.in_worker(_work, meta, envelope)
    finally:
        meta.worker_scope = None
        # Deliver the sends and replies of the burst before anything else happens, including the end
        # of this meta-process.
        meta.router.bridge.catch_up()
        promised, meta.promised = meta.promised, []
        for caller in promised:
            caller.defer(meta)


def _work(meta: "Meta", envelope: Envelope) -> None:
    meta.worker = get_ident()
    try:
        _serve_in_thread(meta, envelope)
    finally:
        meta.worker = 0
        meta.worker_ended("handler")


def _serve_in_thread(meta: "Meta", envelope: Envelope) -> None:
    """Serve a burst of messages with plain callbacks, in a single hop to a worker thread."""
    box, main, callbacks, behaviour = (
        meta.mailbox,
        meta.mailbox.main,
        meta.callbacks,
        meta.behaviour,
    )
    for left in range(_BURST, 0, -1):  # pragma: no branch - the last round returns
        kind, sender, ref, payload = envelope
        if kind == MESSAGE:
            check_plain(meta, "handle_message", behaviour.handle_message(payload, sender))
        elif kind == RESPONSE:
            check_plain(meta, "handle_response", behaviour.handle_response(payload))
        else:
            try:
                reply = behaviour.handle_call(payload, ref)
                check_plain(meta, "handle_call", reply)
            except Reject as rejection:
                meta.kernel.calls.reply(ref, None, rejection.error)
            else:
                _answer_from_thread(meta, ref, reply)
        # An inspection or the end must not wait behind the rest of the burst. The observer runs on
        # the loop, so it needs a hop for each message.
        if meta.reason is not None or box.ahead or left == 1 or meta.kernel.observer is not None:
            return
        if box.waiters and not left & 7:
            meta.router.bridge.post(box.admit_waiters)
        try:
            following = main.popleft()
        except IndexError:  # nothing waits
            return
        name = _CALLBACK.get(following[0], "")
        if name not in callbacks.defined or name in callbacks.asynchronous:
            main.appendleft(following)
            return
        envelope = meta.handling = following
        meta.handled += 1


def _answer_from_thread(meta: "Meta", caller: Caller, reply: object) -> None:
    if reply is not NO_REPLY:
        meta.kernel.calls.reply(caller, reply, None)
    else:
        meta.promised.append(caller)


# -- inspection ------------------------------------------------------------------------------------


def _inspect(meta: "Meta", caller: Caller, items: tuple[str, ...]) -> None:
    meta.kernel.calls.reply(caller, *_call_handle_inspect(meta, items))


@runs_callbacks
def _call_handle_inspect(meta: "Meta", items: tuple[str, ...]) -> _Answer:
    try:
        answer = dict(meta.behaviour.handle_inspect(*items))
        return {str(key): str(value) for key, value in answer.items()}, None
    except Exception as error:
        # An inspection must not crash the inspected meta-process.
        meta.report("handle_inspect", error)
        return None, error


async def inspect(
    meta: "Meta", sender: PID, to: Target, items: tuple[str, ...], timeout: float
) -> dict[str, str]:
    """Return the result of ``handle_inspect``. If the handler sleeps, the caller's task runs it.

    Raises:
        CallTimeoutError: the handler is busy for longer than ``timeout``.
        TargetDownError: the meta-process ended before it answered.
    """
    if not may_inspect_inline(meta):
        answer: dict[str, str] = await meta.kernel.calls.inspect(sender, meta, to, items, timeout)
        return answer
    task, handler = current_task(), meta.handler
    scopes = CancelScopes(task)
    # Not in the caller's context: context variables that handle_inspect sets must not leak into it.
    # A handler has an empty context of its own.
    context = Context() if handler is None or handler.task is None else handler.task.context
    told, error = context.run(_inspect_inline, meta, sender, to, items)
    if scopes.are_left():
        # The handler's task would have kept them. The answer counts, and the meta-process crashes.
        if meta.reason is None:
            leaked = left_open(meta.callbacks.behaviour, "handle_inspect", scopes.nurseries())
            meta.finish(meta.failed("handle_inspect", leaked))
        await scopes.close()
    await meta.router.pause()
    if error is not None:
        raise error
    return told or {}


def may_inspect_inline(meta: "Meta") -> bool:
    """Whether the caller's task may run ``handle_inspect``, as the handler would do next.

    No callback runs in SLEEP, and nothing interrupts a plain function on the loop, so callbacks do
    not overlap. An inspection overtakes the waiting messages, but not an earlier inspection. The
    reader's task does not count as the handler: its sends take another way.
    """
    return (
        meta.state is MetaState.SLEEP
        and meta.initialised
        and meta.reason is None
        and not meta.mailbox.urgent
        and meta.router.inline_calls
        and (meta.has_thread or not in_reader(meta))
    )


@enable_ki_protection
def _inspect_inline(meta: "Meta", sender: PID, to: Target, items: tuple[str, ...]) -> _Answer:
    # RUNNING: handle_inspect may use the verbs of a handler, and no sender may serve a message
    # inline meanwhile.
    meta.state = MetaState.RUNNING
    meta.handling = (INSPECT, sender, None, items)
    meta.handled += 1
    try:
        return _call_handle_inspect(meta, items)
    except BaseException as error:
        reason = meta.failed("handle_inspect", error)
        meta.finish(reason)
        return None, TargetDownError(to, items, reason)
    finally:
        meta.handling = None
        meta.state = MetaState.SLEEP
