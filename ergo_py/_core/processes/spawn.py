"""`spawn_process`, `run`: the start of a process and the body of its task. If a step of the start
fails, nothing of the process remains.
"""

from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

import trio
from trio.lowlevel import Task, current_task

from ..kernel import Kernel
from ..runtime.abandonable import Abandonable
from ..runtime.cancel_scopes import CancelScopes, is_being_closed, left_open
from ..runtime.parking import park_unless
from ..tables.callbacks import check_plain, runs_callbacks
from ..tables.child_slot import ChildSlot
from ..tables.pending_calls import Caller
from ..vocabulary.dispatchers import LOOP
from ..vocabulary.errors import (
    InitError,
    InitTimeoutError,
    NodeStoppedError,
    SpawnError,
    TooManyProcessesError,
)
from ..vocabulary.options import Options
from ..vocabulary.reasons import Crashed, Killed, Reason
from ..vocabulary.states import CALLS_ALLOWED, SLEEP, TERMINATED
from .last_callback import GRACE, Patience
from .message_loop import serve
from .process import Process
from .threaded_process import DispatchedProcess

__all__ = ["caller_in", "run", "spawn_process"]

_KILLED: Final = Killed()


async def spawn_process(
    kernel: Kernel,
    parent: Process | None,
    factory: Any,
    behaviour: type,
    args: tuple[Any, ...],
    options: Options,
    slot: ChildSlot | None = None,
) -> Process:
    """Make a process and run its ``init`` in the spawner's task, so that an exception in it reaches
    the spawner without a handshake.

    Raises:
        SpawnError: ``init`` failed; nothing of the process remains.
        NameTakenError: the name is taken; nothing was started.
    """
    router = kernel.router
    # The process owns the context variables that __init__ and init set: its task runs in this copy,
    # and the spawner does not see them.
    context = copy_context()
    if kernel.stopping and (parent is None or router.stopped):
        raise NodeStoppedError(router.node, "it starts nothing any more")
    if (
        kernel.options.max_processes is not None
        and len(router.processes) >= kernel.options.max_processes
    ):
        raise TooManyProcessesError(kernel.options.max_processes)
    callbacks = kernel.callbacks_of(behaviour)
    # Nearly always the same object; a caller may also give a `Loop()` of its own.
    on_loop = options.dispatcher is LOOP or options.dispatcher == LOOP
    process = (Process if on_loop else DispatchedProcess)(kernel, callbacks, options, parent)
    if options.name is not None:
        router.registry.check_free(options.name, process)
    if slot is not None:
        process.take_slot(slot)
    if options.name is not None:
        # After the slot's messages are in the mailbox: from now on threads may send to the name,
        # and must not overtake these messages.
        process.take_name(options.name)
    router.processes[process.id] = process
    parent_waits = False
    if parent is None:
        kernel.roots[process.id] = process
    else:
        parent_waits = parent.adopt(process)
    try:
        context.run(process.make_behaviour, factory, args)
        if "init" in process.callbacks.asynchronous:
            await _wait_for_init(process, context)
        elif "init" in callbacks.defined:
            context.run(_call_init, process)
        if isinstance(process.reason, Killed) or process.state is TERMINATED:
            raise SpawnError(f"{callbacks.behaviour} was killed during its init")
        process.enter(SLEEP)
    except BaseException as error:
        # A cancelled spawner takes its child with it: the child was killed, it has not crashed.
        reason = Killed() if isinstance(error, trio.Cancelled) else Crashed(error)
        await process.to_end().undo(reason)
        if isinstance(error, SpawnError):
            raise
        if isinstance(error, Exception):
            raise InitError(callbacks.behaviour, error, process.reason) from error
        raise
    finally:
        if parent is not None and parent_waits:
            parent.waiting = None  # hot path: Lifecycle.waiting
    if kernel.on_spawned is not None:
        kernel.on_spawned(process)
    if options.link and parent is not None:
        # Link before the first step of the process, so that an immediate end is not missed.
        kernel.relate_both(parent, process)
    if slot is not None:
        slot.occupy(process.id)
    kernel.note_spawned(process, parent)
    start_soon: Any = kernel.nursery.start_soon
    context.run(start_soon, run if on_loop else run_guarded, process, name=callbacks.behaviour)
    # A supervisor must register the child before it lets other tasks run, since senders would not
    # find the child in its pool. So it pauses itself.
    if slot is None and router.pause_is_due():
        await router.turn()
    return process


@runs_callbacks
def _call_init(process: Process) -> None:
    task = process.callback_task
    status, depth = task._cancel_status, len(task._child_nurseries)
    if (result := process.behaviour.init()) is not None:
        check_plain(process, "init", result)
    if task._cancel_status is not status or len(task._child_nurseries) != depth:
        scopes = CancelScopes.since(task, status)
        scopes.close_plain()
        raise left_open(process.callbacks.behaviour, "init", scopes.nurseries())


