"""`Entities`: the keeper of entities. It wakes them, commits their changes, puts them to sleep, and
finds those that have work to do.
"""

import time
import types as module_types
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

import trio

from .._core.processes.process import Process
from .._core.processes.spawn import spawn_process
from .._core.runtime.parking import PARKED
from .._core.vocabulary.errors import BadInputError, SpawnError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.options import check_number, read_options
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Crashed, Reason, Shutdown
from ..actor import Actor
from ..entity_handles import Address, EntityHandle, EntityTable, list_keys
from ..network.messages.message_types import MessageTypes
from ..node import Node
from ..supervision.specs import Backoff
from .activation import Activation, Look
from .entity import Entity, state_type_of
from .errors import EntityStoreError
from .record import Owed
from .stores.store import Row, Store, Write

__all__ = ["Entities", "Keeping", "keys_of"]

_BATCH: Final = 256
"""Rows that are loaded at once."""
_HORIZON: Final = 30.0
"""Seconds after which the keeper asks the store again which entities have work to do. Earlier
moments are kept in memory.
"""
_CANDIDATES: Final = 32
"""Busy entities that are passed over to find one that can sleep."""
_BACKOFF: Final = Backoff(0.1, 60.0, jitter=0.2)
_ASLEEP: Final = Shutdown("asleep")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a keeper."""

    max_awake: int
    idle: float
    remember: float
    max_remembered: int
    attempts: int
    backoff: Backoff
    max_state: int
    max_waiting: int
    now: Callable[[], float]


class Totals:
    """The sums of a keeper."""

    __slots__ = ("commits", "parked", "versions")

    def __init__(self) -> None:
        self.commits = self.versions = self.parked = 0

    def count_commit(self, versions: int) -> None:
        """Count a commit of so many versions."""
        self.commits += 1
        self.versions += versions

    def count_parked(self) -> None:
        """Count a message that is not tried any more."""
        self.parked += 1


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
        """The entities that are awake, the longest idle first."""
        self.settings = keeper.settings
        self.totals = Totals()
        self._gathered: dict[Address, tuple[Activation, Write]] = {}
        self._wanted: dict[Address, None] = {}
        self._moments: list[tuple[float, Address]] = []
        self._poll_at = -inf
        self._bell = trio.Event()
        self._idle_bell = False
        """An entity waits for room: ring when another may sleep."""
        self._is_committing = False
        self._finished: list[trio.Event] = []
        self._failures: dict[Address, int] = {}
        """How often the process of an entity has failed in a row."""
        self._names: dict[PID, Address] = {}
        self._tries: dict[Address, dict[int, float]] = {}
        """The moments of the next attempts of entities that sleep while they owe messages: to wake
        them does not count as an attempt.
        """

    def now(self) -> float:
        """The time of the wall clock."""
        return self.settings.now()

    # -- for activations ---------------------------------------------------------------------------

    def handle(self, address: Address, process: Process | None) -> EntityHandle:
        """The handle of an entity."""
        return EntityHandle(self.keeper._process.kernel, self.table, address, process)

    def new_birth(self) -> int:
        """A number that tells entities of the same key apart."""
        return self.keeper._process.kernel.chance("entities").bits(62) + 1

    def pause(self, attempts: int) -> float:
        """Seconds until the next attempt, after so many."""
        chance = self.keeper._process.kernel.chance("entities").fraction()
        return self.settings.backoff.delay(attempts, chance)

    def submit(self, activation: Activation, write: Write) -> None:
        """Store a version. Of several versions of an entity that wait, only the last is written."""
        waiting = self._gathered.get(write.address)
        if waiting is not None:
            write = write._replace(base=waiting[1].base)
        self._gathered[write.address] = activation, write
        self._bell.set()

    def schedule(self, moment: float, address: Address) -> None:
        """Look after an entity at a moment."""
        if moment < self.now() + _HORIZON or not self._moments:
            heappush(self._moments, (moment, address))
            if self._moments[0] == (moment, address):
                self._bell.set()

    def note_used(self, activation: Activation) -> None:
        """Note that a callback of an entity has ended."""
        self.active.move_to_end(str(activation.address))
        if self._idle_bell:
            self._idle_bell = False
            self._bell.set()

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

    def want(self, address: Address) -> None:
        """Wake an entity, or let it wake again when it has ended."""
        self._wanted[address] = None
        self._bell.set()

    async def keys(self, kind: str, start: str, limit: int) -> Sequence[str]:
        """The keys of a kind, from ``start`` on."""
        return await self.store.keys(kind, start, limit)

    # -- the work ----------------------------------------------------------------------------------

    async def work(self) -> None:
        """Commit, load and wake until the keeper ends."""
        while True:
            self._look_at_moments()
            # All three in each round: with many writers there is always something to commit.
            is_busy = False
            if self._gathered:
                await self._commit()
                is_busy = True
            if self._wanted and await self._wake_some():
                is_busy = True
            if self._poll_at <= self.now():
                await self._poll()
                is_busy = True
            if not is_busy:
                await self._put_idle_to_sleep()
                with trio.move_on_after(max(0.0, self._next_moment() - self.now())):
                    await self._bell.wait()
                self._bell = trio.Event()

    def _next_moment(self) -> float:
        first = self._moments[0][0] if self._moments else inf
        idle = inf
        for activation in self.active.values():
            idle = self.now() + (activation.used + self.settings.idle - trio.current_time())
            break
        return min(first, self._poll_at, idle)

    def _look_at_moments(self) -> None:
        now = self.now()
        while self._moments and self._moments[0][0] <= now:
            _, address = heappop(self._moments)
            self._look_after(address)

    def _look_after(self, address: Address) -> None:
        slot = self.table.slots.get(str(address))
        if slot is not None and slot.pid is not None:
            process = self.keeper._process
            process.router.send(process.id, slot.pid, Look(), process.priority)
        elif address.kind in self.kinds:
            self.want(address)

    async def _poll(self) -> None:
        try:
            found = await self.store.due(self.now() + _HORIZON, _BATCH)
        except EntityStoreError as error:
            self.keeper.log.error("the store cannot be read", why=str(error))
            self._poll_at = self.now() + 1.0
            return
        for moment, address in found:
            self.schedule(moment, address)
        # More than a batch: come again after these, which have work to do first.
        self._poll_at = self.now() + (_HORIZON if len(found) < _BATCH else 0.1)

    async def _commit(self) -> None:
        gathered, self._gathered = self._gathered, {}
        self._is_committing = True
        try:
            await self.store.commit([write for _, write in gathered.values()])
        except EntityStoreError as error:
            self.keeper.log.error(
                "a commit failed; its entities end", entities=len(gathered), why=str(error)
            )
            for address, (activation, _) in gathered.items():
                self._gathered.pop(address, None)  # later versions, of the same memory
                activation.fail(error)
            return
        finally:
            self._is_committing = False
            finished, self._finished = self._finished, []
            for event in finished:
                event.set()
        self.totals.count_commit(len(gathered))
        for address, (activation, write) in gathered.items():
            self._failures.pop(address, None)
            if write.due is not None:
                self.schedule(write.due, address)
            activation.release(write)

    async def finish_commits(self) -> None:
        """Wait until all that was submitted is stored, or has failed."""
        while self._gathered or self._is_committing:
            self._bell.set()
            event = trio.Event()
            self._finished.append(event)
            await event.wait()

    # -- waking ------------------------------------------------------------------------------------

    async def _wake_some(self) -> bool:
        """Wake entities. False if none can wake now."""
        active = self.active
        room = self.settings.max_awake - len(active)
        ready = [each for each in self._wanted if str(each) not in active]
        if not ready:
            self._wanted.clear()  # they wake again when they have ended
            return False
        if room < min(len(ready), _BATCH):
            room += await self._make_room(min(len(ready), _BATCH) - room)
        ready = ready[: min(max(room, 0), _BATCH)]
        if not ready:
            self._idle_bell = True
            return False
        for address in ready:
            del self._wanted[address]
        try:
            rows = await self.store.load(ready)
        except EntityStoreError as error:
            self.keeper.log.error("the store cannot be read", why=str(error))
            for address in ready:
                self._refuse(address, error)
            return True
        for address, row in zip(ready, rows, strict=True):
            kind = self.kinds[address.kind]
            if inspect_async_init(kind):
                self.keeper.start_task(self._start, address, kind, row, name=f"start {address}")
            else:
                await self._start(address, kind, row)
        return True

    async def _start(self, address: Address, kind: type[Entity[Any]], row: Row | None) -> None:
        name = str(address)
        keeper = self.keeper._process
        slot = self.table.slot(address)
        try:
            activation = Activation(self, address, kind, row)
            self.active[name] = activation
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
            self.active.pop(name, None)
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            self.keeper.log.error("an entity cannot start", entity=name, why=str(cause))
            self._refuse(address, cause)
            if row is not None:
                self._schedule_again(address)
            return
        activation.rest()
        self._names[process.id] = address
        activation.begin_owed(self._tries.pop(address, None))

    def _refuse(self, address: Address, error: Exception) -> None:
        """Fail all that waits for an entity that cannot start."""
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
        failures = self._failures[address] = self._failures.get(address, 0) + 1
        self.schedule(self.now() + self.pause(failures - 1), address)

    # -- sleep -------------------------------------------------------------------------------------

    async def _make_room(self, wanted: int) -> int:
        """Put the longest idle entities to sleep. Returns how many."""
        done = 0
        for makes_room in (False, True):
            passed = 0
            for activation in list(self.active.values()):
                if done >= wanted or passed >= _CANDIDATES:
                    break
                if await self._sleeps(activation, makes_room=makes_room):
                    done += 1
                else:
                    passed += 1
        return done

    async def _put_idle_to_sleep(self) -> None:
        now, passed = trio.current_time(), 0
        for activation in list(self.active.values()):
            if activation.used + self.settings.idle > now or passed >= _CANDIDATES:
                break
            if not await self._sleeps(activation):
                passed += 1
                # Look at it again after another idle time, and not at once.
                activation.rest()
                self.active.move_to_end(str(activation.address))

    async def _sleeps(self, activation: Activation, *, makes_room: bool = False) -> bool:
        process = activation.process
        if (
            process.task.custom_sleep_data is not PARKED
            or process.main
            or process.mailbox.ahead
            or not activation.can_sleep(makes_room=makes_room)
        ):
            return False
        tries = activation.tries()
        await process.shut(_ASLEEP)
        if tries:
            self._tries[activation.address] = tries
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
        slot = self.table.slots.get(name)
        if slot is not None and (slot.waiters or any(slot.kept.values())):
            self.want(address)
        else:
            self.table.slots.pop(name, None)
        if reason is not _ASLEEP and activation.due is not None:
            self._schedule_again(address)
        if self._idle_bell or self._wanted:
            self._idle_bell = False
            self._bell.set()


def inspect_async_init(kind: type[Any]) -> bool:
    """Whether the ``init`` of a class waits."""
    return bool(kind.init.__code__.co_flags & 0x80)


def _made(kind: type[Entity[Any]], activation: Activation) -> Entity[Any]:
    entity = kind.__new__(kind)
    entity.begin(activation)
    entity.__init__()  # type: ignore[misc]
    return entity


class Entities(Actor):
    """Keeps entities: a child of a supervisor, ``ChildSpec("entities", Entities,
    SQLite("state.db"), [Account], types=[messages])``.

    Args:
        store: where the entities are kept.
        kinds: the classes of the entities.
        types: the classes of messages between entities, of posted messages, and of answers to
            commands with ids; or modules of such classes.
        max_awake: how many entities may be awake at once.
        idle: seconds after which an idle entity sleeps.
        remember: seconds for which the id of a command is kept.
        max_remembered: how many ids an entity keeps.
        attempts: how often a stored message is tried before it is parked.
        backoff: the delays between attempts.
        max_state: bytes that a state may have.
        max_waiting: how many requests may wait for an entity that wakes up.
        now: the wall clock, for tests.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        store: Store,
        kinds: Sequence[type[Entity[Any]]],
        types: Iterable[type | module_types.ModuleType] = (),
        *,
        max_awake: int = 10_000,
        idle: float = 60.0,
        remember: float = 86_400.0,
        max_remembered: int = 1000,
        attempts: int = 20,
        backoff: Backoff = _BACKOFF,
        max_state: int = 1 << 20,
        max_waiting: int = 1000,
        now: Callable[[], float] = time.time,
    ) -> None:
        names: dict[str, type[Entity[Any]]] = {}
        for kind in kinds:
            state_type_of(kind)
            if kind.kind in names or "/" in kind.kind:
                raise BadInputError("Entities(kinds)", kind, "a name of its own, without a slash")
            names[kind.kind] = kind
        if not names:
            raise BadInputError("Entities(kinds)", kinds, "at least one class of entities")
        check_number("max_awake", max_awake, least=1, whole=True)
        check_number("idle", idle, least=0.0)
        check_number("remember", remember, least=0.0)
        check_number("max_remembered", max_remembered, least=1, whole=True)
        check_number("attempts", attempts, least=1, whole=True)
        check_number("max_state", max_state, least=1, whole=True)
        check_number("max_waiting", max_waiting, least=1, whole=True)
        self.settings = Settings(
            max_awake=max_awake,
            idle=idle,
            remember=remember,
            max_remembered=max_remembered,
            attempts=attempts,
            backoff=backoff,
            max_state=max_state,
            max_waiting=max_waiting,
            now=now,
        )
        self._store = store
        self._kinds = names
        self._types = MessageTypes(types, is_limited=False)
        self._keeping: Keeping | None = None

    async def init(self) -> None:
        """Open the store, and begin to work."""
        await self._store.open(self)
        table = self.node._open_entities(self._kinds.values())
        keeping = self._keeping = Keeping(self, self._store, self._kinds, self._types, table)
        table.open(self._process, keeping, self.settings.max_waiting)
        self.start_task(keeping.work, name="entities")

    async def _control(self, sender: PID, caller: object, operation: tuple[object, Reason]) -> None:
        """Note that an entity, which has a slot as the child of a supervisor has, has ended."""
        if self._keeping is not None:
            self._keeping.ended(sender, operation[1])

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """How many entities are awake, and what the store has done."""
        keeping = self._keeping
        assert keeping is not None
        return {
            "kinds": ", ".join(keeping.kinds),
            "awake": str(len(keeping.active)),
            "commits": str(keeping.totals.commits),
            "versions": str(keeping.totals.versions),
            "parked": str(keeping.totals.parked),
            "store": repr(self._store),
        }

    async def pre_stop(self, reason: Reason) -> None:
        """Let the commits under way end, so that their answers leave."""
        if self._keeping is not None:
            await self._keeping.finish_commits()

    async def terminate(self, reason: Reason) -> None:
        """Close the store."""
        if self._keeping is not None:
            self._keeping.table.close(self._process.kernel, reason)
        await self._store.close()


def keys_of(node: Node, kind: type[Entity[Any]], prefix: str = "") -> AsyncIterator[str]:
    """The keys of all entities of a class that the store has, in order: ``async for key in
    keys_of(node, Account, prefix="a")``. Entities that are made meanwhile may be missing.

    Raises:
        EntityKindUnknownError: the node keeps no entities of this class.
    """
    return list_keys(node._entities, kind, prefix)


show_public_names(__name__)
