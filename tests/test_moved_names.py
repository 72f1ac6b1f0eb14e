"""The public names are few, and the names of earlier versions lead to them."""

import importlib
import subprocess
import sys
import warnings

import pytest

import ergo_py
from ergo_py import CallError, SpawnError, Threads
from ergo_py._core.vocabulary.errors import (
    ChildBusyError,
    ChildExistsError,
    ChildRunningError,
    ChildUnknownError,
    TooManyProcessesError,
    TooManyReadersError,
)
from ergo_py.errors import ChildError
from ergo_py.moved_names import MOVED
from ergo_py.network.errors import TooManyCallsError
from tests.test_docs_api import MODULES

MOST_AT_THE_ROOT = 80
MOST = 259
"""Errors that tell the same trouble are a single class with a kind, and what belongs to a class is
its member. The next name needs a reason why it is not a kind, a member, a parameter or a name of
its module.
"""


def old_value(old: str) -> tuple[object, list[str]]:
    """The value of an old name, and the warnings that its use raises."""
    module, _, name = old.rpartition(".")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = getattr(importlib.import_module(module), name)
    assert {warning.category for warning in caught} == {DeprecationWarning}
    assert {warning.filename for warning in caught} == {__file__}
    return value, [str(warning.message) for warning in caught]


def test_the_root_has_the_names_of_every_day_and_no_more() -> None:
    assert len(ergo_py.__all__) <= MOST_AT_THE_ROOT


def test_the_public_names_of_all_modules_are_few() -> None:
    assert len({name for module in MODULES for name in module.__all__}) <= MOST


def test_an_old_name_works_and_its_warning_has_the_line_to_write() -> None:
    for old in MOVED:
        _, [text] = old_value(old)
        begin, line = text.split("; write: ")
        namespace: dict[str, object] = {}

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(line, f"the line for {old}", "exec"), namespace)

        assert begin == f"{old} is deprecated, and ergo_py 0.2 removes it"


def test_an_old_name_has_the_value_of_the_new_line() -> None:
    for old in MOVED:
        if " import " not in MOVED[old].line:
            continue
        value, _ = old_value(old)
        imports, _, expression = MOVED[old].line.partition("; ")
        namespace: dict[str, object] = {}
        exec(imports, namespace)
        new = eval(expression or imports.partition("  #")[0].rpartition(" ")[2], namespace)

        if expression.startswith("Threads("):
            assert old == "ergo_py.PINNED" or callable(value), old
        elif "# its kind" in imports:
            assert isinstance(value, type), old
            assert new in value.__mro__, old
            assert imports.endswith(f"  # its kind is {vars(value)['kind']!r}"), old
        elif "#" in imports:
            assert callable(value), old
        else:
            assert value is new, old


def test_an_old_name_is_not_listed() -> None:
    for old in MOVED:
        package, _, name = old.rpartition(".")
        module = importlib.import_module(package)

        assert name not in module.__all__, old
        assert name not in dir(module), old


@pytest.mark.counted
def test_the_old_dispatchers_are_threads() -> None:
    pinned, _ = old_value("ergo_py.Pinned")
    pod, _ = old_value("ergo_py.Pod")
    pool, _ = old_value("ergo_py.POOL")
    assert callable(pinned)
    assert callable(pod)
    assert callable(pool)

    assert (pinned(2), pinned()) == (Threads(cpu=2), Threads())
    assert (pod("io", 1), pod("io")) == (Threads("io", cpu=1), Threads("io"))
    assert pool("io", 3) == Threads("io", 3)


def test_a_name_that_has_left_is_an_import_error_with_its_replacement() -> None:
    with pytest.raises(ImportError, match="has left ergo_py; use instead: MetricsPage"):
        exec("from ergo_py.telemetry import StatsdReporter")


def test_an_import_of_everything_warns_of_nothing() -> None:
    program = "from ergo_py import *; from ergo_py.errors import *; from ergo_py.info import *"

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_kind_of_an_error_is_also_the_builtin_that_callers_may_catch() -> None:
    builtins = {
        old.rpartition(".")[2]: base
        for old, moved in MOVED.items()
        if "# its kind" in moved.line
        for base in (LookupError, TimeoutError, TypeError)
        if issubclass(getattr(importlib.import_module(moved.module), moved.path), base)
    }

    assert builtins == {
        "ApplicationUnknownError": LookupError,
        "ChildUnknownError": LookupError,
        "EventUnknownError": LookupError,
        "MessageTypeError": TypeError,
        "RelationUnknownError": LookupError,
        "ServiceTimeoutError": TimeoutError,
        "StateTypeError": TypeError,
        "TaskTimeoutError": TimeoutError,
    }


def test_a_limit_is_also_a_spawn_error_or_a_call_error() -> None:
    assert isinstance(TooManyProcessesError(3), SpawnError)
    assert isinstance(TooManyReadersError(3), SpawnError)
    assert isinstance(TooManyCallsError("too many", 3, None, None), CallError)


def test_an_old_child_error_catches_its_kind_and_no_other() -> None:
    old, _ = old_value("ergo_py.ChildUnknownError")

    assert old is ChildUnknownError
    assert isinstance(ChildUnknownError("a"), LookupError)
    assert not isinstance(ChildExistsError("a"), ChildUnknownError)


def test_a_child_error_has_a_kind_and_prints_under_a_single_name() -> None:
    errors: list[ChildError] = [
        ChildUnknownError("a"),
        ChildExistsError("a"),
        ChildRunningError("a", None),
        ChildBusyError("a", "starting"),
    ]

    assert [error.kind for error in errors] == ["unknown", "exists", "running", "busy"]
    assert {f"{type(error).__module__}.{type(error).__qualname__}" for error in errors} == {
        "ergo_py.errors.ChildError"
    }