@runs_callbacks
async def _wait_for_init(process: Process, context: Context) -> None:
    timeout, turn = process.options.init_timeout, process.own_turn()
    # init runs in the spawner's task, which must be able to leave it even if it ignores
    # cancellation.
    abandonable = Abandonable()
    turn.guard(abandonable)
    patience = Patience(process, partial(_leave_init, process), "leave an init behind")
    process.kernel.clock.arm_call(patience, timeout + 2 * GRACE)
    try:
        with trio.CancelScope(deadline=trio.current_time() + timeout) as scope:
            turn.interrupt_by(scope)
            scopes, error = CancelScopes(process.callback_task), None
            try:
                await abandonable.run_part(process.behaviour.init(), context)
            finally:
                if scopes.are_left():
                    error = left_open(process.callbacks.behaviour, "init", scopes.nurseries())
                    await scopes.close()
            if error is not None:
                raise error
    finally:
        patience.abandon()
        turn.guard(None)
    if isinstance(process.reason, Crashed):
        # A background task has crashed the process.
        raise process.reason.error
    # Raise also if init swallowed the cancellation: it returned too late, and so has failed.
    if (scope.cancel_called or abandonable.abandoned) and not isinstance(process.reason, Killed):
        raise InitTimeoutError(process.callbacks.behaviour, timeout)
    turn.interrupt_by(None)


async def _leave_init(process: Process) -> None:
    # A supervisor may take longer than its own limit, since its children have theirs: abandon it
    # only after the limit has cancelled it.
    if process.turn.is_cancelled():
        await process.to_end().cut_off()


async def run_guarded(process: Process) -> None:
    """Run a process in a task that can be abandoned from the beginning."""
    abandonable = Abandonable()
    process.own_turn().guard(abandonable)
    await abandonable.run(run(process))


@runs_callbacks
async def run(process: Process) -> None:
    """Run a process until it has ended. No exception leaves this function: it would cancel all
    other tasks of the node.
    """
    if process.ending is not None and process.ending.abandoned:
        # Abandoned before its first step.
        return
    task = current_task()
    process.task = process.callback_task = task  # hot path: Lifecycle.callback_task
    status = task._cancel_status
    # The reason if the cancel scope catches the cancellation of a kill.
    reason: Reason | None = _KILLED
    try:
        try:
            box = process.mailbox
            if not (process.callbacks.has_start_hooks or box.main or box.ahead or box.log):
                # Most processes sleep first. The costs of serving, above all the cancel scope, can
                # wait until there is something to serve.
                await park_unless(task, box.main)
                if process.state is TERMINATED:
                    return
            if process.callbacks.any_async:
                # The scope lets a kill interrupt a callback that waits for something else than its
                # mailbox.
                with trio.CancelScope() as scope:
                    process.own_turn().interrupt_by(scope)
                    scopes = CancelScopes(task)
                    try:
                        reason = await serve(process)
                    finally:
                        if scopes.are_left() and not is_being_closed(task):
                            await scopes.close()
            else:
                reason = await serve(process)
        except BaseException as error:
            if process.abandoned or (isinstance(error, GeneratorExit) and is_being_closed(task)):
                raise
            # A kill interrupted the callback, and its nursery raised more than the cancellation.
            reason = _KILLED if process.turn.is_cancelled() else Crashed(error)
            if not isinstance(error, Exception | trio.Cancelled | GeneratorExit):
                process.kernel.panic(error)
            process.log.error(
                "a callback raised while it was being killed", exception=Crashed(error).traceback
            )
        if task._cancel_status is not status:
            # A plain callback left a cancel scope open.
            await CancelScopes.since(task, status).close()
        if reason is not None:
            if reason is _KILLED and process.reason is not None:
                reason = process.reason
            if process.can_end_at_once():
                process.end_at_once(reason)
            else:
                await process.to_end().finish(reason)
    except BaseException as error:
        if isinstance(error, GeneratorExit) and is_being_closed(task):
            raise
        if process.abandoned:
            # The process was abandoned, so its exception has no receiver: drop it.
            return
        process.to_end().fail(error)


_LIVES: Final = frozenset({run.__code__, run_guarded.__code__})


def caller_in(task: Task) -> Process | None:
    """The process whose callback runs in ``task`` and calls through its node instead of its own
    verb; None for code outside of callbacks.
    """
    coroutine: Any = task.coro
    if getattr(coroutine, "cr_code", None) not in _LIVES:
        return None
    process: Process = coroutine.cr_frame.f_locals["process"]
    # While a process waits for the init of its child, the running code belongs to the child.
    waits_for = process.waiting
    if waits_for is not None and not isinstance(waits_for, Caller) and waits_for.parent is process:
        return None
    return process if process.state in CALLS_ALLOWED else None
