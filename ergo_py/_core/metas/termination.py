"""``Ending``: the termination of a meta-process, with the same steps in the same order for every
cause, each with a time limit.

Refuse messages, handle the accepted messages (if they are to be drained), unblock the reader and
wait for it, let the handler finish, stop the children, call ``terminate``, release the resources,
notify.
"""

from collections.abc import Awaitable, Callable, Iterator
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import enable_ki_protection

from ..messaging.observer import Stopped
from ..processes.ownership import kill_all, stop_all
from ..processes.unhandled_messages import discard, refuse
from ..runtime.cancel_scopes import Killing
from ..runtime.detached_task import DetachedTask, is_cut_off
from ..runtime.time_limit import TimeLimit, wait_within
from ..runtime.time_slices import at_once, in_slices
from ..tables.callbacks import runs_callbacks
from ..tables.relations import Kind
from ..vocabulary.envelopes import CHILD_EXIT, Lane
from ..vocabulary.info import Ended
from ..vocabulary.reasons import Crashed, Killed, Reason, Shutdown, is_a, is_failure, is_for_program
from ..vocabulary.states import MetaState
from .shared_state import Flag

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["Ending", "Phase"]

# Not measured: enough for the cleanup of a callback that is cancelled on a busy machine. Each step
# of an end may add it once.
_GRACE: Final = 0.5
"""Seconds that a cancelled task has to end."""
# Not measured: it runs only while `terminate` waits for a worker thread after its whole time limit.
_POLL: Final = 0.02
"""Seconds between two checks whether ``terminate`` has begun."""
# Not measured: a second kill is impatient, and a termination has some six steps.
_HURRIED_STEP: Final = 0.05
"""Seconds that each step of a termination may still take after a second kill."""
# Not measured: longer than the graces of handler, last messages and `terminate` together.
_OVERDUE: Final = 2.0
"""Seconds that the kernel still waits for an overdue termination before it abandons the
meta-process.
"""


class Phase(IntEnum):
    """The lifecycle of a meta-process. The phases only go forward, in the order of their numbers.

    ::

        INIT ──► OPEN ──► CLOSING ──► TERMINATING ──┬──► RELEASED
         │                                          │
         └─────► ABORTED ───────────────────────────┴──► SILENCED

    An abandoned meta-process goes from any phase to RELEASED or SILENCED.
    """

    INIT = 0
    """The spawn runs ``init``."""
    ABORTED = 1
    """``init`` has failed, or is cut short by a stop. ``terminate`` is not called."""
    OPEN = 2
    """The reader and the handler run."""
    CLOSING = 3
    """The reason is known. The reader, the handler and the children end."""
    TERMINATING = 4
    """``terminate`` runs, or waits for its worker thread."""
    RELEASED = 5
    """Everything is released."""
    SILENCED = 6
    """The same, but abandoned threads remain: they may not send any more, and the last of them
    closes the resources.
    """


# Read as module constants: looking up a member of an enum costs as much as a call in Python 3.11.
_TERMINATED: Final = MetaState.TERMINATED
_INIT: Final = Phase.INIT
_ABORTED: Final = Phase.ABORTED
_OPEN: Final = Phase.OPEN
_CLOSING: Final = Phase.CLOSING
_TERMINATING: Final = Phase.TERMINATING
_RELEASED: Final = Phase.RELEASED
_SILENCED: Final = Phase.SILENCED


