"""The story of a failing world fits on a screen, and its digest counts all that has happened."""

import trio

from ergo_py.testing import World
from ergo_py.testing.world.history import History
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def story_of(notes: int) -> list[str]:
    async def test(world: World) -> None:
        await world.start(2)
        world.faults()
        for number in range(notes):
            await trio.sleep(1)
            world.note(f"number {number}")
        raise LookupError("the end")

    world = World(Plan.read("seed=1; 2 cut a@world,b@world 3"), is_drawn=False)
    failure = run_world(world, test)
    assert failure is not None
    return world.history.tell(failure).splitlines()


def test_a_short_story_is_complete_and_in_order() -> None:
    lines = story_of(5)

    assert [line.split("number ")[1] for line in lines if "number" in line] == [*"01234"]
    assert lines[-1].endswith("LookupError: the end")
    assert sum("!" in line for line in lines) == 1


def test_a_long_story_keeps_its_faults_and_its_end() -> None:
    lines = story_of(500)

    assert len(lines) <= 42
    assert any("no frame passes" in line for line in lines)
    assert "number 499" in lines[-2]
    assert any("more events" in line for line in lines)


def digest_of(*passes: int) -> str:
    history = History(lambda: 1.0)
    for tasks in passes:
        history.mix_pass(tasks)
    return history.digest


def test_each_pass_of_the_loop_counts_for_the_digest() -> None:
    many = [1] * 10_000  # more than wait for the digest

    assert digest_of(1, 2) == digest_of(1, 2) != digest_of(2, 1)
    assert len({digest_of(*many), digest_of(*many[1:], 2), digest_of(2, *many[1:])}) == 3


def test_a_look_at_the_digest_does_not_change_it() -> None:
    history = History(lambda: 1.0)

    history.mix_pass(1)
    first = history.digest

    assert history.digest == first
