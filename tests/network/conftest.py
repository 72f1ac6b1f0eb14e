"""Fixtures of the tests of networks."""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
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
def networks(request: pytest.FixtureRequest, meeting_place: Path) -> Callable[..., Any]:
    """A function that makes a network of each kind, with settings of the test."""
    is_nats = request.param == "nats"
    place = request.getfixturevalue("shared_server").url if is_nats else meeting_place
    return partial(make_network, request.param, place)


@pytest.fixture
def network(networks: Callable[..., Any]) -> Any:
    """A network of each kind."""
    return networks()


@pytest.fixture(scope="module")  # else it would disturb tests that look for busy programs
def shared_server() -> Iterator[NatsServer]:
    """A NATS server for all tests of a file that do it no harm."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A NATS server of this test."""
    with NatsServer() as server:
        yield server
