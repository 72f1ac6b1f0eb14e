"""How the handler of a meta-process serves its messages: each callback where its colour says."""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import Task, checkpoint, current_task

from .errors import Reject
from .mailbox import CALL, FENCE, INSPECT, MESSAGE, RESPONSE, Envelope
from .messages import NO_REPLY
from .parking import park
from .reasons import Crashed
from .requests import Caller
from .states import MetaState

if TYPE_CHECKING:
    from .metalife import Meta

__all__ = ["serve", "wait_in_callback"]

_BURST: Final = 64
_SLICE: Final = 0.001
_CALLBACK: Final = {MESSAGE: "handle_message", CALL: "handle_call", RESPONSE: "handle_response"}


async def serve(meta: "Meta", task: Task) -> None:
    """Serve until the meta-process is ending, or nothing has come for a while."""
    box, lingering = meta.mailbox, meta.kernel.lingering
    left, end = _BURST, perf_counter() + _SLICE
    while meta.reason is None:
        envelope = box.pop()
        if envelope is None:
            if box.waiters and box.admit_waiters():
                continue
            if meta.has_retired():
                return
            # To sleep. No await lies between the look at the lanes and the mark that park() sets.
            meta.handling = None
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
        await _handle(meta, envelope)
        left -= 1
        if left <= 0 or perf_counter() >= end:
            await checkpoint()
            left, end = _BURST, perf_counter() + _SLICE


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
    if name in callbacks.defined and name not in callbacks.asynchronous:
        # Shielded: a thread cannot be cancelled, only left. The ending decides when that must be.
        with trio.CancelScope(shield=True) as meta.hop_scope:
            await trio.to_thread.run_sync(
                _serve_in_thread, meta, envelope, abandon_on_cancel=True, limiter=meta.kernel.workers
            )
        meta.hop_scope = None
    elif kind == MESSAGE:
        if name in callbacks.asynchronous:
            await behaviour.handle_message(payload, sender)
        else:
            behaviour.handle_message(payload, sender)
    elif kind == CALL:
        try:
            if name in callbacks.asynchronous:
                reply = await behaviour.handle_call(payload, ref)
            else:
                reply = behaviour.handle_call(payload, ref)
        except Reject as rejection:
            meta.kernel.calls.reply(ref, None, rejection.error)
        else:
            _answer(meta, ref, reply)
    elif name in callbacks.asynchronous:
        await behaviour.handle_response(payload)
    else:
        behaviour.handle_response(payload)


async def wait_in_callback(meta: "Meta", waits: Callable[[], bool]) -> None:
    """Let an async callback wait for something of its own, and answer inspects meanwhile.

    It looks again whenever ``meta.wake()`` is called, and goes on when ``waits()`` no longer holds or the meta-process is ending.
    """
    box, task = meta.mailbox, current_task()
    while waits() and meta.reason is None:
        # In this lane there are inspects only: what users send goes to the other two.
        while box.urgent:
            _, _, caller, items = box.pop_ahead()
            _inspect(meta, caller, items)
        await park(task)


def _serve_in_thread(meta: "Meta", envelope: Envelope) -> None:
    """Serve a burst of messages with plain callbacks in one hop to a worker thread."""
    main, box, callbacks = meta.mailbox.main, meta.mailbox, meta.callbacks
    for _ in range(_BURST):
        kind, sender, ref, payload = envelope
        if kind == MESSAGE:
            meta.behaviour.handle_message(payload, sender)
        elif kind == RESPONSE:
            meta.behaviour.handle_response(payload)
        else:
            try:
                reply = meta.behaviour.handle_call(payload, ref)
            except Reject as rejection:
                meta.kernel.calls.reply(ref, None, rejection.error)
            else:
                _answer(meta, ref, reply)
        # An inspect, somebody waiting for room, or the end must not wait behind the rest of the burst.
        if meta.reason is not None or box.ahead or box.waiters:
            return
        try:
            following = main.popleft()
        except IndexError:
            return
        name = _CALLBACK.get(following[0], "")
        if name not in callbacks.defined or name in callbacks.asynchronous:
            main.appendleft(following)
            return
        envelope = meta.handling = following
        meta.handled += 1


def _answer(meta: "Meta", caller: Caller, reply: object) -> None:
    if reply is not NO_REPLY:
        meta.kernel.calls.reply(caller, reply, None)
    elif meta.router.bridge.on_loop():
        caller.defer(meta)
    else:
        meta.router.bridge.post(caller.defer, meta)


def _inspect(meta: "Meta", caller: Caller, items: tuple[str, ...]) -> None:
    try:
        answer = dict(meta.behaviour.handle_inspect(*items))
    except Exception as error:
        # Looking must not kill what is looked at.
        meta.log.error("handle_inspect raised", exception=Crashed(error).traceback)
        meta.kernel.calls.reply(caller, None, error)
    else:
        meta.kernel.calls.reply(caller, {str(key): str(value) for key, value in answer.items()}, None)
