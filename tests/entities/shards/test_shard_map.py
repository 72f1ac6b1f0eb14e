"""The decisions about shards."""

from hypothesis import given
from hypothesis import strategies as st

from ergo_py import PID
from ergo_py.entities.shards.shard_map import ShardMap

HOSTS = [PID(f"{letter}@test", 1, 1) for letter in "abcde"]


def loads(map: ShardMap) -> list[int]:
    """How many shards each host has."""
    return [len(map.shards_of(each)) for each in HOSTS]


def test_a_shard_without_a_host_goes_to_the_host_with_the_fewest() -> None:
    first = ShardMap.new(7).assign(HOSTS[:1], (), ())
    second = first.assign(HOSTS[:3], (), {(5, 6), (6, 7)})
    third = second.assign(HOSTS[1:3], {HOSTS[0]}, ())

    assert loads(first) == [7, 0, 0, 0, 0]
    assert loads(second) == [5, 1, 1, 0, 0]
    assert loads(third) == [0, 4, 3, 0, 0]
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert (first.last, second.last, third.last) == (7, 9, 14)


def test_a_shard_that_was_released_under_an_older_token_stays() -> None:
    map = ShardMap.new(2).assign(HOSTS[:1], (), ()).assign(HOSTS[:2], (), {(0, 1)})

    assert map.assign(HOSTS[:2], (), {(0, 1)}) is map
    assert map.assign([], HOSTS, ()) is map


def test_a_map_of_a_backup_gets_ahead_of_the_lost_maps_and_of_their_tokens() -> None:
    backup = ShardMap.new(3).assign(HOSTS[:1], (), ())
    lost = backup.assign(HOSTS[:2], HOSTS[:1], ()).assign(HOSTS[:1], HOSTS[1:2], ())

    ahead = backup.ahead_of(lost.version)

    # Others may know of later maps yet.
    assert ahead.version > lost.version + 1
    places = [each for each in ahead.places if each is not None]
    assert [each.host for each in places] == HOSTS[:1] * 3
    # Tokens of their own, above all that were given: the last hosts cannot write any longer.
    assert [each.token for each in places] == list(range(ahead.last - 2, ahead.last + 1))
    assert places[0].token > lost.last + 3
    assert lost.ahead_of(backup.version) is lost


@given(
    st.integers(1, 40),
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(HOSTS), min_size=1), st.sets(st.sampled_from(HOSTS), max_size=2)
        ),
        max_size=6,
    ),
)
def test_the_hosts_that_stay_come_to_have_as_many_shards_each(
    count: int, steps: list[tuple[set[PID], set[PID]]]
) -> None:
    map = ShardMap.new(count)
    for hosts, leaving in steps:
        staying = sorted(hosts - leaving)
        before = map
        for _ in range(3):
            released = {each for shards in map.excess(hosts, leaving).values() for each in shards}
            after = map.assign(staying, map.hosts() - hosts, released)
            changed = [
                (old, new) for old, new in zip(map.places, after.places, strict=True) if old != new
            ]
            # Each change has a token of its own, above all before.
            tokens = [new.token for _, new in changed if new is not None]
            assert sorted(tokens) == list(range(map.last + 1, map.last + 1 + len(changed)))
            map = after
        if not staying:
            assert map is before
            continue
        shares = [len(map.shards_of(each)) for each in staying]
        assert sum(shares) == count
        assert max(shares) - min(shares) <= 1
        assert map.excess(hosts, leaving) == {}
        assert ShardMap.decode(map.encode()) == map
