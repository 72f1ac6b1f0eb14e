"""The pytest plugin of ergo_py: a node for each test, with leak checks, and virtual time that waits
for threads.

A separate module outside the package, because pytest imports it in every run: ergo_py and trio are
imported only when a test requests a fixture, and other tests are unaffected.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ergo_py import Node
    from ergo_py.testing import VirtualClock


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting for the names of the fixtures."""
    parser.addini(
        "ergo_py_fixtures",
        "short: `node` and `virtual_clock` as well as `ergo_node` and `ergo_virtual_clock`; "
        "prefixed: only the latter",
        default="short",
    )
    parser.addoption(
        "--seeds",
        type=int,
        metavar="N",
        help="run tests with @simulated for the seeds below N, in place of their own number",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests of worlds run the number of seeds of the command line."""
    seeds = config.getoption("--seeds")
    if seeds is None:
        return
    if seeds < 1:
        raise pytest.UsageError(f"--seeds {seeds}: write a number from 1 up")
    for item in items:
        simulation = getattr(getattr(item, "obj", None), "simulation", None)
        if simulation is not None:
            simulation.choose_seeds(seeds)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the short names unless the project has other fixtures of these
    names.
    """
    config.addinivalue_line(
        "markers",
        "ergo_node(**options): arguments of checked_node for the `node` fixture: options of "
        "open_node, expect_crash=, grace=",
    )
    names = config.getini("ergo_py_fixtures")
    if names not in ("short", "prefixed"):
        raise pytest.UsageError(f"ergo_py_fixtures is {names!r}; write short or prefixed")
    if names == "short":
        short = ModuleType("pytest_ergo_py_short_names")
        vars(short).update(node=pytest.fixture(_node), virtual_clock=pytest.fixture(_virtual_clock))
        config.pluginmanager.register(short, short.__name__)


async def _node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """A new node for each test.

    The test fails if processes or meta-processes do not end, if threads, sockets or other
    descriptors or child programs are left, or if a process crashed unexpectedly.
    """
    from ergo_py.testing import checked_node  # noqa: PLC0415 - only when a test requests it

    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("ergo_node"):
        # The nearest marker comes first, and wins.
        options = {**marker.kwargs, **options}
    async with checked_node(**options) as node:
        yield node


def _virtual_clock() -> VirtualClock:
    """Virtual time that jumps, except while a thread, the bridge or a child program is busy.

    pytest-trio runs the test with it. With anyio's plugin, make ``anyio_backend`` return ``("trio",
    {"clock": virtual_clock})``.
    """
    from ergo_py.testing import VirtualClock  # noqa: PLC0415 - only when a test requests it

    return VirtualClock()


ergo_node = pytest.fixture(_node)
ergo_virtual_clock = pytest.fixture(_virtual_clock)
