"""A simulated world is a recording that the page opens."""

from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Node
from ergo_py.observe import command
from ergo_py.observe.history import read_recording
from ergo_py.observe.world_recorder import WorldRecorder
from ergo_py.shell.cli import main
from ergo_py.testing import World, simulated
from ergo_py.testing.world.plan import Plan
from tests.testing.world import singletons


@simulated(seeds=3)
async def goes_well(world: World) -> None:
    await world.start(2, singletons.start)
    world.faults(crash=0.1)
    await trio.sleep(20)


@simulated(seeds=3)
async def fails(world: World) -> None:
    await world.start(2, singletons.start)
    world.faults(crash=0.1)
    await trio.sleep(20)
    raise LookupError("found")


@simulated(seeds=3)
async def calls(world: World) -> None:
    async def start(node: Node) -> None:
        if node.name == "b@world":
            await node.spawn(singletons.Only, name="only")

    _, b = await world.start(2, start)
    world.faults()
    for _ in range(20):
        await trio.sleep(0.5)
        if b.is_up:
            await b.call("only", "who")
        await trio.sleep(0.5)


def test_a_recording_shows_nodes_and_the_story_and_changes_no_history(tmp_path: Path) -> None:
    simulation: Any = vars(goes_well)["simulation"]
    plan = Plan.read("seed=1; 5 crash b@world 3")
    recording = WorldRecorder()

    watched = simulation.watch(plan, recording.look, is_drawn=False)
    recording.write(tmp_path / "world.ergo")
    nodes, histories = read_recording(tmp_path / "world.ergo")

    assert simulation.run_plan(plan).history.digest == watched.history.digest
    assert [node["name"] for node in nodes] == ["a@world", "b@world"]
    times = histories["a@world"].columns(float("-inf"), float("inf"))["columns"]["at"]
    assert [time - times[0] for time in times] == list(range(21))
    state = histories["a@world"].at(times[10])
    assert "b@world crashes, and starts again after 3 s" in str(state)


def test_a_recording_shows_a_crashed_node_and_counts_simulated_seconds(
    tmp_path: Path,
) -> None:
    recording = WorldRecorder()

    vars(calls)["simulation"].watch(
        Plan.read("seed=1; 5.5 crash b@world 3"), recording.look, is_drawn=False
    )
    recording.write(tmp_path / "world.ergo")
    _, histories = read_recording(tmp_path / "world.ergo")

    columns = histories["b@world"].columns(float("-inf"), float("inf"))["columns"]
    assert columns["processes"][:11] == [1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1]
    assert columns["rate"][:5] == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_the_end_of_a_recording_tells_the_failure(tmp_path: Path) -> None:
    recording = WorldRecorder()

    vars(fails)["simulation"].watch(Plan(1), recording.look, is_drawn=False)
    recording.write(tmp_path / "world.ergo")
    _, histories = read_recording(tmp_path / "world.ergo")

    for name in ("a@world", "b@world"):
        times = histories[name].columns(float("-inf"), float("inf"))["columns"]["at"]
        lines = histories[name].at(times[-1])["views"]["log"]["lines"]
        assert (lines[-1]["level"], lines[-1]["text"]) == ("error", "LookupError: found")


def test_the_command_opens_the_page_with_the_recording_of_a_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[Any] = []

    def observe(options: Any) -> None:
        opened.append((options.host, options.opens, read_recording(options.replay)[0]))

    monkeypatch.setattr(command, "observe", observe)

    assert main(["simulate", f"{__file__}::goes_well", "--seed", "1", "--observe"]) == 0
    assert main(["simulate", f"{__file__}::fails", "--seed", "1", "--observe"]) == 1

    for host, opens, nodes in opened:
        assert (host, opens) == ("127.0.0.1", True)
        assert [node["name"] for node in nodes] == ["a@world", "b@world"]
    assert len(opened) == 2
    assert "LookupError: found" in capsys.readouterr().err
