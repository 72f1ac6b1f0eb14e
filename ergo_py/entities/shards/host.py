"""`Host`: the shards of this node. It claims and releases them, and passes messages to the hosts of
all others.
"""

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import trio

from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import Envelope, Lane, Priority
from ..._core.vocabulary.errors import CallError, ErgoError, Reject, TargetDownError
from ..._core.vocabulary.ids import PID, Alias, Name
from ..._core.vocabulary.messages import Down
from ..._core.vocabulary.reasons import Shutdown
from ...cluster.lease import LeaseTerms
from ...cluster.names import Cluster, NameKeeper
from ...cluster.node_network import network_of
from ...cluster.singleton import Singleton
from ...entity_handles import (
    Address,
    EntityHandle,
    EntityKindUnknownError,
    address_of,
    check_key,
)
from ...network.errors import RemoteError, StoreError
from ...service import taken_from
from ...supervision.specs import ChildSpec, SupervisorSpec
from ...supervision.supervisor import Supervisor
from ..activations.activation import Activation
from ..activations.deliveries import INTERNAL, Delivery
from ..errors import EntityStoreError, FencedError
from .map_keeper import MapKeeper, host_lease
from .shard_map import ShardMap, shard_of
from .wire import (
    ENTITY,
    delivery_of,
    message_of,
    request_of,
    sender_of,
    wire_delivery,
    wire_message,
    wire_request,
)

if TYPE_CHECKING:
    from ..active_entities import Keeping

__all__ = ["Host", "PassedCaller"]

_PAUSE: Final = 1.0
"""Seconds between two hellos to the keeper of the map."""
_LATE: Final = Shutdown("its shard moves to another node, and its callback takes too long")
_STORE_ERRORS: Final = {each.__name__: each for each in (EntityStoreError, FencedError)}


class HostLease(NameKeeper):
    """Keeps the lease of a host. The host of a node that drains needs it until its shards have
    moved.
    """

    drains = False


class PassedCaller(Caller):
    """A call to an entity of another node. Its answer goes to the first caller."""

    __slots__ = ("_host", "_origin")

    def __init__(
        self, pid: PID, number: int, to: Name, request: object, host: PID, origin: Caller
    ) -> None:
        super().__init__(pid, number, to, request)
        self._host = host
        self._origin = origin

    def awaken(self) -> None:
        """Answer the first caller."""
        error, origin = self.error, self._origin
        if isinstance(error, TargetDownError):
            # As for a process of this node, so that `call(…, retry=True)` repeats the request.
            error = TargetDownError(self._host, origin.request, error.reason, begun=error.begun)
        elif isinstance(error, RemoteError) and error.type_name in _STORE_ERRORS:
            error = _STORE_ERRORS[error.type_name](error.text)
        origin.settle(self.value, error)


