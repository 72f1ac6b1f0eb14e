"""The termination of a meta-process: the same steps in the same order for every cause, each with a
time limit.

Refuse messages, unblock the reader and wait for it, let the handler finish, stop the children, call
``terminate``, release the resources, notify.
"""

from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import enable_ki_protection

from ..messaging.observer import Stopped
from ..messaging.publisher import THREAD_ABANDONED
from ..processes.children import stop_all
from ..processes.unhandled_messages import discard, refuse
from ..runtime.bridge import stack_of
from ..runtime.detached_task import DetachedTask
from ..runtime.parking import PARKED
from ..runtime.time_limit import TimeLimit
from ..runtime.time_slices import at_once, in_slices
from ..tables.pending_calls import Caller
from ..tables.relations import Kind
from ..vocabulary.envelopes import CHILD_EXIT, Lane
from ..vocabulary.reasons import Shutdown, is_failure
from ..vocabulary.states import MetaState

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["close", "release"]

_GRACE: Final = 0.5
"""Seconds that a cancelled task has to end."""
_POLL: Final = 0.02
"""Seconds between two checks whether ``terminate`` has begun."""


async def close(meta: "Meta") -> None:
    """Run all steps of the termination, in a task of its own."""
    try:
        await _end_reader(meta)
        await _end_handler(meta)
        await _end_children(meta)
        await _deliver_rest(meta)
        _defer_calls_in_progress(meta)
        meta.enter(MetaState.TERMINATED)
        await _terminate(meta)
        await in_slices(_answer(meta))
    finally:
        release(meta)


async def _wait(
    meta: "Meta",
    wait: Callable[[], Awaitable[object]],
    most: float = inf,
    again: Callable[[], None] | None = None,
) -> None:
    """Wait within the time limit of a step. A second kill shortens the limit."""
    meta.step_limit = TimeLimit(min(meta.patience(), most))
    await meta.step_limit.wait(wait, again)
    meta.step_limit = None


# -- the reader ------------------------------------------------------------------------------------


async def _end_reader(meta: "Meta") -> None:
    """Unblock the reader, and wait for it. Unblock repeatedly: the user's ``unblock`` may have run
    a moment before the reader blocked.
    """
    meta.resources.stopping = True
    meta.outbox.release()
    if meta.reader_gone.is_set():
        return

    def free() -> None:
        _unblock(meta)
        if meta.reader is not None:
            meta.reader.cancel()

    await _wait(meta, meta.reader_gone.wait, again=free)
    if not meta.reader_gone.is_set():
        await _abandon_reader(meta)


def _unblock(meta: "Meta") -> None:
    try:
        meta.behaviour.unblock()
    except Exception as error:
        meta.report("unblock", error)
    meta.resources.unblock()


async def _abandon_reader(meta: "Meta") -> None:
    meta.reader_abandoned = True
    meta.outbox.reader = 0
    if meta.reader is not None and await meta.reader.cut_off():
        meta.log.error(
            "a reader did not end when cancelled and was cut off", waited=meta.options.stop_timeout
        )
        return
    meta.abandoned_threads.add("reader")
    name, stack = ("task", "") if meta.thread is None else (meta.thread.name, meta.thread.stack())
    _note_abandoned(meta, is_thread=meta.thread is not None)
    meta.log.error(
        "a reader did not end and was abandoned; it cannot send any more",
        thread=name,
        waited=meta.options.stop_timeout,
        exception=stack,
    )


def _note_abandoned(meta: "Meta", *, is_thread: bool) -> None:
    if is_thread:
        meta.kernel.threads_abandoned += 1
        meta.kernel.publisher.announce(THREAD_ABANDONED, meta.id)
    meta.note_abandoned()


# -- the handler and the children ------------------------------------------------------------------


async def _end_handler(meta: "Meta") -> None:
    handler = meta.handler
    if handler is None:
        return
    if handler.task is not None and handler.task.custom_sleep_data is PARKED:
        meta.retire()
    # A plain callback in a worker thread cannot be cancelled, so even a kill waits for it.
    if not meta.kills or meta.worker_scope is not None:
        await _wait(meta, handler.gone.wait)
    handler.cancel()
    if meta.worker_scope is not None:
        # The callback may be blocked in a resource that the reader has opened.
        _unblock(meta)
    await _wait(meta, handler.gone.wait, _GRACE)
    if not handler.gone.is_set():
        await _abandon_handler(meta, handler)


async def _abandon_handler(meta: "Meta", handler: DetachedTask) -> None:
    callback, stack = meta.current_callback(), ""
    if meta.worker_scope is not None:
        meta.abandoned_threads.add("handler")
        meta.worker_scope.cancel()
        # Read `worker` after the name is in `abandoned_threads`: a thread that ends at this moment
        # removes the name itself, or has cleared `worker` before.
        if not meta.worker:
            meta.abandoned_threads.discard("handler")
        else:
            stack = stack_of(meta.worker)
    await handler.cut_off()
    _note_abandoned(meta, is_thread="handler" in meta.abandoned_threads)
    meta.log.error(
        "a handler did not end and was abandoned; it cannot send any more",
        callback=callback,
        waited=meta.options.stop_timeout,
        exception=stack,
    )


