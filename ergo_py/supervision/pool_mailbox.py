"""`PoolMailbox`: the mailbox of a pool, which routes each message into the mailbox of a worker."""

from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Any, Final

from .._core.processes.process import Process
from .._core.tables.child_slot import ChildSlot
from .._core.tables.mailbox import Mailbox, Verdict, Waiter
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import (
    CALL,
    EVENT,
    MESSAGE,
    TRACED,
    Divert,
    Envelope,
    Lane,
    Overflow,
)
from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import Why
from .._core.vocabulary.reasons import Reason
from .._core.vocabulary.states import State
from .._core.vocabulary.text import shown
from .pool_growth import PoolGrowth, is_free

__all__ = ["Routing", "PoolMailbox"]

_BUCKETS: Final = 65_536
"""Number of hash buckets of ``Routing.BY_KEY``. A worker owns buckets, not keys, so the table stays
small for any number of keys.
"""


class Routing(Enum):
    """Which worker gets a message."""

    ROUND_ROBIN = "round robin"
    """Each in turn."""
    LEAST_LOADED = "least loaded"
    """The worker with the least work."""
    BY_KEY = "by key"
    """The worker that owns the message's key: the same worker for the same key, as long as it is
    there.
    """


class PoolMailbox(Mailbox):
    """The mailbox of a pool: messages and calls of users go to a worker; control messages of the
    pool itself stay.
    """

    __slots__ = (
        "_growth",
        "_held",
        "_key",
        "_next",
        "_owners",
        "_pool",
        "_ring",
        "_routing",
        "_running",
        "_size",
        "_turn_of",
        "leaving",
    )

    def __init__(
        self,
        pool: Process,
        running: dict[str, Process],
        routing: Routing,
        key: Callable[[Any], Hashable] | None,
        size: int,
        overflow: Overflow | Divert,
        growth: PoolGrowth | None = None,
    ) -> None:
        super().__init__(size, overflow)
        self._growth = growth
        """None for a pool whose size only its program changes."""
        self._pool = pool
        self._running = running
        self._routing = routing
        self._key = key
        self._size = size
        """Mailbox limit of each worker; 0 for unlimited."""
        self.leaving: set[str] = set()
        """Workers that get no new work."""
        self._ring: list[Process] | None = []
        """See `ring`; None after a change, until a message needs it."""
        self._turn_of: Process | None = None
        """The worker whose turn it was before the changes."""
        self._next = 0
        self._owners: dict[int, str] = {}
        self._held: dict[str, int] = {}
        """Number of buckets of each worker."""

    def arrange(self) -> None:
        """Update the ring after a worker has started, stopped or left."""
        if self._ring is not None:
            self._turn_of = self._ring[self._next] if self._next < len(self._ring) else None
            # Not built here: a pool whose workers all start or end would build a ring for each.
            self._ring = None
        left = sum(name in self._running for name in self.leaving)
        self.limit: int = self._size * max(1, len(self._running) - left)

    @property
    def ring(self) -> list[Process]:
        """Workers that run and get work, in order."""
        ring = self._ring
        if ring is None:
            # A copy in a single step: a thread may look for room while the loop starts a worker.
            running = list(self._running.items())
            ring = [worker for name, worker in running if name not in self.leaving]
            self._next = ring.index(self._turn_of) if self._turn_of in ring else 0
            self._ring = ring
        return ring

    # -- calls of the router -----------------------------------------------------------------------

    def has_room(self, lane: Lane) -> bool:
        """Return whether a worker has room; with ``BY_KEY``, whether every worker has room."""
        if lane is not Lane.MAIN:
            return super().has_room(lane)
        rooms = [worker.mailbox.has_room(lane) for worker in self.ring if worker.accepting]
        if not rooms:
            return any(len(slot.waiters) < slot.rules.max_waiters for slot in self._returning())
        return all(rooms) if self._routing is Routing.BY_KEY else any(rooms)

    def promise(self, lane: Lane) -> bool:
        """Reserve a place for a message from a thread."""
        if lane is not Lane.MAIN:
            return super().promise(lane)
        promised = (self.inbound or {}).get(lane, 0)
        if not self.has_room(lane) or promised >= self.limit - sum(
            len(worker.mailbox.main) for worker in self.ring
        ):
            return False
        self.inbound: dict[Lane, int] | None = {**(self.inbound or {}), lane: promised + 1}
        return True

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Hand a message or call to a worker, or apply the pool's overflow rule."""
        if lane is not Lane.MAIN or (
            envelope[0] not in (MESSAGE, CALL) and not _is_traced_work(envelope)
        ):
            return super().admit(lane, envelope)
        if self._hand_over(envelope, must_fit=True):
            return Verdict.PASSED, None
        if isinstance(envelope[2], Caller):
            self.count_dropped()
            return Verdict.REFUSED, None
        match self.overflow:
            case Overflow.DROP_NEWEST:
                self.count_dropped()
                return Verdict.DROPPED, None
            case Overflow.DROP_OLDEST if (worker := self._choose(envelope, must_fit=False)) and (
                oldest := worker.mailbox.take_oldest_user_message(lane)
            ):
                self.count_dropped()
                self._give(worker, envelope)
                return Verdict.DISPLACED, oldest
            case Divert():
                return Verdict.DIVERTED, None
        self.count_dropped()
        return Verdict.REFUSED, None

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Add an envelope that must not be refused: signals stay, messages with a reserved place go
        to a worker.
        """
        if lane is not Lane.MAIN or (
            envelope[0] not in (MESSAGE, CALL) and not _is_traced_work(envelope)
        ):
            super().push(lane, envelope)
        elif not self._hand_over(envelope, must_fit=False):
            self._pool.router.discard(envelope, self._pool.id, Why.FULL, self._pool)

    def wait_for_room(
        self, lane: Lane, envelope: Envelope | None, waiter: Waiter, depth: int = 0
    ) -> None:
        """Queue a sender at the worker that will get its message. A call never waits: it is refused
        at once.
        """
        if lane is not Lane.MAIN:
            super().wait_for_room(lane, envelope, waiter, depth)
            return
        if envelope is not None and isinstance(envelope[2], Caller):
            self.count_dropped()
            self._pool.router.discard(envelope, self._pool.id, Why.FULL, self._pool)
            return
        worker = (
            self._choose(envelope, must_fit=False)
            if envelope is not None
            else self._least_loaded(False)
        )
        if worker is None:
            super().wait_for_room(lane, envelope, waiter, depth)
        else:
            worker.mailbox.wait_for_room(lane, envelope, waiter, depth)
            worker.wake()

    def stop_waiting(self, lane: Lane, waiter: Waiter) -> bool:
        """Forget a waiter that gave up. False if it did not wait."""
        return super().stop_waiting(lane, waiter) or any(
            worker.mailbox.stop_waiting(lane, waiter) for worker in self._running.values()
        )

    # -- choice of the worker ----------------------------------------------------------------------

    def _hand_over(self, envelope: Envelope, *, must_fit: bool) -> bool:
        try:
            worker = self._choose(envelope, must_fit=must_fit)
            if worker is None:
                return self._keep_for_successor(envelope)
        except Exception as error:
            # The user's key function raised. It runs inside the sender's `send`, but the sender is
            # not at fault, so the error does not go there.
            self._refuse(envelope, error)
            return True
        caller = envelope[2]
        if isinstance(caller, Caller) and worker.id == caller.pid:
            ring = [caller.pid, self._pool.id, caller.pid]
            caller.settle(None, self._pool.router.deadlock(caller.to, caller.request, ring))
        else:
            self._give(worker, envelope)
        return True

    def _give(self, worker: Process, envelope: Envelope) -> None:
        if isinstance(envelope[2], Caller):
            envelope[2].assign(worker)
        growth = self._growth
        if growth is not None and not is_free(worker) and growth.note(worker):
            self.look_later(growth)
        worker.mailbox.push(Lane.MAIN, envelope)
        worker.wake()

    def look_later(self, growth: PoolGrowth) -> None:
        """Send the pool the signal to look whether it has the right number of workers."""
        # Without a receiver name: a signal, which a full mailbox does not refuse.
        self._pool.kernel.clock.arm_timer(growth.wait, self._pool, None, growth, None)

    def _choose(self, envelope: Envelope, *, must_fit: bool) -> Process | None:
        match self._routing:
            case Routing.ROUND_ROBIN:
                return self._in_turn(must_fit, envelope[1])
            case Routing.LEAST_LOADED:
                return self._least_loaded(must_fit, envelope[1])
        worker = self._owner(envelope[3])
        return worker if worker is not None and _takes(worker, must_fit) else None

    def _in_turn(self, must_fit: bool, sender: object) -> Process | None:
        ring, start = self.ring, self._next
        own = None
        for step in range(len(ring)):
            place = (start + step) % len(ring)
            worker = ring[place]
            if _takes(worker, must_fit):
                # A worker that calls its own pool should not wait for itself.
                if worker.id == sender and len(ring) > 1:
                    own = worker
                    continue
                self._next = (place + 1) % len(ring)
                return worker
        return own

    def _least_loaded(self, must_fit: bool, sender: object = None) -> Process | None:
        able = [worker for worker in self.ring if _takes(worker, must_fit)]
        others = [worker for worker in able if worker.id != sender]
        return min(others or able, key=_load, default=None)

    def _owner(self, message: object) -> Process | None:
        key = self._key
        assert key is not None
        bucket = hash(key(message)) % _BUCKETS
        name = self._owners.get(bucket)
        slot = self._slot(name)
        if name is None or name in self.leaving or slot is None or slot.gone is not None:
            names = [
                worker.slot.name
                for worker in self.ring
                if worker.accepting and worker.slot is not None
            ]
            names = names or [returning.name for returning in self._returning()]
            if not names:
                return None
            # Give the bucket to the worker with the fewest buckets, so that an added worker gets
            # its share of new keys.
            held, former = self._held, name
            name = self._owners[bucket] = min(names, key=lambda worker: held.get(worker, 0))
            held[name] = held.get(name, 0) + 1
            if former is not None:
                held[former] -= 1
                if not held[former]:
                    del held[former]
        worker = self._running.get(name)
        return worker if worker is not None and worker.accepting else None

    def _keep_for_successor(self, envelope: Envelope) -> bool:
        """Queue a message for a restarting worker: for the owner of its key; without ``BY_KEY`` for
        any, and only if no worker runs.
        """
        if self._routing is Routing.BY_KEY:
            key = self._key
            assert key is not None
            slot = self._slot(self._owners.get(hash(key(envelope[3])) % _BUCKETS))
            if slot is not None and slot.pid is not None:
                return False  # the worker runs, but its mailbox is full
        elif any(worker.accepting for worker in self.ring):
            return False
        else:
            slot = min(self._returning(), key=lambda slot: len(slot.waiters), default=None)
        if slot is None or slot.gone is not None or len(slot.waiters) >= slot.rules.max_waiters:
            return False
        slot.waiters[_Passing(self._pool, envelope)] = None
        return True

    def _returning(self) -> Iterator[ChildSlot]:
        slots = self._pool.slots or {}
        return (
            slot
            for slot in slots.values()
            if slot.pid is None and slot.gone is None and slot.name not in self.leaving
        )

    def _slot(self, name: str | None) -> ChildSlot | None:
        return None if name is None else (self._pool.slots or {}).get(name)

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        _, sender, ref, payload = envelope
        self._pool.log.error("the key function of the pool failed", error=shown(error))
        self.count_dropped()
        if isinstance(ref, Caller):
            ref.settle(None, error)
        else:
            self._pool.router.dead_letters.add(sender, self._pool.id, payload, Why.NO_PROCESS)


def _takes(worker: Process, must_fit: bool) -> bool:
    return worker.accepting and (not must_fit or worker.mailbox.has_room(Lane.MAIN))


def _load(worker: Process) -> int:
    return len(worker.mailbox.main) + (worker.state is not State.SLEEP)


class _Passing:
    """An envelope that waits for the restart of a worker."""

    __slots__ = ("_envelope", "_pool")

    def __init__(self, pool: Process, envelope: Envelope) -> None:
        self._pool = pool
        self._envelope = envelope

    @property
    def waiter(self) -> None:
        """None: a caller waits by itself and gets its answer from the worker, so the pool tracks no
        waiter.
        """
        return

    def admit(self, pid: PID, /) -> None:
        worker = self._pool.router.processes.get(pid)
        caller = self._envelope[2]
        is_call = isinstance(caller, Caller)
        if worker is None or (is_call and caller.settled):
            return
        if is_call:
            caller.assign(worker)
        worker.mailbox.push(Lane.MAIN, self._envelope)
        worker.wake()

    def refuse(self, reason: Reason, /) -> None:
        _, sender, caller, payload = self._envelope
        if isinstance(caller, Caller):
            caller.fail_queued(reason)
        else:
            self._pool.router.dead_letters.add(sender, self._pool.id, payload, Why.NO_PROCESS)


def _is_traced_work(envelope: Envelope) -> bool:
    """Whether an envelope is a message or a call of a sampled trace, and no event."""
    kind, _, ref, _ = envelope
    return kind == TRACED and (isinstance(ref, Caller) or ref.kind != EVENT)
