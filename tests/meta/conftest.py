"""Fixtures for the tests of several kinds of connections."""

from pathlib import Path

import pytest

from tests.meta.wires import MovableClock, Wire


@pytest.fixture(params=["tcp-thread", "tcp-task", "unix-thread", "unix-task"])
def wire(request: pytest.FixtureRequest, short_path: Path) -> Wire:
    """A kind of connection; all kinds behave the same."""
    kind, reader = request.param.split("-")
    return Wire(kind, reader, short_path)


@pytest.fixture
def clock() -> MovableClock:
    """Time for the test to move; trio goes by it in every test that asks for it."""
    return MovableClock()