class Ending:
    """Owns the phase of a meta-process, the reason of its end, and the task that runs the steps of
    the termination. :class:`Phase` draws the transitions.
    """

    __slots__ = (
        "blameless",
        "draining",
        "gone",
        "killer",
        "kills",
        "meta",
        "phase",
        "reason",
        "step_limit",
        "task",
    )

    def __init__(self, meta: "Meta") -> None:
        self.meta: Meta = meta
        self.phase: Phase = _INIT
        self.reason: Reason | None = None
        """Set when the phase leaves INIT or OPEN for the end."""
        self.blameless: bool = False
        """The failure is not the fault of this meta-process, but of its peer or its owner."""
        self.draining: bool = False
        """The handler still serves the messages that were accepted before the end."""
        self.task: DetachedTask | None = None
        self.step_limit: TimeLimit | None = None
        """The limit of the step in progress."""
        self.kills: int = 0
        self.killer: Killing | None = None
        self.gone: trio.Event = trio.Event()
        """Set when everything is released, and every watcher notified."""

    @property
    def over(self) -> bool:
        """Whether the release has begun: only cleanup and notifications follow."""
        return self.phase >= _RELEASED

    def opened(self) -> None:
        """Note that ``init`` has succeeded and the reader runs."""
        self.phase = _OPEN

    # -- causes ------------------------------------------------------------------------------------

    @enable_ki_protection
    def begin(self, reason: Reason) -> None:
        """Begin the termination. Only the first reason counts."""
        if self.reason is not None:
            return
        self._decide(reason)
        if self.phase is _CLOSING:
            self.task = DetachedTask()
            self.task.start(
                self.meta.kernel, self._close, f"{self.meta.callbacks.behaviour} ending"
            )
        elif self.meta.birth is not None:
            self.meta.birth.cut_short()

    async def run_in(self, task: DetachedTask | None, reason: Reason) -> None:
        """Terminate in the reader's task: the reader has returned, so this saves a task."""
        self._decide(reason)
        self.task = task
        await self._close()

    def can_run_in_passing(self) -> bool:
        """Whether no step before ``terminate`` would have to wait."""
        meta = self.meta
        return (
            self.phase is _OPEN
            and meta.handler.task is None
            and not (meta.owned or len(meta.outbox) or len(meta.mailbox) or meta.deferred)
        )

    @runs_callbacks
    @enable_ki_protection
    def run_in_passing(self, reason: Reason) -> None:
        """Terminate a meta-process whose reader has ended without a task. The steps of
        :meth:`_close`, of which none has to wait. If ``terminate`` has to, the rest gets a task.
        """
        meta = self.meta
        meta.reader.be_gone()
        self._decide(reason)
        meta.resources.begin_stop()
        # As in _close: nothing follows, so the last message waits for a full mailbox only.
        meta.outbox.rush()
        is_over = True
        try:
            meta.handler.enter(_TERMINATED)
            # Before `terminate`: a report of a blocked loop tells the callback by the phase.
            self.phase = _TERMINATING
            is_over = "terminate" not in meta.callbacks.defined or self._terminates_inline()
            if not is_over:
                self.task = DetachedTask()
                name = f"{meta.callbacks.behaviour} ending"
                self.task.start(meta.kernel, self._close_rest, name)
        finally:
            if is_over:
                self.release()

    @enable_ki_protection
    def _decide(self, reason: Reason) -> None:
        meta = self.meta
        self.reason = reason
        self.phase = _CLOSING if self.phase is _OPEN else _ABORTED
        # An end with the owner is in order, even if the owner has crashed.
        self.draining = (
            meta.options.drain > 0.0
            and self.phase is _CLOSING
            and not isinstance(reason, Killed)
            and (self.blameless or not isinstance(reason, Crashed))
        )
        meta.kernel.lifetimes.obituaries.note(meta, meta.handled, meta.handling)
        meta.refuse_messages()
        for child in list(meta.owned.values()):
            # The reader may be waiting for the init of this child, and must be able to end.
            if child.ending.phase is _INIT:
                child.finish(reason)

    def abort(self, error: BaseException) -> Reason:
        """Begin the cleanup after a failed ``init``. ``terminate`` is not called, since the
        meta-process never started.
        """
        meta, reason = self.meta, self.reason
        if reason is None:
            is_asked = is_cut_off(error) or is_for_program(error)
            self.reason = reason = Shutdown() if is_asked else Crashed(error)
            self.phase = _ABORTED
            meta.kernel.lifetimes.obituaries.note(meta, meta.handled, meta.handling)
        meta.refuse_messages()
        meta.resources.unblock()
        return reason

    def excuse(self) -> None:
        """Note that a failure is not the fault of this meta-process, but of its peer or its
        owner.
        """
        self.blameless = True

    @enable_ki_protection
    def kill(self) -> None:
        """End without waiting for the handler. A second kill also shortens every step of the
        termination.
        """
        meta = self.meta
        self.kills += 1
        # Before the cancellation: without a reason, the next message would start a handler again.
        self.begin(Killed())
        meta.handler.cancel()
        if (self.kills > 1 or self.draining) and self.step_limit is not None:
            self.step_limit.hurry(_HURRIED_STEP)
        self.stop_draining()
        for child in list(meta.owned.values()):
            if not child.options.linger:
                # A kill does not wait until the termination comes to the children.
                child.kill()

    async def shut(self, reason: Reason) -> None:
        """Stop on behalf of the owner. Takes bounded time, since each step of the termination
        does.
        """
        self.excuse()
        self.begin(reason)
        # A spawn that is cut short cleans up in the task of the spawner, which may be stuck in
        # `init`.
        if self.phase is _ABORTED:
            await wait_within(self.meta.options.stop_timeout, self.gone.wait)
            await self.abandon()
        await self.gone.wait()

    def join_killing(self, killing: Killing) -> None:
        """Note the kill of a whole tree that it belongs to."""
        self.killer = killing

    def stop_draining(self) -> None:
        """Leave the rest of the accepted messages unhandled: a callback has failed, or the
        meta-process is killed.
        """
        self.draining = False

    async def abandon(self) -> None:
        """Give up on a meta-process that does not end."""
        meta = self.meta
        if self.task is not None:
            # Each step of the termination has a time limit, so it is nearly done: a busy machine
            # must not cost the meta-process its `terminate`.
            with trio.move_on_after(_OVERDUE):
                await self.gone.wait()
        if self.gone.is_set():
            return
        self.note_abandoned()
        meta.log.error(
            "meta-process abandoned: it did not end when killed", callback=meta.current_callback()
        )
        for detached in (None if meta.birth is None else meta.birth.task, self.task):
            if detached is not None:
                await detached.cut_off()
        with trio.CancelScope(shield=True):
            await kill_all(meta.owned)
        if self.phase >= _OPEN:
            meta.reader.give_up()
        self.release()

    def note_abandoned(self, *, is_thread: bool = False) -> None:
        """List this meta-process as abandoned in the exit report."""
        meta = self.meta
        if is_thread:
            meta.kernel.note_abandoned_thread(meta.id)
        if all(ended.pid != meta.id for ended in meta.kernel.lifetimes.abandoned):
            meta.kernel.lifetimes.abandoned.append(
                Ended(meta.id, None, meta.callbacks.behaviour, self.reason)
            )

    # -- the steps ---------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Run all steps of the termination, in a task of its own."""
        meta = self.meta
        try:
            if self.draining:
                await self._drain()
            await meta.reader.end()
            await meta.handler.end()
            await self._end_children()
            await self._deliver_rest()
            meta.handler.defer_calls_in_progress()
            meta.handler.enter(_TERMINATED)
            self.phase = _TERMINATING
            if "terminate" in meta.callbacks.defined and not self._terminates_inline():
                await self._terminate()
            await in_slices(self._answer())
        finally:
            self.release()

    async def _close_rest(self) -> None:
        try:
            await self._terminate()
            await in_slices(self._answer())
        finally:
            self.release()

    async def _drain(self) -> None:
        """Let the handler serve the accepted messages. The reader learns that it is to end, but its
        resources are not unblocked yet: the handler may need them.
        """
        meta = self.meta
        meta.resources.begin_stop()
        # The handler may have retired after idling: nothing else would start it.
        if len(meta.mailbox):
            meta.wake()
        handler = meta.handler.task
        if handler is not None and (len(meta.mailbox) or meta.handling is not None):
            self.step_limit = TimeLimit(meta.options.drain)
            await self.step_limit.wait(handler.gone.wait)
            self.step_limit = None
        self.stop_draining()

    async def wait_for_step(
        self,
        wait: Callable[[], Awaitable[object]],
        most: float = inf,
        again: Callable[[], None] | None = None,
    ) -> None:
        """Wait within the time limit of a step. A second kill shortens the limit."""
        limit = min(self.meta.options.stop_timeout, most)
        if self.kills > 1:
            limit = min(limit, _HURRIED_STEP)
        self.step_limit = TimeLimit(limit)
        await self.step_limit.wait(wait, again)
        self.step_limit = None

    async def wait_for_grace(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait for a task that was cancelled: it has a moment to end."""
        await self.wait_for_step(wait, _GRACE)

    async def _end_children(self) -> None:
        meta = self.meta
        for child in list(meta.owned.values()):
            if child.options.linger:
                child.move_to(meta.process)
        await stop_all(meta.owned, self.reason or Shutdown())

    async def _deliver_rest(self) -> None:
        """Deliver the reader's remaining messages. Full receivers get a last chance."""
        outbox = self.meta.outbox
        outbox.rush()
        # Not after a kill: its owner waits for the end, and not for slow receivers.
        if len(outbox) and not self.kills:
            await self.wait_for_grace(outbox.wait_until_empty)
        outbox.force()

    async def _terminate(self) -> None:
        meta = self.meta
        # In a task of its own: a terminate that swallows its cancellation can then be abandoned.
        last, begun = DetachedTask(), Flag()
        last.start(
            meta.kernel,
            lambda: self._run_terminate(begun),
            f"{meta.callbacks.behaviour}.terminate",
            meta.handler.context,
        )
        await self.wait_for_step(last.gone.wait)
        if not begun:
            # terminate has not begun, since the machine is busy. It always gets to run; only its
            # duration is limited.
            while not begun and not last.gone.is_set():  # noqa: ASYNC110 - a worker thread sets no event of trio's
                await trio.sleep(_POLL)
            await self.wait_for_step(last.gone.wait)
        if last.gone.is_set():
            return
        meta.log.error("terminate was cut off", limit=meta.options.stop_timeout)
        last.cancel()
        await self.wait_for_grace(last.gone.wait)
        await last.cut_off()

    def _terminates_inline(self) -> bool:
        terminate_inline = self.meta.behaviour._end_in_passing
        if terminate_inline is None:
            return False
        try:
            return bool(terminate_inline(self.reason))
        except BaseException as error:
            self._account_for(error)
            return True

    async def _run_terminate(self, begun: Flag) -> None:
        try:
            await self.meta.handler.callback("terminate", begun, self.reason)
        except BaseException as error:
            self._account_for(error)

    def _account_for(self, error: BaseException) -> None:
        """Handle an exception that left ``terminate``: the termination continues."""
        if is_a(error, (trio.Cancelled, GeneratorExit)):
            raise error
        self.meta.report("terminate", error)

    # -- the release -------------------------------------------------------------------------------

    @enable_ki_protection
    def release(self) -> None:
        """Do everything that follows ``terminate``. There is no await, so no other task sees an
        intermediate state.
        """
        meta = self.meta
        if meta.router.bridge.pending:
            # Messages that it sent in a thread arrive before the notice of its end.
            meta.router.bridge.catch_up()
        if self.over:
            return
        has_started = self.phase >= _OPEN
        self.phase = _RELEASED
        reason = self.reason or Shutdown()
        if meta.state is not _TERMINATED:
            meta.handler.enter(_TERMINATED)
        if meta.deferred or len(meta.mailbox) or meta.handler.has_calls_in_progress():
            at_once(self._answer())
        # A copy: abandon() takes the request out of the table.
        for request in tuple((meta.requests or {}).values()):
            request.abandon()
        for timer in tuple(meta.timers or ()):
            timer.cancel()
        meta.outbox.close()
        meta.kernel.idle_handlers.discard(meta.handler)
        if meta.uses_resources():
            self.phase = _SILENCED
        else:
            meta.resources.close()
        meta.leave_table()
        owner = meta.owner
        owner.disown(meta.id)
        takes_owner_along = (
            has_started and owner.reason is None and is_failure(reason) and self._is_needed()
        )
        meta.kernel.links.tell_all(meta.id, reason)
        if has_started:
            self._tell_observer_and_process(reason)
        if takes_owner_along:
            owner.ask_to_exit(meta.id, reason)
        # Last: a task that waits for the end finds everything released and told.
        self.gone.set()

    def _tell_observer_and_process(self, reason: Reason) -> None:
        meta, process = self.meta, self.meta.process
        if meta.kernel.observer is not None:
            meta.kernel.observer(Stopped(meta.id, reason))
        if meta.owner is process and "handle_child_exit" in process.callbacks.defined:
            signal = (CHILD_EXIT, meta.id, None, reason)
            meta.router.notify_of_end(process, Lane.SYSTEM, signal, reason)

    def _is_needed(self) -> bool:
        """Whether a failure must take the owner along, like a link. A linked owner is notified by
        its link.
        """
        meta = self.meta
        chosen = meta.options.needed
        needed = meta.behaviour._needed if chosen is None else chosen
        is_linked = meta.owner is meta.process and meta.kernel.relations.has(
            meta.process.id, meta.id, Kind.LINK
        )
        return needed and not is_linked

    def _answer(self) -> Iterator[None]:
        """Answer every call that was queued, deferred, or in progress when the handler was cut off.
        Turn the remaining messages into dead letters.
        """
        meta, reason = self.meta, self.reason or Shutdown()
        meta.handler.defer_calls_in_progress()
        yield from refuse(list(meta.deferred or ()), reason)
        yield from discard(meta.router, meta, reason)

    def close_unused_resources(self) -> None:
        """Close the resources after the end, once no abandoned thread can use them."""
        if self.over and not self.meta.uses_resources():
            self.meta.resources.close()
