"""How the handler of a meta-process serves its messages: each callback where its colour says."""

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
    """Serve until the meta-process is ending, or nothing has come for a while."""
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
            # To sleep. No await lies between the look at the lanes and the mark that park() sets.
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
        await _hop(meta, envelope)
    elif kind == MESSAGE:
        result = behaviour.handle_message(payload, sender)
        if is_async:
            await result
    elif kind == CALL:
        try:
            # The one that is not defined refuses at once, so there is something to wait for.
            reply = await behaviour.handle_call(payload, ref)
        except Reject as rejection:
            meta.kernel.calls.reply(ref, None, rejection.error)
        else:
            if reply is NO_REPLY:
                ref.defer(meta)
            else:
                meta.kernel.calls.reply(ref, reply, None)
    else:
        result = behaviour.handle_response(payload)
        if is_async:
            await result


async def wait_in_callback(meta: "Meta", waits: Callable[[], bool]) -> None:
    """Let an async callback wait for something of its own, and answer inspects meanwhile.

    It looks again whenever ``meta.wake()`` is called, and goes on when ``waits()`` no longer holds
    or the meta-process is ending.
    """
    box, task = meta.mailbox, current_task()
    while waits() and meta.reason is None:
        # In this lane there are inspects only: what users send goes to the other two.
        while box.urgent:
            _, _, caller, items = box.pop_ahead()
            _inspect(meta, caller, items)
        await park(task)


async def _hop(meta: "Meta", envelope: Envelope) -> None:
    """Serve a burst in a worker thread."""
    try:
        # Shielded: a thread cannot be cancelled, only left. The ending decides when that must be.
        with trio.CancelScope(shield=True) as meta.hop:
            await meta.in_worker(_work, meta, envelope)
    finally:
        meta.hop = None
        # What it sent and answered comes before whatever happens next, its own end included.
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
    """Serve a burst of messages with plain callbacks in one hop to a worker thread."""
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
        # An inspect, or the end, must not wait behind the rest of the burst; and an observer is
        # told on the loop.
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
        # An inspection must not kill the inspected process.
        meta.report("handle_inspect", error)
        meta.kernel.calls.reply(caller, None, error)
    else:
        meta.kernel.calls.reply(caller, told, None)
