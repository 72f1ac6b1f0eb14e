"""`MapKeeper`: decides which host has which shard. It is a singleton of the cluster."""

from collections.abc import Iterator
from typing import Final

import trio

from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.errors import ErgoError, Reject
from ..._core.vocabulary.ids import PID
from ..._core.vocabulary.messages import Down
from ...actor import Actor
from ...cluster.lease import LeaseKeeper, LeaseTerms
from ...cluster.node_network import network_of
from ...entity_handles import Address
from ..errors import EntityStoreError, FencedError
from ..stores.store import Store, Write
from .shard_map import ShardMap
from .wire import ENTITY

__all__ = ["MapKeeper", "host_lease", "map_address"]

_SHARD: Final = -1
"""The shard of the row of the map: no entity has it."""
_PAUSE: Final = 1.0
"""Seconds between two looks at the hosts. A host says hello as often."""
_SILENT: Final = 3.0
"""Seconds after which a host that says nothing gets no shards."""
_FAR: Final = 2**30
"""How far a host can be ahead of the map of this keeper, which was put back from a backup. A map
gets ahead of the version that a host tells, and numbers that are too large could not be read again.
"""


def map_address(name: str) -> Address:
    """The row of the map of these entities. No class has a name with a dot."""
    return Address("ergo.shards", name)


def host_lease(name: str, node: str) -> str:
    """The name of the lease of a host."""
    return f"ergo.entities {name} {node}"


def _claim_of(value: object) -> tuple[int, int]:
    match value:
        case [int(shard), int(token)]:
            return shard, token
    raise Reject(ValueError("a claim has a shard and a token"))


class _Host:
    """The last hello of a host."""

    def __init__(self) -> None:
        self.heard = trio.current_time()
        self.version = 0
        """The version of its map."""
        self.count: int | None = None
        """The number of shards of its program; None before its first hello."""
        self.released: list[tuple[int, int]] = []
        self.is_leaving = False
        self.is_silent = True
        """It has said nothing yet, or not for a while, or its process cannot be reached, or its
        program has another number of shards.
        """


