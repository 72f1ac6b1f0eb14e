"""`Turn`, `serve`: the message loop of a process, and the handlers for each kind of
envelope.
"""

from collections.abc import Callable, Coroutine, Mapping
from math import inf
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import Task, checkpoint

from ..messaging.observer import Delivered
from ..runtime.abandonable import Abandonable
from ..runtime.cancel_scopes import is_being_closed
from ..runtime.parking import park_unless
from ..tables.callbacks import check_plain, runs_callbacks
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import (
    ADDRESSED,
    ADDRESSED_CALL,
    CALL,
    CHILD_EXIT,
    CONTROL,
    DOWN,
    EVENT,
    EXIT,
    FAILED,
    FENCE,
    INSPECT,
    KILL,
    LOG,
    LOOK,
    MESSAGE,
    NOTICE,
    STARTED,
    STOP,
    Envelope,
)
from ..vocabulary.errors import Reject
from ..vocabulary.ids import Alias, Name
from ..vocabulary.messages import NO_REPLY, Down, Exit
from ..vocabulary.reasons import Crashed, Killed, Normal, Reason
from ..vocabulary.states import RUNNING, SLEEP, TERMINATED
from .failure import account_for, account_for_open

if TYPE_CHECKING:
    from .process import Process

__all__ = [
    "AGAIN",
    "HANDLERS",
    "NO_TURN",
    "Turn",
    "callback",
    "handle_inspect",
    "handle_other",
    "serve",
]

_SLICE: Final = 0.001
"""Time slice in seconds, after which a busy process lets other tasks run."""
_HISTORY: Final = 16
AGAIN: Final = Normal()
"""Returned instead of a reason: the behaviour was wrapped or unwrapped, so the loop must fetch its
callbacks again.
"""


