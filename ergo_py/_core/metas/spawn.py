"""``spawn_meta``: makes a meta-process, runs its ``init`` and starts its reader, or leaves nothing
behind.
"""

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, NoReturn

import outcome
import trio

from ..kernel import Kernel
from ..processes.ownership import stop_all
from ..processes.process import Process
from ..runtime.bridge import Parker
from ..runtime.detached_task import DetachedTask, is_cut_off
from ..vocabulary.errors import (
    InitError,
    InitTimeoutError,
    NodeStoppedError,
    SpawnError,
    TooManyReadersError,
)
from ..vocabulary.hints import explain
from ..vocabulary.ids import Alias
from ..vocabulary.options import MetaOptions
from ..vocabulary.reasons import Reason, is_a, is_for_program
from .meta import Meta
from .shared_state import Flag

__all__ = [
    "Birth",
    "spawn_meta",
    "spawn_meta_beside",
    "spawn_meta_from_thread",
    "spawn_meta_in_passing",
]


class Birth:
    """Owns the task of a spawn, if the spawn has made a task for itself, and the time limit of
    ``init``.
    """

    __slots__ = ("_scope", "task")

    def __init__(self, task: DetachedTask | None = None) -> None:
        self.task: DetachedTask | None = task
        self._scope: trio.CancelScope | None = None

    async def initialise(self, meta: Meta) -> None:
        """Run ``init`` within its time limit.

        Raises:
            SpawnError: a stop was asked for meanwhile.
            InitTimeoutError: the time was over.
        """
        timeout, was_cut = meta.options.init_timeout, False
        init_inline = meta.behaviour._begin_in_passing
        if "init" in meta.callbacks.defined and not (init_inline is not None and init_inline()):
            with trio.CancelScope(deadline=trio.current_time() + timeout) as self._scope:
                await meta.handler.callback("init", Flag())
            # The init was too late and has failed, even if it swallowed the cancellation.
            was_cut, self._scope = self._scope.cancel_called, None
        # Before the timeout: a stop cancels the same scope, and its reason is the cause.
        if meta.ending.reason is not None:
            raise _stopped(meta)
        if was_cut:
            raise InitTimeoutError(meta.callbacks.behaviour, timeout)

    def cut_short(self) -> None:
        """Cancel ``init``, if it runs."""
        if self._scope is not None:
            self._scope.cancel()


async def spawn_meta(
    owner: Process | Meta,
    behaviour: Any,
    options: MetaOptions,
    task: DetachedTask | None = None,
    reads: bool = False,
) -> Meta:
    """Make a meta-process, run its ``init``, start its reader. ``task`` is the task of this spawn,
    if it has its own; with ``reads``, that task begins to read.

    Raises:
        SpawnError: the meta-process could not be started; everything is cleaned up.
    """
    # Known to the meta-process before `init` runs: a stop has to cancel an `init` that waits.
    birth = Birth(task)
    meta = _make(owner, behaviour, options, birth)
    kernel, has_thread = meta.kernel, meta.reader.has_thread
    try:
        await birth.initialise(meta)
        if kernel.options.debug_shared_state:
            behaviour._watch_writes()
        if task is None or has_thread or not reads:
            meta.reader.start()
        else:
            meta.reader.adopt(task)
    except BaseException as error:
        reason = _abort(meta, error)
        if meta.owned and not is_a(error, GeneratorExit):
            # The spawn may be cancelled: the children of a failed init must have ended before its
            # error is raised.
            with trio.CancelScope(shield=True):
                await stop_all(meta.owned, reason)
        _raise_failure(meta, error, reason)
    meta.started()
    if len(meta.mailbox):
        meta.wake()
    if task is None:
        # The meta-process runs: an owner that is cancelled here would never learn its alias.
        with trio.CancelScope(shield=True):
            await kernel.router.pause()
    return meta


def spawn_meta_in_passing(owner: Process | Meta, behaviour: Any, options: MetaOptions) -> Meta:
    """Make a meta-process without a task and without waiting, for a behaviour that can do all of
    ``init`` in passing. A reader with a thread runs; without one, the caller has to call
    ``reader.begin`` next.

    Raises:
        SpawnError: the meta-process could not be started; everything is cleaned up.
    """
    meta = _make(owner, behaviour, options, None)
    try:
        began = behaviour._begin_in_passing()
        assert began, "the init has to wait"
        if meta.ending.reason is not None:
            raise _stopped(meta)
        if meta.kernel.options.debug_shared_state:
            behaviour._watch_writes()
        if meta.reader.has_thread:
            meta.reader.start()
    except BaseException as error:
        _raise_failure(meta, error, _abort(meta, error))
    meta.started()
    return meta


