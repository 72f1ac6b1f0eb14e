"""`call_in_thread`: a plain function in a thread, for a process that waits for it on the loop."""

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import trio
from trio.lowlevel import checkpoint_if_cancelled, start_thread_soon

from .._core.processes.process import Process
from .._core.runtime.dispatcher_threads import Job
from .._core.runtime.thread_parent import HostTask, ThreadParent
from .._core.vocabulary.dispatchers import Dispatcher

__all__ = ["call_in_thread"]


async def call_in_thread(
    process: Process, function: Callable[[], Any], dispatcher: Dispatcher | None
) -> object:
    """Call a function in a thread of its dispatcher, or in any thread without one, and return its
    result.

    A cancellation withdraws a call that has not begun. Otherwise it waits until the function
    returns: a thread cannot be interrupted, but ``trio.from_thread`` raises in it. If that takes
    too long, the kernel cuts the wait off, and the thread is reported as abandoned.
    """
    await checkpoint_if_cancelled()
    kernel = process.kernel
    done = trio.Event()
    host = HostTask(kernel, f"{process.callbacks.behaviour}: for the thread of a task")
    job = Job(partial(copy_context().run, function), done.set, process, host)
    if dispatcher is not None:
        group = kernel.dispatcher_threads.join(dispatcher, process.id.number)
        group.put(job)
        try:
            return await _result(process, job, host, done)
        finally:
            kernel.dispatcher_threads.leave(group)
    async with kernel.task_threads:
        # A loop that is never idle must not starve the thread.
        kernel.thread_fairness.watch()
        try:
            bridge = process.router.bridge
            start_thread_soon(partial(ThreadParent(bridge, host).run, job.run, bridge), _drop)
            return await _result(process, job, host, done)
        finally:
            kernel.thread_fairness.unwatch()


async def _result(process: Process, job: Job, host: HostTask, done: trio.Event) -> object:
    try:
        await done.wait()
    except trio.Cancelled:
        if not job.withdraw():
            host.cancel()
            await _wait_for_return(process, job, done)
        raise
    assert job.outcome is not None
    return job.outcome.unwrap()


async def _wait_for_return(process: Process, job: Job, done: trio.Event) -> None:
    try:
        with trio.CancelScope(shield=True):
            await done.wait()
    except BaseException:
        # The kernel has lifted the shield, or closes this coroutine.
        process.kernel.note_abandoned_thread(process.id)
        process.log.error(
            "the function of a task did not end in time, and its thread was abandoned",
            exception=job.stack(),
        )
        raise


def _drop(_outcome: object) -> None:
    """Called in the thread when the job is done, which has notified the loop already."""
