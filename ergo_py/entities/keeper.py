"""`Entities`: the keeper of entities, as a child of a supervisor."""

import time
import types as module_types
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from .._core.vocabulary.errors import NotAllowedError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason
from ..actor import Actor
from ..entity_handles import list_keys
from ..network.messages.message_types import MessageTypes
from ..node import Node
from ..supervision.specs import Backoff
from .active_entities import Keeping
from .entity import Entity
from .settings import Settings, names_of
from .stores.store import Store

__all__ = ["Entities", "keys_of"]

_BACKOFF: Final = Backoff(0.1, 60.0, jitter=0.2)


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
        self._kinds = names_of(kinds)
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
        self._types = MessageTypes(types, is_limited=False)
        self._keeping: Keeping | None = None

    async def init(self) -> None:
        """Open the store, and begin to work.

        Raises:
            EntityStoreError: the store cannot be opened.
            NotAllowedError: another keeper of the node has one of the classes.
        """
        await self._store.open(self)
        try:
            table = self.node._open_entities(self._kinds.values())
        except NotAllowedError:
            await self._store.close()
            raise
        keeping = self._keeping = Keeping(self, self._store, self._kinds, self._types, table)
        table.open(self._process, keeping, self._kinds, self.settings.max_waiting)
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
            await self._keeping.commits.finish()

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
