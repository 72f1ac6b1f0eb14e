"""`finish`, `shut`, `abandon`: termination of a process. The order of its steps never depends on
the cause, so that a watcher may start a replacement as soon as it is told.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar, cast

import trio
from trio.lowlevel import Task, checkpoint, current_task

from ..messaging.clock import Clock
from ..messaging.observer import Stopped
from ..messaging.publisher import PROCESS_ENDED
from ..messaging.receiver import NO_RECEIVER, Stoppable
from ..runtime.cancel_scopes import CancelScopes, is_being_closed, left_open
from ..runtime.parking import ENDED, PARKED, TaskPlaceholder, wake
from ..runtime.time_limit import wait_within
from ..runtime.time_slices import at_once, in_slices
from ..tables.callbacks import runs_callbacks
from ..tables.pending_calls import Caller, Deadline
from ..tables.relations import Relation
from ..tables.timers import Owned
from ..vocabulary.envelopes import CHILD_EXIT, CONTROL, SYSTEM_LANE
from ..vocabulary.ids import Alias, Name
from ..vocabulary.info import Ended
from ..vocabulary.reasons import Crashed, Killed, Reason, Shutdown, is_failure
from ..vocabulary.states import STOPPING, TERMINATED
from .message_loop import check_plain
from .unhandled_messages import answer, close_slots, drop_slots, hand_over

if TYPE_CHECKING:
    from .process import Process

__all__ = [
    "GRACE",
    "Patience",
    "abandon",
    "as_ended",
    "fail_to_end",
    "finish",
    "kill_all",
    "shut",
    "stop_all",
    "undo",
]

S = TypeVar("S", bound=Stoppable)

_TURN: Final = 1.0
"""Length in seconds of a turn of a last callback. After each turn the countdown checks whether the
loop stood still.
"""
GRACE: Final = 0.5
"""Seconds that a killed process has to end, beyond its own time limits."""
_GONE: Final = TaskPlaceholder(ENDED)
_MANY: Final = 256
"""More watchers than this are notified in time slices."""


@runs_callbacks
async def finish(process: "Process", reason: Reason) -> None:
    """Terminate a process: refuse messages, stop its children and meta-processes, run
    ``terminate``, fail the queued calls, release its resources, notify its watchers.
    """
    process.reason = reason
    _begin(process)
    try:
        if process.slots is not None:
            await _release_slot_waiters(process, reason)
        if process.callbacks.has_stop_hooks:
            await _part(process, reason)
        if process.tasks:
            with trio.CancelScope(shield=True) as process._ending:
                await process.end_tasks()
            if process.tasks:
                # Killed while it waited for its tasks. They must end before the process in any
                # case.
                process.forced = True
                await process.cut_off_tasks()
        if process.owned:
            with trio.CancelScope(shield=True) as process._ending:
                if process.slots is not None:
                    await process.behaviour._wind_down(reason)
                await stop_all(process.owned, reason)
            if process.owned:
                # Killed while it waited for its children. They end with it, and faster.
                with trio.CancelScope(shield=True):
                    await kill_all(process.owned)
        if "terminate" in process.callbacks.defined and not process.abandoned:
            await _last_word(process, "terminate", reason)
        if _has_much(process):
            await _clear(process, reason)
    except BaseException:
        _release_at_once(process)
        raise
    rest = _release(process)
    if rest is not None:
        await in_slices(rest)


async def undo(process: "Process", reason: Reason) -> None:
    """End a process whose ``init`` failed. Like :func:`finish`, but without ``terminate``: the
    process never ran.
    """
    if process.state is TERMINATED:
        return
    process.reason = process.reason or reason
    if process.owned:
        _undo_unborn(process, process.reason)
    try:
        if process.state is not STOPPING:
            _begin(process)
        if process.slots is not None:
            await _release_slot_waiters(process, process.reason)
        if process.tasks:
            with trio.CancelScope(shield=True):
                await process.end_tasks()
        if process.owned:
            with trio.CancelScope(shield=True):
                await stop_all(process.owned, process.reason)
        await _clear(process, process.reason)
    except BaseException:
        _release_at_once(process)
        raise
    await _release_in_slices(process)


def _undo_unborn(process: "Process", reason: Reason) -> None:
    """Undo the spawns below that could not be undone there because the stack was exhausted. No
    recursion; the lowest process first.

    If the stack has no room here either, the spawner above undoes them.
    """
    task, unborn = current_task(), [process]
    for owner in unborn:
        for key, inner in list((owner.owned or {}).items()):
            if inner.is_unborn_in(task):
                # Only a process can be: see Meta.is_unborn_in.
                unborn.append(cast("Process", inner))
            elif owner is not process:
                # It is running: stop it with the children of this process.
                process.own(key, inner)
    for child in reversed(unborn[1:]):
        child.reason = child.reason or reason
        if child.state is not STOPPING:
            _begin(child)
        child.owned = None
        _release_at_once(child)


async def stop_all(owned: dict[object, S], reason: Reason) -> None:
    """Stop children and meta-processes in order, each within its own time limit (graceful
    shutdown).

    Servers stop accepting first, or reconnecting peers would keep them busy. Then all their
    sessions stop at the same time. The rest follows in sequence, last started first.
    """
    sessions = [session for child in tuple(owned.values()) for session in child.stop_accepting()]
    if sessions:
        await _stop_together(sessions, reason)
    while owned:
        key, last = owned.popitem()
        owned[key] = last
        await last.shut(reason)
        owned.pop(key, None)


async def _stop_together(sessions: "list[Process]", reason: Reason) -> None:
    """Stop many children of the same process concurrently. The owner's own shutdown limit does not
    run meanwhile, because each child has its own.
    """
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


async def kill_all(owned: dict[object, S], *, kills: int = 2) -> None:
    """Kill children and meta-processes, and everything below them, without a graceful shutdown.
    Abandon those that survive the kills.
    """
    for _ in range(kills):
        await in_slices(_force_ends(_levels(owned)))
        with trio.move_on_after(GRACE):
            await _wait_until_gone(list(owned.values()))
            owned.clear()
            return
    # Abandon the lowest level first: a process that only waited for its children then ends by
    # itself.
    patience = 0.0
    for level in reversed(_levels(owned)):
        with trio.move_on_after(patience):
            await _wait_until_gone(level)
            continue
        async with trio.open_nursery() as nursery:
            for child in level:
                nursery.start_soon(child.abandon)
        patience = GRACE
    owned.clear()


def _force_ends(levels: list[list[Stoppable]]) -> Iterator[None]:
    """Kill owners before their children, so that no supervisor among them restarts a child."""
    children = [child for level in levels for child in level]
    # Skip a process that begins to end during this loop: its owner, which is ending, asked it to. A
    # kill would cut its last callbacks short.
    are_ending = [child.reason is not None for child in children]
    for number, (child, was_ending) in enumerate(zip(children, are_ending, strict=True), 1):
        if was_ending or child.reason is None:
            child.force_end()
        if not number % _MANY:
            yield


def _levels(owned: Mapping[object, Stoppable]) -> list[list[Stoppable]]:
    """The children and meta-processes in ``owned``, those below them, and so on, level by level."""
    levels = []
    level: list[Stoppable] = list(owned.values())
    while level:
        levels.append(level)
        level = [inner for child in level for inner in (child.owned or {}).values()]
    return levels


async def _wait_until_gone(children: Iterable[Stoppable]) -> None:
    for child in children:
        await child.wait_gone()


async def shut(process: "Process") -> None:
    """Stop a child: ask it to exit, then kill it, then abandon it. Never takes longer than the sum
    of its time limits.
    """
    options = process.options
    # The most frequent case first: the child is asleep.
    if options.shutdown > 0 and _can_end_asleep(process):
        _end_asleep(process, Shutdown())
        if process.router.pause_is_due():
            await process.router.turn()
        return
    if process.is_unborn_in(current_task()):
        # The stack was exhausted where its init failed in this task, so it was not undone there.
        await undo(process, Shutdown())
        return
    if options.shutdown > 0:
        owner = process.kernel.pid if process.parent is None else process.parent.id
        process.ask_to_exit(owner, Shutdown())
        # Most processes end within two turns of the scheduler (trio shuffles its tasks), and need
        # no timeout.
        for _ in range(2):
            await checkpoint()
            if process.state is TERMINATED:
                return
        while True:
            if await wait_within(options.shutdown, process.wait_gone):
                return
            sessions, process.sessions_over = process.sessions_over, None
            if sessions is None:
                break
            # Its own shutdown limit begins when its sessions have ended.
            await sessions.wait()
    process.force_end()
    if await wait_within(options.terminate_timeout + GRACE, process.wait_gone):
        return
    # Its children have not been killed yet.
    await kill_all({process.id: process}, kills=2 if process.owned else 1)


def _can_end_asleep(process: "Process") -> bool:
    """Whether a process sleeps in its mailbox, and no step of its termination would have to
    wait.
    """
    callbacks, kernel = process.callbacks, process.kernel
    return (
        process.task.custom_sleep_data is PARKED
        and not process.owned
        and not process.tasks
        and process.slots is None
        and not process.events
        and (not (process.deferred or process.timers) or _has_few(process))
        and process.id not in kernel.watches
        and (not kernel.relations or kernel.relations.watchers(process.id) <= _MANY)
        and not callbacks.has_stop_hooks
        and "terminate" not in callbacks.asynchronous
    )


def _has_few(process: "Process") -> bool:
    return len(process.deferred or ()) + len(process.timers or ()) <= _MANY


@runs_callbacks
def _end_asleep(process: "Process", reason: Reason) -> None:
    """Terminate a sleeping process in its owner's task. Waking it and waiting would cost three
    times as much as the termination itself.

    A sleeping process has empty lanes and runs no callback: this is where it would take the exit
    signal.
    """
    process.reason, task = reason, process.task
    assert isinstance(task, Task)
    try:
        _begin(process)
        if "terminate" in process.callbacks.defined:
            task.context.run(_plain_last_word, process, "terminate", reason)
        _release_at_once(process)
    except BaseException as error:
        fail_to_end(process, error)
    # The task wakes up, finds the process terminated and returns.
    wake(task)


async def abandon(process: "Process") -> None:
    """Abandon a process that ignores its kill: clear its tables and cut off its task."""
    if process.state is TERMINATED:
        return
    if not process.abandoned:
        process.abandoned = True
        process.kernel.abandoned.append(as_ended(process))
        process.log.error(
            "process abandoned: it did not end when killed", callback=process.current_callback()
        )
        # In a task of the node: the owner that gave up on the process may itself be abandoned in
        # the middle of this.
        process.kernel.start(
            _leave_behind, process, name=f"leave {process.callbacks.behaviour} behind"
        )
    await process.wait_gone()


async def _leave_behind(process: "Process") -> None:
    process.reason = process.reason or Killed()
    try:
        await process.cut_off()
        if process.state is TERMINATED:
            return
        if process.state is not STOPPING:
            _begin(process)
        if process.owned:
            await kill_all(process.owned)
        await _clear(process, process.reason)
        await _release_in_slices(process)
    except Exception as error:
        fail_to_end(process, error)


def as_ended(process: "Process") -> Ended:
    """The entry of a process in the exit report."""
    return Ended(process.id, process.name, process.callbacks.behaviour, process.reason)


def fail_to_end(process: "Process", error: BaseException) -> None:
    """Clean up after an exception of the kernel itself during termination, so that no task waits
    for the process forever.
    """
    process.kernel.fail(f"the end of {process} failed", error)
    process.refuse()
    process.reason = process.reason or Shutdown()
    process.task = _GONE
    process.state = TERMINATED
    process.router.processes.pop(process.id, None)
    process.kernel.roots.pop(process.id, None)
    if process.parent is not None:
        process.parent.disown(process.id)
    # The node stops its children instead.
    process.kernel.roots.update(process.owned or {})
    at_once(answer(process, process.reason))
    if process.name is not None and process.router.registry.names.get(process.name) is process:
        process.router.registry.free_name(process.name)
    if process._gone is not None:
        process._gone.set()


def _begin(process: "Process") -> None:
    """Refuse user messages and enter STOPPING. A call that was interrupted fails together with the
    queued calls.
    """
    process.refuse()
    process.kernel.obituaries.note(process)
    process.enter(STOPPING)
    if process.handling is not None and isinstance(process.handling[2], Caller):
        process.handling[2].defer(process)


async def _part(process: "Process", reason: Reason) -> None:
    """Run the callback that comes before the children are stopped: ``pre_restart`` if a successor
    will follow, else ``pre_stop``.
    """
    slot = process.slot
    name = "pre_restart" if slot is not None and slot.returns(reason) else "pre_stop"
    if name in process.callbacks.defined:
        await _last_word(process, name, reason)


async def _last_word(process: "Process", name: str, reason: Reason) -> None:
    if name not in process.callbacks.asynchronous:
        _plain_last_word(process, name, reason)
        return
    process.handling = None
    timeout = process.options.terminate_timeout
    patience = Patience(process, process.abandon, f"leave {name} behind")
    countdown = _Countdown(process.kernel.clock, patience, timeout)
    try:
        with countdown.scope as limit:
            process._ending = limit
            scopes = CancelScopes(current_task())
            await getattr(process.behaviour, name)(reason)
            if scopes.are_left():
                error = left_open(process.callbacks.behaviour, name, scopes.nurseries())
                await scopes.close()
                raise error
        if limit.cancelled_caught and trio.current_time() < limit.deadline:
            process.forced = True
            process.log.error(f"{name} was cut off by a kill", limit=timeout)
        elif limit.cancelled_caught:
            process.log.error(f"{name} was cut off", limit=timeout)
    except BaseException as error:
        if process.abandoned or (
            isinstance(error, GeneratorExit) and is_being_closed(process.home)
        ):
            raise
        _account_for(process, name, error)
    finally:
        countdown.stop()


class _Countdown:
    """The time limit of a last callback. When it is over the callback is cancelled; if it ignores
    that, the process is abandoned.

    The limit is counted in turns, and a turn that ends late extends it: time in which the loop
    itself stood still does not count.
    """

    __slots__ = ("_clock", "_due", "_end", "_patience", "_turn", "scope")

    def __init__(self, clock: Clock, patience: "Patience", seconds: float) -> None:
        self.scope = trio.CancelScope(shield=True)
        self._clock = clock
        self._patience = patience
        self._end = clock.now() + seconds
        self._begin_turn(seconds)

    def stop(self) -> None:
        self._turn.abandon()
        self._patience.abandon()

    def end_turn(self) -> None:
        now = self._clock.now()
        self._end += max(0.0, now - self._due)
        if now < self._end:
            self._begin_turn(self._end - now)
        else:
            self.scope.deadline = now
            self._clock.arm_call(self._patience, 2 * GRACE)

    def _begin_turn(self, most: float) -> None:
        seconds = min(most, _TURN)
        self._due = self._clock.now() + seconds
        self._turn = _Turn(self)
        self._clock.arm_call(self._turn, seconds)


class _Turn(Deadline):
    """A single turn of a countdown."""

    __slots__ = ("_countdown",)

    def __init__(self, countdown: _Countdown) -> None:
        super().__init__()
        self._countdown = countdown

    def awaken(self) -> None:
        self._countdown.end_turn()


class Patience(Deadline):
    """The deadline of a cancelled callback. When it expires, the callback has ignored its
    cancellation, so the process is abandoned.
    """

    __slots__ = ("_end", "_name", "process")

    def __init__(self, process: "Process", end: Callable[[], Awaitable[object]], name: str) -> None:
        super().__init__()
        self.process: Process | None = process
        self._end = end
        self._name = name

    def awaken(self) -> None:
        # An abandoned deadline does not expire: so the process is still set.
        assert self.process is not None
        self.process.kernel.start(self._end, name=self._name)

    def abandon(self) -> None:
        super().abandon()
        self.process = None


def _plain_last_word(process: "Process", name: str, reason: Reason) -> None:
    process.handling = None
    # For a process that ends while it sleeps, this is the task of its owner.
    task = current_task()
    status = task._cancel_status
    try:
        check_plain(process, name, getattr(process.behaviour, name)(reason))
    except BaseException as error:
        _account_for(process, name, error)
    if task._cancel_status is not status:
        scopes = CancelScopes.since(task, status)
        _account_for(
            process, name, left_open(process.callbacks.behaviour, name, scopes.nurseries())
        )
        scopes.close_plain()


def _account_for(process: "Process", name: str, error: BaseException) -> None:
    """Log an exception that left a last callback. Termination continues."""
    if isinstance(error, Exception | trio.Cancelled | GeneratorExit):
        process.log.error(f"{name} raised", exception=Crashed(error).traceback)
    else:
        process.kernel.panic(error)


def _has_much(process: "Process") -> bool:
    """Whether there may be many things to release. Mostly there are none, and termination pays only
    for this check.
    """
    return bool(
        process.main
        or process.mailbox.ahead
        or process.deferred
        or process.timers
        or process.slots
        or process.kernel.relations
    )


async def _clear(process: "Process", reason: Reason) -> None:
    """Do in time slices the work that would take too long in :func:`_release`, which must not
    wait.
    """
    await in_slices(answer(process, reason))
    kernel = process.kernel
    if process.timers:
        await in_slices(_cancel_timers(process.timers))
    if kernel.relations:
        await in_slices(kernel.forget_watcher(process.id))
    if process.slots and process.slot is None:
        # A supervisor that is not restarted. The slots of a supervised supervisor stay open for its
        # successor.
        slots, process.slots = process.slots, {}
        await in_slices(drop_slots(kernel, slots.values(), reason))


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
    """Do everything after ``terminate``. Nothing here waits, so no other task sees a half-released
    process.

    Returns the notifications, which come last, if there are many watchers.
    """
    if process.state is TERMINATED:
        return None
    kernel, router, reason = process.kernel, process.router, process.reason or Shutdown()
    is_related = bool(kernel.relations)
    lived = process.behaviour is not None and process.task is process.home
    # Set the mark before the lanes are emptied: a thread looks at the task after its append, and
    # sees that it was too late.
    process.task = _GONE
    process.handling = None
    box = process.mailbox
    if process.main or box.ahead or box.log or process.deferred or process.postponed:
        at_once(answer(process, reason))
    if process.slot is not None:
        hand_over(process, process.slot)
    name, aliases = process.name, process.aliases or ()
    if name is not None and router.registry.names.get(name) is process:
        router.registry.free_name(name)
    for alias in aliases:
        router.registry.drop_alias(alias)
    if process.timers:
        at_once(_cancel_timers(process.timers))
    if kernel.log.watched:
        kernel.remove_logger(process.id)
    if is_related:
        at_once(kernel.forget_watcher(process.id))
    router.processes.pop(process.id, None)
    if kernel.watches:
        kernel.stop_watching(process.id)
    parent = process.parent
    if parent is None:
        kernel.roots.pop(process.id, None)
    else:
        parent.disown(process.id)
    if kernel.stopping and process.forced and not process.abandoned:
        kernel.killed.append(as_ended(process))
    process.enter(TERMINATED)
    process.behaviour = process._scope = process._ending = process.waiting = None
    process.peer = NO_RECEIVER
    if router.peer is process:
        router.peer = NO_RECEIVER
    # Notify the watchers last.
    if is_related or process.events:
        watching = _watching(process, aliases)
        if len(watching) > _MANY:
            return _tell_many(process, watching, reason, lived)
        for relation in watching:
            kernel.tell(relation, reason)
    _tell(process, reason, lived)
    return None


def _watching(process: "Process", aliases: Iterable[Alias]) -> list[Relation]:
    """Remove the relations to a process, its addresses and its events from the tables, and return
    them.
    """
    kernel = process.kernel
    fired = [*kernel.relations.fire(process.id)]
    if process.name is not None:
        fired += kernel.relations.fire(Name(process.name, process.router.node))
    for alias in aliases:
        fired += kernel.relations.fire(alias)
    for event in process.events or ():
        kernel.publisher.events.remove(event)
        fired += kernel.relations.fire(event)
    return fired


def _tell_many(
    process: "Process", watching: list[Relation], reason: Reason, lived: bool
) -> Iterator[None]:
    for number, relation in enumerate(watching, 1):
        process.kernel.tell(relation, reason)
        if not number % _MANY:
            yield
    _tell(process, reason, lived)


def _tell(process: "Process", reason: Reason, lived: bool) -> None:
    """Notify the observers without a relation: the observer, subscribers of the node's events, the
    parent, and tasks in :meth:`Process.wait_gone`.
    """
    kernel, router, parent = process.kernel, process.router, process.parent
    if kernel.observer is not None and lived:
        kernel.observer(Stopped(process.id, reason))
    if kernel.publisher.heard:
        ended = Ended(process.id, process.name, process.callbacks.behaviour, reason)
        kernel.publisher.announce(PROCESS_ENDED, ended)
    if lived and parent is not None:
        if process.slot is not None:
            router.signal(parent, SYSTEM_LANE, (CONTROL, process.id, None, (process.slot, reason)))
        if "handle_child_exit" in parent.callbacks.defined:
            router.signal(parent, SYSTEM_LANE, (CHILD_EXIT, process.id, None, reason))
    if process.slots is not None and process.slot is None:
        at_once(drop_slots(kernel, process.slots.values(), reason))
        if lived and parent is None and is_failure(reason) and not kernel.stopping:
            kernel.escalate(process, reason)
    if process._gone is not None:
        process._gone.set()


async def _release_slot_waiters(process: "Process", reason: Reason) -> None:
    """Release the tasks that wait for a child of an ending supervisor. A child that is down comes
    back with the supervisor's successor at the earliest, or never.

    Sibling processes that wait for such a child would otherwise wait until they are killed, since
    they end before the supervisor.
    """
    returns = process.slot is not None and process.slot.returns(reason)
    vacant = [slot for slot in (process.slots or {}).values() if slot.pid is None]
    if not returns:
        await in_slices(close_slots(process.kernel, vacant, reason))
        return
    for slot in vacant:
        slot.turn_away(reason)
