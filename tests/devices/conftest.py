"""The clock of tests with a stuck library."""

import pytest

from tests.meta.wires import MovableClock


@pytest.fixture
def clock() -> MovableClock:
    """Time for the test to move; trio follows this clock."""
    return MovableClock()
