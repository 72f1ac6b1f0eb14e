"""How a process ends: one order, whatever the cause, so that whoever is told can start a replacement at once."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import Task, checkpoint

from .ids import Alias, Name
from .info import Ended
from .leftovers import answer, close_seats, drop_seats, hand_over
from .mailbox import CHILD_EXIT, CONTROL, SYSTEM_LANE
from .observing import Stopped
from .parking import ENDED, PARKED, Standin, wake
from .publishing import PROCESS_ENDED
from .reasons import Crashed, Killed, Reason, Shutdown, is_failure
from .receiver import NOBODY
from .relations import Relation
from .requests import Caller
from .serving import check_plain
from .slices import at_once, in_slices
from .states import STOPPING, TERMINATED
from .timers import Owned

if TYPE_CHECKING:
    from .process import Process

__all__ = ["abandon", "finish", "kill_all", "shut", "stop_all", "undo"]

_GRACE: Final = 0.5
"""Seconds that something killed is given to be gone, beyond its own time limits."""
_GONE: Final = Standin(ENDED)
_MANY: Final = 256
"""More watchers than that are told of an end in slices."""


async def finish(process: "Process", reason: Reason) -> None:
    """Refuse messages; stop what it owns; ``terminate``; answer; release; tell."""
    process.reason = reason
    _begin(process)
    try:
        if process.seats is not None:
            await _empty_lines(process, reason)
        if process.callbacks.parts:
            await _part(process, reason)
        if process.owned:
            with trio.CancelScope(shield=True) as process._ending:
                if process.seats is not None:
                    await process.behaviour._wind_down(reason)
                await stop_all(process.owned, reason)
            if process.owned:
                # Killed while it waited for its own: they end with it, and faster.
                with trio.CancelScope(shield=True):
                    await kill_all(process.owned)
        if "terminate" in process.callbacks.defined:
            await _last_word(process, "terminate", reason)
        if _has_much(process):
            await _clear(process, reason)
    except BaseException:
        _release_at_once(process)
        raise
    rest = _release(process)
    if rest is not None:
        await in_slices(rest)


async def undo(process: "Process", error: BaseException) -> None:
    """End a process whose ``init`` failed: as :func:`finish`, but it never lived, so nothing is told to ``terminate``."""
    if process.state is TERMINATED:
        return
    # A spawner that was cancelled has not crashed its child: it took it along.
    process.reason = process.reason or (Killed() if isinstance(error, trio.Cancelled) else Crashed(error))
    _begin(process)
    if process.seats is not None:
        await _empty_lines(process, process.reason)
    if process.owned:
        with trio.CancelScope(shield=True):
            await stop_all(process.owned, process.reason)
    await _clear(process, process.reason)
    await _release_in_slices(process)


async def stop_all(owned: dict[object, Any], reason: Reason) -> None:
    """Stop what somebody owns, each within its own time.

    Servers stop accepting, or peers that come back would keep them busy. Then their sessions are stopped, all together. The
    rest follows one by one, last started first.
    """
    sessions = [session for one in tuple(owned.values()) for session in one.stop_accepting()]
    if sessions:
        await _stop_together(sessions, reason)
    while owned:
        key, last = owned.popitem()
        owned[key] = last
        await last.shut(reason)
        owned.pop(key, None)


async def _stop_together(sessions: "list[Process]", reason: Reason) -> None:
    """Stop many children of one process at once. Its own time limit does not count meanwhile: each of them has one."""
    owner = sessions[0].parent
    assert owner is not None
    owner.sessions_over = over = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            for session in sessions:
                session.leave_wait(Shutdown())
                nursery.start_soon(session.shut, reason)
    finally:
        over.set()


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
        if _can_end_asleep(process):
            _end_asleep(process, Shutdown())
            if process.router.pause_is_due():
                await process.router.turn()
            return
        process.ask_to_exit(owner, Shutdown())
        # Most are gone after a turn or two of the scheduler (it shuffles its tasks), and then need no time limit.
        for _ in range(2):
            await checkpoint()
            if process.state is TERMINATED:
                return
        while True:
            with trio.move_on_after(options.shutdown):
                await process.wait_gone()
                return
            sessions, process.sessions_over = process.sessions_over, None
            if sessions is None:
                break
            # Its own time begins when theirs is over.
            await sessions.wait()
    ended = Ended(process.id, process.name, process.callbacks.behaviour, Shutdown())
    for patience in (options.terminate_timeout + _GRACE, _GRACE):
        process.kill()
        with trio.move_on_after(patience):
            await process.wait_gone()
            if kernel.stopping:
                kernel.killed.append(ended)
            return
    await abandon(process)


def _can_end_asleep(process: "Process") -> bool:
    """Say whether a process sleeps in its mailbox, and nothing that belongs to its end could wait."""
    callbacks = process.callbacks
    return (
        process.task.custom_sleep_data is PARKED
        and not process.owned
        and process.seats is None
        and not process.events
        and len(process.deferred or ()) + len(process.timers or ()) <= _MANY
        and process.id not in process.kernel.watches
        and process.kernel.relations.watchers(process.id) <= _MANY
        and not callbacks.parts
        and "terminate" not in callbacks.asynchronous
    )


def _end_asleep(process: "Process", reason: Reason) -> None:
    """End a process in the turn of its owner: to wake it and wait costs three times as much as all that its end does.

    Asleep means that its lanes are empty and no callback runs: this is where it would have taken the exit.
    """
    process.reason, task = reason, process.task
    assert isinstance(task, Task)
    _begin(process)
    try:
        if "terminate" in process.callbacks.defined:
            task.context.run(_plain_last_word, process, "terminate", reason)
    finally:
        _release_at_once(process)
        # Its task finds that all is done.
        wake(task)


async def abandon(process: "Process") -> None:
    """Leave behind a process that would not end: its tables are cleared, its task is cut off if that is possible."""
    if process.id not in process.router.processes:
        return
    if any(one.pid == process.id for one in process.kernel.abandoned):
        # Its owner and the clock can lose patience in the same turn: the second one waits for what the first one does.
        await process.wait_gone()
        return
    ended = Ended(process.id, process.name, process.callbacks.behaviour, process.reason)
    process.kernel.abandoned.append(ended)
    process.log.error("process abandoned: it did not end when killed", callback=process.current_callback())
    task = process.task
    process.reason = process.reason or Shutdown()
    if process.callbacks.any_async and isinstance(task, Task):
        relay = process.guard(task)
        relay.abandon()
        with trio.CancelScope(shield=True):
            await checkpoint()
            await checkpoint()
        relay.abort(task)
    if process.state is not TERMINATED:
        if process.state is not STOPPING:
            _begin(process)
        if process.owned:
            with trio.CancelScope(shield=True):
                await kill_all(process.owned)
        await _clear(process, process.reason)
        await _release_in_slices(process)


def _begin(process: "Process") -> None:
    """Take no more user messages. A call that was cut off in progress is answered with the queued ones."""
    process.refuse()
    process.kernel.obituaries.note(process)
    process.enter(STOPPING)
    if process.handling is not None and isinstance(process.handling[2], Caller):
        process.handling[2].defer(process)


async def _part(process: "Process", reason: Reason) -> None:
    """What comes before the children are stopped: one callback if there is to be a successor, another one if not."""
    seat = process.seat
    name = "pre_restart" if seat is not None and seat.returns(reason) else "pre_stop"
    if name in process.callbacks.defined:
        await _last_word(process, name, reason)


async def _last_word(process: "Process", name: str, reason: Reason) -> None:
    if name not in process.callbacks.asynchronous:
        _plain_last_word(process, name, reason)
        return
    process.handling = None
    timeout = process.options.terminate_timeout
    patience = _Patience(process)
    process.kernel.clock.arm_call(patience, timeout + 2 * _GRACE)
    try:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout) as limit:
            process._ending = limit
            await getattr(process.behaviour, name)(reason)
        if limit.cancelled_caught:
            process.log.error(f"{name} was cut off", limit=timeout)
    except BaseException as error:
        _account_for(process, name, error)
    finally:
        patience.abandon()


class _Patience(Caller):
    """What the clock gives up on, as on a call, if a last callback goes on although it was cut off."""

    __slots__ = ("process",)

    def __init__(self, process: "Process") -> None:
        super().__init__(process.id, 0, process.id, None)
        self.process: Process | None = process

    def awaken(self) -> None:
        # Once abandoned it is settled, and nobody is woken: so there still is a process.
        assert self.process is not None
        self.process.kernel.nursery.start_soon(abandon, self.process)

    def abandon(self) -> None:
        super().abandon()
        self.process = None


def _plain_last_word(process: "Process", name: str, reason: Reason) -> None:
    process.handling = None
    try:
        check_plain(process, name, getattr(process.behaviour, name)(reason))
    except BaseException as error:
        _account_for(process, name, error)


def _account_for(process: "Process", name: str, error: BaseException) -> None:
    """Deal with what left a last callback: the end goes on."""
    if isinstance(error, Exception):
        process.log.error(f"{name} raised", exception=Crashed(error).traceback)
    elif isinstance(error, trio.Cancelled | GeneratorExit):
        raise error
    else:
        process.kernel.panic(error)


def _has_much(process: "Process") -> bool:
    """Say whether there may be much to release. Mostly there is not, and then the end of a process pays for this look only."""
    return bool(
        process.main
        or process.mailbox.ahead
        or process.deferred
        or process.timers
        or process.seats
        or process.kernel.relations
    )


async def _clear(process: "Process", reason: Reason) -> None:
    """Do in slices what would take long in :func:`_release`, where nothing may wait."""
    await in_slices(answer(process, reason))
    kernel = process.kernel
    if process.timers:
        await in_slices(_cancel_timers(process.timers))
    if kernel.relations:
        await in_slices(kernel.forget_watcher(process.id))
    if process.seats and process.seat is None:
        # A supervisor that nobody restarts; the seats of one that has a seat itself wait for its successor.
        seats, process.seats = process.seats, {}
        await in_slices(drop_seats(kernel, seats.values(), reason))


def _cancel_timers(timers: Owned) -> Iterator[None]:
    for number, timer in enumerate(tuple(timers), 1):
        timer.cancel()
        if not number % _MANY:
            yield


async def _release_in_slices(process: "Process") -> None:
    rest = _release(process)
    if rest is not None:
        await in_slices(rest)


def _release_at_once(process: "Process") -> None:
    rest = _release(process)
    if rest is not None:
        at_once(rest)


def _release(process: "Process") -> Iterator[None] | None:
    """Everything after ``terminate``. Nothing here waits, so nobody sees it half done.

    Returns the telling, which comes last, if there are many to be told.
    """
    if process.state is TERMINATED:
        return None
    kernel, router, reason = process.kernel, process.router, process.reason or Shutdown()
    lived = process.behaviour is not None and process.task is process.home
    # Before the lanes are emptied: a thread that appends looks at the task then, and sees that it came too late.
    process.task = _GONE
    process.handling = None
    box = process.mailbox
    if process.main or box.ahead or box.log or process.deferred or process.postponed:
        at_once(answer(process, reason))
    if process.seat is not None:
        hand_over(process, process.seat)
    name, aliases = process.name, process.aliases or ()
    if name is not None:
        router.registry.free_name(name)
    for alias in aliases:
        router.registry.drop_alias(alias)
    if process.timers:
        at_once(_cancel_timers(process.timers))
    if kernel.log.watched:
        kernel.remove_logger(process.id)
    if kernel.relations:
        at_once(kernel.forget_watcher(process.id))
    del router.processes[process.id]
    if kernel.watches:
        kernel.stop_watching(process.id)
    parent = process.parent
    if parent is None:
        kernel.roots.pop(process.id, None)
    else:
        parent.disown(process.id)
    process.enter(TERMINATED)
    process.behaviour = process._scope = process._ending = process.waiting = None
    process.peer = NOBODY
    if router.peer is process:
        router.peer = NOBODY
    # Only now are the others told.
    watching = _watching(process, aliases) if kernel.relations or process.events else []
    if len(watching) > _MANY:
        return _tell_many(process, watching, reason, lived)
    for relation in watching:
        kernel.tell(relation, reason)
    _tell(process, reason, lived)
    return None


def _watching(process: "Process", aliases: Iterable[Alias]) -> list[Relation]:
    """Take the relations to a process, its addresses and its events out of the tables."""
    kernel = process.kernel
    fired = [*kernel.relations.fire(process.id)]
    if process.name is not None:
        fired += kernel.relations.fire(Name(process.name, process.router.node))
    for alias in aliases:
        fired += kernel.relations.fire(alias)
    for event in process.events or ():
        kernel.publishing.events.remove(event)
        fired += kernel.relations.fire(event)
    return fired


def _tell_many(process: "Process", watching: list[Relation], reason: Reason, lived: bool) -> Iterator[None]:
    for number, relation in enumerate(watching, 1):
        process.kernel.tell(relation, reason)
        if not number % _MANY:
            yield
    _tell(process, reason, lived)


def _tell(process: "Process", reason: Reason, lived: bool) -> None:
    """Tell those who need no relation to it: observer, subscribers of the node's events, parent, and whoever waits for its end."""
    kernel, router, parent = process.kernel, process.router, process.parent
    if kernel.observer is not None and lived:
        kernel.observer(Stopped(process.id, reason))
    if kernel.publishing.heard:
        ended = Ended(process.id, process.name, process.callbacks.behaviour, reason)
        kernel.publishing.announce(PROCESS_ENDED, ended)
    if lived and parent is not None:
        if process.seat is not None:
            router.signal(parent, SYSTEM_LANE, (CONTROL, process.id, None, (process.seat, reason)))
        if "handle_child_exit" in parent.callbacks.defined:
            router.signal(parent, SYSTEM_LANE, (CHILD_EXIT, process.id, None, reason))
    if process.seats is not None and process.seat is None:
        at_once(drop_seats(kernel, process.seats.values(), reason))
        if lived and parent is None and is_failure(reason) and not kernel.stopping:
            kernel.escalate(process, reason)
    if process._gone is not None:
        process._gone.set()


async def _empty_lines(process: "Process", reason: Reason) -> None:
    """A supervisor ends: a child that is down comes back with the successor of its supervisor at the earliest, or never.

    Its other children would wait for it until they are killed, since they end first.
    """
    returns = process.seat is not None and process.seat.returns(reason)
    vacant = [seat for seat in (process.seats or {}).values() if seat.pid is None]
    if not returns:
        await in_slices(close_seats(process.kernel, vacant, reason))
        return
    for seat in vacant:
        seat.turn_away(reason)
