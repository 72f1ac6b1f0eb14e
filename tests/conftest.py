"""Rules for every test: the Hypothesis profile, the order of tasks, and no thread left behind."""

import fcntl
import gc
import importlib
import os
import pkgutil
import random
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

import ergo_py
from tests.installation import build_wheel, install
from tests.parts import Part
from tests.support import short_directory


def pytest_configure() -> None:
    """Let Ctrl-C end the programs that tests start, also if the tests run in the background of a
    shell or under ``nohup``: ignored signals stay ignored in all children.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


# Without files of bytecode, pytest's workers rewrite all assertions, and each program that a test
# starts compiles all its imports: 2 minutes of processor time in a run of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples each time, and no database: a run gives the same result as the previous run, its
# coverage included. The thorough profile looks for new examples. No deadline: the machine may be
# busy.
settings.register_profile(
    "fast",
    max_examples=25,
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
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fast")
settings.load_profile(_PROFILE)
if _PROFILE != "thorough":
    # Hypothesis draws some values from the constants of all modules that the worker has imported:
    # the examples would depend on the tests that the worker has run before, and to read the modules
    # takes seconds.
    providers.__dict__["is_local_module_file"] = lambda _path: False


_ROOT = Path(__file__).parent.parent
_REPLACED_FILES = tuple((_ROOT / ".ci" / "speed-tests").read_text(encoding="utf-8").split())
"""The tests of the functions that the C extension replaces: `make check` runs them in pure Python,
and with the extension beside the uncounted tests. It counts the lines of tests/_core/speed and of
.ci/counted-speed-tests with the extension: these run lines that pure Python does not.
"""
_COUNTED_FILES = (
    "tests/_core/",
    "tests/meta/parsing/",
    "tests/supervision/",
    "tests/test_promises.py",
    "tests/web/parsing/",
    *_REPLACED_FILES,
)
"""The tests of the rooms whose lines `make check` counts, of the promises, and of the functions
that the C extension replaces. The mark ``counted`` adds single tests of other rooms that run lines
which these do not. `make check` runs all other tests with the C extension, without counting.
"""
_COUNTED_MODULES = (
    "ergo_py._core",
    "ergo_py.meta.parsing",
    "ergo_py.supervision",
    "ergo_py.web.parsing",
)
_REACHED_BY_OTHERS = (
    "tests/_core/messaging/test_sending_from_threads.py",
    "tests/_core/messaging/test_traces.py::test_a_process_with_a_background_task_is_traced_many_"
    "times",
    "tests/_core/processes/test_contexts.py",
    "tests/_core/processes/test_termination.py::test_tables_do_not_grow_after_many_rounds_of_"
    "linking_and_dying",
    "tests/_core/runtime/test_thread_fairness.py",
    "tests/_core/speed/test_main_lane.py",
    "tests/_core/speed/test_messages.py::test_many_messages_leave_no_memory_behind",
    "tests/_core/speed/test_streams.py::test_reads_and_writes_leave_no_references",
    "tests/_core/tables/test_dead_letters.py::Test",
    "tests/_core/tables/test_ended_totals.py::Test",
    "tests/_core/tables/test_mailbox.py::Test",
    "tests/_core/tables/test_relations.py::Test",
    "tests/_core/tables/test_timers.py::Test",
    "tests/_core/tables/test_verb_chain.py::Test",
    "tests/_core/test_sources.py::test_the_time_slices_of_processes_end_at_the_same_messages_for_"
    "the_same_seed",
    "tests/test_promises.py",
)
"""Long tests that run with the counted tests, and are not counted: others reach all their lines."""
_COUNTED_RUN = "counted"
_UNCOUNTED_RUN = "not counted or replaced"
"""The values of ``-m`` in the two runs of `make coverage`."""


_PART = Part.of_this_program()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # To import all tests takes ten seconds. A run of `make coverage` imports the files only in
    # which it selects tests, and each of its programs those of its part.
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    is_ours = _has_selected_tests(path, config.option.markexpr) and _PART.owns(collection_path)
    return not is_ours or None


def _has_selected_tests(path: str, selected: str) -> bool:
    if selected not in (_COUNTED_RUN, _UNCOUNTED_RUN):
        return True
    text = (_ROOT / path).read_text(encoding="utf-8")
    if selected == _COUNTED_RUN:
        return path.startswith(_COUNTED_FILES) or "mark.counted" in text
    is_left = not path.startswith(_COUNTED_FILES) or "no_cover" in text
    return is_left or path.startswith(_REPLACED_FILES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Files that the command line names, or that are elsewhere, have not been asked about.
    items[:] = [item for item in items if _PART.owns(item.path)]
    for item in items:
        if item.nodeid.startswith(_COUNTED_FILES) and not item.get_closest_marker("no_cover"):
            item.add_marker(pytest.mark.counted)
        if item.nodeid.startswith(_REPLACED_FILES):
            item.add_marker(pytest.mark.replaced)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    # Imported and collected objects stay until the end: no collection of garbage looks at them, be
    # it now or in a test.
    gc.disable()
    tracer = sys.gettrace()
    if session.config.option.markexpr == _COUNTED_RUN:
        # The lines that run at the import of the package count. The imports of the tests, and the
        # work of pytest, would take twice as long.
        for module in pkgutil.walk_packages(ergo_py.__path__, "ergo_py."):
            if module.name.startswith(_COUNTED_MODULES):
                importlib.import_module(module.name)
        sys.settrace(None)
    result = yield
    sys.settrace(tracer)
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let trio run the tasks of a test in the same order each time, as far as no thread, socket or
    other program decides it, and repeat random numbers. Without this a test that holds in most
    orders fails in one of a thousand runs, and its order cannot be found again. The thorough
    profile looks for new orders.
    """
    # Not a fixture, which each test would pay for.
    if _PROFILE != "thorough":
        random.seed(item.nodeid)
        # Seeded, not replaced: Hypothesis seeds the same generator before each example.
        trio._core._run._r.seed(item.nodeid)


_TRACER = pytest.StashKey[Any]()
"""The function that counts lines."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # Python runs all code slowly while lines are counted, the work of pytest before and after a
    # test included.
    if item.config.option.markexpr != _COUNTED_RUN:
        return (yield)
    tracer = sys.gettrace()
    sys.settrace(None)
    if not item.nodeid.startswith(_REACHED_BY_OTHERS):
        item.stash[_TRACER] = tracer
    # Threads count all the time: trio lends the threads of a test to the tests after it.
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    if _TRACER not in item.stash:
        return (yield)
    sys.settrace(item.stash[_TRACER])
    try:
        return (yield)
    finally:
        sys.settrace(None)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets; ``tmp_path`` may have too long a path for them."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which ergo_py was installed from a wheel, once for all
    parts of a run.
    """
    place = tmp_path_factory.getbasetemp()
    if _PART.parts > 1 or "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    venv = place / "installed"
    with (place / "installed.lock").open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lock.seek(0, os.SEEK_END):
            install(build_wheel(place / "dist"), venv)
            lock.write("done")
    return venv / "bin"


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
