"""The reader of a meta-process: runs ``start`` in a thread or in a task."""

from typing import TYPE_CHECKING, Any

import outcome
from trio.lowlevel import Task, current_task

from ..runtime.bridge import ReaderThread, get_ident
from ..runtime.detached_task import DetachedTask, without_cancellation
from ..tables.callbacks import check_plain, runs_callbacks
from ..vocabulary.errors import NodeStoppedError, SpawnError
from ..vocabulary.reasons import Normal

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["in_reader", "read", "reader_ended", "start_reader"]


def start_reader(meta: "Meta") -> None:
    """Start the reader: a thread for a plain ``def start``, a task for an ``async def start``.

    Raises:
        SpawnError: the system cannot start a thread.
    """
    if not meta.has_thread:
        meta.reader = DetachedTask(lambda: reader_ended(meta))
        meta.reader.start(meta.kernel, lambda: read(meta), f"{meta.callbacks.behaviour}.start")
        return
    kind = meta.behaviour.kind or type(meta.behaviour).__name__.lower()
    meta.thread = thread = ReaderThread(
        f"ergo-{kind}-{meta.id.number}", lambda: _read_in_thread(meta)
    )
    try:
        thread.start()
    except RuntimeError as error:
        meta.thread = None
        raise SpawnError(
            f"the system has no thread for {meta.callbacks.behaviour}: {error}"
        ) from error
    meta.outbox.reader = thread.ident


def in_reader(meta: "Meta") -> bool:
    """Whether the current code runs in the reader: in its thread, its task, or a child task of
    that.
    """
    if meta.has_thread:
        return meta.thread is not None and get_ident() == meta.thread.ident
    reader = None if meta.reader is None else meta.reader.task
    if reader is None or not meta.router.bridge.on_loop():
        return False
    try:
        task: Task | None = current_task()
    except RuntimeError:  # a callback of the loop, outside any task
        return False
    while task is not None and task is not reader:
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task
    return task is not None


def _read_in_thread(meta: "Meta") -> None:
    result = outcome.capture(_start, meta)
    try:
        # The bridge keeps the order of a thread, so this arrives after everything the reader has
        # sent.
        meta.router.bridge.post(_thread_ended, meta, result)
    except NodeStoppedError:
        # The node has stopped and abandoned this thread, so only this thread can close the
        # resources.
        meta.resources.close()


def _start(meta: "Meta") -> None:
    check_plain(meta, "start", meta.behaviour.start())
    # The reader counts as ended once its messages are delivered, however slow the receivers are.
    meta.outbox.wind_up()


def _thread_ended(meta: "Meta", result: outcome.Outcome[Any]) -> None:
    meta.kernel.thread_fairness.give_place_back()
    _ended(meta, result)
    meta.abandoned_thread_ended("reader")


@runs_callbacks
async def read(meta: "Meta") -> None:
    """Run ``start`` in the reader's task. If it returns, the same task runs the termination, since
    the reader does not need the task any more.
    """
    try:
        await meta.behaviour.start()
        meta.outbox.rush()
        await meta.outbox.wait_until_empty()
    except GeneratorExit:
        raise
    except BaseException as error:
        failure = without_cancellation(error)
        if failure is None:
            raise
        _ended(meta, outcome.Error(failure))
        return
    if meta.reason is None:
        meta.reader_gone.set()
        await meta.end_here(Normal())


def reader_ended(meta: "Meta") -> None:
    """Record the end of a reader task that did not record it itself: it was cancelled or
    abandoned.
    """
    _ended(meta, outcome.Value(None))


def _ended(meta: "Meta", result: outcome.Outcome[Any]) -> None:
    meta.reader_gone.set()
    if meta.reason is not None:
        # The reader was asked to end, so its exception is no failure.
        if isinstance(result, outcome.Error):
            meta.pass_on(result.error)
    elif isinstance(result, outcome.Error):
        meta.finish(meta.failed("start", result.error))
    else:
        meta.finish(Normal())