def _make(owner: Process | Meta, behaviour: Any, options: MetaOptions, birth: Birth | None) -> Meta:
    """Make a meta-process that its owner and its alias know, before its ``init``."""
    kernel = owner.kernel
    if kernel.router.stopped:
        raise NodeStoppedError(kernel.pid.node, "it starts nothing any more")
    if isinstance(owner, Process):
        process = owner
    else:
        process = owner.process
        if owner.ending.reason is not None:
            owner.allow_spawn()
    meta = Meta(kernel, behaviour, options, owner, process, birth)
    has_thread = meta.reader.has_thread
    if has_thread and kernel.thread_fairness.readers >= kernel.options.max_reader_threads:
        raise TooManyReadersError(kernel.options.max_reader_threads)
    # Bypass the class's own __setattr__: a frozen dataclass may be a meta-process.
    object.__setattr__(behaviour, "_meta", meta)
    if has_thread:
        # Before init runs, so that concurrent spawns do not all take the last place.
        kernel.thread_fairness.take_place()
    # Before init: messages that come during init wait in the mailbox, and are served when it has
    # succeeded.
    kernel.router.registry.aliases[meta.id] = meta
    owner.own(meta.id, meta)
    return meta


def _stopped(meta: Meta) -> SpawnError:
    return SpawnError(f"{meta.callbacks.behaviour} was stopped during its init: {meta.reason}")


def _abort(meta: Meta, error: BaseException) -> Reason:
    """Begin the cleanup of a meta-process that has not started. Returns the reason of its end."""
    if meta.reader.has_thread:
        meta.kernel.thread_fairness.give_place_back()
    explain(error, meta.behaviour)
    return meta.ending.abort(error)


def _raise_failure(meta: Meta, error: BaseException, reason: Reason) -> NoReturn:
    """End the cleanup, and raise the error of the spawn."""
    meta.ending.release()
    if is_a(error, SpawnError) or is_cut_off(error) or is_for_program(error):
        raise error
    raise InitError(meta.callbacks.behaviour, error, reason) from error


def spawn_meta_beside(
    kernel: Kernel,
    find_owner: Callable[[], Awaitable[Process | Meta]],
    behaviour: Any,
    options: MetaOptions,
    on_start: Callable[[BaseException | None], None],
    context: Context,
) -> DetachedTask:
    """Make a meta-process in a task of its own, with a copy of ``context``, without waiting for
    it. If its reader is a task, it is the same task.

    Calls ``on_start`` once: with None when the reader starts, or with the exception that prevented
    the start.

    Raises:
        NodeStoppedError: the node has ended.
    """
    made: Meta | None = None

    def ended() -> None:
        if made is not None and not made.reader.has_thread:
            made.reader.task_ended()

    async def live() -> None:
        nonlocal made
        try:
            made = await spawn_meta(await find_owner(), behaviour, options, detached, reads=True)
        except BaseException as error:
            # Also if the task is cut off: the server that waits for the start has to hear of it.
            on_start(error)
            if is_cut_off(error):
                raise
            return
        on_start(None)
        if not made.reader.has_thread:
            await made.reader.read()

    detached = DetachedTask(ended)
    try:
        detached.start(kernel, live, type(behaviour).__qualname__, context)
    except RuntimeError:  # the nursery is closed
        raise NodeStoppedError(kernel.pid.node, "it starts nothing any more") from None
    return detached


def spawn_meta_from_thread(owner: Meta, behaviour: Any, options: MetaOptions) -> Alias:
    """Spawn a child of a meta-process. Blocks this thread until the child is registered or has
    failed.
    """
    parker: Parker[outcome.Outcome[Meta]] = Parker()

    def refuse() -> None:
        # The thread must continue even if the task was cut off. After an earlier result, this has
        # no effect.
        parker.settle(
            outcome.Error(NodeStoppedError(owner.router.node, "it starts nothing any more"))
        )

    detached, context = DetachedTask(refuse), copy_context()

    async def spawn_child() -> None:
        parker.settle(await outcome.acapture(spawn_meta, owner, behaviour, options, detached))

    def start() -> None:
        try:
            name = f"spawn {type(behaviour).__qualname__}"
            detached.start(owner.kernel, spawn_child, name, context)
        except RuntimeError:  # the nursery is closed
            refuse()

    owner.router.bridge.post(start)
    parker.wait(None)
    assert parker.value is not None
    return parker.value.unwrap().id
