"""`spawn_process`: the start of a process. If a step fails, nothing of the process remains."""

import sys
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final

import trio
from trio.lowlevel import Task, current_task

from ..kernel import Kernel
from ..runtime.abandonable import Abandonable
from ..runtime.cancel_scopes import CancelScopes, left_open
from ..runtime.detached_task import is_cut_off
from ..tables.callbacks import runs_callbacks
from ..tables.child_slot import ChildSlot
from ..tables.mailbox import OrderedMailbox
from ..tables.pending_calls import Caller, Deadline
from ..vocabulary.dispatchers import LOOP
from ..vocabulary.envelopes import Envelope
from ..vocabulary.errors import (
    InitError,
    InitTimeoutError,
    NodeStoppedError,
    SpawnError,
    TooManyProcessesError,
)
from ..vocabulary.hints import explain
from ..vocabulary.messages import Why
from ..vocabulary.options import Options
from ..vocabulary.reasons import Crashed, Killed, Reason, is_a, is_for_program
from ..vocabulary.states import CALLS_ALLOWED, INIT, SLEEP, TERMINATED
from ..vocabulary.text import shown
from .last_callback import GRACE
from .message_loop import run, run_guarded
from .process import Process
from .threaded_process import DispatchedProcess

__all__ = ["caller_in", "spawn_at_once", "spawn_process"]

_ROOM: Final = 200
"""Free frames of the interpreter's stack that a nested ``init`` needs. An ``init`` takes six, and
the cleanup of a failed ``init`` up to a hundred: a RecursionError inside of a cleanup would leave a
spawn that never returns.
"""


async def spawn_process(
    kernel: Kernel,
    parent: Process | None,
    factory: Any,
    behaviour: type,
    args: tuple[Any, ...],
    options: Options,
    slot: ChildSlot | None = None,
    after: Reason | None = None,
    *,
    may_pause: bool = True,
    leave: Callable[[Awaitable[None]], None] | None = None,
) -> Process:
    """Make a process and run its ``init`` in the spawner's task, so that an exception in it reaches
    the spawner without a handshake. ``after`` is why the last process of the ``slot`` ended. If
    ``init`` fails, ``leave`` takes the cleanup, for a spawner that cannot wait.

    Raises:
        SpawnError: ``init`` failed; nothing of the process remains.
        NameTakenError: the name is taken; nothing was started.
    """
    # The process owns the context variables that __init__ and init set: its task runs in this copy,
    # and the spawner does not see them.
    context = copy_context() if kernel.tracing is None else kernel.tracing.fresh_context()
    if kernel.stopping or kernel.options.max_processes is not None:
        _check_allowed(kernel, parent)
    callbacks = kernel.callbacks_of(behaviour)
    # The first child of each init: its siblings find the same stack.
    if parent is not None and parent.owned is None and parent.state is INIT:
        _check_room(callbacks.behaviour)
    # Nearly always the same object; a caller may also give a `Loop()`.
    on_loop = options.dispatcher is LOOP or options.dispatcher == LOOP
    process = (Process if on_loop else DispatchedProcess)(kernel, callbacks, options, parent)
    if options.order is not None:
        _order_mailbox(process, options)
    waiting = parent if process.take_place(slot, after) else _note_spawner(process)
    try:
        context.run(process.make_behaviour, factory, args)
        if "init" in process.callbacks.asynchronous:
            await _wait_for_init(process, context)
        if isinstance(process.reason, Killed) or process.state is TERMINATED:
            raise SpawnError(f"{callbacks.behaviour} was killed during its init")
        process.enter(SLEEP)
    except BaseException as error:
        undoing = _undo(process, error)
        await undoing if leave is None else leave(undoing)
        if is_a(error, SpawnError) or is_cut_off(error) or is_for_program(error):
            raise
        raise InitError(callbacks.behaviour, error, process.reason) from error
    finally:
        if waiting is not None:
            waiting.waiting = None  # hot path: Lifecycle.waiting
    kernel.note_start(process, parent, slot, links=options.link)
    start = kernel.router.turns.start if on_loop else kernel.router.turns.start_soon
    start(process, run if on_loop else run_guarded, kernel.nursery, context, callbacks.behaviour)
    # A supervisor must register the child before it lets other tasks run, since senders would not
    # find the child in its pool. So it pauses itself.
    if slot is None and may_pause and kernel.router.pause_is_due():
        await _pause(kernel)
    return process


async def _pause(kernel: Kernel) -> None:
    """Let other tasks run. The process runs: a spawner that is cancelled in this pause would never
    learn its PID.
    """
    with trio.CancelScope(shield=True):
        await kernel.router.turn()


