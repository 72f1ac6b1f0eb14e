"""Fixtures of the tests of networks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.network.nats.server import NatsServer
from tests.network.pairs import make_network


@pytest.fixture
def meeting_place() -> Iterator[Path]:
    """A directory for sockets, with a path that is short enough for them."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        yield Path(directory)


@pytest.fixture(params=["memory", "local", "nats"])
def network(request: pytest.FixtureRequest, meeting_place: Path) -> Any:
    """A network of each kind."""
    if request.param == "nats":
        return make_network("nats", request.getfixturevalue("shared_server").url)
    return make_network(request.param, meeting_place)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[NatsServer]:
    """A NATS server for all tests that do it no harm."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A NATS server of this test."""
    with NatsServer() as server:
        yield server
