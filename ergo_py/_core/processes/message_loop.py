"""`Turn`, `serve`, `serve_batches`, `run`: the message loop of a process, and the body of its task.

The rule of this module: only work that every message pays for, and the order of that work. A line
here costs each message some ten nanoseconds, so a feature that some processes use is decided before
the loop begins, or is an envelope of its own, which `envelope_handlers` serves. `serve` is the loop
in pure Python. `serve_batches` is the loop around the batches of the C extension: `batch.c` has the
steps of `serve` for messages and calls of the main lane, and a change of those steps changes both.
Failures are judged in `failure`, and the end of a process in `termination`.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol

import trio
from trio.lowlevel import Task, current_task, disable_ki_protection

from .. import sources
from ..runtime.abandonable import Abandonable
from ..runtime.cancel_scopes import CancelScopes, is_being_closed
from ..runtime.parking import park, yield_turn
from ..runtime.time_slices import SLICE
from ..tables.callbacks import check_plain, runs_callbacks
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Callee, Caller
from ..vocabulary.envelopes import (
    BATCH,
    CALL,
    ENDS,
    EVENT,
    MESSAGE,
    STARTED,
    Envelope,
)
from ..vocabulary.errors import Reject
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.reasons import Crashed, Killed, Normal, Reason, is_a
from ..vocabulary.states import HISTORY, RUNNING, SLEEP, TERMINATED
from ..vocabulary.unmatched import Unmatched
from .envelope_handlers import HANDLERS
from .failure import account_for, account_for_open

if TYPE_CHECKING:
    from .process import Process

__all__ = [
    "AGAIN",
    "Callback",
    "NO_TURN",
    "Turn",
    "run",
    "run_guarded",
    "serve",
    "serve_batches",
    "serve_in_place",
]

Callback = Callable[..., Awaitable[object]]

_KILLED: Final = Killed()
AGAIN: Final = Normal()
"""Returned instead of a reason: the behaviour was wrapped, unwrapped or replaced, so the message
loop begins again with its callbacks.
"""


class Batch(Protocol):
    """A batch of the C extension, which serves messages and calls of the main lane."""

    def run(
        self,
    ) -> Envelope | tuple[Awaitable[object], Caller] | Awaitable[object] | Literal[True] | None:
        """Serve the lane until it is empty: None. Or return a callback that waits, of a call with
        its caller; an envelope of another kind; or True at the end of the burst.
        """
        ...

    def serve_in_place(self) -> object:
        """Serve the lane in the turn of the root that has woken the process."""
        ...

    def start(self) -> None:
        """Begin the count of a burst: the process has slept."""

    def restart(self) -> None:
        """Begin the count of a burst and a time slice: other tasks have run."""

    def is_over(self) -> bool:
        """Count an envelope. True if other tasks have to run now."""
        ...

    def begin_turn(self) -> bool:
        """Begin a turn. True if `serve_in_place` has served a whole burst."""
        ...

    def end_turn(self) -> None:
        """End a turn: the process falls asleep."""


class Turn:
    """The work of a process on its envelopes: the envelope in progress, the totals, and the means
    to interrupt a callback.
    """

    begin_batch: ClassVar[Callable[..., Batch] | None] = None
    """Creates a batch of the C extension, which serves messages of the main lane; None without the
    extension.
    """
    __slots__ = (
        "abandonable",
        "batch",
        "_beside",
        "handled",
        "handling",
        "published",
        "running_time",
        "scope",
        "woken",
    )

    def __init__(self) -> None:
        self.handling: Envelope | None = None
        """The envelope that the process handles now."""
        self.handled: int = 0
        """How many envelopes it has handled."""
        self.published: int = 0
        """How many subscribers its publications have reached, since a burst last ended: the
        publications count in the burst, because the subscribers have to handle them.
        """
        self.running_time: float = 0.0
        """Seconds spent in callbacks, up to the end of the last turn."""
        self.woken: float = 0.0
        """When the current turn began, in its own task or inline in a caller's; 0.0 while the
        process sleeps.
        """
        self.scope: trio.CancelScope | None = None
        """The cancel scope around its async callbacks."""
        self.abandonable: Abandonable | None = None
        """The relay between trio and the callbacks, which may ignore cancellation."""
        self.batch: Batch | None = None
        """The batch of the C extension; for `serve_in_place`."""
        self._beside: list[Caller | Callee] | None = None
        """The calls of tasks that the callback waits for at the end of a nursery, and the receivers
        whose mailboxes have no room for the callback or these tasks.
        """

    def begin_wait_beside(self, awaited: "Caller | Callee") -> None:
        """Note such a wait."""
        if self._beside is None:
            self._beside = []
        self._beside.append(awaited)

    def end_wait_beside(self, awaited: "Caller | Callee") -> "Caller | Callee | None":
        """Note its end. Returns the next of the other waits."""
        assert self._beside is not None
        # The first of them: several tasks may wait for room in the same mailbox.
        self._beside.remove(awaited)
        return self._beside[0] if self._beside else None

    def begin(self, now: float) -> None:
        """Begin a turn."""
        self.woken = now

    def end(self, now: float) -> None:
        """End the turn: the process falls asleep."""
        self.running_time += now - self.woken
        self.woken = 0.0
        self.handling = None

    def time(self, now: float) -> float:
        """Seconds spent in callbacks so far, including waits inside them and the current turn.
        Callable from any thread.
        """
        woken = self.woken
        return self.running_time + (now - woken if woken else 0.0)

    def handle(self, envelope: Envelope) -> None:
        """Note the envelope that the process handles now, and count it."""
        self.handling = envelope
        self.handled += 1

    def handle_again(self, envelope: Envelope | None) -> None:
        """Note another form of the envelope in progress, which is counted already; None if the
        process handles none.
        """
        self.handling = envelope

    def handle_batch(self, envelopes: deque[Envelope]) -> None:
        """Note the messages that the process handles at once, and count them."""
        _, sender, _, first = envelopes[0]
        self.handling = (BATCH, sender, envelopes, first)
        self.handled += len(envelopes)

    def postpone(self, count: int = 1) -> None:
        """Do not count the envelopes in progress: they are counted when they are handled again."""
        self.handled -= count

    def count_aside(self) -> None:
        """Count an envelope that was served beside the envelope in progress."""
        self.handled += 1

    def count_published(self, receivers: int) -> None:
        """Count the receivers of a publication in the burst."""
        self.published += receivers

    def close(self) -> None:
        """End the turn, and drop the envelope and the cancel scope: the process has ended."""
        if self.woken:
            # Inlined end().
            self.running_time += perf_counter() - self.woken
            self.woken = 0.0
        self.handling = self.scope = self.batch = None

    # -- interruption ------------------------------------------------------------------------------

    def interrupt_by(self, scope: trio.CancelScope | None) -> None:
        """Let a kill cancel this scope."""
        self.scope = scope

    def cancel(self) -> None:
        """Cancel the callback in progress, if it is async."""
        if self.scope is not None:
            self.scope.cancel()

    def is_cancelled(self) -> bool:
        """Whether a kill has cancelled the callback in progress."""
        return self.scope is not None and self.scope.cancel_called

    def lift_deadline(self) -> None:
        """Let the async callback in progress take any time."""
        assert self.scope is not None
        self.scope.deadline = inf

    def guard(self, abandonable: Abandonable | None) -> None:
        """Let the callbacks run behind this relay."""
        self.abandonable = abandonable

    def take_over(self, task: Task) -> Abandonable:
        """Put a relay into the running task: its callback can wait for anything, and so may ignore
        cancellation.
        """
        if self.abandonable is None:
            self.abandonable = Abandonable()
            self.abandonable.take_over(task)
        return self.abandonable


NO_TURN: Final = Turn()
"""Stands for the turn of all processes that have not served anything yet: a process that only waits
does not pay for its own. `Lifecycle.own_turn` replaces it.
"""


def _reason_after(process: "Process", task: Task, error: BaseException) -> Reason | None:
    """The reason to end with after an exception; None if the process resumes. An exception that is
    none of a callback, or of a process that is over, is raised again.
    """
    if (
        (is_a(error, GeneratorExit) and is_being_closed(task))
        or (process.ending is not None and process.ending.abandoned)
        or process.turn.is_cancelled()
    ):
        raise error
    return account_for(process, error)


@runs_callbacks
async def serve(process: "Process") -> Reason | None:
    """Serve the mailbox until the process has to end. Returns the reason, or None if its owner
    ended it while it slept.

    A single long function, because every message would pay for each call in between.
    """
    box = process.mailbox
    main = box.main
    task = process.task
    assert isinstance(task, Task)
    clock = perf_counter
    burst, bounded = process.kernel.burst, box.limit > 0
    turn, handle_message, handle_call, unmatched = process.begin_to_serve()
    asynchronous, history = process.callbacks.asynchronous, process.history
    message_is_async, call_is_async = (
        "handle_message" in asynchronous,
        "handle_call" in asynchronous,
    )
    # The loop itself calls a plain handle_event, unless an observer counts the events.
    event_is_plain = "handle_event" not in asynchronous and process.kernel.observer is None
    seen = None if unmatched is None else unmatched.seen
    status = task._cancel_status
    no_reply = NO_REPLY
    envelope: Envelope | None
    # `turn.handled` doubles as the counter of the burst. The clock is read on every eighth message
    # only, and on the last of the burst.
    often = 7 if burst >= 8 else 0
    last, mask, end = turn.handled + burst, often, 0.0
    # A batch of plain callbacks is a root: the processes that it wakes run right after it, in the
    # same turn.
    turns, may_be_root = process.router.turns, not (message_is_async or call_is_async)
    queue = turns.run_queue
    # Without messages there are only signals, which are served outside of a root.
    is_root = may_be_root and queue.size <= 1 and len(main) > 0 and turns.begin(task)
    while True:
        try:
            if box.ahead:
                envelope = box.pop_ahead()
            elif main:
                envelope = main.popleft()
            elif box.log:
                envelope = box.log.popleft()
            else:
                if box.waiters and box.admit_waiters():
                    continue
                # Go to sleep. There is no await between the check of the lanes and park(),
                # which marks the task as asleep: no wake-up is lost.
                if task._cancel_status is not status:  # a nursery has a cancel scope, too
                    # Else the processes that this root has woken would get no step.
                    turns.end(task)
                    return account_for_open(process, task.child_nurseries)
                # Drop the last message, which may be large: these variables would keep it alive
                # during the sleep.
                envelope = sender = ref = payload = reply = result = None
                now = clock()
                turn.running_time += now - turn.woken
                turn.woken = 0.0
                turn.handling = None
                process.state = SLEEP  # hot path: Process.end_turn
                history += (SLEEP, now)
                is_root = is_root and turns.serve(task)
                # The finalizer of the last message may have sent a signal, and so may a process
                # that has run meanwhile.
                if not (box.ahead or box.log or (is_root and (main or box.waiters))):
                    await park(task, main)
                    if process.state is TERMINATED:
                        return None
                    last, end = turn.handled + burst, 0.0
                turn.woken = woken = clock()
                process.state = RUNNING  # hot path: Process.begin_turn
                history += (RUNNING, woken)
                if len(history) > HISTORY:
                    del history[: HISTORY // 2]
                # The size of the queue saves most calls of begin(), which checks it, too.
                is_root = may_be_root and queue.size <= 1 and len(main) > 0 and turns.begin(task)
                continue
            kind, sender, ref, payload = envelope
            turn.handling = envelope
            turn.handled = handled = turn.handled + 1
            if bounded and box.waiters:
                box.admit_waiters()
            if kind == MESSAGE:
                if seen is not None and id(type(payload)) not in seen:
                    assert unmatched is not None
                    unmatched.look(payload)
                if message_is_async:
                    await handle_message(payload, sender)
                elif (result := handle_message(payload, sender)) is not None:
                    check_plain(process, "handle_message", result)
            elif kind == CALL:
                # Inlined Calls.serve().
                try:
                    if call_is_async:
                        reply = await handle_call(payload, ref)
                    elif type(reply := handle_call(payload, ref)) is CoroutineType:
                        check_plain(process, "handle_call", reply)
                except Reject as rejection:
                    process.kernel.calls.reply(ref, None, rejection.error)
                else:
                    if reply is no_reply:
                        ref.defer(process)
                    elif not ref.settle(reply, None):
                        process.kernel.calls.count_late_reply()
            elif kind == EVENT and event_is_plain:
                if (result := process.behaviour.handle_event(payload)) is not None:
                    check_plain(process, "handle_event", result)
            else:
                # The handler may wait, and a root must not: trio runs the steps of the processes
                # that it has woken.
                if is_root:
                    is_root = turns.end(task)
                is_end = kind in ENDS
                reason = payload if is_end else await HANDLERS[kind](process, sender, ref, payload)
                if reason is not None:
                    return reason
            # Counted from the end of the burst, so that the last message of it is looked at, too.
            # Counted from its beginning, a burst of 12 took 16 messages.
            if (last - handled) & mask:
                continue
            # Fairness: read the clock every few messages, or after each message if messages turn
            # out to be slow or to be published to others.
            now = sources.slice_clock()
            if box.waiters:
                box.admit_waiters()
            if end == 0.0:
                end = now + SLICE
            if now >= end or handled + turn.published >= last:
                mask = 0 if now >= end or turn.published else often
                turn.published = 0
                is_root = turns.end(task)
                await yield_turn(task)
                last, end = turn.handled + burst, sources.slice_clock() + SLICE
            continue
        except trio.Cancelled:
            raise
        except BaseException as error:
            is_root = turns.end(task)
            reason = _reason_after(process, task, error)
            if reason is not None:
                return reason
        # The process resumes. A process that fails on every message must let other tasks run, too.
        await yield_turn(task)


@runs_callbacks
async def serve_batches(process: "Process") -> Reason | None:
    """Do the same with the C extension: a batch serves the messages, calls and plain events of the
    main lane. It counts the burst, and reads the clock for fairness.
    """
    box = process.mailbox
    main = box.main
    if type(main) is not Mailbox.main_type:
        # The main lane is none of C, such as a lane that a predecessor has left.
        return await serve(process)
    task = process.task
    assert isinstance(task, Task)
    turn, handle_message, handle_call, unmatched = process.begin_to_serve()
    asynchronous = process.callbacks.asynchronous
    message_is_async, call_is_async = (
        "handle_message" in asynchronous,
        "handle_call" in asynchronous,
    )
    event_is_plain = "handle_event" not in asynchronous and process.kernel.observer is None
    seen = None if unmatched is None else unmatched.seen
    assert turn.begin_batch is not None
    turn.batch = batch = turn.begin_batch(
        *(process, turn, box, main),
        *(handle_message, message_is_async, handle_call, call_is_async),
        *(event_is_plain, process.kernel.burst, seen, unmatched),
    )
    status, is_over = task._cancel_status, False
    envelope: Envelope | None
    turns, may_be_root = process.router.turns, not (message_is_async or call_is_async)
    queue = turns.run_queue
    # Without messages there are only signals, which are served outside of a root.
    is_root = may_be_root and queue.size <= 1 and len(main) > 0 and turns.begin(task)
    while True:
        try:
            if is_over:
                # Other tasks have to run.
                is_over, is_root = False, turns.end(task)
                await yield_turn(task)
                batch.restart()
            if box.ahead:
                envelope = box.pop_ahead()
            elif main:
                left = batch.run()
                if not isinstance(left, tuple):
                    if left is None:
                        continue
                    if left is not True:
                        # An async callback that has begun to wait.
                        await left
                    is_over = left is True or batch.is_over()
                    continue
                if len(left) == 2:
                    # The same of a call.
                    await process.kernel.calls.serve(process, left[1], _unchanged, left[0])
                    is_over = batch.is_over()
                    continue
                envelope = left
            elif box.log:
                envelope = box.log.popleft()
            else:
                # A batch admits those that wait for room; this is for lanes without a batch.
                if box.waiters and box.admit_waiters():  # pragma: no cover
                    continue
                # Go to sleep, as in serve().
                if task._cancel_status is not status:
                    turns.end(task)
                    return account_for_open(process, task.child_nurseries)
                envelope = left = None
                batch.end_turn()
                is_root = is_root and turns.serve(task)
                if not (box.ahead or box.log or (is_root and (main or box.waiters))):
                    await park(task, main)
                    if process.state is TERMINATED:
                        return None
                    batch.start()
                if batch.begin_turn():
                    # serve_in_place() has served a whole burst.
                    is_over = True
                    continue
                is_root = may_be_root and queue.size <= 1 and len(main) > 0 and turns.begin(task)
                continue
            turn.handle(envelope)
            if box.waiters:
                box.admit_waiters()
            if envelope[0] == MESSAGE or envelope[0] == CALL:
                await _handle(process, unmatched, envelope, handle_message, handle_call)
            else:
                if is_root:
                    is_root = turns.end(task)
                reason = (
                    envelope[3]
                    if envelope[0] in ENDS
                    else await HANDLERS[envelope[0]](process, *envelope[1:])
                )
                if reason is not None:
                    return reason
            is_over = batch.is_over()
            continue
        except trio.Cancelled:
            raise
        except BaseException as error:
            is_root = turns.end(task)
            reason = _reason_after(process, task, error)
            if reason is not None:
                return reason
        await yield_turn(task)


async def _handle(
    process: "Process",
    unmatched: Unmatched | None,
    envelope: Envelope,
    handle_message: Callback,
    handle_call: Callback,
) -> None:
    """Serve a message or a call that did not come in a batch: it has a priority, or is a log
    record.
    """
    kind, sender, ref, payload = envelope
    if kind == CALL:
        served = _reply_to(process, handle_call, payload, ref)
        await process.kernel.calls.serve(process, ref, _unchanged, served)
        return
    if unmatched is not None and id(type(payload)) not in unmatched.seen:
        unmatched.look(payload)
    result = handle_message(payload, sender)
    if "handle_message" in process.callbacks.asynchronous:
        await result
    elif result is not None:
        check_plain(process, "handle_message", result)


async def _reply_to(
    process: "Process", handle_call: Callback, request: object, caller: Caller
) -> object:
    reply = handle_call(request, caller)
    if "handle_call" in process.callbacks.asynchronous:
        return await reply
    if type(reply) is CoroutineType:
        check_plain(process, "handle_call", reply)
    return reply


def _unchanged(callback: Awaitable[object]) -> Awaitable[object]:
    return callback


@runs_callbacks
@disable_ki_protection  # as in the process's own task
def serve_in_place(process: "Process", batch: Batch) -> object:
    """Serve a sleeping process with plain callbacks in the turn of the root that has woken it: its
    own task sleeps on. Only the C extension does this. The watchdog finds the process by this
    function.
    """
    return batch.serve_in_place()


def _note_failure(process: "Process", task: Task, error: BaseException) -> Reason:
    """A kill interrupted the callback, and its nursery raised more than the cancellation. The
    exception of an abandoned process, or of a closed task, is raised again.
    """
    if process.abandoned or (is_a(error, GeneratorExit) and is_being_closed(task)):
        raise error
    process.kernel.pass_on(error)
    process.log.error(
        "a callback raised while it was being killed", exception=Crashed(error).traceback
    )
    return _KILLED if process.turn.is_cancelled() else Crashed(error)


def _end_for_others(process: "Process") -> None:
    """End the turn, and drop the cancel scope: the process goes on with other callbacks, which may
    be plain or async.
    """
    process.turn.interrupt_by(None)
    process.end_turn()


async def run_guarded(process: "Process") -> None:
    """Run a process in a task that can be abandoned from the beginning."""
    abandonable = Abandonable()
    process.own_turn().guard(abandonable)
    await abandonable.run(run(process))


@runs_callbacks
async def run(process: "Process") -> None:
    """Run a process until it has ended. No exception leaves this function: it would cancel all
    other tasks of the node.
    """
    task, starts_asleep = process.task, True
    if not isinstance(task, Task):  # else `Handoff.start` has made it, and drives it to its sleep
        if process.abandoned:  # before its first step
            return
        task, starts_asleep = current_task(), False
        process.begin_task(task)
    status, turns = task._cancel_status, process.router.turns
    serve_all = serve if Turn.begin_batch is None else serve_batches
    reason: Reason | None = AGAIN
    try:
        try:
            # Most processes sleep first: the costs of serving, like the cancel scope, can wait.
            if starts_asleep or not process.has_work():
                await park(task, () if starts_asleep else process.main)
            if process.state is TERMINATED:
                return
            if process.callbacks.has_start_hooks:
                process.mailbox.push_first((STARTED, process.id, None, None))
            while reason is AGAIN:
                # The reason if the cancel scope catches the cancellation of a kill.
                reason = _KILLED
                if process.callbacks.any_async:
                    # A kill interrupts a callback that waits for something else than its mailbox.
                    with trio.CancelScope() as scope:
                        process.own_turn().interrupt_by(scope)
                        scopes = CancelScopes(task)
                        try:
                            reason = await serve_all(process)
                        finally:
                            turns.end(task)
                            if scopes.are_left() and not is_being_closed(task):
                                await scopes.close()
                else:
                    reason = await serve_all(process)
                if reason is AGAIN:
                    _end_for_others(process)
        except BaseException as error:
            turns.end(task)
            reason = _note_failure(process, task, error)
        if task._cancel_status is not status:  # a plain callback left a cancel scope open
            await CancelScopes.since(task, status).close()
        if reason is not None:
            reason = (process.reason or reason) if reason is _KILLED else reason
            if not process.end_at_once(reason, task):
                await process.to_end().finish(reason)
    except BaseException as error:
        if is_a(error, GeneratorExit) and is_being_closed(task):
            raise
        if not process.abandoned:  # else its exception has no receiver
            process.to_end().fail(error)