class Host:
    """The shards of this node, as the keeper of its entities sees them."""

    def __init__(self, keeping: "Keeping", count: int, lease: float) -> None:
        self.count = count
        self._keeping = keeping
        self._keeper = keeping.keeper
        self._process: Process = keeping.keeper._process
        self._terms = LeaseTerms(lease, lease / 4)
        self._map = ShardMap.new(count)
        self._held: dict[int, int] = {}
        """The shards whose entities may be awake here, with their tokens: those that were claimed.
        """
        self._wanted: dict[int, int] = {}
        """The shards that the map gives to this host, and that are not claimed yet."""
        self._leaving: dict[int, int] = {}
        """The shards that this host gives up: their entities end."""
        self._released: dict[int, int] = {}
        """The shards that this host has given up, until the map gives them to another."""
        self._needed: dict[int, int] = {}
        """The version of the map by which another host has passed a message to a shard. With an
        older map this host does not pass it on: two hosts would send it to each other.
        """
        self._tokens: dict[int, int] = {}
        """The highest token of each shard in messages between entities."""
        self._lost: set[PID] = set()
        """Hosts that cannot be reached at the moment: messages wait for another map."""
        self._watched: set[PID] = set()
        """Hosts that this process monitors."""
        # Also for a keeper that restarts: nobody asks it to drain again.
        self._is_draining = self._process.kernel.draining
        self._has_others = True
        self._may_leave = False
        """The keeper of the map has said that all hosts know of no shard here."""
        self._map_node = ""
        """The node with the keeper of the map."""
        self._bell = trio.Event()

    @property
    def _name(self) -> str:
        return self._process.name or ""

    # -- for the keeper of entities ----------------------------------------------------------------

    def shard_of(self, address: Address) -> int:
        """The shard of an entity."""
        return shard_of(address, self.count)

    def holds(self, address: Address) -> bool:
        """Whether the entity may be awake on this node."""
        return self.shard_of(address) in self._held

    def claim_of(self, address: Address) -> tuple[int, int] | None:
        """The shard of an entity and its token, if the entity may be awake on this node."""
        shard = self.shard_of(address)
        token = self._held.get(shard)
        return None if token is None else (shard, token)

    def token_of(self, address: Address) -> int:
        """The token of an entity's shard: of the present claim, or by the map; 0 without a host."""
        shard = self.shard_of(address)
        place = self._map.places[shard]
        return self._held.get(shard, 0 if place is None else place.token)

    def facts(self) -> dict[str, object]:
        """The map of shards as this node knows it, as JSON values."""
        places = self._map.places
        return {
            "version": self._map.version,
            "shards": self.count,
            "nodes": {
                pid.node: {
                    "shards": [shard for shard, _ in self._map.shards_of(pid)],
                    "lost": pid in self._lost,
                }
                for pid in sorted(self._map.hosts())
            },
            "held": sorted(self._held),
            "moving": sorted({*self._wanted, *self._leaving, *self._released}),
            "unassigned": [shard for shard, place in enumerate(places) if place is None],
        }

    def has_work(self) -> bool:
        """Whether shards can be claimed now. A shard whose entities still end, under an earlier
        claim, waits for the last of them.
        """
        return not self._wanted.keys() <= self._leaving.keys()

    async def start(self) -> None:
        """Begin to work: the map has its keeper on some node."""
        keeper, name = self._keeper, f"{self._name}.map"
        map_keeper = MapKeeper.spec(self._keeping.store, self._name, self.count, self._terms)
        spec = ChildSpec(
            name,
            map_keeper,
            shutdown=self._terms.ending / 2,
            terminate_timeout=self._terms.ending / 2,
        )
        # A node that drains needs the map until others have its shards.
        singleton = Singleton(spec, lease=self._terms.seconds, leaves_when=self.is_drained)
        await keeper.spawn(Supervisor, SupervisorSpec([singleton], intensity=100, period=10.0))
        keeper.start_task(self._stay, name=f"host of {self._name}")

    # -- the lease and the map ---------------------------------------------------------------------

    async def _stay(self) -> None:
        cluster = Cluster(self._keeper.node)
        lease = host_lease(self._name, self._process.id.node)
        while True:
            try:
                wait = 2 * self._terms.seconds
                await self._keeper.node.spawn(
                    HostLease.spec(lease, self._process.id, self._terms, wait),
                    name=f"ergo.cluster.name:{lease}",
                    init_timeout=wait + 30.0,
                )
                break
            except ErgoError as error:
                self._keeper.log.warning("this node has no lease for entities", why=str(error))
                await trio.sleep(_PAUSE)
        while True:
            self._bell = trio.Event()
            await self._say_hello(cluster)
            with trio.move_on_after(_PAUSE):
                await self._bell.wait()
            self._look_for_lost()

    async def _say_hello(self, cluster: Cluster) -> None:
        try:
            keeper = await cluster.whereis(f"{self._name}.map")
            if keeper is None:
                return
            self._map_node = keeper.node
            released = [list(each) for each in self._released.items()]
            is_leaving = self._is_draining
            needed, tokens = {**self._needed}, self._unknown_tokens()
            # A host that knows no version gets the whole map, which settles all doubts.
            version = 0 if needed or tokens else self._map.version
            hello = (ENTITY, "hello", version, released, is_leaving, self.count)
            answer = await self._keeper.call(keeper, hello, timeout=_PAUSE * 2)
            newest, has_others = _answer_of(answer)
        except (CallError, StoreError):
            return  # the next hello finds another keeper
        except Exception as error:
            # An older or newer program keeps the map, and refuses by any error, or this program has
            # another number of shards. This host keeps the shards that it has, until another node
            # keeps the map.
            self._drop("an answer of the keeper of the map of shards is dropped", error)
            return
        # A host may have joined since an answer from before the drain.
        self._has_others = has_others or not is_leaving
        if newest is not None:
            self.learn(newest)
            self._doubt(newest, needed, tokens)

    def _unknown_tokens(self) -> dict[int, int]:
        """The tokens in messages between entities that are newer than those of the map. Of the same
        shard: all of them are below the last token that was given to any.
        """
        return {shard: token for shard, token in self._tokens.items() if token > self._token(shard)}

    def _token(self, shard: int) -> int:
        """The newest token that a shard can have by the map: without a host, any that was given."""
        place = self._map.places[shard]
        return self._map.last if place is None else place.token

    def _doubt(self, newest: ShardMap, needed: dict[int, int], tokens: dict[int, int]) -> None:
        """Forget versions and tokens that the keeper of the map does not know, although it was
        asked after they were told: no host has told them, and what waits for them would wait for
        ever.
        """
        doubted = {
            shard
            for shard, version in needed.items()
            if version > newest.version and self._needed.get(shard) == version
        }
        for shard in doubted:
            del self._needed[shard]
        if doubted:
            self._pass_all(doubted)
        for shard, token in tokens.items():
            if token > self._token(shard) and self._tokens.get(shard) == token:
                del self._tokens[shard]

    def learn(self, found: ShardMap) -> None:
        """Take a newer map."""
        if found.version <= self._map.version or len(found.places) != self.count:
            return
        self._map = found
        self._bell.set()  # the keeper waits until all hosts have a map without a host that drains
        own = dict(found.shards_of(self._process.id))
        for shard, place in enumerate(found.places):
            if shard in self._held and place is not None and place.host != self._process.id:
                self._lose(shard)
            token = 0 if place is None else place.token
            if token > self._released.get(shard, token):
                del self._released[shard]
        self._wanted = {
            shard: token
            for shard, token in own.items()
            if token
            not in {each.get(shard) for each in (self._held, self._leaving, self._released)}
        }
        self._needed = {
            each: version for each, version in self._needed.items() if version > found.version
        }
        self._lost &= found.hosts()
        for pid in sorted(found.hosts() - self._lost):
            self._watch(pid)
        for pid in sorted(self._watched - found.hosts()):
            self._keeper.demonitor(pid)
        self._watched &= found.hosts()
        self._pass_all()
        self._keeping.ring()

    def _watch(self, pid: PID) -> None:
        if pid not in self._watched and pid != self._process.id:
            self._watched.add(pid)
            self._keeper.monitor(pid)

    def _look_for_lost(self) -> None:
        """Monitor lost hosts again. A host that was not lost since the last look is back."""
        back = self._lost & self._watched
        self._lost -= back
        for pid in sorted(self._lost):
            self._watch(pid)
        if back:
            self._pass_all()

    def note_down(self, message: Down) -> None:
        """Note that another host has ended, or cannot be reached. Messages wait for another map."""
        if isinstance(message.target, PID) and message.target in self._watched:
            self._watched.discard(message.target)
            self._lost.add(message.target)

    # -- claims ------------------------------------------------------------------------------------

    async def claim(self) -> None:
        """Claim the shards that the map gives to this host. Their entities can wake then."""
        for shard, token in list(self._wanted.items()):
            if shard in self._held:
                self._leave(shard)  # after a backup the map gives it under another token
                self.note_ended()
            if shard in self._leaving or self._wanted.get(shard) != token:
                continue
            try:
                await self._keeping.store.claim(shard, token)
            except FencedError:
                # There is a newer map, or there will be: the keeper of the map gives the shard a
                # higher token.
                self.release(shard, token)
                self.note_ended()
                continue
            if self._wanted.get(shard) == token:
                del self._wanted[shard]
                self._held[shard] = token
                self._released.pop(shard, None)  # under an earlier token
                self._keeping.look_again()
                self._pass_all({shard})

    # -- moves -------------------------------------------------------------------------------------

    def release(self, shard: int, token: int) -> None:
        """Give a shard up: its entities end, their commits end, and then the keeper of the map
        gives it to another host. Messages for its entities wait meanwhile. `note_ended` comes next,
        once for several shards: entities may be many.
        """
        if self._held.get(shard) == token:
            self._leave(shard)
        elif self._wanted.get(shard) == token and not (
            shard in self._held or shard in self._leaving
        ):
            # Not claimed: nothing is awake. What is held under an earlier token ends first, and the
            # keeper asks again.
            del self._wanted[shard]
            self._released[shard] = token
            self._bell.set()

    def _leave(self, shard: int) -> None:
        token = self._held.pop(shard, None)
        if token is not None:
            self._leaving[shard] = token
            for activation in self._active(shard):
                self._keeping.end(activation)
            self._keeper.start_task(self._cut_late, shard, token, name=f"move of shard {shard}")

    async def _cut_late(self, shard: int, token: int) -> None:
        """End callbacks that take so long that a move would wait for them: their callers get
        `TargetDownError`, as at the end of a node.
        """
        await trio.sleep(self._terms.ending)
        if self._leaving.get(shard) == token:
            for activation in self._active(shard):
                if activation.is_started:
                    activation.process.cut(_LATE)

    def note_ended(self) -> None:
        """Note that an entity has ended, or a commit: perhaps the last of some shards."""
        if not self._leaving:
            return
        active, commits = self._keeping.active.values(), self._keeping.commits
        quiet = self._leaving.keys() - {each.claim[0] for each in active}
        ended = {shard for shard in quiet if not commits.has_shard(shard)}
        for shard in ended:
            self._released[shard] = self._leaving.pop(shard)
        if ended:
            self._keeping.asleep.forget(lambda address: self.shard_of(address) in ended)
            self._bell.set()
            self._pass_all(ended)
            self._keeping.ring()  # the map may have given a shard back meanwhile

    def _lose(self, shard: int) -> None:
        """End the entities of a shard at once: another host has it."""
        token = self._held.pop(shard)
        error = FencedError(f"shard {shard} belongs to another node: its token {token} is old")
        for activation in self._active(shard):
            if activation.is_started:
                activation.fail(error)

    async def check_claims(self) -> None:
        """After a refused write: give up the shards that another host has claimed."""
        for shard, token in list(self._held.items()):
            try:
                await self._keeping.store.claim(shard, token)
            except FencedError:
                if self._held.get(shard) == token:
                    self._lose(shard)
                    self._leaving[shard] = token
                    self.note_ended()

    def _active(self, shard: int) -> list[Activation]:
        return [each for each in self._keeping.active.values() if each.claim[0] == shard]

    def begin_drain(self) -> None:
        """Give all shards up, if another host can take them."""
        self._is_draining = True
        self._bell.set()

    def is_drained(self) -> bool:
        """Whether other hosts have all shards and all hosts know that, or none can take them."""
        return self._may_leave or not self._has_others

    # -- messages to other hosts -------------------------------------------------------------------

    def _pass_all(self, only: Collection[int] | None = None) -> None:
        """Look at all that waits for entities, or for those of some shards: perhaps the map says
        where these are now. Entities may be many: look once for several shards.
        """
        for name in list(self._keeping.table.slots):
            address = address_of(name)
            if only is None or self.shard_of(address) in only:
                slot = self._keeping.table.slots[name]
                if slot.pid is None and (slot.waiters or any(slot.kept.values())):
                    self._keeping.want(address)

    def pass_on(self, address: Address) -> None:
        """Pass all that waits for an entity to its host. Without a host it waits for a map."""
        table, name = self._keeping.table, str(address)
        slot = table.slots.get(name)
        host = self._target(address)
        if slot is None or slot.pid is not None or host is None:
            return
        del table.slots[name]
        for envelope in _kept(slot.inherit(None)):
            _, sender, to, message = envelope
            caller = to if isinstance(to, Caller) else None
            if type(message) not in INTERNAL:  # their senders repeat them
                self._pass(host, address, caller, sender, message, Priority.NORMAL)
        for claim in slot.take_waiters():
            caller, sender, message, priority = taken_from(claim)
            if type(message) not in INTERNAL:
                self._pass(host, address, caller, sender, message, priority)

    def _target(self, address: Address) -> PID | None:
        """The host to pass messages to; None while there is none, or while this node is it."""
        shard = self.shard_of(address)
        place = self._map.places[shard]
        if (
            place is None
            or place.host == self._process.id
            or place.host in self._lost
            or shard in self._leaving
            or place.token <= self._released.get(shard, 0)
            or self._needed.get(shard, 0) > self._map.version
        ):
            return None
        return place.host

    def _pass(
        self,
        host: PID,
        address: Address,
        caller: Caller | None,
        sender: object,
        message: object,
        priority: Priority,
    ) -> None:
        process, router = self._process, self._process.router
        to, version = Name(self._name, host.node), self._map.version
        if caller is None:
            sent = (ENTITY, "send", version, *address, sender_of(sender), wire_message(message))
            try:
                router.send(process.id, to, sent, priority)
            except ErgoError as error:
                self._keeper.log.warning("a message is lost", entity=str(address), why=str(error))
        elif not caller.settled:
            asked = (ENTITY, "call", version, *address, wire_request(message))
            number = next(router.references)
            passed = PassedCaller(process.id, number, to, asked, host, caller)
            try:
                self._keeping.kernel.calls.begin(passed, priority)
            except ErgoError as error:
                caller.settle(None, error)

    def tell(self, sender: Activation, address: Address, message: Delivery) -> None:
        """Send a message of the framework from an entity here to an entity elsewhere. Without a
        host it is dropped: its sender repeats it. A copy must not wait anywhere: it would arrive
        after its receiver has forgotten that it has had another.
        """
        host = self._target(address)
        if host is not None:
            name, parts = wire_delivery(message)
            wire = (ENTITY, "tell", *sender.claim, *address, name, parts)
            process = self._process
            process.router.send(process.id, Name(self._name, host.node), wire, Priority.NORMAL)

    # -- messages of other hosts -------------------------------------------------------------------

    def take(self, message: object, sender: object) -> None:
        """Take a message of another host, or of the keeper of the map. A message that no host sends
        is dropped: any node may send to this process, also one with an older or newer program.
        """
        try:
            self._take(message, sender)
        except (ValueError, EntityKindUnknownError) as error:
            self._drop("a message of another node to entities is dropped", error)

    def _drop(self, what: str, error: Exception) -> None:
        network_of(self._keeping.kernel).log_once(what, str(error))

    def _take(self, message: object, sender: object) -> None:
        match message:
            case (_, "map" | "release" | "leave", *_) if not self._is_map_keeper(sender):
                self._bell.set()  # the next hello finds a new keeper, which answers with its map
            case (_, "map", wire):
                self.learn(ShardMap.from_wire(wire))
            case (_, "release", [*shards]):
                for each in shards:
                    match each:
                        case [int(shard), int(token)]:
                            self.release(shard, token)
                self.note_ended()
            case (_, "leave"):
                self._may_leave = self._is_draining
            case (_, "send", int(version), str(kind), str(key), first, [*parts]):
                handle = self._handle(self._address(kind, key), version, sender_of(first))
                handle.deliver(message_of(parts), Priority.NORMAL)
            case (_, "tell", int(shard), int(token), str(kind), str(key), str(name), [*parts]):
                address = self._address(kind, key)
                if self.holds(address) and self._is_new(shard, token):
                    handle = self._handle(address, 0, None)
                    handle.deliver(delivery_of(name, parts), Priority.NORMAL)

    def _is_map_keeper(self, sender: object) -> bool:
        return isinstance(sender, PID) and sender.node == self._map_node

    def _address(self, kind: str, key: str) -> Address:
        """The address of an entity that this node may keep.

        Raises:
            EntityKindUnknownError: it keeps none of this kind.
            ValueError: the key is none.
        """
        if kind not in self._keeping.kinds:
            raise EntityKindUnknownError(kind, self._keeping.kinds)
        return Address(kind, check_key(key))

    def _is_new(self, shard: int, token: int) -> bool:
        """Whether a message between entities comes from the present host of its sender. A late copy
        of an earlier one must not take effect: its receiver may have forgotten it by now.
        """
        if not 0 <= shard < self.count:
            return False
        place = self._map.places[shard]
        known = max(self._tokens.get(shard, 0), 0 if place is None else place.token)
        if token >= known:
            self._tokens[shard] = token
        return token >= known

    def take_call(self, request: object, caller: Caller) -> bool:
        """Take a call of another host. False if it is none.

        Raises:
            Reject: no host makes it.
        """
        match request:
            case (
                _,
                "call",
                int(version),
                str(kind),
                str(key),
                [(str() | None) as id, str(what), [*parts]],
            ):
                try:
                    address, asked = self._address(kind, key), request_of(id, what, parts)
                except (ValueError, EntityKindUnknownError) as error:
                    raise Reject(error) from None
                handle = self._handle(address, version, None)
                caller.redirect(handle.name, asked)
                handle.serve(caller, Priority.NORMAL)
                return True
        return False

    def _handle(self, address: Address, version: int, sender: PID | Alias | None) -> EntityHandle:
        shard = self.shard_of(address)
        if version > self._map.version:
            self._needed[shard] = max(version, self._needed.get(shard, 0))
            self._bell.set()
        table = self._keeping.table
        return EntityHandle(self._keeping.kernel, table, address, None, sender)


def _answer_of(answer: object) -> tuple[ShardMap | None, bool]:
    """The map in the answer to a hello, if it is a newer one, and whether another host can take
    shards. Further parts, of a newer program, are not needed.

    Raises:
        ValueError: it is no such answer.
    """
    match answer:
        case [found, bool(has_others), *_]:
            return None if found is None else ShardMap.from_wire(found), has_others
    raise ValueError("the answer to a host has a map and a bool")


def _kept(kept: dict[Lane, deque[Envelope]]) -> list[Envelope]:
    """The messages that a process has left, in the order of service."""
    return [each for lane in Lane for each in kept.get(lane, ())]
