"""A test of worlds runs its seeds; a failing seed is shrunk, told and repeated."""

import shlex
import subprocess
import sys
from typing import Any

import pytest
import trio

from ergo_py import BadInputError
from ergo_py.cluster import lease
from ergo_py.shell.cli import main
from ergo_py.testing import World, simulated
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.simulation import SimulationError
from ergo_py.testing.world.world import CheckError
from examples.testing.test_orders import hasty_orders_survive
from tests.pages import ROOT, blocks
from tests.testing.world import singletons

simulated_quiet: Any = simulated(seeds=3)(singletons.quiet)


@simulated(seeds=30)
async def test_seeds_run_in_sequence(world: World) -> None:
    await trio.sleep(1)


@simulated(seeds=50)
async def fails_when_cut(world: World) -> None:
    await world.start(2)
    world.faults(cut=0.05, pause=0.3)
    for _ in range(30):
        await trio.sleep(1)
        if any("no frame" in event.text for event in world.history.events):
            raise LookupError("found")


def failure_of(test: Any) -> SimulationError:
    with pytest.raises(SimulationError) as raised:
        test()
    return raised.value


def test_a_failing_seed_is_shrunk_and_told() -> None:
    error = failure_of(fails_when_cut)

    assert [fault.kind for fault in error.plan.faults] == ["cut"]
    assert isinstance(error.__cause__, LookupError)
    assert "no frame passes between" in error.story
    assert "stopped" not in error.story
    assert error.story.endswith("LookupError: found")
    assert error.passed == error.seed
    assert error.runs <= 100


def test_the_page_about_testing_shows_the_story_of_a_planted_bug() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    mark = "transcript: " + "a confirmed order is lost"
    (block,) = [block for block in blocks(page) if block.mark == mark]

    error = failure_of(hasty_orders_survive)

    assert f"{error}\n" == block.text


def test_the_printed_command_repeats_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    error = failure_of(fails_when_cut)

    words = shlex.split(error.command)

    assert words[:2] == ["ergo", "simulate"]
    assert words[2].endswith("test_simulation.py::fails_when_cut")
    assert main(words[1:]) == 1
    assert error.story in capsys.readouterr().err


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    test = f"{__file__}::test_seeds_run_in_sequence"

    assert main(["simulate", test]) == 0
    assert "30 seeds go well" in capsys.readouterr().out
    assert main(["simulate", test, "--seeds", "5"]) == 0
    assert "5 seeds go well" in capsys.readouterr().out
    assert main(["simulate", test, "--seed", "7"]) == 0
    assert "1 seed goes well" in capsys.readouterr().out
    assert main(["simulate", test, "--plan", "seed=7"]) == 0
    assert "digest" in capsys.readouterr().out


async def empty_world(world: World) -> None:
    await world.start(1)


def test_the_command_runs_a_world_without_a_decorator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", f"{__file__}::empty_world", "--seed", "7"]) == 0
    assert "1 seed goes well" in capsys.readouterr().out


def test_the_command_of_the_page_imports_a_test_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    test = "examples/testing/test_orders.py::hasty_orders_survive"
    plan = "seed=2 order=plain; 4 crash shop@world 1.5"

    assert main(["simulate", test, "--plan", plan]) == 1
    assert "kept(Place)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, text",
    [
        ([f"{__file__}"], "names no test"),
        ([f"{__file__}::test_the_command_runs_seeds"], "is no test of a world"),
        ([f"{__file__}::nothing"], "with @simulated"),
        (["nowhere.py::test"], "no file"),
        ([f"{__file__}::fails_when_cut", "--seeds", "0"], "1 up"),
        ([f"{__file__}::fails_when_cut", "--plan", "nonsense"], "plan"),
        ([f"{__file__}::fails_when_cut", "--plan", "seed=1; 1 pause z@world 1"], "'z@world'; "),
        ([f"{__file__}::fails_when_cut", "--plan", "seed=1; 1 crash a@world 1"], "crash=0.1"),
    ],
)
def test_the_command_explains_wrong_usage(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 2
    assert text in capsys.readouterr().err


def test_a_lease_that_overlaps_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "MARGIN", -0.3)

    with pytest.raises(SimulationError) as raised:
        simulated_quiet.simulation.run([7])

    assert isinstance(raised.value.__cause__, CheckError)
    assert 1 <= len(raised.value.plan.faults) <= 3
    assert raised.value.story.count("only starts") == 2
    monkeypatch.undo()
    simulated_quiet.simulation.run_plan(raised.value.plan)


def test_a_failure_from_outside_of_the_world_keeps_its_own_plan() -> None:
    runs: list[int] = []

    @simulated(seeds=1)
    async def fails_once(world: World) -> None:
        await world.start(2)
        world.faults(cut=0.2)
        runs.append(1)
        if len(runs) == 1:
            raise LookupError

    error = failure_of(fails_once)

    assert len(error.plan.faults) > 1
    assert "The same plan does not fail this way again" in str(error)
    assert "repeats it" not in str(error)


def test_the_same_error_in_another_line_is_another_failure() -> None:
    @simulated(seeds=1)
    async def fails_with_faults(world: World) -> None:
        await world.start(2)
        world.faults(cut=0.2)
        if not world.plan.faults:
            raise LookupError
        raise LookupError

    error = failure_of(fails_with_faults)

    assert len(error.plan.faults) == 1
    assert "repeats it" in str(error)


def test_another_failure_of_the_same_plan_is_told_as_such() -> None:
    runs: list[int] = []

    @simulated(seeds=1)
    async def fails_otherwise(world: World) -> None:
        runs.append(1)
        raise LookupError if len(runs) == 1 else OSError

    error = failure_of(fails_otherwise)

    assert isinstance(error.__cause__, LookupError)
    assert error.story.endswith("LookupError: ")
    assert "does not fail this way again" in str(error)


def test_another_number_of_seeds_may_be_chosen() -> None:
    seeds: list[int] = []

    @simulated(seeds=3)
    async def note(world: World) -> None:
        seeds.append(world.plan.seed)

    note()
    made: Any = note
    made.simulation.choose_seeds(5)
    note()

    assert seeds == [0, 1, 2, 0, 1, 2, 3, 4]
    with pytest.raises(BadInputError, match="seeds"):
        made.simulation.choose_seeds(0)


def test_only_async_functions_of_a_world_are_simulated() -> None:
    def plain(world: World) -> None: ...

    async def without_world() -> None: ...

    wrong: Any
    for wrong in (plain, without_world):
        with pytest.raises(BadInputError, match="async def test"):
            simulated()(wrong)


def test_a_plan_that_goes_well_returns_its_world() -> None:
    made: Any = test_seeds_run_in_sequence

    assert made.simulation.run_plan(Plan(3)).clock.current_time() == 1.0


@pytest.mark.parametrize("name", ["find_first_failing_seed", "repeat_seeds_of_killed_copy"])
def test_copies_of_a_program_share_its_seeds(name: str) -> None:
    # In a program of its own: a worker of a test run has another thread, and is not copied.
    done = subprocess.run(
        [sys.executable, "-m", "tests.testing.world.parallel", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
