"""Fixtures for tests of metrics and traces."""

from collections.abc import Iterator

import pytest

from tests.telemetry.rig import Spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()