class Turn:
    """The work of a process on its envelopes: the envelope in progress, the totals, and the means
    to interrupt a callback.
    """

    __slots__ = ("abandonable", "handled", "handling", "running_time", "scope", "woken")

    def __init__(self) -> None:
        self.handling: Envelope | None = None
        """The envelope that the process handles now."""
        self.handled = 0
        """How many envelopes it has handled."""
        self.running_time = 0.0
        """Seconds spent in callbacks, up to the end of the last turn."""
        self.woken = 0.0
        """When the current turn began, in its own task or inline in a caller's; 0.0 while the
        process sleeps.
        """
        self.scope: trio.CancelScope | None = None
        """The cancel scope around its async callbacks."""
        self.abandonable: Abandonable | None = None
        """The relay between trio and the callbacks, which may ignore cancellation."""

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

    def postpone(self) -> None:
        """Do not count the envelope in progress: it is counted when it is handled again."""
        self.handled -= 1

    def count_aside(self) -> None:
        """Count an envelope that was served beside the envelope in progress."""
        self.handled += 1

    def close(self) -> None:
        """Drop the envelope and the cancel scope: the process has ended."""
        self.handling = self.scope = None

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
    behaviour, asynchronous = process.behaviour, process.callbacks.asynchronous
    handle_message, message_is_async = behaviour.handle_message, "handle_message" in asynchronous
    handle_call, call_is_async = behaviour.handle_call, "handle_call" in asynchronous
    observer = process.kernel.observer
    if observer is not None:
        handle_message, handle_call = observer.watch(process.id, handle_message, handle_call)
    status = task._cancel_status
    no_reply = NO_REPLY
    envelope: Envelope | None
    # `turn.handled` doubles as the counter of the burst. The clock is read on every eighth
    # message only.
    often = 7 if burst >= 8 else 0
    turn, history = process.own_turn(), process.history
    last, mask, end = turn.handled + burst, often, 0.0
    turn.woken = woken = clock()
    process.state = RUNNING  # hot path: Process.begin_turn
    history += (RUNNING, woken)
    if process.callbacks.has_start_hooks:
        box.push_first((STARTED, process.id, None, None))
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
                # Go to sleep. There is no await between the check of the lanes and park_unless(),
                # which marks the task as asleep: no wake-up is lost.
                if task._cancel_status is not status:  # a nursery has a cancel scope, too
                    return account_for_open(process, task.child_nurseries)
                now = clock()
                turn.running_time += now - turn.woken
                turn.woken = 0.0
                # Drop the last message, which may be large: these variables would keep it alive
                # during the sleep.
                turn.handling = envelope = sender = ref = payload = reply = result = None
                process.state = SLEEP  # hot path: Process.end_turn
                history += (SLEEP, now)
                await park_unless(task, main)
                if process.state is TERMINATED:
                    return None
                turn.woken = woken = clock()
                process.state = RUNNING  # hot path: Process.begin_turn
                history += (RUNNING, woken)
                if len(history) > _HISTORY:
                    del history[:8]
                last, end = turn.handled + burst, 0.0
                continue
            kind, sender, ref, payload = envelope
            turn.handling = envelope
            turn.handled = handled = turn.handled + 1
            if bounded and box.waiters:
                box.admit_waiters()
            if kind == MESSAGE:
                if message_is_async:
                    await handle_message(payload, sender)
                elif (result := handle_message(payload, sender)) is not None:
                    check_plain(process, "handle_message", result)
            elif kind == CALL:
                # Inlined Calls.serve().
                try:
                    if call_is_async:
                        reply = await handle_call(payload, ref)
                    elif isinstance(reply := handle_call(payload, ref), CoroutineType):
                        check_plain(process, "handle_call", reply)
                except Reject as rejection:
                    process.kernel.calls.reply(ref, None, rejection.error)
                else:
                    if reply is no_reply:
                        ref.defer(process)
                    elif not ref.settle(reply, None):
                        process.kernel.calls.count_late_reply()
            else:
                reason = await handle_other(process, envelope)
                if reason is not None:
                    if reason is not AGAIN:
                        return reason
                    behaviour = process.behaviour
                    handle_message, handle_call = behaviour.handle_message, behaviour.handle_call
                    if observer is not None:
                        handle_message, handle_call = observer.watch(
                            process.id, handle_message, handle_call
                        )
            if handled & mask:
                continue
            # Fairness: read the clock every few messages, or after each message if messages turn
            # out to be slow.
            now = clock()
            if box.waiters:
                box.admit_waiters()
            if end == 0.0:
                end = now + _SLICE
            elif now >= end or handled >= last:
                mask = 0 if now >= end else often
                await checkpoint()
                last, end = turn.handled + burst, clock() + _SLICE
            continue
        except trio.Cancelled:
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_being_closed(task):
                raise
            if process.ending is not None and process.ending.abandoned:
                raise
            if turn.scope is not None and turn.scope.cancel_called:
                raise
            reason = account_for(process, error)
            if reason is not None:
                return reason
        # The process resumes. A process that fails on every message must let other tasks run, too.
        await checkpoint()


def handle_other(process: "Process", envelope: Envelope) -> "Coroutine[Any, Any, Reason | None]":
    """Serve an envelope that is neither a message nor a call. Awaited, it returns the reason if the
    process has to end.
    """
    kind, sender, ref, payload = envelope
    if process.kernel.observer is not None and kind <= EVENT:
        process.kernel.observer(Delivered(process.id, sender, payload))
    # Not awaited here: every event would pay for another coroutine.
    return HANDLERS[kind](process, sender, ref, payload)


async def _handle_addressed(process: "Process", sender: Any, to: Any, message: Any) -> None:
    name, args = _callback_for(process, "handle_message", to)
    await callback(process, name, *args, message, sender)


async def _handle_addressed_call(
    process: "Process", _sender: Any, caller: Caller, request: Any
) -> None:
    name, args = _callback_for(process, "handle_call", caller.to)
    await process.kernel.calls.serve(
        process, caller, callback, process, name, *args, request, caller
    )


