"""Fixtures of the tests of clusters."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.network.nats.server import NatsServer
from tests.network.pairs import make_network


@pytest.fixture(scope="module")  # else it would disturb tests that look for busy programs
def jetstream() -> Iterator[NatsServer]:
    """A NATS server with JetStream for all tests of a file that do it no harm."""
    with (
        tempfile.TemporaryDirectory(prefix="js-", dir="/tmp") as folder,
        NatsServer("", "--jetstream", "--store_dir", folder) as server,
    ):
        yield server


@pytest.fixture(params=["memory", "local", "nats"])
def network(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A network of each kind."""
    if request.param == "nats":
        yield make_network("nats", request.getfixturevalue("jetstream").url)
        return
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as place:
        Path(place).chmod(0o700)
        yield make_network(request.param, place)
