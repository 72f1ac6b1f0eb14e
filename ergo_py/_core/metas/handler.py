"""The handler of a meta-process: serves its messages.

An ``async def`` callback runs on the loop, a plain ``def`` callback in a worker thread.
"""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import Task, checkpoint, current_task

from ..messaging.observer import Delivered
from ..processes.message_loop import check_plain
from ..runtime.bridge import get_ident
from ..runtime.parking import park
from ..tables.callbacks import runs_callbacks
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import CALL, EVENT, FENCE, INSPECT, MESSAGE, RESPONSE, Envelope
from ..vocabulary.errors import Reject
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.states import MetaState

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["serve", "wait_in_callback"]

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


@runs_callbacks
def _inspect(meta: "Meta", caller: Caller, items: tuple[str, ...]) -> None:
    try:
        answer = dict(meta.behaviour.handle_inspect(*items))
        told = {str(key): str(value) for key, value in answer.items()}
    except Exception as error:
        # An inspection must not crash the inspected meta-process.
        meta.report("handle_inspect", error)
        meta.kernel.calls.reply(caller, None, error)
    else:
        meta.kernel.calls.reply(caller, told, None)
