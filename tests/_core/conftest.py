"""The fixtures that tests of several rooms of the kernel use."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def switching_fast() -> Iterator[None]:
    """Let Python switch between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
