"""Fixtures of the tests of networks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.network.pairs import make_network


@pytest.fixture
def meeting_place() -> Iterator[Path]:
    """A directory for sockets, with a path that is short enough for them."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        yield Path(directory)


@pytest.fixture(params=["memory", "local"])
def network(request: pytest.FixtureRequest, meeting_place: Path) -> Any:
    """A network of each kind."""
    return make_network(request.param, meeting_place)
