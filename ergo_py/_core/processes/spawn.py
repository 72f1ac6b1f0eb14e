"""How a process comes to be: registered, initialised and started, or nothing at all."""

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import trio

from ..kernel import Kernel
from ..messaging.observer import Spawned
from ..messaging.publisher import PROCESS_STARTED
from ..tables.child_slot import ChildSlot
from ..vocabulary.errors import InitError, NodeStoppedError, SpawnError, TooManyProcessesError
from ..vocabulary.options import Options
from ..vocabulary.reasons import Crashed, Killed
from ..vocabulary.states import SLEEP, TERMINATED
from .termination import undo

if TYPE_CHECKING:
    from .process import Process

__all__ = ["spawn"]


async def spawn(
    kind: "type[Process]",
    kernel: Kernel,
    parent: "Process | None",
    factory: Any,
    behaviour: type,
    args: tuple[Any, ...],
    options: Options,
    slot: ChildSlot | None = None,
) -> "Process":
    """Make a process and run its ``init`` here, in the spawner's task: its error is the spawner's,
    without a handshake.

    Raises:
        SpawnError: and nothing of the process remains.
        NameTakenError: and nothing was started.
    """
    router = kernel.router
    # What __init__ and init set is the process's own: its task goes on with it, and the spawner
    # does not see it.
    context = copy_context()
    if kernel.stopping and (parent is None or router.stopped):
        raise NodeStoppedError(router.node, "it starts nothing any more")
    if (
        kernel.options.max_processes is not None
        and len(router.processes) >= kernel.options.max_processes
    ):
        raise TooManyProcessesError(kernel.options.max_processes)
    callbacks = kernel.callbacks_of(behaviour)
    process = kind(kernel, callbacks, options, parent)
    if options.name is not None:
        router.registry.check_free(options.name, process)
    if slot is not None:
        process.sit(slot)
    if options.name is not None:
        # After what a predecessor has left: from now on threads may send to it, and must not
        # overtake that.
        process.take_name(options.name)
    router.processes[process.id] = process
    if parent is None:
        kernel.roots[process.id] = process
    else:
        parent.own(process.id, process)
    # A child whose init calls its waiting parent would wait for ever: that edge is part of a ring,
    # too.
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
        # A spawner that was cancelled has not crashed its child: it took it along.
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
        # Before it takes its first step, so that an end that follows at once is not missed.
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
        start_soon, process.run_guarded if kind.blocks else process.run, name=callbacks.behaviour
    )
    # A supervisor notes first who has started, since its pool would find nobody in the meantime,
    # and pauses then.
    if slot is None and router.pause_is_due():
        await router.turn()
    return process
