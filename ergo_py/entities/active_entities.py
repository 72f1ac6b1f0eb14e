"""`Keeping`: the work of a keeper. It wakes entities, commits their changes, puts them to sleep,
and finds those that have work to do.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import checkpoint

from .._core.processes.process import Process, processes_of
from .._core.processes.spawn import spawn_process
from .._core.runtime.parking import PARKED
from .._core.tables.child_slot import ChildSlot
from .._core.tables.pending_calls import Deadline
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import NotAllowedError, SpawnError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.options import read_options
from .._core.vocabulary.reasons import Crashed, Reason, Shutdown
from .._core.vocabulary.text import text_of
from ..entity_handles import (
    Address,
    EntityHandle,
    EntityKindUnknownError,
    EntityTable,
    entities_of,
    table_of_kind,
)
from ..network.messages.message_types import MessageTypes
from ..supervision.specs import Backoff
from .activations.activation import Activation
from .activations.awaited import is_awaited
from .activations.deliveries import Delivery, Leave, Look
from .activations.wanted import Wanted
from .asleep import Asleep
from .entity import Entity
from .errors import EntityStoreError, FencedError, StateTypeError
from .group_commit import GroupCommit
from .id_clock import IdClock
from .inspection import KeeperInspection
from .record import Owed
from .schedule import Bell, Schedule
from .settings import Settings, Totals
from .stores.store import Row, Store

if TYPE_CHECKING:
    from .keeper import Entities
    from .shards.host import Host

__all__ = ["Keeping"]

_READ_AGAIN: Final = 1.0
"""Seconds after which an entity is loaded again whose row could not be read."""
_OPENING: Final = Backoff(0.05, 1.0, jitter=0.2)
"""The pauses between attempts of a restarted keeper to open its store."""
_BATCH: Final = 256
"""Rows that are loaded at once."""
_CANDIDATES: Final = 32
"""Busy entities that are passed over to find one that can sleep."""
_ROOM_PAUSE: Final = 0.5
"""Seconds after which the keeper looks again for room for an entity that waits."""
_LEAST_IDLE: Final = 0.1
"""Seconds between two looks at the longest idle entity, also if ``idle`` is less."""
_FEW: Final = 16
"""Entities of a commit whose callers take their steps in the turn of the keeper, so that a lone
command needs a single pass of the loop. Of a hundred callers only some would fit into the turn, and
then each commit had half of their commands.
"""
_ASLEEP: Final = Shutdown("asleep")
_ALONE: Final = 0, 0
"""The shard and the token of all entities of a node that has its store alone."""


class Keeping:
    """The work of a keeper: the entities that are awake, the writes that wait for the store, and
    the moments at which entities have work to do.
    """

    def __init__(
        self,
        keeper: "Entities",
        store: Store,
        kinds: dict[str, type[Entity[Any]]],
        types: MessageTypes,
        table: EntityTable,
    ) -> None:
        self.keeper = keeper
        self.store = store
        self.kinds = kinds
        self.types = types
        self.table = table
        self.active: OrderedDict[str, Activation] = OrderedDict()
        """The entities that are awake or start, the longest idle first."""
        self.kernel: Final = keeper._process.kernel
        self.totals: Totals = Totals()
        self.inspection: KeeperInspection = KeeperInspection(self)
        self.asleep: Asleep = Asleep()
        self.host: Host | None = None
        """The shards of this node; None if the store belongs to this node alone."""
        self._bell = Bell(self.kernel.clock, self.kernel.router.turns)
        self.commits: GroupCommit = GroupCommit(
            store, self.totals, self._bell.ring, self._note_failure, self.settings.max_state
        )
        former, settings = table.keeping, keeper.settings
        clock = former.id_clock if isinstance(former, Keeping) else None
        self.id_clock: IdClock = clock or IdClock(settings.now, settings.remember)
        """The clock by which ids of commands grow old. It goes on when the keeper restarts: a new
        one would follow a wall clock that was set forward.
        """
        self.id_clock.change(settings.now, settings.remember)
        self._schedule = Schedule(settings.now)
        self._wanted = Wanted()
        self._idle_bell = False
        """An entity waits for room: ring when another may sleep."""
        self._names: dict[PID, Address] = {}

    @property
    def settings(self) -> Settings:
        """The settings of the keeper."""
        return self.keeper.settings

    def share(self, host: "Host") -> None:
        """Keep the entities of some shards only: those of this host."""
        self.host = host

    def now(self) -> float:
        """The time of the wall clock."""
        return self.settings.now()

    # -- for activations ---------------------------------------------------------------------------

    def handle(self, address: Address, process: Process | None) -> EntityHandle:
        """The handle of an entity, perhaps of another keeper.

        Raises:
            EntityKindUnknownError: the node keeps no entities of this kind.
        """
        table = self.table
        if address.kind not in self.kinds:
            _, table = table_of_kind(entities_of(self.keeper.node), address.kind)
        return EntityHandle(self.kernel, table, address, process)

    def new_birth(self) -> int:
        """A number that tells entities of the same key apart."""
        return self.kernel.chance("entities").bits(62) + 1

    def pause(self, attempts: int) -> float:
        """Seconds until the next attempt, after so many."""
        chance = self.kernel.chance("entities").fraction()
        return self.settings.backoff.delay(attempts, chance)

    def schedule(self, moment: float, address: Address) -> None:
        """Look after an entity at a moment."""
        if self._schedule.add(moment, address):
            self._bell.ring()

    def note_used(self, name: str) -> float:
        """Note that an entity has been used, and is idle now. Returns the time."""
        self.active.move_to_end(name)
        if self._idle_bell:
            self._idle_bell = False
            self._bell.ring()
        return self.kernel.clock.now()

    def note_parked(self, address: Address, owed: Owed) -> None:
        """Note that a message is not tried any more."""
        self.totals.count_parked()
        self.keeper.log.error(
            "a message was parked",
            entity=str(address),
            to=str(owed.target or address),
            attempts=owed.attempts,
            instead="see `ergo entities`, repair the cause, and retry it",
        )

    def note_asleep(self, address: Address, parked: int) -> None:
        """Note how many parked messages a sleeping entity has."""
        if parked and str(address) not in self.active:
            self.asleep.parked[address] = parked

    def want(self, address: Address, *, is_called: bool = True) -> None:
        """Wake an entity that others wait for, or that has work to do; or let it wake again when it
        has ended. Messages to an entity of another node go there.
        """
        if self.host is not None and not self.host.holds(address):
            self.host.pass_on(address)
            return
        self._wanted.add(address, is_called=is_called)
        self._bell.ring()

    def claim_of(self, address: Address) -> tuple[int, int] | None:
        """The shard of an entity and its token; None if the entity belongs to another node."""
        return _ALONE if self.host is None else self.host.claim_of(address)

    def check_messages_to(self, address: Address) -> None:
        """Check that messages between entities reach another one. Those between the shards of two
        keepers do not: a host knows by the map of its own keeper which copies are late.

        Raises:
            NotAllowedError: it has another keeper, and one of both has shards.
        """
        if address.kind in self.kinds:
            return
        try:
            _, table = table_of_kind(entities_of(self.keeper.node), address.kind)
        except EntityKindUnknownError:
            return  # its keeper may be started later
        other = table.keeping
        if self.host is not None or (other is not None and other.host is not None):
            raise NotAllowedError(
                f"a message to an entity of the class {address.kind!r}, which has another keeper: "
                "entities on several nodes send messages to entities of their own keeper only; "
                "give all classes to one `Entities.spec(store, [A, B], shards=…)`, or call the "
                "entity in an async callback"
            )

    def token_of(self, address: Address) -> int:
        """The token of an entity's shard, as far as this node knows; 0 if it belongs to no node."""
        return _ALONE[1] if self.host is None else self.host.token_of(address)

    def ring(self) -> None:
        """Wake the task of the keeper."""
        self._bell.ring()

    def look_again(self) -> None:
        """Ask the store again which entities have work to do: there are more of them."""
        self._schedule.poll_soon()
        self._bell.ring()

    def tell(self, sender: Activation, address: Address, message: Delivery) -> None:
        """Send a message of the framework to another entity.

        Raises:
            ServiceError: it cannot be sent.
            EntityKindUnknownError: the node keeps no entities of this kind.
        """
        if self.host is None or address.kind not in self.kinds or self.host.holds(address):
            self.handle(address, None).send(message)
        else:
            self.host.tell(sender, address, message)

    def end(self, activation: Activation) -> None:
        """End an entity when its callback in progress is over. Its answers leave, and messages that
        it has not handled wait for its next activation.
        """
        if activation.is_started and not activation.is_over():
            # Not at once: the answer of the callback in progress would not leave.
            to, process = activation.process.id, self.keeper._process
            process.router.send(process.id, to, Leave(), Priority.MAX)

    def count_due(self, kind: str) -> int:
        """How many entities of a kind have work to do in the next half minute."""
        return self._schedule.count(kind)

    async def keys(self, kind: str, start: str, limit: int) -> Sequence[str]:
        """The keys of a kind, from ``start`` on."""
        return await self.store.keys(kind, start, limit)

    # -- the work ----------------------------------------------------------------------------------

    async def work(self, unopened: EntityStoreError | None = None) -> None:
        """Commit, load and wake until the keeper ends. ``unopened`` tells why the store could not
        be opened: it is opened first.
        """
        try:
            if unopened is not None:
                await self._open_store(unopened)
            while True:
                for address in self._schedule.take_due():
                    self._look_after(address)
                if not await self._work_once() and not self._schedule.has_due():
                    await self._put_idle_to_sleep()
                    await self._bell.wait_until(self._next_moment())
        finally:
            self._bell.close()
            self.commits.close()

    async def _open_store(self, error: EntityStoreError) -> None:
        """Try to open the store until it opens, with pauses, and refuse calls meanwhile."""
        self._note_failure("the store cannot be opened; the keeper tries again", error)
        tries = 0
        while True:
            chance = self.kernel.chance("entities").fraction()
            moment = trio.current_time() + _OPENING.delay(tries, chance)
            while trio.current_time() < moment:
                refused = self._wanted.first(_BATCH)
                for address in refused:
                    self._refuse(address, error)
                if refused:
                    await checkpoint()
                else:
                    await self._bell.wait_until(moment)
            try:
                await self.store.open(self.keeper, shared=self.host is not None)
            except EntityStoreError as failure:
                self.totals.count_failure(failure, self.now())
                error = failure
                tries += 1
            else:
                self.keeper.log.warning("the store is open again", tries=tries + 1)
                return

    async def _work_once(self) -> bool:
        """Commit, load and poll, each once: with many writers there is always something to commit.
        False if nothing more is known to do.
        """
        is_busy = False
        if self.host is not None and self.host.has_work():
            is_busy = await self._claim(self.host)
        if self.commits.is_waiting():
            await self._commit()
            self._wanted.stir()
        is_busy = self._wanted.look_again(_BATCH) or is_busy
        if self._wanted.is_ready and await self._wake_some():
            is_busy = True
        # Not while many are known: all of these would be read again.
        is_room = self._wanted.due < _BATCH and not self._schedule.has_due()
        if self._schedule.is_poll_due(is_room=is_room):
            await self._poll()
            is_busy = True
        return is_busy or self.commits.is_waiting()

    def _next_moment(self) -> float:
        first = self._schedule.next()
        if self._idle_bell:
            # An entity may become idle without a callback, as when a caller gives up.
            first = min(first, trio.current_time() + _ROOM_PAUSE)
        for activation in self.active.values():
            return min(first, self._idle_until(activation))
        return first

    def _idle_until(self, activation: Activation) -> float:
        """The moment at which an entity sleeps if it stays idle."""
        return activation.used + max(self.settings.idle, _LEAST_IDLE)

    def _look_after(self, address: Address) -> None:
        slot = self.table.slots.get(str(address))
        if slot is not None and slot.pid is not None:
            process = self.keeper._process
            process.router.send(process.id, slot.pid, Look(), process.priority)
        elif address.kind in self.kinds:
            self.want(address, is_called=False)

    async def _claim(self, host: "Host") -> bool:
        try:
            await host.claim()
        except EntityStoreError as error:
            self._note_failure("a shard cannot be claimed", error)
            self.kernel.clock.arm_call(Deadline(self._bell.ring), _READ_AGAIN)
            return False
        return True

    async def _poll(self) -> None:
        try:
            await self._schedule.poll(self.store, self._is_here, self._is_known)
        except EntityStoreError as error:
            self._note_failure("the store cannot be read", error)

    def _is_known(self, address: Address) -> bool:
        """Whether its work is under way, or is never done here."""
        return (
            address in self._wanted or address.kind not in self.kinds or not self._can_wake(address)
        )

    def _is_here(self, address: Address) -> bool:
        return self.host is None or self.host.holds(address)

    async def _commit(self) -> None:
        try:
            written = await self.commits.commit()
        except EntityStoreError as error:
            self._note_failure("a commit failed; its entities end", error)
            if self.host is not None:
                await self._check_claims(self.host, error)
            return
        turns = self.kernel.router.turns if len(written) <= _FEW else None
        for activation, write in written:
            if self.asleep.failures:
                self.asleep.failures.pop(write.address, None)
            if write.due is not None:
                self.schedule(write.due, write.address)
            activation.release(write, turns)
        if self.host is not None:
            self.host.note_ended()

    async def _check_claims(self, host: "Host", error: EntityStoreError) -> None:
        host.note_ended()
        if isinstance(error, FencedError):
            try:
                await host.check_claims()
            except EntityStoreError as failure:
                self._note_failure("the shards cannot be checked", failure)

    def _note_failure(self, text: str, error: EntityStoreError) -> None:
        self.totals.count_failure(error, self.now())
        self.keeper.log.error(text, why=str(error))

    # -- waking ------------------------------------------------------------------------------------

    async def _wake_some(self) -> bool:
        """Wake entities. False if none can wake now."""
        ready, is_more = await self._take_wanted()
        if not ready:
            await checkpoint()  # there may be very many to look at
            return is_more
        claims = [self.claim_of(address) for address in ready]
        try:
            rows = await self.store.load(ready)
        except EntityStoreError as error:
            self._note_failure("the store cannot be read", error)
            for address in ready:
                self._refuse(address, error)
                # It may have work to do, and the next look into the store may be far.
                self.schedule(self.now() + _READ_AGAIN, address)
            return True
        for address, row, claim in zip(ready, rows, claims, strict=True):
            if claim is not None and claim == self.claim_of(address):
                await self._wake(address, row, claim)
            else:
                self.want(address)  # its shard has moved while the row was read
        return True

    async def _take_wanted(self) -> tuple[list[Address], bool]:
        """The entities to wake now: as many as there is room for, of the next batch. And whether
        there are others to look at, if these are none.
        """
        wanted, ready = self._wanted, list[Address]()
        for address in wanted.first(_BATCH):
            if self.host is not None and not self.host.holds(address):
                wanted.discard(address)
                self.host.pass_on(address)
            elif self._can_wake(address):
                ready.append(address)
            else:
                wanted.put_aside(address)
        room = self.settings.max_awake - len(self.active)
        if room < len(ready):
            room += await self._make_room(len(ready) - room)
            ready = [each for each in ready if self._can_wake(each)]  # it may have waited
        if not ready:
            return [], wanted.is_ready
        taken: list[Address] | None = ready[: max(room, 0)]
        if not taken:
            # All that are awake are busy. Those that wait for one of these entities are not counted
            # against the limit: their wait would have no end.
            taken = wanted.awaited(_BATCH, self._is_awaited)
        if taken is None:
            self._idle_bell = True
            return [], False
        for address in taken:
            wanted.take(address)
        return taken, True

    def _can_wake(self, address: Address) -> bool:
        """Whether an entity is asleep. One that has just ended may have a version that is not
        stored yet, and is loaded behind it.
        """
        return str(address) not in self.active and not self.commits.has(address)

    def _is_awaited(self, address: Address) -> bool:
        """Whether an entity that is awake waits in a call for this one, which can wake."""
        slot = self.table.slots.get(str(address))
        can_wake = slot is not None and self._can_wake(address)
        return slot is not None and can_wake and is_awaited(slot, processes_of(self.kernel.router))

    async def _wake(self, address: Address, row: Row | None, claim: tuple[int, int]) -> None:
        kind = self.kinds[address.kind]
        try:
            slot = self.table.slot(address)
            activation = Activation(self, address, slot.name, kind, row, claim)
        except EntityStoreError as error:
            self._fail_start(address, row, error)
            return
        # Before anything waits: another message must not wake it a second time.
        self.active[slot.name] = activation
        if "init" in self.kernel.callbacks_of(kind).asynchronous:
            self.keeper.start_task(
                self._start, activation, kind, row, slot, name=f"start {slot.name}"
            )
        else:
            await self._start(activation, kind, row, slot)

    async def _start(
        self, activation: Activation, kind: type[Entity[Any]], row: Row | None, slot: ChildSlot
    ) -> None:
        address, keeper = activation.address, self.keeper._process
        try:
            process = await spawn_process(
                keeper.kernel,
                keeper,
                lambda: _made(kind, activation),
                kind,
                (),
                read_options({}),
                slot,
            )
        except (SpawnError, EntityStoreError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            self._give_up_start(activation, row, cause)
            return
        self.totals.count_waking()
        self._wanted.discard(address)
        try:
            activation.start(self.asleep.wake(address))
        except StateTypeError as error:  # the state of `init`, or of this version of its class
            await process.shut(_ASLEEP)
            self._give_up_start(activation, row, error)
            return
        self._names[process.id] = address
        if self.claim_of(address) != activation.claim:
            self.end(activation)  # its shard has moved while it started

    def _give_up_start(self, activation: Activation, row: Row | None, error: Exception) -> None:
        del self.active[activation.name]
        self._fail_start(activation.address, row, error)
        if self.host is not None:
            self.host.note_ended()  # it may have been the last of a shard that moves

    def _fail_start(self, address: Address, row: Row | None, error: Exception) -> None:
        self.keeper.log.error("an entity cannot start", entity=str(address), why=text_of(error))
        self._refuse(address, error)
        if row is not None:
            self._schedule_again(address)

    def _refuse(self, address: Address, error: Exception) -> None:
        """Fail all that waits for an entity that cannot start."""
        self._wanted.discard(address)
        slot = self.table.slots.pop(str(address), None)
        if slot is None:
            return
        for claim in slot.take_waiters():
            caller = getattr(claim, "caller", None)
            if caller is not None:
                caller.settle(None, error)
            else:
                claim.refuse(Crashed(error))
        for _, _, caller, _ in slot.close(Crashed(error)):
            if caller is not None:
                caller.settle(None, error)

    def _schedule_again(self, address: Address) -> None:
        failures = self.asleep.count_failure(address)
        self.schedule(self.now() + self.pause(failures), address)

    # -- sleep -------------------------------------------------------------------------------------

    async def _make_room(self, wanted: int) -> int:
        """Put the longest idle entities to sleep. Returns how many."""
        done = 0
        for makes_room in (False, True):
            # Not a copy of all: there may be very many.
            for activation in list(islice(self.active.values(), wanted - done + _CANDIDATES)):
                if done < wanted and await self._sleeps(activation, makes_room=makes_room):
                    done += 1
        return done

    async def _put_idle_to_sleep(self) -> None:
        passed = 0
        while self.active and passed < _CANDIDATES:
            oldest = next(iter(self.active.values()))
            if self._idle_until(oldest) > trio.current_time():
                return
            if not await self._sleeps(oldest):
                # Look at it again after another idle time, and not at once.
                passed += 1
                oldest.rest()

    async def _sleeps(self, activation: Activation, *, makes_room: bool = False) -> bool:
        if not activation.is_started or activation.is_over():
            return False
        process = activation.process
        if (
            process.task.custom_sleep_data is not PARKED
            or process.main
            or process.mailbox.ahead
            or not activation.can_sleep(makes_room=makes_room)
            or activation.stores_marks()
        ):
            return False
        moments = activation.moments()
        await process.shut(_ASLEEP)
        if moments:
            self.asleep.moments[activation.address] = moments
        self.totals.count_sleep()
        self.ended(process.id, _ASLEEP)
        return True

    def ended(self, pid: PID, reason: Reason) -> None:
        """Note that the process of an entity has ended. It wakes again if others wait for it, or
        if it has failed and has work to do.
        """
        address = self._names.pop(pid, None)
        if address is None:
            return
        name = str(address)
        activation = self.active.pop(name)
        activation.end()
        self.note_asleep(address, sum(each.is_parked for each in activation.record.owed.values()))
        slot = self.table.slots.get(name)
        if slot is not None and (slot.waiters or any(slot.kept.values())):
            self.want(address)
        else:
            self.table.slots.pop(name, None)
        if reason is _ASLEEP:
            self.asleep.failures.pop(address, None)
        if reason is not _ASLEEP and activation.due is not None and self._is_here(address):
            self._schedule_again(address)
        if self.host is not None:
            self.host.note_ended()
        self._wanted.stir()
        if self._idle_bell or len(self._wanted):
            self._idle_bell = False
            self._bell.ring()


def _made(kind: type[Entity[Any]], activation: Activation) -> Entity[Any]:
    entity = kind.__new__(kind)
    entity.begin(activation)
    entity.__init__()  # type: ignore[misc]
    return entity
