"""`KeeperInspection`: the facts about the entities of a keeper. `EntityInspector`: those of a node,
for programs, prompts and tests.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio

from .._core.inspection.state import redacted, show
from .._core.vocabulary.public_names import name_for_annotations, show_public_names
from ..entity_handles import (
    Address,
    EntityFigures,
    Inspection,
    Retry,
    check_key,
    entities_of,
    inspection_of,
    inspections,
)
from ..network.messages.codec import msgspec
from ..network.messages.listed_class import UnreadableValueError
from ..node import Node
from .errors import EntityStoreError
from .record import Owed, Record

if TYPE_CHECKING:
    from .active_entities import Keeping
    from .entity import Entity
else:
    name_for_annotations(
        __name__,
        {
            "ergo_py.entities.active_entities": "Keeping",
            "ergo_py.entities.entity": "Entity",
        },
    )

__all__ = ["EntityInspector", "KeeperInspection"]

_COUNTED: Final = 100_000
"""Stored entities of a kind that are counted: a store has no count of its own."""
_RECENT: Final = 10.0
"""Seconds of which recent commits are told."""
_STEP: Final = 0.5
"""Seconds between two notes of the sums."""
_PAGE: Final = 10_000
"""Keys that are read at once."""
_BATCH: Final = 256
"""Rows that are read at once. Commits come in between."""

Facts = dict[str, Any]


class KeeperInspection:
    """The facts about the entities of a keeper, as JSON values. Contents come after the node's
    ``redact``.
    """

    __slots__ = ("_counts", "_keeping", "_recent")

    def __init__(self, keeping: "Keeping") -> None:
        self._keeping = keeping
        self._counts: dict[str, tuple[float, int, bool]] = {}
        """The last count of each kind: its moment, the stored entities, and whether there are more.
        """
        self._recent: deque[tuple[float, int, int, float]] = deque()
        """The sums of the last seconds: their moment, commits, versions, time of the commits."""

    def figures(self) -> EntityFigures:
        """The counters. From any thread."""
        keeping, totals = self._keeping, self._keeping.totals
        # A copy in a single step, since the loop goes on: as for the messages of each entity.
        active, now = list(keeping.active.values()), keeping.now()
        return EntityFigures(
            awake=len(active),
            commits=totals.commits,
            versions=totals.versions,
            failures=totals.failures,
            parked=totals.parked,
            wakings=totals.wakings,
            sleeps=totals.sleeps,
            seconds=totals.seconds,
            held=sum(each.held for each in active),
            owed=sum(each.record.count_owed(now) for each in active),
        )

    async def facts(self, age: float = 0.0) -> Facts:
        """The store with its sums, and the kinds with their counts. Counts of stored entities may
        be ``age`` seconds old: all keys are read for them.
        """
        keeping = self._keeping
        kinds = []
        for kind in keeping.kinds:
            stored, is_more = await self._count_again(kind, age)
            kinds.append({"kind": kind, "stored": stored, "is_more": is_more, **self._awake(kind)})
        totals, host = keeping.totals, keeping.host
        return {
            **({} if host is None else {"map": host.facts()}),
            "store": repr(keeping.store),
            "commits": totals.commits,
            "versions": totals.versions,
            "failures": totals.failures,
            "last_error": totals.last_error,
            "recent": self._sums(),
            "kinds": kinds,
        }

    def _sums(self) -> Facts:
        """The commits of the last seconds: how many, of how many versions, and their time."""
        now, totals, recent = trio.current_time(), self._keeping.totals, self._recent
        sums = now, totals.commits, totals.versions, totals.seconds
        if not recent or recent[-1][0] <= now - _STEP:
            recent.append(sums)
        while len(recent) > 1 and recent[1][0] <= now - _RECENT:
            recent.popleft()
        seconds, commits, versions, time = (
            new - old for new, old in zip(sums, recent[0], strict=True)
        )
        return {"seconds": seconds, "commits": commits, "versions": versions, "time": time}

    async def _count_again(self, kind: str, age: float) -> tuple[int, bool]:
        now = trio.current_time()
        last = self._counts.get(kind)
        if last is None or last[0] < now - age or not age:
            last = self._counts[kind] = (now, *await self._count(kind))
        return last[1:]

    async def _count(self, kind: str) -> tuple[int, bool]:
        """How many entities of a kind are stored, and whether there are more than are counted."""
        count, start = 0, ""
        while count < _COUNTED:
            found = await self._keeping.store.keys(kind, start, _PAGE)
            count += len(found)
            if len(found) < _PAGE:
                return count, False
            start = found[-1] + "\0"  # no key contains a zero
        return count, True

    def _awake(self, kind: str) -> Facts:
        """The entities of a kind that are awake, and the messages that they owe."""
        now, counts = self._keeping.now(), Counter[str]()
        for activation in self._keeping.active.values():
            if activation.address.kind == kind:
                counts["awake"] += 1
                for each in activation.record.owed.values():
                    counts["parked" if each.is_parked else "owed"] += each.due <= now
        for address, count in self._keeping.asleep.parked.items():
            counts["parked"] += count * (address.kind == kind)
        counts["due"] = self._keeping.count_due(kind)
        return {each: counts[each] for each in ("awake", "owed", "due", "parked")}

    async def record(self, kind: str, key: str, *, contents: bool = False) -> Facts | None:
        """The stored record of an entity; None if there is none. Its messages are types, with
        ``contents`` also texts.
        """
        keeping = self._keeping
        address = Address(kind, check_key(key))
        (row,) = await keeping.store.load([address])
        if row is None:
            return None
        record = Record.decode(row.record)
        owed = [(each, self._message(each, address, contents)) for each in record.owed.values()]
        return {
            "kind": kind,
            "key": key,
            "is_awake": str(address) in keeping.active,
            "version": row.version,
            **self._state(kind, record),
            "owed": [facts for each, facts in owed if not each.name and not each.is_parked],
            "timers": [facts for each, facts in owed if each.name and not each.is_parked],
            "parked": [facts for each, facts in owed if each.is_parked],
            "done": {id: _moment(at) for id, (at, _) in record.done.items()},
        }

    def _state(self, kind: str, record: Record) -> Facts:
        if record.state is None:
            return {"state": None}
        state_type = self._keeping.kinds[kind].__state_type__
        try:
            return {"state": self._plain("state", state_type.load(record.state))}
        except ValueError as error:
            raw = self._plain("state", msgspec.msgpack.decode(record.state))
            return {"state": raw, "problem": f"not a {state_type.name}: {error}"}

    def _message(self, owed: Owed, address: Address, contents: bool) -> Facts:
        facts: Facts = {"to": str(owed.target or address)}
        try:
            message = self._keeping.types.decode(owed.message)
        except UnreadableValueError as error:
            facts |= {"message_type": "?", "problem": str(error)}
        else:
            facts["message_type"] = type(message).__name__
            if contents:
                facts["message"] = show(self._keeping.kernel, "message", message)
        if owed.name:
            facts["timer"] = owed.name
        if owed.due:
            facts["due"] = _moment(owed.due)
        if owed.attempts:
            facts["attempts"] = owed.attempts
        return facts

    def _plain(self, what: str, value: object) -> Any:
        """A value as JSON, after ``redact`` of each of its parts."""
        try:
            value = redacted(self._keeping.kernel, what, value)
        except Exception as error:
            return f"<redact raised {type(error).__name__}>"
        if is_dataclass(value) and not isinstance(value, type):
            value = {each.name: getattr(value, each.name) for each in fields(value)}
        elif isinstance(value, msgspec.Struct):
            value = {each: getattr(value, each) for each in value.__struct_fields__}
        if isinstance(value, Mapping):
            return {str(key): self._plain(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._plain(what, each) for each in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return str(value)

    async def parked(self, limit: int) -> list[Facts]:
        """The parked messages of all entities, at most ``limit``. Reads all rows: a store knows
        only which entities have work to do. A row that cannot be read has a ``problem``, and the
        others are listed.
        """
        found: list[Facts] = []
        for kind in self._keeping.kinds:
            async for address, record in self._records(kind):
                if isinstance(record, EntityStoreError):
                    if len(found) < limit:
                        found.append({"kind": kind, "key": address.key, "problem": str(record)})
                    continue
                parked = [each for each in record.owed.values() if each.is_parked]
                self._keeping.note_asleep(address, len(parked))
                for each in islice(parked, limit - len(found)):
                    message = self._message(each, address, contents=False)
                    found.append({"kind": kind, "key": address.key, **message})
        return found

    async def _records(self, kind: str) -> AsyncIterator[tuple[Address, Record | EntityStoreError]]:
        """All records of a kind; an error for each that cannot be read."""
        start, store = "", self._keeping.store
        while keys := await store.keys(kind, start, _BATCH):
            addresses = [Address(kind, key) for key in keys]
            for address, row in zip(addresses, await store.load(addresses), strict=True):
                if row is not None:
                    try:
                        record: Record | EntityStoreError = Record.decode(row.record)
                    except EntityStoreError as error:
                        record = error
                    yield address, record
            start = keys[-1] + "\0"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


class EntityInspector:
    """Looks at the entities of a node, as ``ergo entities`` does: ``EntityInspector(node)``. All
    answers are values of JSON.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    async def kinds(self) -> list[Facts]:
        """Each store of the node with its sums, and its kinds: how many entities of each are stored
        and awake, how many messages they owe, and how many messages are parked.
        """
        return [await each.facts() for each in inspections(entities_of(self._node))]

    async def record(
        self, kind: "type[Entity[Any]] | str", key: str, *, contents: bool = False
    ) -> Facts | None:
        """The stored record of an entity: its state, the messages that it owes, its timers, its
        parked messages and the ids of commands. None if nothing is stored. Does not wake it.

        Args:
            kind: the class of the entity, or the name of its kind.
            key: its key.
            contents: messages as texts, too.

        Raises:
            EntityKindUnknownError: the node keeps no entities of this kind.
        """
        cls, inspection = self._find(kind)
        return await inspection.record(cls.kind, key, contents=contents)

    async def parked(self, limit: int = 1000) -> list[Facts]:
        """The parked messages of all entities. Reads all rows. A row that cannot be read is listed
        with its ``problem``.
        """
        found: list[Facts] = []
        for each in inspections(entities_of(self._node)):
            found += await each.parked(limit - len(found))
        return found

    async def retry(
        self, kind: "type[Entity[Any]] | str", key: str, *, timeout: float | None = 5.0
    ) -> int:
        """Give the parked messages of an entity new attempts. Returns how many there were, when
        that is stored.

        Raises:
            EntityKindUnknownError: the node keeps no entities of this kind.
            TargetDownError: the store failed.
        """
        cls, _ = self._find(kind)
        return await self._node.entity(cls, key).call(Retry(), timeout=timeout)

    def _find(self, kind: "type[Entity[Any]] | str") -> "tuple[type[Entity[Any]], Inspection]":
        name = kind if isinstance(kind, str) else kind.kind
        return inspection_of(entities_of(self._node), name)


show_public_names(__name__)