class MapKeeper(Actor):
    """Keeps the map of shards. The map is a row of the store, so the next keeper finds it.

    A host loses its shards only after the keeper has got the lease of its node: then the host, and
    so its entities, has ended.
    """

    serves_drained = True  # a host that has just joined takes the shards of the node that drains

    def __init__(self, store: Store, name: str, count: int, terms: LeaseTerms) -> None:
        self._store = store
        self._name = name
        self._count = count
        self._terms = terms

    def init(self) -> None:
        """Start."""
        self._map = ShardMap.new(self._count)
        self._row = 0
        """The version of the row of the map."""
        self._is_loaded = False
        self._began = trio.current_time()
        self._hosts: dict[PID, _Host] = {}
        self._dead: set[PID] = set()
        """Hosts of the map that have ended: this keeper has had their lease, or their successors
        have it.
        """
        self._leases: dict[PID, LeaseKeeper] = {}
        """The leases of the hosts. This keeper takes those that their hosts do not renew."""
        self._watched: set[PID] = set()
        """Hosts that this process monitors."""
        self._bell = trio.Event()
        self.start_task(self._work, name=f"map of {self._name}")

    # -- hosts -------------------------------------------------------------------------------------

    def handle_call(self, request: object, caller: Caller) -> object:
        """Take the hello of a host. The answer is the map, and whether another host can take
        shards.
        """
        match request:
            case (str(tag), "hello", int(version), [*released], bool(leaves), int(count), *_) if (
                tag == ENTITY
            ):
                pid, claims = caller.pid, list(map(_claim_of, released))
                if not isinstance(pid, PID):
                    raise Reject(ValueError("only a host says hello"))
                if version > self._map.version + _FAR:
                    raise Reject(ValueError(f"{version} is not the version of a map of shards"))
                self._hear(pid, version, claims, leaves)
                self._check_count(pid, count)
                has_others = self._is_new() or any(
                    each != pid and not host.is_leaving and not host.is_silent
                    for each, host in self._hosts.items()
                )
                is_known = not self._is_loaded or version >= self._map.version
                return (None if is_known else self._map.to_wire()), has_others
        raise Reject(ValueError("the keeper of a map of shards answers hosts only"))

    def _check_count(self, pid: PID, count: int) -> None:
        """Check the number of shards of a host that was heard: its predecessor has ended, also if
        this one gets none.
        """
        host = self._hosts[pid]
        host.count = count
        if self._is_loaded and count != self._count:
            host.is_silent = True
            self._tell(pid, (ENTITY, "leave"))  # if it drains: it has no shards
            raise Reject(
                ValueError(
                    f"the program of {pid.node} says shards={count}, and the map of the "
                    f"entities {self._name!r} has {self._count} shards: this node gets none. The "
                    f"number cannot change: write shards={self._count}"
                )
            )

    def _is_new(self) -> bool:
        """Whether this keeper may not have heard of all hosts yet."""
        return trio.current_time() - self._began < _SILENT

    def _hear(
        self, pid: PID, version: int, released: list[tuple[int, int]], is_leaving: bool
    ) -> None:
        host = self._hosts.get(pid)
        if host is None:
            for other in [each for each in self._hosts if each.node == pid.node]:
                # A host speaks only with the lease of its node: its predecessor has ended.
                self._dead.add(other)
                del self._hosts[other]
            host = self._hosts[pid] = _Host()
            self._bell.set()
        self._watch(pid)
        before = host.version, host.released, host.is_leaving
        if before != (version, released, is_leaving) or host.is_silent:
            self._bell.set()
        host.heard, host.is_silent = trio.current_time(), False
        host.version, host.released, host.is_leaving = version, released, is_leaving

    def _watch(self, pid: PID) -> None:
        if pid not in self._watched:
            self._watched.add(pid)
            self.monitor(pid)

    def handle_message(self, message: object, sender: object) -> None:
        """Note that a host has ended, or cannot be reached."""
        if isinstance(message, Down) and isinstance(message.target, PID):
            self._watched.discard(message.target)
            host = self._hosts.get(message.target)
            if host is not None:
                host.is_silent = True
                self._bell.set()

    # -- the work ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            self._bell = trio.Event()
            try:
                if not self._is_loaded:
                    await self._load()
                await self._take_from_ended()
                await self._assign()
            except EntityStoreError as error:
                self._is_loaded = False  # a failed write may have happened
                self.log.warning("the map of shards cannot be read or stored", why=str(error))
                await trio.sleep(_PAUSE)
                continue
            self._balance()
            self._dismiss()
            with trio.move_on_after(_PAUSE):
                await self._bell.wait()

    async def _load(self) -> None:
        (row,) = await self._store.load([map_address(self._name)])
        if row is None:
            self._map, self._row = ShardMap.new(self._count), 0
        else:
            self._map, self._row = self._decoded(row.record), row.version
        # That of the map counts, also if the program of this node says another number.
        self._count = len(self._map.places)
        for host in self._hosts.values():
            if host.count not in {None, self._count}:
                host.is_silent = True
        for pid in self._map.hosts():
            if not any(each.node == pid.node for each in self._hosts):
                self._hosts[pid] = _Host()
            elif pid not in self._hosts:
                self._dead.add(pid)
        self._is_loaded = True

    def _decoded(self, record: bytes) -> ShardMap:
        try:
            return ShardMap.decode(record)
        except (ValueError, RecursionError) as error:  # JSON may be nested too deeply
            raise EntityStoreError(
                f"the row {map_address(self._name)} of the store is no map of shards: {error}; "
                "hosts keep the shards that they have, and none moves. Put the row back from a "
                "backup, or delete it while all nodes are stopped: then a new map is made"
            ) from error

    async def _take_from_ended(self) -> None:
        """Find the hosts that have ended, by their leases. All leases are watched from the
        beginning, also those of hosts that speak: the time of a lease counts from its last renewal
        that this keeper has seen.
        """
        for pid in sorted(self._map.hosts() - self._dead):
            lease = self._leases.get(pid)
            if lease is None:
                lease = self._leases[pid] = self._lease_of(pid)
            if await lease.try_once():
                self.log.info("a host has ended, and its shards move", node=pid.node)
                self._dead.add(pid)
                self._hosts.pop(pid, None)
                await lease.release()
        self._leases = {pid: each for pid, each in self._leases.items() if pid not in self._dead}
        for pid, host in list(self._hosts.items()):
            if trio.current_time() - host.heard > _SILENT:
                host.is_silent = True
                if pid not in self._map.hosts():
                    del self._hosts[pid]

    def _lease_of(self, host: PID) -> LeaseKeeper:
        kernel = self._process.kernel
        return LeaseKeeper(
            network_of(kernel).carrier.store(),
            host_lease(self._name, host.node),
            self._terms,
            self.pid,
            kernel.clock.now,
            self.log.warning,
        )

    async def _assign(self) -> None:
        """Give shards without a host to the others."""
        hosts = [each for each, host in self._hosts.items() if self._takes(host)]
        released = {each for host in self._hosts.values() for each in host.released}
        newest = max((each.version for each in self._hosts.values()), default=0)
        after = self._map.ahead_of(newest).assign(hosts, self._dead, released)
        if after is self._map:
            return
        write = Write(
            map_address(self._name), self._row, self._row + 1, 0, None, after.encode(), _SHARD
        )
        try:
            await self._store.commit([write])
        except FencedError:
            # Another keeper has written: the lease of this one may be over.
            self._is_loaded = False
            return
        if newest > self._map.version:
            why = f"hosts have version {newest}, and the store had {self._map.version}"
            self.log.warning("the store was put back to an older map of shards", why=why)
        self._map, self._row = after, self._row + 1
        self._dead &= after.hosts()
        for pid in self._hosts:
            self._tell(pid, (ENTITY, "map", after.to_wire()))

    def _tell(self, pid: PID, message: tuple[object, ...]) -> None:
        try:
            self.send(pid, message)
        except ErgoError:
            pass  # too much waits for its node; it gets the map by its next hello

    def _takes(self, host: _Host) -> bool:
        return not host.is_silent and not host.is_leaving

    def _balance(self) -> None:
        """Ask hosts with more shards than others to release some. They do it as soon as they can,
        and say so; meanwhile this keeper repeats itself.
        """
        if not self._is_loaded:
            return
        hosts = [each for each, host in self._hosts.items() if not host.is_silent]
        leaving = [each for each, host in self._hosts.items() if host.is_leaving]
        for pid, shards in self._map.excess(hosts, leaving).items():
            self._tell(pid, (ENTITY, "release", [list(each) for each in shards]))

    def _dismiss(self) -> None:
        """Let hosts leave that have no shards, if no host has a map with shards of theirs: their
        nodes may end then. A new keeper waits for the other hosts; it looks again after a pause.
        """
        if self._is_new():
            return
        hosts = [(pid, host) for pid, host in self._hosts.items() if not host.is_silent]
        if self._is_loaded and all(host.version >= self._map.version for _, host in hosts):
            for pid, host in hosts:
                if host.is_leaving and not self._map.shards_of(pid):
                    self._tell(pid, (ENTITY, "leave"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The hosts, and how many shards each has."""
        return dict(self._facts())

    def _facts(self) -> Iterator[tuple[str, str]]:
        yield "map", f"version {self._map.version}, {self._count} shards"
        for pid in sorted({*self._hosts, *self._map.hosts()}):
            state = "silent" if pid not in self._hosts or self._hosts[pid].is_silent else "alive"
            yield f"host {pid.node}", f"{len(self._map.shards_of(pid))} shards, {state}"
