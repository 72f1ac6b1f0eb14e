"""How a process ends: one order, whatever the cause, so that whoever is told can start a replacement at once."""

from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import Task, checkpoint

from .errors import TargetDownError
from .ids import Name
from .info import Ended
from .mailbox import CHILD_EXIT, Lane
from .messages import Why
from .reasons import Crashed, Reason, Shutdown
from .requests import Caller
from .serving import check_plain
from .states import State

if TYPE_CHECKING:
    from .process import Process

__all__ = ["abandon", "finish", "kill_all", "shut", "stop_all", "undo"]

_GRACE: Final = 0.5
"""Seconds that something killed is given to be gone, beyond its own time limits."""


async def finish(process: "Process", reason: Reason) -> None:
    """Refuse messages; stop what it owns; ``terminate``; answer; release; tell."""
    process.reason = reason
    _begin(process)
    try:
        if process.owned:
            with trio.CancelScope(shield=True) as process._ending:
                await stop_all(process.owned, reason)
            if process.owned:
                # Killed while it waited for its own: they end with it, and faster.
                with trio.CancelScope(shield=True):
                    await kill_all(process.owned)
        if "terminate" in process.callbacks.defined:
            await _terminate(process, reason)
    finally:
        _release(process)


async def undo(process: "Process", error: BaseException) -> None:
    """End a process whose ``init`` failed: as :func:`finish`, but it never lived, so nothing is told to ``terminate``."""
    process.reason = process.reason or Crashed(error)
    _begin(process)
    if process.owned:
        with trio.CancelScope(shield=True):
            await stop_all(process.owned, process.reason)
    _release(process)


async def stop_all(owned: dict[object, Any], reason: Reason) -> None:
    """Stop what somebody owns, last started first, each within its own time."""
    while owned:
        key, last = owned.popitem()
        owned[key] = last
        await last.shut(reason)
        owned.pop(key, None)


async def kill_all(owned: dict[object, Any]) -> None:
    """End what somebody owns, all at once and without being asked."""
    for _ in range(2):
        for one in list(owned.values()):
            one.kill()
        with trio.move_on_after(_GRACE):
            for one in list(owned.values()):
                await one.wait_gone()
            owned.clear()
    while owned:
        _, one = owned.popitem()
        await one.abandon()


async def shut(process: "Process") -> None:
    """Stop a child: ask, kill, and in the end leave it behind. Never takes longer than the sum of its time limits."""
    kernel, options = process.kernel, process.options
    owner = kernel.pid if process.parent is None else process.parent.id
    if options.shutdown > 0:
        process.ask_to_exit(owner, Shutdown())
        # Most are gone after one turn of the scheduler, and then need no time limit.
        await checkpoint()
        if process.state is State.TERMINATED:
            return
        with trio.move_on_after(options.shutdown):
            await process.wait_gone()
            return
    ended = Ended(process.id, process.name, process.callbacks.behaviour, Shutdown())
    for patience in (options.terminate_timeout + _GRACE, _GRACE):
        process.kill()
        with trio.move_on_after(patience):
            await process.wait_gone()
            kernel.killed.append(ended)
            return
    await abandon(process)


async def abandon(process: "Process") -> None:
    """Leave behind a process that would not end: its tables are cleared, its task is cut off if that is possible."""
    ended = Ended(process.id, process.name, process.callbacks.behaviour, process.reason)
    process.kernel.abandoned.append(ended)
    process.log.error("process abandoned: it did not end when killed", callback=process.current_callback())
    relay, task = process._relay, process.task
    process.reason = process.reason or Shutdown()
    if relay is not None and isinstance(task, Task):
        relay.abandon()
        with trio.CancelScope(shield=True):
            await checkpoint()
            await checkpoint()
        relay.abort(task)
    if process.state is not State.TERMINATED:
        if process.state is not State.STOPPING:
            _begin(process)
        if process.owned:
            with trio.CancelScope(shield=True):
                await kill_all(process.owned)
        _release(process)


def _begin(process: "Process") -> None:
    """Take no more user messages. A call that was cut off in progress is answered with the queued ones."""
    process.refuse()
    process.enter(State.STOPPING)
    if process.handling is not None and isinstance(process.handling[2], Caller):
        process.handling[2].defer(process)


async def _terminate(process: "Process", reason: Reason) -> None:
    process.handling = None
    try:
        if "terminate" not in process.callbacks.asynchronous:
            check_plain(process, "terminate", process.behaviour.terminate(reason))
            return
        timeout = process.options.terminate_timeout
        with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout) as limit:
            process._ending = limit
            await process.behaviour.terminate(reason)
        if limit.cancelled_caught:
            process.log.error("terminate was cut off", limit=timeout)
    except Exception as error:
        process.log.error("terminate raised", exception=Crashed(error).traceback)
    except BaseException as error:
        if isinstance(error, trio.Cancelled | GeneratorExit):
            raise
        process.kernel.panic(error)


def _release(process: "Process") -> None:
    """Everything after ``terminate``. Nothing here waits, so nobody sees it half done."""
    if process.state is State.TERMINATED:
        return
    kernel, router, reason = process.kernel, process.router, process.reason or Shutdown()
    _answer(process, reason)
    name, aliases = process.name, process.aliases or ()
    if name is not None:
        router.registry.free_name(name)
    for alias in aliases:
        router.registry.drop_alias(alias)
    for timer in tuple(process.timers or ()):
        timer.cancel()
    kernel.remove_logger(process.id)
    kernel.relations.forget(process.id)
    del router.processes[process.id]
    parent = process.parent
    if parent is None:
        kernel.roots.pop(process.id, None)
    else:
        parent.disown(process.id)
    lived = process.behaviour is not None and process.task is process.home
    process.enter(State.TERMINATED)
    process.behaviour = process._scope = process._ending = process.waiting = None
    # Only now are the others told.
    kernel.tell_all(process.id, reason)
    if name is not None:
        kernel.tell_all(Name(name, router.node), reason)
    for alias in aliases:
        kernel.tell_all(alias, reason)
    if lived and parent is not None and "handle_child_exit" in parent.callbacks.defined:
        router.signal(parent, Lane.SYSTEM, (CHILD_EXIT, process.id, None, reason))
    if process._gone is not None:
        process._gone.set()


def _answer(process: "Process", reason: Reason) -> None:
    """Answer every call that was queued or deferred; the other messages become dead letters."""
    process.handling = None
    for caller in tuple(process.deferred or ()):
        caller.settle(None, TargetDownError(caller.to, caller.request, reason))
    for envelope in process.mailbox.drain():
        if isinstance(envelope[2], Caller):
            caller = envelope[2]
            caller.settle(None, TargetDownError(caller.to, caller.request, reason))
        else:
            process.router.bury(envelope, process.id, Why.UNHANDLED_AT_EXIT, process)
