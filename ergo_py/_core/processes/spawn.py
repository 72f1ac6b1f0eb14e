"""`spawn_process`: registers, initialises and starts a process. If any step fails, nothing of the
process remains.
"""

from contextvars import copy_context
from typing import Any

import trio

from ..kernel import Kernel
from ..messaging.observer import Spawned
from ..messaging.publisher import PROCESS_STARTED
from ..tables.child_slot import ChildSlot
from ..vocabulary.dispatchers import LOOP
from ..vocabulary.errors import InitError, NodeStoppedError, SpawnError, TooManyProcessesError
from ..vocabulary.options import Options
from ..vocabulary.reasons import Crashed, Killed
from ..vocabulary.states import SLEEP, TERMINATED
from .process import Process
from .termination import undo
from .threaded_process import DispatchedProcess

__all__ = ["spawn_process"]


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
    if parent is None:
        kernel.roots[process.id] = process
    else:
        parent.own(process.id, process)
    # A child whose init calls its waiting parent would wait forever. Mark the parent as waiting, so
    # that the ring is found.
    spawner = parent if parent is not None and process.home is parent.home else None
    if spawner is not None:
        spawner.waiting = process
    try:
        waiting = context.run(process._initialise, factory, args, context)
        if waiting is not None:
            await waiting
        if isinstance(process.reason, Killed) or process.state is TERMINATED:
            raise SpawnError(f"{callbacks.behaviour} was killed during its init")
        process.enter(SLEEP)
    except BaseException as error:
        # A cancelled spawner takes its child with it: the child was killed, it has not crashed.
        await undo(process, Killed() if isinstance(error, trio.Cancelled) else Crashed(error))
        if isinstance(error, SpawnError):
            raise
        if isinstance(error, Exception):
            raise InitError(callbacks.behaviour, error, process.reason) from error
        raise
    finally:
        if spawner is not None:
            spawner.waiting = None
    if kernel.on_spawned is not None:
        kernel.on_spawned(process)
    if options.link and parent is not None:
        # Link before the first step of the process, so that an immediate end is not missed.
        kernel.relate_both(parent, process)
    if slot is not None:
        slot.occupy(process.id)
    kernel.spawned += 1
    if kernel.observer is not None:
        above = kernel.pid if parent is None else parent.id
        kernel.observer(Spawned(process.id, above, callbacks.behaviour, process.name))
    if kernel.publisher.heard:
        kernel.publisher.announce(PROCESS_STARTED, process.id)
    start_soon: Any = kernel.nursery.start_soon
    context.run(
        start_soon, process.run if on_loop else process.run_guarded, name=callbacks.behaviour
    )
    # A supervisor must register the child before it lets other tasks run, since senders would not
    # find the child in its pool. So it pauses itself.
    if slot is None and router.pause_is_due():
        await router.turn()
    return process
