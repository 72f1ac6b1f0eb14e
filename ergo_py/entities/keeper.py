"""`Entities`: the keeper of entities, as a child of a supervisor."""

import time
import types as module_types
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import NotAllowedError, Reject, UnhandledCallError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import NO_REPLY, Down, Drain
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Reason
from ..actor import Actor
from ..entity_handles import entities_of, list_keys
from ..network.messages.message_types import MessageTypes
from ..node import Node
from ..supervision.specs import Backoff
from .active_entities import Keeping
from .entity import Entity
from .errors import EntityStoreError
from .settings import Settings, names_of
from .stores.store import Store

if TYPE_CHECKING:
    from .shards.host import Host

__all__ = ["Entities", "keys_of"]

_LOOK: Final = 0.05
"""Seconds between two looks at the shards of a node that drains."""
_BACKOFF: Final = Backoff(0.1, 60.0, jitter=0.2)


def _time_of_day() -> float:
    return time.time()  # looked up at each call: a world of the tests has a time of day of its own


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
        max_state: bytes that the record of an entity may have: its state, and the messages, timers
            and answers to commands with ids that are stored with it.
        max_waiting: how many requests may wait for an entity that wakes up, or that moves.
        now: the wall clock, for tests.
        shards: into how many parts the entities are divided that the nodes of a cluster share. The
            same on all nodes, and it cannot change later. None: this node has the store alone.
        lease: with ``shards``, seconds after which other nodes take the entities of a node that
            says nothing.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    drains = True
    serves_drained = True  # calls that were under way go on to the present hosts of their shards

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
        now: Callable[[], float] = _time_of_day,
        shards: int | None = None,
        lease: float = 10.0,
    ) -> None:
        self._kinds = names_of(kinds)
        if shards is not None:
            check_number("shards", shards, least=1, most=4096, whole=True)
        check_number("lease", lease, least=0.5)
        self._shards = shards
        self._lease = lease
        self.settings: Settings = Settings(
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
        self._types = MessageTypes(types, is_limited=False, place="of `Entities`")
        self._keeping: Keeping | None = None

    async def init(self) -> None:
        """Open the store, and begin to work. After a restart the keeper begins also if the store
        cannot be opened, refuses calls, and tries again until the store opens.

        Raises:
            EntityStoreError: the store cannot be opened, and no keeper of this node had these
                entities before.
            NotAllowedError: another keeper of the node has one of the classes, or the node has no
                network for its shards, or this child has no name.
        """
        if self._shards is not None:
            self._check_cluster()
        unopened = await self._open_store()
        try:
            table = self.node._open_entities(self._kinds.values())
        except NotAllowedError:
            await self._store.close()
            raise
        keeping = self._keeping = Keeping(self, self._store, self._kinds, self._types, table)
        if self._shards is not None:
            await self._open_shards(keeping, self._shards)
        table.open(self._process, keeping, self._kinds, self.settings.max_waiting)
        self.start_task(keeping.work, unopened, name="entities")

    async def _open_store(self) -> EntityStoreError | None:
        """Open the store. Returns the error if a restarted keeper cannot open it."""
        try:
            await self._store.open(self, shared=self._shards is not None)
        except EntityStoreError as error:
            if entities_of(self.node).keys().isdisjoint(self._kinds.values()):
                raise  # the first start of the program: its path or address may be wrong
            return error
        return None

    def _check_cluster(self) -> None:
        from ..cluster.node_network import network_of  # noqa: PLC0415 - needs the extra of networks

        network_of(self._process.kernel)
        if not self._process.name:
            raise NotAllowedError(
                "Entities(…, shards=…) needs a name that is the same on all nodes: write "
                'ChildSpec("entities", Entities, …)'
            )

    async def _open_shards(self, keeping: Keeping, shards: int) -> None:
        from .shards.host import Host  # noqa: PLC0415 - needs the extra of networks

        host = Host(keeping, shards, self._lease)
        keeping.share(host)
        await host.start()

    # -- several nodes -----------------------------------------------------------------------------

    def handle_message(self, message: object, sender: object) -> None:
        """Take a message of another host, or of the keeper of the map."""
        host = None if self._keeping is None else self._keeping.host
        if host is None:
            self.log.warning(
                "a message to the keeper of entities is dropped", message=repr(message)
            )
        elif isinstance(message, Down):
            host.note_down(message)
        else:
            host.take(message, sender)

    def handle_call(self, request: object, caller: Caller) -> object:
        """Take a call of another host to an entity, or give up all shards before a deploy."""
        host = None if self._keeping is None else self._keeping.host
        if isinstance(request, Drain):
            if host is None:
                return 0
            self.start_task(self._drain, host, caller, request.timeout, name="drain of entities")
            return NO_REPLY
        if host is None or not host.take_call(request, caller):
            raise Reject(UnhandledCallError(self.pid, request, type(self).__qualname__))
        return NO_REPLY

    async def _drain(self, host: "Host", caller: Caller, timeout: float) -> None:
        host.begin_drain()
        with trio.move_on_after(timeout):
            while not host.is_drained():  # noqa: ASYNC110 - the next hello tells
                await trio.sleep(_LOOK)
        self.reply(caller, 0 if host.is_drained() else 1)

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
    keys_of(node, Account, prefix="a")``. Entities that are made meanwhile may be missing. A deleted
    entity is among them while its row is kept: for the id of the command that has deleted it, or
    for messages that it owes.

    Raises:
        EntityKindUnknownError: the node keeps no entities of this class.
        BadInputError: no key can begin with the prefix.
    """
    return list_keys(node._entities, kind, prefix)


show_public_names(__name__)
