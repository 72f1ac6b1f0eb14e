"""An address of another node of this program with the same name is explained."""

import io
import json
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from ergo_py import PID, Actor, Alias, Node, TargetDownError, open_node, run
from ergo_py._core.open_nodes import OpenNodes, opened_at
from ergo_py.errors import ProcessUnknownError
from ergo_py.testing import seeded

OPTIONS: Any = {"watchdog": None, "log_output": "json", "control": ""}
PLACE = re.escape(f"{__file__}:")


class Echo(Actor):
    def handle_call(self, request: object, caller: object) -> object:
        return request


def lines_of(log: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in log.getvalue().splitlines()]


async def test_a_process_of_another_node_with_the_same_name_is_not_found_for_that_reason() -> None:
    advice = (
        r"<\w+ 1 twin@localhost> is of another node of this program with the same name: give each "
        r"node a name of its own, as in open_node\('shop-2@localhost'\); they were opened at "
        rf"{PLACE}\d+ and {PLACE}\d+"
    )
    log, notes = io.StringIO(), list[str]()
    with redirect_stderr(log):
        async with (
            open_node("twin@localhost", **OPTIONS) as node,
            open_node("twin@localhost", **OPTIONS) as other,
        ):
            pid, alias = await node.spawn(Echo), Alias("twin@localhost", other.info().creation, 1)
            with pytest.raises(TargetDownError) as call:
                await other.call(pid, 1)
            notes += call.value.__notes__
            with pytest.raises(ProcessUnknownError) as info:
                other.process_info(pid)
            notes += info.value.__notes__
            with pytest.raises(TargetDownError) as call:
                await node.call(alias, 1)
            notes += call.value.__notes__
            for _ in range(3):
                assert not other.send(pid, 1)
            assert await node.call(pid, 1) == 1

    assert [bool(re.fullmatch(f"hint: {advice}", note)) for note in notes] == [True] * 3
    (line,) = lines_of(log)
    assert re.fullmatch(f"`send` returned False: {advice}", line)


async def test_an_address_of_a_node_that_has_stopped_or_never_was_has_no_advice() -> None:
    log, creations = io.StringIO(), list[int]()
    with redirect_stderr(log):
        async with open_node("twin@localhost", **OPTIONS) as node:
            creations.append(node.info().creation)
        async with open_node("twin@localhost", **OPTIONS) as node:
            for creation in *creations, node.info().creation:
                address = PID[Any]("twin@localhost", creation, 99)
                with pytest.raises(TargetDownError) as caught:
                    await node.call(address, 1)
                assert not hasattr(caught.value, "__notes__")
                assert not node.send(address, 1)

    assert lines_of(log) == []


def test_a_node_of_run_is_opened_at_the_line_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    async def main(node: Node) -> None:
        async with open_node(node.name, **OPTIONS) as other:
            node.send(await other.spawn(Echo), 1)

    run(main, **OPTIONS)

    (place, other) = re.findall(rf"{Path(__file__).name}:(\d+)", capsys.readouterr().err)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert lines[int(place) - 1].strip() == "run(main, **OPTIONS)"
    assert "open_node(node.name" in lines[int(other) - 1]


def test_nodes_of_a_seed_are_not_kept_since_a_simulation_may_not_end_them() -> None:
    nodes = OpenNodes()

    with seeded(1):
        seed = nodes.add("twin@localhost", "world.py:1")
    first = nodes.add("twin@localhost", "shop.py:1")

    assert nodes.places("twin@localhost") == "shop.py:1"
    assert nodes.advice(PID("twin@localhost", seed, 1), "twin@localhost", first) == ""
    assert nodes.advice(PID("other@localhost", first, 1), "other@localhost", seed) == ""


def test_a_text_names_few_places_of_many_nodes_with_the_same_name() -> None:
    nodes = OpenNodes()
    for line in range(1, 4):
        nodes.add("twin@localhost", f"shop.py:{line}")
    three = "shop.py:1 and shop.py:2 and shop.py:3"
    assert nodes.places("twin@localhost") == three
    for line in range(4, 61):
        nodes.add("twin@localhost", f"shop.py:{line}")
    assert nodes.places("twin@localhost") == f"{three} and 57 more"


@pytest.mark.parametrize("names", [{"__name__": None}, {"__name__": 5}, {}], ids=str)
def test_a_node_may_be_opened_by_a_module_without_a_name(names: dict[str, object]) -> None:
    code = compile("place = opened_at()", "shop.py", "exec")
    space: dict[str, object] = {"opened_at": opened_at, **names}
    exec(code, space)
    assert space["place"] == "shop.py:1"


def test_a_clock_that_is_set_back_makes_no_number_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = OpenNodes()
    times = iter([50, 50, 10, 60])
    monkeypatch.setattr("time.time_ns", lambda: next(times))

    assert [nodes.add("a", "") for _ in range(4)] == [50, 51, 52, 60]
