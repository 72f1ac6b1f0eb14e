"""Rules for every test: which Hypothesis profile is used, and that no thread is left behind."""

import gc
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.installation import build_wheel, install
from tests.support import short_directory

# Without files of bytecode, pytest's workers rewrite all assertions, and each program that a test
# starts compiles all its imports: 2 minutes of processor time in a run of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples each time, and no database: a run gives the same result as the previous run, its
# coverage included. The thorough profile looks for new examples. No deadline: the machine may be
# busy.
settings.register_profile(
    "fast",
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    settings.get_profile("fast"),
    max_examples=2_000,
    stateful_step_count=100,
    derandomize=False,
)
# Where lines are counted, an example takes three times as long, and most lines need few examples.
settings.register_profile("counted", settings.get_profile("fast"), max_examples=10)
# For developers that only want to know that a test fails.
settings.register_profile(
    "unshrunk", settings.get_profile("fast"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


_UNCOVERED = (
    "tests/examples/",
    "tests/observe/page/",
    "tests/shell/completion/",
    "tests/shell/scaffold/",
    "tests/supervision/test_supervision_storm.py",
    "tests/workers/",
    "tests/test_architecture.py",
    "tests/test_chaos.py",
    "tests/test_docs_api.py",
    "tests/test_docs_blocks.py",
    "tests/test_docs_looking.py",
    "tests/test_docs_pictures.py",
    "tests/test_docs_site.py",
    "tests/test_docs_troubleshooting.py",
    "tests/test_forge.py",
    "tests/test_hatch_build.py",
    "tests/test_links.py",
    "tests/test_makefile.py",
    "tests/test_pictures.py",
    "tests/test_private_access.py",
    "tests/test_prose.py",
    "tests/test_readme.py",
    "tests/test_state_owners.py",
)
"""Tests that read files, or run other programs: counting their lines only makes them slower."""

_BEYOND_THE_KERNEL = (
    "examples/",
    "tests/aio/",
    "tests/blocking/",
    "tests/cluster/",
    "tests/loops/",
    "tests/meta/files/",
    "tests/meta/programs/",
    "tests/network/nats/",
    "tests/network/test_closed_types.py",
    "tests/network/test_message_types.py",
    "tests/network/test_session",
    "tests/observe/",
    "tests/schedules/",
    "tests/shell/",
    "tests/test_benchmarks",
    "tests/test_docs_",
    "tests/test_fuzzing.py",
    "tests/test_node_machine.py",
    "tests/test_program.py",
    "tests/test_typing.py",
    "tests/testing/",
    "tests/web/",
)
_OF_THE_KERNEL = (
    "tests/shell/test_cli.py",
    "tests/test_docs_mistakes.py",
    "tests/web/parsing/",
    "tests/web/test_hostile.py",
    "tests/web/test_shutdown.py",
    "tests/web/test_websocket.py",
)
"""Tests among those that run lines of the kernel or of parsers which other tests do not run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_UNCOVERED):
            item.add_marker(pytest.mark.no_cover)
        elif item.nodeid.startswith(_BEYOND_THE_KERNEL) and not item.nodeid.startswith(
            _OF_THE_KERNEL
        ):
            item.add_marker(pytest.mark.beyond_kernel)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Imported and collected objects stay until the end: no collection of garbage looks at them, be
    # it now or in a test.
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets; ``tmp_path`` may have too long a path for them."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which ergo_py was installed from a wheel."""
    place = tmp_path_factory.mktemp("installed")
    return install(build_wheel(place / "dist"), place / "venv")


THREAD_GRACE = 20.0
"""How long, in seconds, the threads of a test may take to end after it."""


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREAD_GRACE
    while (left := _left(before)) and time.monotonic() < deadline:
        # Not until it ends: a worker that has done its job stays, and is none of ours.
        left[0].join(0.01)
    if left:
        pytest.fail(f"threads left behind: {', '.join(thread.name for thread in left)}")


def _left(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not _is_idle_worker(thread)
    ]


def _is_idle_worker(thread: threading.Thread) -> bool:
    # trio keeps a worker thread for ten seconds after its last job, and gives it this name only
    # while it has none.
    return thread.name.startswith("Trio thread ")
