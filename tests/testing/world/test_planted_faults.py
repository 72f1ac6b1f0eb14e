"""Faults that are planted into the protocols are found in worlds; `python -m benchmarks planted`
searches for all of them.
"""

import re
from pathlib import Path

import pytest

from benchmarks.planted import find, planted
from benchmarks.planted_faults import FAULTS, Planted
from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world
from tests.support import THOROUGH

SHORT = (
    "a doubled frame is delivered twice",
    "an answer leaves before the commit",
)
"""The faults that each run of the tests searches for: those with short worlds."""
SEEN = (
    "a lease has no margin",
    "an entity sleeps with held output",
    "a default that was taken is not stored",
    "entities are loaded before their moments",
)
"""Faults that nearly each seed sees, and whose worlds are long: they are not shrunk."""


PROMISES, PAGE = "docs/semantics.md", "docs/design/tests.md"
ROW = r"^\| ([DKY]\d+) \| (.*?) \| (.*?) \|$"


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if THOROUGH or fault.name in SHORT],
    ids=lambda each: each.name,
)
def test_a_planted_fault_is_found_and_shrunk(fault: Planted) -> None:
    error = find(fault, range(10_000 if THOROUGH else 10))

    assert error is not None
    assert len(error.plan.faults) <= 8
    assert error.runs <= 100


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in SEEN], ids=lambda each: each.name
)
def test_the_first_worlds_see_a_planted_fault(fault: Planted) -> None:
    with planted(fault):
        seen = any(run_world(World(Plan(seed)), fault.world) for seed in range(10))

    assert seen


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 50


def test_each_fault_changes_its_module_and_leaves_it_as_it_was() -> None:
    for fault in FAULTS:
        with planted(fault):
            pass


def test_the_page_names_a_world_and_a_fault_for_each_promise_of_nodes_and_entities() -> None:
    root = Path(__file__).parents[3]
    promises = re.findall(r"^### ([DKY]\d+) ", (root / PROMISES).read_text("utf-8"), re.MULTILINE)
    rows = re.findall(ROW, (root / PAGE).read_text("utf-8"), re.MULTILINE)
    faults = {(fault.world.__name__, fault.name): fault.world for fault in FAULTS}

    assert [promise for promise, _, _ in rows] == promises
    for promise, world, fault in rows:
        if world != "none":
            explored = faults[world.strip("`"), fault]
            assert re.search(rf"\b{promise}\b", explored.__doc__ or ""), (promise, world)


def test_a_fault_without_its_text_is_told() -> None:
    fault = FAULTS[0]
    wrong = Planted(fault.name, fault.world, fault.module, "not there", "")

    with pytest.raises(LookupError, match=fault.name), planted(wrong):
        pass
