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


_BEYOND_THE_KERNEL = (
    "examples/",
    "tests/aio/",
    "tests/blocking/",
    "tests/cluster/",
    "tests/examples/",
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
    "tests/supervision/test_supervision_storm.py",
    "tests/test_architecture.py",
    "tests/test_benchmarks",
    "tests/test_chaos.py",
    "tests/test_docs_",
    "tests/test_environments.py",
    "tests/test_forge.py",
    "tests/test_fuzzing.py",
    "tests/test_hatch_build.py",
    "tests/test_links.py",
    "tests/test_makefile.py",
    "tests/test_mutants.py",
    "tests/test_node_machine.py",
    "tests/test_pictures.py",
    "tests/test_private_access.py",
    "tests/test_program.py",
    "tests/test_prose.py",
    "tests/test_readme.py",
    "tests/test_release_check.py",
    "tests/test_set_order.py",
    "tests/test_startup.py",
    "tests/test_state_owners.py",
    "tests/test_typing.py",
    "tests/testing/",
    "tests/web/",
    "tests/workers/",
)
"""Tests of other rooms, of files and of other programs. `make check` runs them after the tests of
the kernel, with the C extension if there is one, and without counting lines.
"""
_OF_THE_KERNEL = (
    "tests/shell/test_cli.py",
    "tests/test_docs_mistakes.py",
    "tests/web/parsing/",
    "tests/web/test_hostile.py",
    "tests/web/test_shutdown.py",
    "tests/web/test_websocket.py",
)
"""Tests among those that run lines of the kernel or of parsers which other tests do not run."""
_COUNTED_RUN = "not beyond_kernel"
_UNCOUNTED_RUN = "beyond_kernel or hypothesis"
"""The values of ``-m`` in the two runs of `make coverage`."""


def _is_beyond_kernel(path: str) -> bool:
    return path.startswith(_BEYOND_THE_KERNEL) and not path.startswith(_OF_THE_KERNEL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # To import all tests takes ten seconds, in each worker of each run. A run of `make coverage`
    # imports the files only in which it selects tests.
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    if config.option.markexpr == _COUNTED_RUN:
        return _is_beyond_kernel(path) or None
    if config.option.markexpr == _UNCOUNTED_RUN and not _is_beyond_kernel(path):
        text = collection_path.read_text(encoding="utf-8")
        return ("hypothesis" not in text and "no_cover" not in text) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_beyond_kernel(item.nodeid) or item.get_closest_marker("no_cover"):
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
