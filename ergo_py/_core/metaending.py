"""How a meta-process ends: one order, whatever the cause, and every step bounded.

Refuse messages, unblock the reader and wait for it, let the handler finish, stop what it owns, ``terminate``, release, tell.
"""

from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import Task

from .ending import stop_all
from .errors import TargetDownError
from .info import Ended
from .messages import Why
from .parking import PARKED
from .publishing import THREAD_ABANDONED
from .reasons import Crashed, Shutdown
from .relay import Relay
from .states import MetaState

if TYPE_CHECKING:
    from .metalife import Meta

__all__ = ["close", "release"]

_GRACE: Final = 0.5
"""Seconds that something cancelled is given to be gone."""


async def close(meta: "Meta") -> None:
    await _end_reader(meta)
    await _end_handler(meta)
    for child in [child for child in meta.owned.values() if child.options.linger]:
        meta.disown(child.id)
        child.owner = meta.process
        meta.process.own(child.id, child)
    await stop_all(meta.owned, meta.reason or Shutdown())
    await _send_rest(meta)
    if meta.state is not MetaState.TERMINATED:
        meta.enter(MetaState.TERMINATED)
        await _terminate(meta)
        release(meta)


async def _end_reader(meta: "Meta") -> None:
    """Unblock, and wait: again and again, since an unblocking of the user's own may have come a moment too early."""
    give_up = trio.current_time() + meta.options.stop_timeout
    pause = 0.02
    _unblock(meta)
    while not meta.reader_gone.is_set():
        left = give_up - trio.current_time()
        if left <= 0:
            break
        with trio.move_on_after(min(pause, left)):
            await meta.reader_gone.wait()
            return
        pause = min(2 * pause, 1.0)
        _unblock(meta)
    if not meta.reader_gone.is_set():
        await _abandon_reader(meta)


def _unblock(meta: "Meta") -> None:
    meta.resources.stopping = True
    meta.outbox.release()
    if meta.reader_gone.is_set():
        return
    try:
        meta.behaviour.unblock()
    except Exception as error:
        meta.log.error("unblock raised", exception=Crashed(error).traceback)
    meta.resources.unblock()
    if meta.reader_scope is not None:
        meta.reader_scope.cancel()


async def _abandon_reader(meta: "Meta") -> None:
    meta.abandoned = True
    if meta.reader_relay is not None and meta.reader_task is not None:
        await _cut_off(meta.reader_relay, meta.reader_task)
        if meta.reader_gone.is_set():
            return
    meta.kernel.threads_abandoned += 1
    meta.kernel.publishing.announce(THREAD_ABANDONED, meta.id)
    meta.kernel.abandoned.append(Ended(meta.id, None, meta.callbacks.behaviour, meta.reason))
    meta.log.error(
        "a reader did not end and was left behind; it cannot send any more",
        thread=meta.thread.name if meta.thread is not None else "task",
        waited=meta.options.stop_timeout,
        exception=meta.thread.stack() if meta.thread is not None else "",
    )


async def _end_handler(meta: "Meta") -> None:
    gone = meta.handler_gone
    if gone is None:
        return
    if meta.handler_task is not None and meta.handler_task.custom_sleep_data is PARKED:
        meta.retire()
    # A plain callback in its worker thread cannot be cancelled, so even a kill gives it its time.
    patience = 0.0 if meta.hurry and meta.hop_scope is None else meta.options.stop_timeout
    with trio.move_on_after(patience):
        await gone.wait()
        return
    for scope in (meta.handler_scope, meta.hop_scope):
        if scope is not None:
            scope.cancel()
    with trio.move_on_after(_GRACE):
        await gone.wait()
        return
    relay, task = meta.handler_relay, meta.handler_task
    if relay is not None and task is not None:
        await _cut_off(relay, task)
    meta.log.error("a handler did not end and was left behind", callback=meta.current_callback())


async def _send_rest(meta: "Meta") -> None:
    """Deliver what the reader sent before it ended, giving slow receivers with a bound a last chance."""
    if not len(meta.outbox):
        return
    with trio.move_on_after(0.0 if meta.hurry else meta.options.stop_timeout):
        while len(meta.outbox):
            meta.outbox.flush()
            await trio.sleep(0.01)
    meta.outbox.force()


async def _terminate(meta: "Meta") -> None:
    if "terminate" not in meta.callbacks.defined:
        return
    limit = meta.options.stop_timeout
    try:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limit) as scope:
            await meta.callback("terminate", meta.reason)
        if scope.cancelled_caught:
            meta.log.error("terminate was cut off", limit=limit)
    except Exception as error:
        meta.log.error("terminate raised", exception=Crashed(error).traceback)


def release(meta: "Meta") -> None:
    """Everything after ``terminate``. Nothing here waits, so nobody sees it half done."""
    if meta.gone.is_set():
        return
    reason = meta.reason or Shutdown()
    meta.handling = None
    for caller in tuple(meta.deferred or ()):
        caller.settle(None, TargetDownError(caller.to, caller.request, reason))
    for envelope in meta.mailbox.drain():
        meta.router.bury(envelope, meta.id, Why.UNHANDLED_AT_EXIT, meta)
    for request in tuple(meta.requests.values()):
        request.abandon()
    meta.requests.clear()
    for timer in tuple(meta.timers or ()):
        timer.cancel()
    meta.kernel.lingering.discard(meta)
    if not meta.abandoned:
        meta.resources.close()
    meta.router.registry.aliases.pop(meta.id, None)
    meta.owner.disown(meta.id)
    meta.kernel.tell_all(meta.id, reason)
    meta.gone.set()


async def _cut_off(relay: Relay, task: Task) -> None:
    relay.abandon()
    with trio.CancelScope(shield=True):
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    relay.abort(task)
