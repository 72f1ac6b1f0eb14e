"""`EntityHandle`: sends to an entity, calls it and posts to it. `EntityTable`: the slots of
entities that are awake, or that others wait for. The room ``entities`` keeps the entities.
"""

import re
from collections.abc import AsyncGenerator, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, overload

from ._core.kernel import Kernel
from ._core.processes.process import Process
from ._core.processes.unhandled_messages import close_slot
from ._core.tables.child_slot import ChildSlot, Claim, Fate, Rules
from ._core.verbs.common import check_timeout
from ._core.vocabulary.envelopes import Priority
from ._core.vocabulary.errors import BadInputError, ErgoError, NotAllowedError, ServiceGoneError
from ._core.vocabulary.hints import did_you_mean
from ._core.vocabulary.ids import PID, Alias, B_co
from ._core.vocabulary.messages import Request, Untyped
from ._core.vocabulary.public_names import show_under
from ._core.vocabulary.reasons import NoProcess, Reason
from .service import Service

__all__ = [
    "Address",
    "EntityFigures",
    "EntityHandle",
    "EntityKindUnknownError",
    "EntityTable",
    "Fresh",
    "Keeper",
    "Once",
    "Inspection",
    "Post",
    "Retry",
    "address_of",
    "check_key",
    "check_kind",
    "check_stored",
    "entities_of",
    "entity_figures",
    "find_entity",
    "html_of",
    "inspections",
    "inspection_of",
    "list_keys",
    "table_of_kind",
]

B = TypeVar("B")
Callee = TypeVar("Callee")
R = TypeVar("R")

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that no stored name has: a zero, and halves of characters, which have no encoding."""
_KEY_BYTES: Final = 1800
"""Bytes of the longest key. With a kind of 200 characters it fits into a row of an index of
PostgreSQL, which has 2,704 at most.
"""


class Address(NamedTuple):
    """An entity: the name of its kind, and its key."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"


def address_of(text: str) -> Address:
    """The address with this text. The names of kinds have no slash."""
    kind, _, key = text.partition("/")
    return Address(kind, key)


def check_stored(what: str, text: object, *, most: int = 1000, least: int = 1) -> str:
    """Return a text that is stored beside a state: a key, an id, the name of a timer or of a kind.
    A subclass of str becomes a plain str, since codecs know no others.

    Raises:
        BadInputError: it is not a text that can be stored.
    """
    if isinstance(text, str):
        plain = text if type(text) is str else str.__str__(text)
        if least <= len(plain) <= most and (
            "\0" not in plain if plain.isascii() else not _UNSTORABLE.search(plain)
        ):
            return plain
    raise BadInputError(
        what,
        text,
        f"a text of {least} to {most:,} characters, without zeros and surrogates (halves of "
        'characters, which `json.loads` makes of "\\ud800", and which no store can keep)',
    )


def check_key(key: object) -> str:
    """Return the key of an entity.

    Raises:
        BadInputError: it is not a text that can be stored.
    """
    plain = check_stored("entity(kind, key)", key)
    if not plain.isascii() and len(plain.encode()) > _KEY_BYTES:
        raise BadInputError(
            "entity(kind, key)", key, f"a text of at most {_KEY_BYTES:,} bytes as UTF-8"
        )
    return plain


def check_kind(cls: type, kind: object) -> str:
    """Return the name of a kind, which a class of entities has set.

    Raises:
        BadInputError: it is not a text that can be stored, or has a slash.
    """
    what = f"{cls.__name__}.kind, the name of its entities in the store"
    name = check_stored(what, kind, most=200)
    if "/" in name:
        raise BadInputError(what, kind, "a text without a slash, which stands before the key")
    return name


