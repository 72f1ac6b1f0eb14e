"""A run of the tests repeats the previous run, except where it is thorough."""

import importlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import THOROUGH

pytestmark = pytest.mark.skipif(THOROUGH, reason="looks for new orders and examples")


async def _order() -> list[int]:
    async def run(number: int) -> None:
        await trio.lowlevel.checkpoint()
        ran.append(number)

    ran: list[int] = []
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(run, number)
    return ran


def test_the_order_of_tasks_follows_from_the_name_of_the_test(
    request: pytest.FixtureRequest,
) -> None:
    run: Any = trio._core._run
    first = [trio.run(_order) for _ in range(3)]

    run._r.seed(request.node.nodeid)

    assert [trio.run(_order) for _ in range(3)] == first


def test_examples_do_not_depend_on_the_imported_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a whole file of numbers a few would be drawn.
    numbers = [Random(number).getrandbits(80) for number in range(100)]
    (tmp_path / "odd_numbers.py").write_text(f"NUMBERS = {numbers}", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("odd_numbers")
    drawn: list[int] = []

    @settings(max_examples=200)
    @given(st.integers(0, 1 << 80))
    def draw(number: int) -> None:
        drawn.append(number)

    draw()

    assert not set(numbers) & set(drawn)
