"""`Owner`: the children, timers, events, requests and slots of a process, which end with it.
`stop_all`, `kill_all`: the end of the children and meta-processes of a process, a meta-process or
the node.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ..messaging.receiver import Stoppable
from ..messaging.requests import RequestCaller
from ..runtime.cancel_scopes import Killing
from ..runtime.time_slices import in_slices
from ..tables.child_slot import ChildSlot
from ..tables.timers import Owned
from ..vocabulary.ids import EventName, Ref
from ..vocabulary.reasons import Reason, Shutdown
from .background_task import BackgroundTasks
from .last_callback import GRACE
from .lifecycle import Lifecycle

if TYPE_CHECKING:
    from .process import Process

__all__ = ["MANY", "Owner", "kill_all", "kill_rest", "stop_all"]

S = TypeVar("S", bound=Stoppable)

# Not measured: at a microsecond for each, a quarter of a millisecond. Most processes own and leave
# far less, and end in a single step.
MANY: Final = 256
"""More objects than this are released, killed or notified in time slices."""

_AT_ONCE: Final = 100
"""Sessions that stop at the same time, as long as they end. Each end takes several turns of the
scheduler: if all of 4,000 stopped at once, each would take as long as all, which is longer than the
limit of a process.
"""
_NONE_ENDS: Final = 0.25
"""Seconds in which no session ends, after which twice as many stop at the same time: those that
hang do not hold up the others.
"""


class Owner(Lifecycle):
    """A process that owns things. It notes once that it owns something: the end of a process that
    owns nothing, as most processes, looks for nothing to release.

    A base class, and not a part of the process: the end of each process reads ``is_owner``.
    """

    __slots__ = ("events", "is_owner", "owned", "requests", "slots", "tasks", "timers")

    # The constructor of `Process` sets these: each spawn would pay for another constructor.
    is_owner: bool
    """Whether it has ever owned anything, also an alias, a key, a group or a background task."""
    owned: dict[object, Stoppable] | None
    """Its children and meta-processes."""
    events: list[EventName] | None
    """The events that it has registered."""
    timers: Owned | None
    """The timers that it has armed."""
    requests: dict[int, RequestCaller] | None
    """Its requests whose answers have not arrived."""
    slots: dict[str, ChildSlot] | None
    """The slots of its children, if it is a supervisor."""
    tasks: BackgroundTasks | None
    """Its background tasks."""

    def become_owner(self) -> None:
        """Note that it owns something, which its end has to release."""
        self.is_owner = True

    def begin_to_own(self) -> dict[object, Stoppable]:
        """The table for its first child or meta-process, which must not outlive this process."""
        self.become_owner()
        self.owned = {}
        return self.owned

    def own(self, key: object, thing: Stoppable) -> None:
        """Register a child or meta-process that must not outlive this process."""
        (self.begin_to_own() if self.owned is None else self.owned)[key] = thing

    def begin_timers(self) -> Owned:
        """The list for its first timer, which ends with this process."""
        self.become_owner()
        self.timers = Owned()
        return self.timers

    def add_event(self, event: EventName) -> None:
        """Own an event: it ends with this process."""
        if self.events is None:
            self.become_owner()
            self.events = []
        self.events.append(event)

    def disown(self, key: object) -> None:
        """Forget a child or meta-process that has ended."""
        (self.owned or {}).pop(key, None)

    def add_request(self, caller: RequestCaller, /) -> None:
        """Own an open request."""
        if self.requests is None:
            self.become_owner()
            self.requests = {}
        self.requests[caller.number] = caller

    def drop_request(self, number: int, /) -> None:
        """Forget a request that is answered or cancelled."""
        (self.requests or {}).pop(number, None)

    def cancel_request(self, ref: Ref) -> bool:
        """Cancel a request: no response follows."""
        caller = (self.requests or {}).get(ref.number)
        if caller is None:
            return False
        caller.abandon()
        return True

    def open_slots(self) -> dict[str, ChildSlot]:
        """Become a supervisor, and return the slots of its children: those that its predecessor
        left, if its own supervisor has restarted it.
        """
        self.become_owner()
        self.slots = {} if self.slot is None else self.slot.inner
        return self.slots

    def take_slots(self) -> "Iterable[ChildSlot]":
        """Give away the slots of the children, which end with it."""
        slots, self.slots = self.slots or {}, {}
        return slots.values()

    def owns_little(self) -> bool:
        """Whether all that it owns can be released at once."""
        return (
            not (self.owned or self.tasks or self.events)
            and self.slots is None
            and len(self.timers or ()) + len(self.requests or ()) <= MANY
        )


async def stop_all(owned: dict[object, S], reason: Reason) -> None:
    """Stop children and meta-processes in order, each within its own time limit (graceful
    shutdown).

    Servers stop accepting first, or reconnecting peers would keep them busy. Then their sessions
    stop, many at the same time. The rest follows in sequence, last started first.
    """
    sessions = [session for child in tuple(owned.values()) for session in child.stop_accepting()]
    if sessions:
        await _stop_together(sessions, reason)
    while owned:
        key, last = owned.popitem()
        # Back in the table until it has ended: if the owner is killed during this wait, all that is
        # left in the table is killed.
        owned[key] = last
        await last.shut(reason)
        owned.pop(key, None)


async def _stop_together(sessions: "list[Process]", reason: Reason) -> None:
    """Stop many children of the same process concurrently. The owner's own shutdown limit does not
    run meanwhile, because each child has its own.
    """
    owner = sessions[0].parent
    assert owner is not None
    over = owner.to_end().begin_sessions()
    # Room for all sessions: send_nowait() never finds the channel full.
    put, ended = trio.open_memory_channel[None](len(sessions))

    async def stop(session: "Process") -> None:
        await session.shut(reason)
        put.send_nowait(None)

    under_way, most = 0, _AT_ONCE
    try:
        async with trio.open_nursery() as nursery:
            for session in sessions:
                if under_way >= most:
                    with trio.move_on_after(_NONE_ENDS) as scope:
                        await ended.receive()
                        under_way -= 1
                    if scope.cancelled_caught:
                        most *= 2
                # Just before its stop, not for all at once: a session that waits for an answer may
                # still get it while others end.
                session.leave_wait(Shutdown())
                nursery.start_soon(stop, session)
                under_way += 1
    finally:
        # Also if the owner is killed meanwhile: the task that stops it waits for this event without
        # a limit.
        over.set()


async def kill_all(owned: dict[object, S], *, kills: int = 2) -> None:
    """Kill children and meta-processes, and everything below them, without a graceful shutdown.
    Abandon those that survive the kills.
    """
    await _kill_all(owned, kills, spares=False)


async def kill_rest(owned: dict[object, S]) -> None:
    """As :func:`kill_all`, for a process that was killed while it waited for its children.

    Mostly an owner above kills all of them already, and abandons those that survive. If each
    process of a deep chain killed all below it once more, that would be quadratic.
    """
    children = list(owned.values())
    killer = children[0].killer
    if killer is not None and all(child.killer is killer for child in children):
        with killer.while_it_lasts():
            await _wait_until_gone(list(owned.values()))
            owned.clear()
    if owned:
        await _kill_all(owned, 2, spares=True)


async def _kill_all(owned: dict[object, S], kills: int, *, spares: bool) -> None:
    """With ``spares``, the kills leave out those that another task kills."""
    killing = Killing()
    try:
        for _ in range(kills):
            levels = _levels(owned, killing if spares else None)
            for level in levels:
                for child in level:
                    child.join_killing(killing)
            await in_slices(_force_ends(levels))
            with trio.move_on_after(GRACE):
                await _wait_until_gone(list(owned.values()))
                owned.clear()
                return
        await _abandon_all(_levels(owned))
        owned.clear()
    finally:
        killing.end()


async def _abandon_all(levels: list[list[Stoppable]]) -> None:
    # Abandon the lowest level first: a process that only waited for its children then ends by
    # itself.
    patience = 0.0
    for level in reversed(levels):
        with trio.move_on_after(patience):
            await _wait_until_gone(level)
            continue
        async with trio.open_nursery() as nursery:
            for child in level:
                nursery.start_soon(child.abandon)
        patience = GRACE


def _force_ends(levels: list[list[Stoppable]]) -> Iterator[None]:
    """Kill owners before their children, so that no supervisor among them restarts a child."""
    children = [child for level in levels for child in level]
    # Skip a process that begins to end during this loop: its owner, which is ending, asked it to. A
    # kill would cut its last callbacks short.
    are_ending = [child.reason is not None for child in children]
    for number, (child, was_ending) in enumerate(zip(children, are_ending, strict=True), 1):
        if was_ending or child.reason is None:
            child.force_end()
        if not number % MANY:
            yield


def _levels(
    owned: Mapping[object, Stoppable], killing: Killing | None = None
) -> list[list[Stoppable]]:
    """The children and meta-processes in ``owned``, those below them, and so on, level by level.
    With ``killing``, without those that another task kills, and without those below them.
    """
    levels = []
    level: list[Stoppable] = list(owned.values())
    # Level by level, without recursion: a chain of processes may be deeper than the stack.
    while level:
        if killing is not None:
            level = [child for child in level if not _is_killed_beside(child.killer, killing)]
        levels.append(level)
        level = [inner for child in level for inner in (child.owned or {}).values()]
    return levels


def _is_killed_beside(killer: Killing | None, killing: Killing) -> bool:
    return killer is not None and killer is not killing and not killer.is_over


async def _wait_until_gone(children: Iterable[Stoppable]) -> None:
    for child in children:
        await child.wait_gone()
