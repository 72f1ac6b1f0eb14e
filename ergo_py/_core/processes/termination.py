"""`Ending`: the termination of a process. The order of its steps never depends on the cause, so
that a watcher may start a replacement as soon as it is told.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, cast

import trio
from trio.lowlevel import Task, checkpoint, current_task

from ..messaging.observer import Stopped
from ..messaging.publisher import PROCESS_ENDED
from ..messaging.requests import RequestCaller
from ..runtime.cancel_scopes import Killing
from ..runtime.time_limit import wait_within
from ..runtime.time_slices import at_once, in_slices
from ..tables.child_slot import Fate
from ..tables.relations import Relation
from ..tables.timers import Owned
from ..vocabulary.envelopes import CHILD_EXIT, CONTROL, SYSTEM_LANE
from ..vocabulary.ids import Alias, Key, Name
from ..vocabulary.info import Ended
from ..vocabulary.messages import GroupLeft
from ..vocabulary.reasons import Killed, Reason, Shutdown, is_failure
from ..vocabulary.states import STOPPING, TERMINATED
from .last_callback import GRACE, LastCallback, run_plain
from .ownership import MANY, kill_all, kill_rest, stop_all
from .unhandled_messages import answer, close_slots, drop_slots

if TYPE_CHECKING:
    from .process import Process

__all__ = ["Ending", "end_at_once"]


class Ending:
    """The end of a process: the means to wait for it, to hurry it and to force it. A process has
    none until something needs it, and drops it when it is gone.
    """

    __slots__ = ("_process", "_scope", "_sessions_over", "abandoned", "forced", "killer", "over")

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._scope: trio.CancelScope | None = None
        """The scope of the step in progress, which a second kill cancels."""
        self.over: trio.Event | None = None
        """Set when all of the process is released."""
        self._sessions_over: trio.Event | None = None
        """Set when the sessions of its servers have ended. They are stopped first when the process
        ends, and have their own time limits.
        """
        self.killer: Killing | None = None
        self.forced: bool = False
        """Whether the process had to be killed, a kill interrupted a last callback, or background
        tasks were cut off.
        """
        self.abandoned: bool = False
        """Whether the process survived its kill and was abandoned."""

    async def finish(self, reason: Reason) -> None:
        """Terminate the process: refuse messages, stop its children and meta-processes, run
        ``terminate``, fail the queued calls, release its resources, notify its watchers.
        """
        process = self._process
        process.begin_to_end(reason)
        try:
            if process.slots is not None:
                await _release_slot_waiters(process, reason)
            if process.callbacks.has_stop_hooks:
                slot = process.slot
                restarts = slot is not None and slot.returns(reason)
                await self._call_last("pre_restart" if restarts else "pre_stop", reason)
            if process.tasks:
                with trio.CancelScope(shield=True) as self._scope:
                    await self._end_tasks()
                if process.tasks:
                    # Killed while it waited for its tasks. They must end before the process in any
                    # case.
                    self.forced = True
                    await process.tasks.cut_off()
            if process.owned:
                with trio.CancelScope(shield=True) as self._scope:
                    if process.slots is not None:
                        await process.behaviour._wind_down(reason)
                    await stop_all(process.owned, reason)
                if process.owned:
                    # Killed while it waited for its children. They end with it, and faster.
                    with trio.CancelScope(shield=True):
                        await kill_rest(process.owned)
            # After the children and the tasks have ended: `terminate` runs alone, and may close
            # connections and files that they have used.
            if "terminate" in process.callbacks.defined and not self.abandoned:
                await self._call_last("terminate", reason)
            # Mostly there is little to release, and termination pays only for these checks.
            is_busy = process.main or process.mailbox.ahead or process.deferred
            owns = process.is_owner and (process.timers or process.requests or process.slots)
            if is_busy or owns or process.kernel.relations:
                await _clear(process, reason)
        except BaseException:
            # Cancelled or abandoned in the middle: the rest is done without a pause, since no task
            # may wait here any more.
            release_at_once(process)
            raise
        rest = release(process)
        if rest is not None:
            await in_slices(rest)

    async def _call_last(self, name: str, reason: Reason) -> None:
        process = self._process
        if name in process.callbacks.asynchronous:
            callback = LastCallback(process, name)
            self._scope = callback.scope
            if await callback.run(reason):
                self.forced = True
        elif name in process.callbacks.defined:
            run_plain(process, name, reason)

    async def _end_tasks(self) -> None:
        tasks = self._process.tasks
        if tasks and not await tasks.end():
            self.forced = True

    async def undo(self, reason: Reason) -> None:
        """End the process, whose ``init`` failed. Like :meth:`finish`, but without ``terminate``:
        the process never ran.
        """
        process = self._process
        if process.state is TERMINATED:
            return
        reason = process.record_reason(reason)
        if process.owned:
            _undo_unborn(process, reason)
        try:
            if process.state is not STOPPING:
                process.begin_to_end(reason)
            if process.slots is not None:
                await _release_slot_waiters(process, reason)
            if process.tasks:
                with trio.CancelScope(shield=True):
                    await self._end_tasks()
            if process.owned:
                with trio.CancelScope(shield=True):
                    await stop_all(process.owned, reason)
            await _clear(process, reason)
        except BaseException:
            release_at_once(process)
            raise
        await _release_in_slices(process)

    async def shut(self) -> None:
        """Stop the process for its owner: ask it to exit, then kill it, then abandon it."""
        process = self._process
        options = process.options
        if process.is_unborn_in(current_task()):
            # The stack was exhausted where its init failed in this task, so it was not undone
            # there.
            await self.undo(Shutdown())
            return
        if options.shutdown > 0:
            owner = process.kernel.pid if process.parent is None else process.parent.id
            process.ask_to_exit(owner, Shutdown())
            # Most processes end within two turns of the scheduler (trio shuffles its tasks), and
            # need no timeout.
            for _ in range(2):
                await checkpoint()
                if process.state is TERMINATED:
                    return
            while True:
                if await wait_within(options.shutdown, process.wait_gone):
                    return
                sessions, self._sessions_over = self._sessions_over, None
                if sessions is None:
                    break
                # Its own shutdown limit begins when its sessions have ended.
                await sessions.wait()
        process.force_end()
        if await wait_within(options.terminate_timeout + GRACE, process.wait_gone):
            return
        # Its children have not been killed yet.
        await kill_all({process.id: process}, kills=2 if process.owned else 1)

    def begin_sessions(self) -> trio.Event:
        """Let the shutdown limit of the process wait until its sessions have ended, which sets the
        event.
        """
        self._sessions_over = over = trio.Event()
        return over

    def force(self) -> None:
        """Kill the process because it ignored the exit signal. A process that only waits for its
        children is not counted as forced.
        """
        if self._process.state is not STOPPING:
            self.forced = True
        self._process.kill()

    def join_killing(self, killing: Killing) -> None:
        """Note the kill of a whole tree that it belongs to."""
        self.killer = killing

    def cut_short(self) -> None:
        """Cancel the step in progress: the process was killed again while it ended."""
        if self._scope is not None:
            self._scope.cancel()

    async def abandon(self) -> None:
        """Abandon the process, which ignores its kill: clear its tables and cut off its task."""
        process = self._process
        if not self.abandoned:
            self.abandoned = True
            process.kernel.lifetimes.abandoned.append(process.as_ended())
            process.log.error(
                "process abandoned: it did not end when killed", callback=process.current_callback()
            )
            # In a task of the node: the owner that gave up on the process may itself be abandoned
            # in the middle of this.
            process.kernel.start(
                self._leave_behind, name=f"leave {process.callbacks.behaviour} behind"
            )
        await process.wait_gone()

    async def _leave_behind(self) -> None:
        process = self._process
        reason = process.record_reason(Killed())
        try:
            await self.cut_off()
            if process.state is TERMINATED:
                return
            if process.state is not STOPPING:
                process.begin_to_end(reason)
            if process.owned:
                await kill_all(process.owned)
            await _clear(process, process.reason or reason)
            await _release_in_slices(process)
        except Exception as error:
            self.fail(error)

    async def cut_off(self) -> None:
        """End the task of the process, or its ``init`` in the spawner's task, and its background
        tasks, even if they ignore cancellation.
        """
        process = self._process
        abandonable = process.turn.abandonable
        if isinstance(process.task, Task):
            await process.own_turn().take_over(process.task).cut_off(process.task)
        elif abandonable is not None:
            await abandonable.cut_off(process.callback_task)
        if process.tasks:
            await process.tasks.cut_off()

    def fail(self, error: BaseException) -> None:
        """Clean up after an exception of the kernel itself during termination, so that no task
        waits for the process forever.
        """
        process = self._process
        kernel, router = process.kernel, process.router
        kernel.fail(f"the end of {process} failed", error)
        process.refuse()
        process.fail_to_end()
        reason = process.record_reason(Shutdown())
        turn, behaviour = process.turn, process.callbacks.behaviour
        kernel.lifetimes.past.take(
            router.processes, process.id, behaviour, turn.handled, process.sent, turn.running_time
        )
        kernel.roots.pop(process.id, None)
        if process.parent is not None:
            process.parent.disown(process.id)
        # The node stops its children instead.
        kernel.roots.update(process.owned or {})
        at_once(answer(process, reason))
        if process.name is not None and router.registry.names.get(process.name) is process:
            router.registry.free_name(process.name)
        process.be_gone()

    async def wait(self) -> None:
        """Wait until all of the process is released."""
        if self.over is None:
            self.over = trio.Event()
        await self.over.wait()


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
        if child.state is not STOPPING:
            child.begin_to_end(child.record_reason(reason))
        for key in tuple(child.owned or ()):
            child.disown(key)
        release_at_once(child)


async def _clear(process: "Process", reason: Reason) -> None:
    """Do in time slices the work that would take too long in :func:`release`, which must not
    wait.
    """
    await in_slices(answer(process, reason))
    kernel = process.kernel
    if process.timers:
        await in_slices(_cancel_timers(process.timers))
    if process.requests:
        await in_slices(_abandon_requests(process.requests))
    if kernel.relations:
        await in_slices(kernel.links.forget_watcher(process.id))
    if process.slots and process.slot is None:
        # A supervisor that is not restarted. The slots of a supervised supervisor stay open for its
        # successor.
        await in_slices(drop_slots(kernel, process.take_slots(), reason))


def _cancel_timers(timers: Owned) -> Iterator[None]:
    for number, timer in enumerate(tuple(timers), 1):
        timer.cancel()
        if not number % MANY:
            yield


def _abandon_requests(requests: dict[int, RequestCaller]) -> Iterator[None]:
    for number, request in enumerate(tuple(requests.values()), 1):
        request.abandon()
        if not number % MANY:
            yield


async def _release_in_slices(process: "Process") -> None:
    rest = release(process)
    if rest is not None:
        await in_slices(rest)


def end_at_once(process: "Process", reason: Reason, root: Task | None = None) -> bool:
    """Terminate a process, in the same order as :meth:`Ending.finish`. False, and nothing is done,
    if a step of that may have to wait, as for few processes. With its own task as the ``root``, its
    supervisor restarts it in the same turn.
    """
    kernel, callbacks, relations = process.kernel, process.callbacks, process.kernel.relations
    if (
        (process.is_owner and not process.owns_little())
        or callbacks.has_stop_hooks
        or "terminate" in callbacks.asynchronous
        or ((process.main or process.deferred) and _has_many_messages(process))
        or (process.mailbox.ahead or process.postponed)
        or (process.ending is not None and process.ending.abandoned)
        or (kernel.watches and process.id in kernel.watches)
        or ((relations.by_target or relations.by_watcher) and relations.count(process.id) > MANY)
    ):
        return False
    turns = process.router.turns
    is_root = root is not None and turns.begin(root)
    try:
        process.begin_to_end(reason)
        if "terminate" in callbacks.defined:
            run_plain(process, "terminate", reason)
        rest = release(process)
        if rest is not None:
            at_once(rest)
    except BaseException:
        if is_root:
            turns.end(cast(Task, root))
        raise
    if is_root:
        turns.serve(cast(Task, root))
    return True


def _has_many_messages(process: "Process") -> bool:
    return len(process.main) + len(process.deferred or ()) > MANY


def release_at_once(process: "Process") -> None:
    at_once(release(process) or iter(()))


def release(process: "Process") -> Iterator[None] | None:
    """Do everything after ``terminate``. Nothing here waits, so no other task sees a half-released
    process.

    Returns the notifications, which come last, if there are many watchers.
    """
    kernel, router, reason = process.kernel, process.router, process.reason or Shutdown()
    if router.bridge.pending:
        # Messages that the process sent in a thread arrive before the notice of its end.
        router.bridge.catch_up()
    if process.state is TERMINATED:
        return None
    is_unrelated = not (kernel.relations.by_watcher or kernel.relations.by_target)
    lived = process.behaviour is not None and process.task is process.callback_task
    # Before the lanes are emptied, so that no message of a late thread is missed.
    process.close_task()
    box = process.mailbox
    if process.main or box.ahead or box.log or process.deferred or process.postponed:
        at_once(answer(process, reason))
    slot = process.slot
    if slot is not None and slot.rules.fate is Fate.KEEP and not box.holds_signals():
        process.leave_lane(slot)
    addresses: Iterable[Alias | Key] = ()
    groups: Iterable[Hashable] = ()
    if process.is_owner:
        addresses, groups = _release_owned(process)
    name, names = process.name, router.registry.names
    if name is not None and names.get(name) is process:
        del names[name]
    if kernel.log.watched:
        kernel.remove_logger(process.id)
    if not is_unrelated:
        at_once(kernel.links.forget_watcher(process.id))
    lifetimes, turn, behaviour = kernel.lifetimes, process.turn, process.callbacks.behaviour
    # It leaves the table and adds its sums in a single step: other threads count them once.
    lifetimes.past.take(
        router.processes, process.id, behaviour, turn.handled, process.sent, turn.running_time
    )
    if router.last_receiver is process:
        router.forget_receiver()
    if kernel.watches:
        kernel.stop_watching(process.id)
    siblings = kernel.roots if process.parent is None else process.parent.owned
    if siblings:
        siblings.pop(process.id, None)
    forced = process.ending is not None and process.ending.forced
    if kernel.stopping and (forced or lived) and not process.abandoned:
        (lifetimes.killed if forced else lifetimes.stopped).append(process.as_ended())
    process.become_terminated()
    # Notify the watchers last.
    for group in groups:
        kernel.links.tell_group(group, GroupLeft(group, process.id, reason))
    if not is_unrelated or process.events:
        watching = _watching(process, addresses)
        if len(watching) > MANY:
            return _tell_many(process, watching, reason, lived)
        for relation in watching:
            kernel.links.tell(relation, reason)
    _tell(process, reason, lived)
    return None


def _release_owned(process: "Process") -> tuple[list[Alias | Key], Iterable[Hashable]]:
    """Cancel its timers and requests, and free its addresses. Returns its addresses, and the groups
    that it was in.
    """
    router = process.router
    for alias in process.aliases or ():
        router.registry.drop_alias(alias)
    keys, groups = router.directory.forget(process.id)
    if process.timers:
        at_once(_cancel_timers(process.timers))
    if process.requests:
        at_once(_abandon_requests(process.requests))
    return [*(process.aliases or ()), *keys], groups


def _watching(process: "Process", addresses: Iterable[Alias | Key]) -> list[Relation]:
    """Remove the relations to a process, its addresses and its events from the tables, and return
    them.
    """
    kernel = process.kernel
    fired = [*kernel.relations.fire(process.id)]
    if process.name is not None:
        fired += kernel.relations.fire(Name(process.name, process.router.node))
    for address in addresses:
        fired += kernel.relations.fire(address)
    for event in process.events or ():
        kernel.publisher.events.remove(event)
        fired += kernel.relations.fire(event)
    return fired


def _tell_many(
    process: "Process", watching: list[Relation], reason: Reason, lived: bool
) -> Iterator[None]:
    for number, relation in enumerate(watching, 1):
        process.kernel.links.tell(relation, reason)
        if not number % MANY:
            yield
    _tell(process, reason, lived)


def _tell(process: "Process", reason: Reason, lived: bool) -> None:
    """Notify the observers without a relation: the observer, subscribers of the node's events, the
    parent, and tasks in :meth:`Process.wait_gone`.
    """
    kernel, router, parent = process.kernel, process.router, process.parent
    if kernel.lifetimes.on_lifetime is not None and lived:
        kernel.lifetimes.on_lifetime(process, False)
    if kernel.observer is not None and lived:
        kernel.observer(Stopped(process.id, reason))
    if kernel.publisher.heard:
        ended = Ended(process.id, process.name, process.callbacks.behaviour, reason)
        kernel.publisher.announce(PROCESS_ENDED, ended)
    if lived and parent is not None:
        if process.slot is not None:
            router.signal(parent, SYSTEM_LANE, (CONTROL, process.id, None, (process.slot, reason)))
        if "handle_child_exit" in parent.callbacks.defined:
            signal = (CHILD_EXIT, process.id, None, reason)
            router.notify_of_end(parent, SYSTEM_LANE, signal, reason)
    if process.slots is not None and process.slot is None:
        at_once(drop_slots(kernel, process.slots.values(), reason))
        if lived and parent is None and is_failure(reason) and not kernel.stopping:
            kernel.escalate(process, reason)
    if process.ending is not None:
        process.be_gone()


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
