"""`ShardMap`: which host has which shard, under which token. A decision gives the next map."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from ..._core.vocabulary.ids import PID
from ...entity_handles import Address

__all__ = ["Place", "ShardMap", "shard_of"]

_MOST: Final = 2**62
"""Versions and tokens are smaller: those of later maps can still travel and be stored."""
_UNHEARD: Final = 1000
"""How many more versions than the hosts that were heard another host may know."""


def shard_of(address: Address, count: int) -> int:
    """The shard of an entity, the same in every program."""
    return crc32(str(address).encode()) % count


class Place(NamedTuple):
    """The host of a shard."""

    host: PID
    """The process that keeps the entities of its node. Its successor is another host."""
    token: int
    """The fencing token of all writes to the shard."""


def _checked(number: int, most: int = _MOST) -> int:
    if not 0 <= number < most:
        raise ValueError(f"a number of the map is from 0 to {most - 1}")
    return number


def _place_of(value: object) -> Place | None:
    match value:
        case None:
            return None
        case [str(node), int(creation), int(number), int(token)]:
            pid = PID(node, _checked(creation, 2 * _MOST), _checked(number))
            return Place(pid, _checked(token))
    raise ValueError("a place has a host and a token")


class ShardMap(NamedTuple):
    """Which host has which shard."""

    version: int
    """Grows with each change."""
    last: int
    """The last token that was given."""
    places: tuple[Place | None, ...]
    """The place of each shard; None before the first."""

    @classmethod
    def new(cls, count: int) -> "ShardMap":
        """A map without hosts."""
        return cls(0, 0, (None,) * count)

    # -- as bytes, and as a message ----------------------------------------------------------------

    def to_wire(self) -> list[object]:
        """The map as a value of numbers and texts."""
        places = [None if each is None else [*each.host, each.token] for each in self.places]
        return [self.version, self.last, places]

    @classmethod
    def from_wire(cls, value: object) -> "ShardMap":
        """The map of such a value.

        Raises:
            ValueError: it is no map.
        """
        match value:
            case [int(version), int(last), [*places]]:
                return cls(_checked(version), _checked(last), tuple(map(_place_of, places)))
        raise ValueError("a map of shards has a version, a token and places")

    def encode(self) -> bytes:
        """The map as bytes for a store."""
        return json.dumps(self.to_wire()).encode()

    @classmethod
    def decode(cls, data: bytes) -> "ShardMap":
        """The map with these bytes."""
        return cls.from_wire(json.loads(data))

    # -- decisions ---------------------------------------------------------------------------------

    def hosts(self) -> set[PID]:
        """The hosts that have a shard."""
        return {each.host for each in self.places if each is not None}

    def shards_of(self, host: PID) -> list[tuple[int, int]]:
        """The shards of a host, with their tokens."""
        return [
            (shard, each.token)
            for shard, each in enumerate(self.places)
            if each is not None and each.host == host
        ]

    def assign(
        self, hosts: Sequence[PID], dead: Collection[PID], released: Collection[tuple[int, int]]
    ) -> "ShardMap":
        """Give each shard without a host to the host with the fewest, under a new token: shards
        that never had a host, those of hosts that have ended, and those that their hosts have
        released under the token of the map.

        The same map, if there is nothing to give or no host to take.
        """
        if not hosts:
            return self
        places, last = list(self.places), self.last
        loads = Counter(each.host for each in places if each is not None)
        for shard, place in enumerate(self.places):
            if place is not None:
                if place.host not in dead and (shard, place.token) not in released:
                    continue
                loads[place.host] -= 1
            host = min(hosts, key=lambda each: (loads[each], each))
            loads[host] += 1
            last += 1
            places[shard] = Place(host, last)
        if last == self.last:
            return self
        return ShardMap(self.version + 1, last, tuple(places))

    def ahead_of(self, version: int) -> "ShardMap":
        """The same hosts in a map that is newer than ``version``, if this map is older: the store
        has gone back to a backup. No token of the lost maps is given again: each map has at most
        a new token for each shard. And each shard gets a new token: the store may have forgotten
        the claim of the host that had the shard last, and must refuse its writes.
        """
        if version <= self.version:
            return self
        newer = version + _UNHEARD
        first = self.last + (newer - self.version) * len(self.places) + 1
        places = tuple(
            None if each is None else Place(each.host, first + shard)
            for shard, each in enumerate(self.places)
        )
        return ShardMap(newer + 1, first + len(places) - 1, places)

    def excess(
        self, hosts: Iterable[PID], leaving: Collection[PID]
    ) -> dict[PID, list[tuple[int, int]]]:
        """The shards that hosts have to release, so that all of ``hosts`` have as many, and those
        of ``leaving`` none. The same as before, as long as the map is the same.
        """
        staying = sorted(each for each in hosts if each not in leaving)
        found: dict[PID, list[tuple[int, int]]] = {}
        if not staying:
            return found
        for host in leaving:
            if held := self.shards_of(host):
                found[host] = held
        loads = {each: self.shards_of(each) for each in staying}
        each_has, rest = divmod(len(self.places), len(staying))
        # The hosts that have more keep the shards that cannot be divided: fewer shards move.
        for number, host in enumerate(sorted(staying, key=lambda each: (-len(loads[each]), each))):
            fair = each_has + (number < rest)
            if len(loads[host]) > fair:
                found[host] = loads[host][fair:]
        return found