def _note_spawner(process: Process) -> Process | None:
    """Note that the callback which spawns a process through its node waits for the ``init``: the
    ``init`` may need its thread. Returns the process of that callback, if there is one.
    """
    if process.parent is not None or not isinstance(process, DispatchedProcess):
        return None
    task = current_task()
    spawner = caller_in(task)
    if spawner is None or spawner.callback_task is not task:
        return None
    spawner.begin_wait_for_init(process)
    return spawner


def _check_allowed(kernel: Kernel, parent: Process | None) -> None:
    """Raise if the node starts no process any more, or has as many as it may have."""
    router, most = kernel.router, kernel.options.max_processes
    if kernel.stopping and (parent is None or router.stopped):
        raise NodeStoppedError(router.node, "it starts nothing any more")
    if most is not None and len(router.processes) >= most:
        raise TooManyProcessesError(most)


def _undo(process: Process, error: BaseException) -> Awaitable[None]:
    """Clean up after a start that has failed."""
    explain(error, process.behaviour)
    # A cancelled spawner takes its child with it: the child was killed, it has not crashed.
    reason = Killed() if is_a(error, trio.Cancelled) else Crashed(error)
    return process.to_end().undo(reason)


def spawn_at_once(
    kernel: Kernel,
    parent: Process | None,
    behaviour: type,
    args: tuple[Any, ...],
    options: Options,
    factory: object = None,
    leave: Callable[[Awaitable[None]], None] | None = None,
) -> Process:
    """Spawn a process without waiting, for a class whose ``init`` is plain. ``factory`` makes the
    behaviour, if not the class itself does. If ``init`` may fail, ``leave`` has to take the
    cleanup, which may wait.

    Raises:
        SpawnError: the node's limit of processes is reached, or ``init`` failed.
        NodeStoppedError: the node is stopping.
    """
    starting = spawn_process(
        kernel,
        parent,
        factory or behaviour,
        behaviour,
        args,
        options,
        may_pause=False,
        leave=leave,
    )
    try:
        # A coroutine that waits for nothing ends at its first step. The event loop is not asked, so
        # this works where no await is possible.
        starting.send(None)
    except StopIteration as started:
        return started.value  # type: ignore[no-any-return]
    finally:
        starting.close()
    raise AssertionError(f"the start of {behaviour.__qualname__} has to wait")


def _order_mailbox(process: Process, options: Options) -> None:
    def refuse(envelope: Envelope, error: Exception) -> None:
        _, sender, ref, message = envelope
        process.log.error("the order of a message failed", error=shown(error))
        if isinstance(ref, Caller):
            ref.settle(None, error)
        else:
            process.router.dead_letters.add(sender, process.id, message, Why.UNORDERED)

    order, size = options.order, options.mailbox_size
    assert order is not None
    assert size is not None
    mailbox = OrderedMailbox(size, options.overflow, order, refuse, lambda: process.turn.handled)
    process.use_mailbox(mailbox)


def _check_room(behaviour: str) -> None:
    if not _has_room(_ROOM):
        limit = sys.getrecursionlimit()
        raise SpawnError(
            f"{behaviour} is nested too deeply: its init would run inside the init of each "
            f"ancestor, and the stack has no room for it; a recursion limit of {limit} is enough "
            f"for about {limit // 10} levels. Let an ancestor spawn its children after its init"
        )


def _has_room(frames: int) -> bool:
    """Whether the stack has room for so many frames. Tries it: the interpreter does not tell."""
    try:
        return frames == 0 or _has_room(frames - 1)
    except RecursionError:
        return False


@runs_callbacks
async def _wait_for_init(process: Process, context: Context) -> None:
    timeout, turn = process.options.init_timeout, process.own_turn()
    # init runs in the spawner's task, which must be able to leave it even if it ignores
    # cancellation.
    abandonable = Abandonable()
    turn.guard(abandonable)
    patience = Deadline(
        partial(process.kernel.start, partial(_leave_init, process), name="leave an init behind")
    )
    # Later than the cancellation at `timeout`, so that an `init` that obeys it ends by itself.
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
        holder = getattr(process, "kept_out_by", None)  # of a process with threads
        raise InitTimeoutError(process.callbacks.behaviour, timeout, holder)
    turn.interrupt_by(None)


async def _leave_init(process: Process) -> None:
    # A supervisor may take longer than its own limit, since its children have theirs: abandon it
    # only after the limit has cancelled it.
    if process.turn.is_cancelled():
        await process.to_end().cut_off()


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
    if (
        waits_for is not None
        and not isinstance(waits_for, Caller)
        and (waits_for.parent is process or (waits_for.parent is None and waits_for.state is INIT))
    ):
        return None
    return process if process.state in CALLS_ALLOWED else None
