"""The browser of the stories. Without Chromium they are skipped; `make browser` demands it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.observe.browser import AXE, CHROMIUM, start_chromium

DEMANDED = bool(os.environ.get("ERGO_BROWSER"))
"""`make browser` runs all stories; `make check` runs the short ones."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long stories to `make browser`."""
    long = [item for item in items if item.get_closest_marker("browser") and not DEMANDED]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def devtools() -> Iterator[str]:
    """The address of a browser, the same for all stories of a run."""
    if CHROMIUM is None:
        assert not DEMANDED, "make browser needs Chromium: apt install chromium"
        pytest.skip("Chromium is not installed: no story of the observer page was run")
    assert not DEMANDED or AXE.exists(), f"make browser fetches {AXE}"
    with ExitStack() as stack:
        try:
            address = stack.enter_context(start_chromium())
        except RuntimeError:
            if DEMANDED:
                raise
            pytest.skip("Chromium does not start here: no story of the observer page was run")
        yield address