class EntityKindUnknownError(ErgoError, LookupError):
    """The node keeps no entities of this class."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        names = list(known)
        instead = did_you_mean(kind, names) or (
            f'; start them with `ChildSpec("entities", Entities, SQLite("state.db"), [{kind}])` '
            "under a supervisor"
        )
        only = f", only {', '.join(names)}" if names else ""
        super().__init__(f"this node keeps no {kind} entities{only}{instead}")
        self.kind = kind


def _returns(_reason: Reason) -> bool:
    return True


class Once(Request[R], Generic[R]):
    """A request with the id of a command."""

    __slots__ = ("id", "request")
    __carries_request__ = True

    def __init__(self, id: str, request: Any) -> None:
        self.id: str = check_stored("once, the id of the command", id, most=200)
        self.request: Final = request

    def __repr__(self) -> str:
        return f"{self.request!r} once={self.id!r}"


class Fresh(Request[R], Generic[R]):
    """A request whose answer leaves only after a commit, also if it changes nothing."""

    __slots__ = ("request",)
    __carries_request__ = True

    def __init__(self, request: object) -> None:
        self.request: object = request

    def __repr__(self) -> str:
        return f"{self.request!r} fresh"


class Post(Request[None]):
    """A request to store a message, and to handle it later."""

    __slots__ = ("message",)

    def __init__(self, message: object) -> None:
        self.message: object = message

    def __repr__(self) -> str:
        return f"post {self.message!r}"


class Retry(Request[int]):
    """The request to try the parked messages of an entity again. The answer is their number."""

    __slots__ = ()


class EntityFigures(NamedTuple):
    """The counters of the entities of a node, or of a keeper."""

    awake: int = 0
    """Entities that are awake now."""
    commits: int = 0
    """Commits so far."""
    versions: int = 0
    """Rows that these commits have written."""
    failures: int = 0
    """Failures of stores."""
    parked: int = 0
    """Messages that were parked so far."""
    wakings: int = 0
    """Entities that have woken up, each time."""
    sleeps: int = 0
    """Entities that were put to sleep, each time."""
    seconds: float = 0.0
    """The time that all commits have taken."""
    held: int = 0
    """Replies and messages that wait for commits now."""
    owed: int = 0
    """Messages that entities which are awake owe now, without parked messages and later timers."""


class Inspection(Protocol):
    """The facts about the entities of a keeper, as JSON values."""

    def figures(self) -> EntityFigures:
        """The counters. From any thread."""
        ...

    async def facts(self, age: float = 0.0) -> dict[str, Any]:
        """The store, and the kinds with their counts, which may be ``age`` seconds old."""
        ...

    async def record(self, kind: str, key: str, *, contents: bool = False) -> dict[str, Any] | None:
        """The stored record of an entity; None if there is none."""
        ...

    async def parked(self, limit: int) -> list[dict[str, Any]]:
        """The parked messages of all entities."""
        ...


class Keeper(Protocol):
    """The work of a keeper, as far as handles need it."""

    @property
    def inspection(self) -> Inspection:
        """The facts about its entities."""
        ...

    @property
    def host(self) -> object | None:
        """The shards of a keeper on several nodes; None for a keeper on a single node."""
        ...

    def want(self, address: Address, /) -> None:
        """Wake an entity."""

    async def keys(self, kind: str, start: str, limit: int, /) -> Sequence[str]:
        """The keys of a kind, from ``start`` on."""
        ...


class EntitySlot(ChildSlot):
    """The slot of an entity, named by its kind and key."""

    __slots__ = ()

    is_of_entity = True


class EntityTable:
    """The entities of a keeper: the slots of their processes, and those that are awake."""

    __slots__ = ("keeper", "keeping", "rules", "slots", "vacant")

    def __init__(self) -> None:
        self.slots: dict[str, ChildSlot] = {}
        """The slots of entities that are awake, or that others wait for."""
        self.keeper: Process | None = None
        """The process that keeps them. Its successor after a restart takes this table over."""
        self.keeping: Keeper | None = None
        """The work of the keeper."""
        self.rules: Rules = Rules()
        """The rules of all slots."""
        self.vacant: Final = ChildSlot("")
        """Stands for the slots of all sleeping entities. Nothing waits in it."""

    def check_free(self, kind: str) -> None:
        """Check that no keeper has these entities.

        Raises:
            NotAllowedError: a keeper has them, and has not ended.
        """
        keeper = self.keeper
        if keeper is not None and keeper.accepting:
            raise NotAllowedError(
                f"the {kind} entities of this node are kept by {keeper.id} already; a class "
                "belongs to a single Entities, so take it out of one of the lists"
            )

    def open(
        self, keeper: Process, keeping: "Keeper", kinds: Container[str], max_waiting: int
    ) -> None:
        """Come under a keeper of these kinds, which may be the successor of another."""
        self.keeper, self.keeping = keeper, keeping
        self.rules = rules = Rules(None, Fate.KEEP, max_waiting, _returns)
        for name, slot in list(self.slots.items()):
            address = address_of(name)
            if not (slot.waiters or any(slot.kept.values())):
                del self.slots[name]
            elif address.kind in kinds:
                slot.join(keeper, rules)
                keeping.want(address)
            else:
                del self.slots[name]
                close_slot(keeper.kernel, slot, NoProcess())

    def slot(self, address: Address) -> ChildSlot:
        """The slot of an entity, made on first use.

        Raises:
            ServiceError: of kind ``"gone"``; the keeper has ended, and does not come back.
        """
        name = str(address)
        slot = self.slots.get(name)
        if slot is None:
            keeper = self.keeper
            assert keeper is not None
            if not keeper.accepting and (keeper.slot is None or keeper.slot.gone is not None):
                raise ServiceGoneError(name, None, keeper.reason or NoProcess())
            slot = self.slots[name] = EntitySlot(name)
            slot.join(keeper, self.rules)
        return slot

    def close(self, kernel: Kernel, reason: Reason) -> None:
        """Refuse all that waits, if the keeper does not come back."""
        keeper = self.keeper
        if keeper is None or (keeper.slot is not None and keeper.slot.returns(reason)):
            return
        slots, self.slots = self.slots, {}
        for slot in slots.values():
            close_slot(kernel, slot, reason)

    def want(self, address: Address) -> None:
        """Ask the keeper to wake an entity."""
        assert self.keeping is not None
        self.keeping.want(address)


class EntityHandle(Service[B_co]):
    """The address of an entity. It is always valid: the first message wakes the entity.

    ``call`` and ``send`` work as those of a service. Messages to an entity that wakes up wait, and
    the entity gets them in order.
    """

    __slots__ = ("_name", "_table", "address")

    def __init__(
        self,
        kernel: Kernel,
        table: EntityTable,
        address: Address,
        process: Process | None = None,
        sender: PID | Alias | None = None,
    ) -> None:
        self._table = table
        self.address: Address = address
        self._name = str(address)
        super().__init__(kernel, table.vacant, process, sender)

    @property
    def _slot(self) -> ChildSlot:  # not kept: a sleeping entity has none
        return self._table.slots.get(self._name, self._table.vacant)

    @_slot.setter
    def _slot(self, slot: ChildSlot) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{self.address.kind} {self.address.key!r}>"

    def _repr_html_(self) -> str:
        return html_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntityHandle) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    @property
    def name(self) -> str:
        """Kind and key, for errors."""
        return self._name

    @property
    def key(self) -> str:
        """The key of the entity."""
        return self.address.key

    @overload
    async def call(
        self,
        request: Untyped | None,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
        once: str | None = None,
        fresh: bool = False,
    ) -> Any: ...
    @overload
    async def call(
        self: "EntityHandle[Callee]",
        request: Request[R, Callee],
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
        once: str | None = None,
        fresh: bool = False,
    ) -> R: ...
    async def call(
        self,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority = Priority.NORMAL,
        retry: bool = False,
        once: str | None = None,
        fresh: bool = False,
    ) -> Any:
        """Call the entity, and wait for its answer, which leaves it when all changes that it could
        depend on are stored.

        Args:
            request: the request.
            timeout: seconds to wait; it covers the waking, too.
            priority: the priority of the request.
            retry: repeat the request if the entity ends while it has it. Safe with ``once``.
            once: the id of the command. A command that was done under its id is not done again:
                each repetition gets the first answer, or `AnswerUnknownError` if it was deferred
                and never given.
            fresh: let the answer leave only after a commit, also if the entity has changed nothing:
                the store confirms that no other node has the entity by now. Without it, a node that
                was stopped and continues may answer a read with an old state for a moment.

        Raises:
            TargetDownError: the entity ended while it had the request, or the store failed. The
                command may have been carried out; repeat it with its id.
            CallTimeoutError: no answer in time. The same holds.
            ServiceError: of kind ``"gone"``; the node keeps no entities any more.
            ServiceError: of kind ``"busy"``; too many requests wait for the entity.
            Exception: the error that the entity gave to ``Reject``.
        """
        given: object = Fresh[Any](request) if fresh else request
        if once is not None:
            given = Once[Any](once, given)
        slot = self._table.slots.get(self._name)
        if slot is None or slot.pid is None or retry:
            return await super().call(given, timeout=timeout, priority=priority, retry=retry)
        # Inlined: each call to an entity waits, and each coroutine would be woken with it.
        check_timeout(timeout)
        if self._process is not None:
            self._process.count_sent()
        return await self._kernel.calls.call(
            self._process, self._sender, slot.pid, given, timeout, priority
        )

    async def post(
        self, message: object, *, once: str | None = None, timeout: float | None = 5.0
    ) -> None:
        """Store a message for the entity. Returns when it is stored: from then on the entity
        handles it until that is stored, too, also after crashes.

        Raises:
            TargetDownError: the store failed, or the entity ended. The message may be stored;
                repeat it with its id.
            CallTimeoutError: the same, after ``timeout`` seconds.
        """
        await self.call(Post(message), once=once, timeout=timeout)

    def _present(self, message: object) -> ChildSlot:
        slot = self._own_slot()
        if slot.gone is not None:
            raise ServiceGoneError(slot.name, message, slot.gone)
        return slot

    def _own_slot(self) -> ChildSlot:
        return self._table.slots.get(self._name) or self._table.slot(self.address)

    def _join(self, slot: ChildSlot, claim: Claim, message: object) -> None:
        super()._join(self._own_slot(), claim, message)
        self._table.want(self.address)


def find_entity(
    kernel: Kernel,
    tables: Mapping[type, EntityTable],
    kind: type[B],
    key: str,
    process: Process | None = None,
) -> EntityHandle[B]:
    """The handle of an entity.

    Raises:
        EntityKindUnknownError: the node keeps no entities of this class.
    """
    table = _table_of(tables, kind)
    return EntityHandle(kernel, table, Address(_kind_of(kind), check_key(key)), process)


async def list_keys(
    tables: Mapping[type, EntityTable], kind: type[Any], prefix: str, after: str = ""
) -> AsyncGenerator[str, None]:
    """The keys of a class of entities, in order: those behind ``after``.

    Raises:
        EntityKindUnknownError: the node keeps no entities of this class.
        BadInputError: no key can begin so.
    """
    keeping = _table_of(tables, kind).keeping
    assert keeping is not None
    prefix = check_stored("prefix", prefix, least=0)
    after = check_stored("after", after, least=0)
    start = max(prefix, after + "\0") if after else prefix
    while True:
        found = await keeping.keys(_kind_of(kind), start, _PAGE)
        for key in found:
            if not key.startswith(prefix):
                return
            yield key
        if len(found) < _PAGE:
            return
        start = found[-1] + "\0"  # no key contains a zero


def entities_of(node: Any) -> Mapping[type, EntityTable]:
    """The tables of a node, by the classes of their entities."""
    tables: Mapping[type, EntityTable] = node._entities
    return tables


def inspections(tables: Mapping[type, EntityTable]) -> list[Inspection]:
    """The facts of all keepers of a node."""
    keepers = [each.keeping for each in dict.fromkeys(list(tables.values()))]
    return [each.inspection for each in keepers if each is not None]


def entity_figures(node: object) -> EntityFigures:
    """The counters of the entities of a node; zeros if it keeps none. From any thread."""
    each = [one.figures() for one in inspections(entities_of(node))]
    return EntityFigures(*map(sum, zip(*each, strict=True))) if each else EntityFigures()


def inspection_of(tables: Mapping[type, EntityTable], kind: str) -> tuple[type[Any], Inspection]:
    """The class of entities with this name, and the facts of its keeper.

    Raises:
        EntityKindUnknownError: the node keeps no entities of this name.
    """
    cls, table = table_of_kind(tables, kind)
    assert table.keeping is not None
    return cls, table.keeping.inspection


def table_of_kind(tables: Mapping[type, EntityTable], kind: str) -> tuple[type[Any], EntityTable]:
    """The class of entities with this name, and its table.

    Raises:
        EntityKindUnknownError: the node keeps no entities of this name.
    """
    for cls, table in tables.items():
        if _kind_of(cls) == kind and table.keeping is not None:
            return cls, table
    raise EntityKindUnknownError(kind, [_kind_of(each) for each in tables])


def _kind_of(kind: Any) -> str:
    name: str = kind.kind
    return name


def _table_of(tables: Mapping[type, EntityTable], kind: type[Any]) -> EntityTable:
    table = tables.get(kind)
    if table is None:
        name = getattr(kind, "__name__", repr(kind))
        raise EntityKindUnknownError(name, [each.__name__ for each in tables])
    return table


_PAGE: Final = 500
"""Keys that are read at once."""

show_under("ergo_py.entities", ("EntityHandle",), globals())


def html_of(entity: EntityHandle[Any]) -> str:
    """A table of the facts about an entity, for notebooks."""
    from html import escape  # noqa: PLC0415 - needed in notebooks only

    kind, key = entity.address
    facts = {"kind": kind, "key": key, "process": str(entity.pid or "asleep")}
    rows = [f"<tr><th>{name}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items()]
    return f"<table>{''.join(rows)}</table>"