def _callback_for(process: "Process", general: str, to: Any) -> tuple[str, tuple[Any, ...]]:
    """The callback for an address that is no PID, and its first arguments."""
    suffix, address = (
        ("alias", to) if type(to) is Alias else ("name", to.name if type(to) is Name else to)
    )
    special = f"{general}_{suffix}"
    # A behaviour without a callback for this kind of address is served by the general callback.
    return (special, (address,)) if special in process.callbacks.defined else (general, ())


async def _handle_event(process: "Process", _sender: Any, _ref: Any, publication: Any) -> None:
    await callback(process, "handle_event", publication)


async def _handle_exit(
    process: "Process", source: Any, relation: Any, reason: Reason
) -> Reason | None:
    if relation is not None:
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


async def _handle_notice(process: "Process", sender: Any, _ref: Any, notice: Any) -> None:
    await callback(process, "handle_message", notice, sender)


async def _handle_child_exit(process: "Process", child: Any, _ref: Any, reason: Reason) -> None:
    await callback(process, "handle_child_exit", child, reason)


async def _handle_inspect(process: "Process", _sender: Any, caller: Caller, items: Any) -> None:
    await handle_inspect(process, caller, items)


async def _handle_log(process: "Process", _sender: Any, _ref: Any, record: Any) -> None:
    await callback(process, "handle_log", record)


async def _handle_control(process: "Process", sender: Any, caller: Any, operation: Any) -> None:
    await process.behaviour._control(sender, caller, operation)


async def _handle_end(_process: "Process", _sender: Any, _ref: Any, reason: Reason) -> Reason:
    return reason


async def _handle_kill(_process: "Process", _sender: Any, _ref: Any, _payload: Any) -> Reason:
    return Killed()


async def _handle_started(process: "Process", _sender: Any, _ref: Any, _payload: Any) -> None:
    """Run the first callbacks in the process's own task, before any message."""
    reason = process.slot.successor_of if process.slot is not None else None
    if reason is not None and "post_restart" in process.callbacks.defined:
        await callback(process, "post_restart", reason)
    if "post_start" in process.callbacks.defined:
        await callback(process, "post_start")


async def _handle_fence(_process: "Process", _sender: Any, caller: Caller, _payload: Any) -> None:
    caller.settle(None, None)


async def _handle_look(
    process: "Process", _sender: Any, caller: Caller, request: Any
) -> Reason | None:
    return await request(process, caller)  # type: ignore[no-any-return]


_Handler = Callable[["Process", Any, Any, Any], Coroutine[Any, Any, Reason | None]]
HANDLERS: Final[Mapping[int, _Handler]] = {
    ADDRESSED: _handle_addressed,
    ADDRESSED_CALL: _handle_addressed_call,
    EVENT: _handle_event,
    EXIT: _handle_exit,
    DOWN: _handle_down,
    CHILD_EXIT: _handle_child_exit,
    INSPECT: _handle_inspect,
    LOG: _handle_log,
    STOP: _handle_end,
    KILL: _handle_kill,
    FAILED: _handle_end,
    CONTROL: _handle_control,
    STARTED: _handle_started,
    FENCE: _handle_fence,
    LOOK: _handle_look,
    NOTICE: _handle_notice,
}
"""The handler of each kind. `serve` itself handles MESSAGE and CALL; a process gets no RESPONSE."""


async def handle_inspect(process: "Process", caller: Caller, items: tuple[str, ...]) -> None:
    """Run ``handle_inspect`` and reply with its items as strings."""
    try:
        answer = dict(await callback(process, "handle_inspect", *items))
        told = {str(key): str(value) for key, value in answer.items()}
    except Exception as error:
        # An inspection must not kill the inspected process.
        process.log.error("handle_inspect raised", exception=Crashed(error).traceback)
        process.kernel.calls.reply(caller, None, error)
    else:
        process.kernel.calls.reply(caller, told, None)


async def callback(process: "Process", name: str, *args: Any) -> Any:
    """Call a callback of the behaviour, and await it if it is async."""
    result = getattr(process.behaviour, name)(*args)
    if name in process.callbacks.asynchronous:
        return await result
    check_plain(process, name, result)
    return result
