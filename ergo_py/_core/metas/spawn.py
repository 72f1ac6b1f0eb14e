"""Spawning a meta-process: run its ``init`` and start its reader, or leave nothing behind."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import outcome
import trio

from ..kernel import Kernel
from ..messaging.observer import Spawned
from ..processes.children import stop_all
from ..processes.process import Process
from ..runtime.bridge import Parker
from ..runtime.detached_task import DetachedTask, is_cut_off
from ..vocabulary.errors import (
    BehaviourError,
    InitError,
    InitTimeoutError,
    NodeStoppedError,
    SpawnError,
    TooManyReadersError,
)
from ..vocabulary.ids import Alias
from ..vocabulary.options import MetaOptions
from ..vocabulary.reasons import Crashed, Reason, Shutdown
from ..vocabulary.states import MetaState
from .reader import in_reader, read, reader_ended, start_reader
from .shared_state import watch_writes
from .termination import release

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["spawn", "spawn_beside", "spawn_from_thread"]


async def spawn(
    kind: "type[Meta]",
    owner: "Process | Meta",
    behaviour: Any,
    options: MetaOptions,
    birth: DetachedTask | None = None,
    reads: bool = False,
) -> "Meta":
    """Make a meta-process, run its ``init``, start its reader. With ``reads``, the task ``birth``
    becomes the reader.

    Raises:
        SpawnError: the meta-process could not be started; everything is cleaned up.
    """
    kernel = owner.kernel
    if kernel.router.stopped:
        raise NodeStoppedError(kernel.pid.node, "it starts nothing any more")
    if not isinstance(owner, Process):
        owner.allow_spawn()
    meta = kind(
        kernel, behaviour, options, owner, owner if isinstance(owner, Process) else owner.process
    )
    for name in ("handle_inspect", "unblock"):
        if name in meta.callbacks.asynchronous:
            raise BehaviourError(
                f"{meta.callbacks.behaviour}.{name}",
                f"async def {name}",
                f"a plain, quick `def {name}`",
            )
    if meta.has_thread and kernel.thread_fairness.readers >= kernel.options.max_reader_threads:
        raise TooManyReadersError(kernel.options.max_reader_threads)
    meta.birth = birth
    # Bypass the class's own __setattr__: a frozen dataclass may be a meta-process.
    object.__setattr__(behaviour, "_meta", meta)
    if meta.has_thread:
        # Reserve the place before init runs, so that concurrent spawns do not all take the last
        # one.
        kernel.thread_fairness.take_place()
    kernel.router.registry.add_alias(meta.id, meta)
    owner.own(meta.id, meta)
    try:
        await _initialise(meta)
        if kernel.options.debug_shared_state:
            watch_writes(behaviour, partial(_side, meta), partial(_report_shared, meta))
        if reads and not meta.has_thread:
            meta.reader = birth
        else:
            start_reader(meta)
    except BaseException as error:
        reason = _begin_cleanup(meta, error)
        if meta.owned and not isinstance(error, GeneratorExit):
            with trio.CancelScope(shield=True):
                await stop_all(meta.owned, reason)
        release(meta)
        if isinstance(error, SpawnError) or not isinstance(error, Exception):
            raise
        raise InitError(meta.callbacks.behaviour, error, reason) from error
    meta.initialised = True
    if kernel.observer is None:
        # The observer must see each message, so the handler serves all of them.
        meta.serve_inline = behaviour._serve_in_passing
    else:
        kernel.observer(Spawned(meta.id, owner.id, meta.callbacks.behaviour, None))
    if len(meta.mailbox):
        meta.wake()
    if birth is None:
        await kernel.router.pause()
    return meta


def spawn_beside(
    kind: "type[Meta]",
    kernel: Kernel,
    find_owner: "Callable[[], Awaitable[Process | Meta]]",
    behaviour: Any,
    options: MetaOptions,
    on_start: Callable[[BaseException | None], None],
) -> DetachedTask:
    """Make a meta-process in a task of its own, without waiting for it. If its reader is a task, it
    is the same task.

    Calls ``on_start`` once: with None when the reader starts, or with the exception that prevented
    the start.

    Raises:
        NodeStoppedError: the node has ended.
    """
    made: Meta | None = None

    def ended() -> None:
        if made is not None and not made.has_thread:
            reader_ended(made)

    async def live() -> None:
        nonlocal made
        try:
            made = await spawn(kind, await find_owner(), behaviour, options, detached, reads=True)
        except BaseException as error:
            on_start(error)
            if is_cut_off(error):
                raise
            return
        on_start(None)
        if not made.has_thread:
            await read(made)

    detached = DetachedTask(ended)
    try:
        detached.start(kernel, live, type(behaviour).__qualname__)
    except RuntimeError:  # the nursery is closed
        raise NodeStoppedError(kernel.pid.node, "it starts nothing any more") from None
    return detached


async def _initialise(meta: "Meta") -> None:
    init_inline = meta.behaviour._begin_in_passing
    if "init" not in meta.callbacks.defined or (init_inline is not None and init_inline()):
        return
    timeout = meta.options.init_timeout
    with trio.CancelScope(deadline=trio.current_time() + timeout) as meta._initialising:
        await meta.callback("init")
    # The init was too late and has failed, even if it swallowed the cancellation.
    was_cut, meta._initialising = meta._initialising.cancel_called, None
    if meta.reason is not None:
        raise SpawnError(f"{meta.callbacks.behaviour} was stopped during its init: {meta.reason}")
    if was_cut:
        raise InitTimeoutError(meta.callbacks.behaviour, timeout)


def _begin_cleanup(meta: "Meta", error: BaseException) -> Reason:
    """Begin the cleanup after a failed ``init``. ``terminate`` is not called, since the
    meta-process never started.
    """
    if meta.has_thread:
        meta.kernel.thread_fairness.give_place_back()
    reason = meta.reason
    if reason is None:
        meta.reason = reason = Crashed(error) if isinstance(error, Exception) else Shutdown()
        meta.kernel.obituaries.note(meta)
    meta.accepting = False
    meta.mailbox.refuse_waiters()
    meta.resources.unblock()
    return reason


def spawn_from_thread(meta: "Meta", behaviour: Any, options: MetaOptions) -> Alias:
    """Spawn a child. Blocks this thread until the child is registered or has failed."""
    parker: Parker[outcome.Outcome[Meta]] = Parker()

    def refuse() -> None:
        # The thread must continue even if the task was cut off. After an earlier result, this has
        # no effect.
        parker.settle(
            outcome.Error(NodeStoppedError(meta.router.node, "it starts nothing any more"))
        )

    detached = DetachedTask(refuse)

    async def spawn_child() -> None:
        parker.settle(await outcome.acapture(spawn, type(meta), meta, behaviour, options, detached))

    def start() -> None:
        try:
            detached.start(meta.kernel, spawn_child, f"spawn {type(behaviour).__qualname__}")
        except RuntimeError:  # the nursery is closed
            refuse()

    meta.router.bridge.post(start)
    parker.wait(None)
    assert parker.value is not None
    return parker.value.unwrap().id


def _side(meta: "Meta") -> str | None:
    """Name the half that is running; None if the other half cannot be running."""
    if meta.state is MetaState.TERMINATED:
        return None
    if in_reader(meta):
        # The thread may run before start_reader has stored its identifier.
        return "reader"
    return "handler" if meta.initialised else None


def _report_shared(meta: "Meta", attribute: str) -> None:
    meta.log.warning(
        "an attribute is written by the reader and by the handler; use Counter or Flag, or let "
        "one side own it",
        attribute=attribute,
    )