async def _end_children(meta: "Meta") -> None:
    for child in list(meta.owned.values()):
        if child.options.linger:
            meta.disown(child.id)
            child.owner = meta.process
            meta.process.own(child.id, child)
    await stop_all(meta.owned, meta.reason or Shutdown())


async def _deliver_rest(meta: "Meta") -> None:
    """Deliver the reader's remaining messages. Full receivers get a last chance."""
    meta.outbox.rush()
    if len(meta.outbox) and not meta.kills:
        await _wait(meta, meta.outbox.wait_until_empty, _GRACE)
    meta.outbox.force()


# -- terminate, and the release --------------------------------------------------------------------


def _defer_calls_in_progress(meta: "Meta") -> None:
    """Nothing is in progress any more. If the handler was cut off during a call, treat the call as
    deferred.
    """
    owed = list(meta.promised)
    if meta.handling is not None and isinstance(meta.handling[2], Caller):
        owed.append(meta.handling[2])
    meta.handling = None
    for caller in owed:
        caller.defer(meta)


async def _terminate(meta: "Meta") -> None:
    if "terminate" not in meta.callbacks.defined or _terminates_inline(meta):
        return
    # In a task of its own: a terminate that swallows its cancellation can then be abandoned.
    last = DetachedTask()
    last.start(meta.kernel, lambda: _run_terminate(meta), f"{meta.callbacks.behaviour}.terminate")
    await _wait(meta, last.gone.wait)
    if not meta.terminate_begun:
        # terminate has not begun, since the machine is busy. It always gets to run; only its
        # duration is limited.
        while not meta.terminate_begun and not last.gone.is_set():  # noqa: ASYNC110 - a worker thread sets no event of trio's
            await trio.sleep(_POLL)
        await _wait(meta, last.gone.wait)
    if last.gone.is_set():
        return
    meta.log.error("terminate was cut off", limit=meta.options.stop_timeout)
    last.cancel()
    await _wait(meta, last.gone.wait, _GRACE)
    await last.cut_off()


def _terminates_inline(meta: "Meta") -> bool:
    terminate_inline = meta.behaviour._end_in_passing
    if terminate_inline is None:
        return False
    try:
        return bool(terminate_inline(meta.reason))
    except BaseException as error:
        _account_for(meta, error)
        return True


async def _run_terminate(meta: "Meta") -> None:
    try:
        await meta.callback("terminate", meta.reason)
    except BaseException as error:
        _account_for(meta, error)


def _account_for(meta: "Meta", error: BaseException) -> None:
    """Handle an exception that left ``terminate``: the termination continues."""
    if isinstance(error, Exception):
        meta.report("terminate", error)
    elif isinstance(error, trio.Cancelled | GeneratorExit):
        raise error
    else:
        meta.pass_on(error)


@enable_ki_protection
def release(meta: "Meta") -> None:
    """Do everything that follows ``terminate``. There is no await, so no other task sees an
    intermediate state.
    """
    if meta.over:
        return
    meta.over = True
    reason = meta.reason or Shutdown()
    if meta.state is not MetaState.TERMINATED:
        meta.enter(MetaState.TERMINATED)
    at_once(_answer(meta))
    for request in tuple(meta.requests.values()):
        request.abandon()
    meta.requests.clear()
    for timer in tuple(meta.timers or ()):
        timer.cancel()
    meta.outbox.close()
    meta.kernel.idle_handlers.discard(meta)
    meta.silenced = bool(meta.abandoned_threads)
    if not meta.abandoned_threads:
        meta.resources.close()
    meta.router.registry.aliases.pop(meta.id, None)
    owner = meta.owner
    owner.disown(meta.id)
    takes_owner_along = owner.reason is None and is_failure(reason) and _is_needed(meta)
    meta.kernel.tell_all(meta.id, reason)
    if meta.kernel.observer is not None and meta.initialised:
        meta.kernel.observer(Stopped(meta.id, reason))
    if (
        meta.initialised
        and owner is meta.process
        and "handle_child_exit" in meta.process.callbacks.defined
    ):
        meta.router.signal(meta.process, Lane.SYSTEM, (CHILD_EXIT, meta.id, None, reason))
    if takes_owner_along:
        owner.ask_to_exit(meta.id, reason)
    meta.gone.set()


def _is_needed(meta: "Meta") -> bool:
    """Whether a failure must take the owner along, like a link. A linked owner is notified by its
    link.
    """
    chosen = meta.options.needed
    needed = meta.behaviour._needed if chosen is None else chosen
    is_linked = meta.owner is meta.process and meta.kernel.relations.has(
        meta.process.id, meta.id, Kind.LINK
    )
    return meta.initialised and needed and not is_linked


def _answer(meta: "Meta") -> Iterator[None]:
    """Answer every call that was queued, deferred, or in progress when the handler was cut off.
    Turn the remaining messages into dead letters.
    """
    reason = meta.reason or Shutdown()
    _defer_calls_in_progress(meta)
    yield from refuse(list(meta.deferred or ()), reason)
    yield from discard(meta.router, meta, reason)
