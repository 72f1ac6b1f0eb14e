"""The sources that make two runs of a program differ, and their seeded replacement."""

from itertools import groupby

import pytest
import trio

from ergo_py import Actor
from ergo_py._core import sources
from ergo_py._core.runtime.time_slices import SLICE
from ergo_py._core.sources import Chance, SeededSources, replace_sources
from ergo_py.testing import VirtualClock, explore, seeded
from tests.support import kernel_of, running_node


def numbers(chance: Chance) -> list[float]:
    return [chance.fraction(), chance.bits(62), chance.fraction()]


def test_the_same_seed_gives_the_same_numbers_to_a_node_for_a_purpose() -> None:
    first = numbers(SeededSources(7).chance("a@test", "restarts"))

    assert numbers(SeededSources(7).chance("a@test", "restarts")) == first
    assert 0.0 <= first[0] < 1.0
    assert 0 <= first[1] < 1 << 62
    # The numbers are the same in each program, whatever its PYTHONHASHSEED is.
    assert first[1] == 1263565882437987033


@pytest.mark.parametrize(
    "seed, node, purpose",
    [(8, "a@test", "restarts"), (7, "b@test", "restarts"), (7, "a@test", "sessions")],
)
def test_seeds_nodes_and_purposes_have_different_numbers(
    seed: int, node: str, purpose: str
) -> None:
    of_another = numbers(SeededSources(seed).chance(node, purpose))

    assert of_another != numbers(SeededSources(7).chance("a@test", "restarts"))


def test_a_number_for_another_purpose_changes_no_others() -> None:
    plain, disturbed = SeededSources(7), SeededSources(7)
    first = plain.chance("a@test", "restarts").fraction()
    assert disturbed.chance("a@test", "restarts").fraction() == first

    disturbed.chance("a@test", "sessions").bits(8)

    second = plain.chance("a@test", "restarts").fraction()
    assert disturbed.chance("a@test", "restarts").fraction() == second != first


def test_a_seeded_clock_of_time_slices_advances_at_each_look_by_the_step_of_its_seed() -> None:
    lengths = set()
    for seed in range(100):
        clock = SeededSources(seed).slice_clock
        end, looks = clock() + SLICE, 1
        while clock() < end:
            looks += 1
        lengths.add(looks)

    assert min(lengths) < 5
    assert max(lengths) > 200
    assert max(lengths) <= 501
    assert len(lengths) > 40


def test_without_a_seed_numbers_differ_and_the_clock_goes_on() -> None:
    first, second = (numbers(sources.chance("a@test", "restarts")) for _ in range(2))

    assert first != second
    assert sources.slice_clock() <= sources.slice_clock()


def test_sources_are_replaced_inside_a_block_only() -> None:
    before = sources.slice_clock
    with pytest.raises(ZeroDivisionError), replace_sources(SeededSources(1)):
        assert sources.slice_clock() == 0.0
        with replace_sources(SeededSources(2)):
            assert sources.slice_clock() == 0.0
        assert sources.slice_clock() > 0.0
        raise ZeroDivisionError

    assert sources.slice_clock is before


async def test_creations_of_a_seed_follow_from_the_order_of_starts() -> None:
    async def creations() -> list[int]:
        found = []
        for _ in range(3):
            async with running_node() as node:
                found.append(node.info().creation)
        return found

    (before,) = (await creations())[:1]
    with seeded(3):
        first = await creations()
    with seeded(3):
        second = await creations()
    after = await creations()

    assert first == second == sorted(set(first))
    assert before < first[0], "a node that starts again is newer, though it was started before"
    assert before < after[0] < first[0]


async def test_a_running_node_takes_its_numbers_from_the_seed_inside_the_block() -> None:
    async with running_node("a@test") as node:
        found = []
        for _ in range(2):
            with seeded(7):
                found.append(numbers(kernel_of(node).chance("restarts")))

        assert found[0] == found[1]
        assert numbers(kernel_of(node).chance("restarts")) != found[0]


class Busy(Actor):
    """Notes its name on each message."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name = name
        self.turns = turns

    def handle_message(self, message: object, sender: object) -> None:
        self.turns.append(self.name)

    def handle_call(self, request: object, caller: object) -> object:
        return None


def turns_of(seed: int) -> list[int]:
    """How many messages two busy processes handle in a turn, with a burst that is never used up."""
    turns: list[str] = []

    async def program() -> None:
        async with running_node(burst=1_000_000) as node:
            pids = [await node.spawn(Busy, name, turns) for name in "ab"]
            for _ in range(2000):
                for pid in pids:
                    node.send(pid, None)
            async with trio.open_nursery() as nursery:
                for pid in pids:
                    nursery.start_soon(node.call, pid, None)

    explore(program, [seed], clock=VirtualClock)
    return [len(list(same)) for _, same in groupby(turns)]


def test_the_time_slices_of_processes_end_at_the_same_messages_for_the_same_seed() -> None:
    first, second = ([turns_of(seed) for seed in range(8)] for _ in range(2))

    assert first == second
    assert len({max(turns) for turns in first}) > 4, "seeds differ"
    assert min(max(turns) for turns in first) < 100
