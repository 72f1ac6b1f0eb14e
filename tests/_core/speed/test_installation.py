"""`install`: the extension is used where it fits, and the package is complete without it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import ergo_py
import ergo_py.info
from ergo_py._core.messaging.calls import Calls
from ergo_py._core.messaging.clock import Clock
from ergo_py._core.messaging.publisher import Publisher
from ergo_py._core.messaging.router import Router
from ergo_py._core.messaging.waiters import TaskCaller
from ergo_py._core.processes.message_loop import Turn
from ergo_py._core.speed import installation
from ergo_py._core.tables.mailbox import Mailbox
from ergo_py._core.tables.timers import Timer, TimerHeap, Timers
from ergo_py._core.verbs.behaviour import Behaviour

REPLACED: list[Any] = [
    Behaviour.call,
    Behaviour.send,
    Clock.arm_timer,
    Publisher.deliver,
    Router.send,
    TaskCaller.settle,
    TaskCaller.settle_in,
    Timer.cancel,
]


def in_program(code: str, **environment: str) -> str:
    """The output of a program of its own. It starts from the installed package as it is."""
    env = {key: value for key, value in os.environ.items() if key != "ERGO_PURE"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


TELLS = """
from ergo_py._core.processes.message_loop import Turn
from ergo_py._core.verbs.behaviour import Behaviour
import ergo_py
print(ergo_py.is_fast, hasattr(Behaviour.send, "__code__"), Turn.begin_batch is None)
"""


def test_ergo_pure_switches_the_extension_off() -> None:
    assert in_program(TELLS, ERGO_PURE="1") == "False True True"


def test_a_program_without_the_extension_runs_in_pure_python() -> None:
    absent = "import sys; sys.modules['ergo_py._core.speed._speed'] = None\n"

    assert in_program(absent + TELLS) == "False True True"


def test_the_version_of_ergo_says_which_build_runs() -> None:
    tells = "from ergo_py.shell.cli import main; main(['--version'])"

    told = in_program(f"try:\n    {tells}\nexcept SystemExit: pass", ERGO_PURE="1")

    assert told == "ergo_py 0.1.0 (pure Python)\noff: the C extension: ERGO_PURE is set"


def test_an_extension_that_was_built_is_installed() -> None:
    pytest.importorskip("ergo_py._core.speed._speed", reason="the C extension is not built")

    assert in_program(TELLS) == "True False False"


def test_all_parts_of_the_extension_are_installed_or_none() -> None:
    replaced = [not isinstance(method, FunctionType) for method in REPLACED]

    assert replaced == [ergo_py.info.is_fast] * len(REPLACED)
    assert (Turn.begin_batch is not None) is ergo_py.info.is_fast
    assert (type(Mailbox().main).__name__ == "MainLane") is ergo_py.info.is_fast
    assert (Timers.heap_type is not TimerHeap) is ergo_py.info.is_fast


IN_A_SECOND_INTERPRETER = """
import importlib.util
import trio
import ergo_py

names = "_xxsubinterpreters", "_interpreters"
found = [importlib.import_module(name) for name in names if importlib.util.find_spec(name)]
if not found:
    print("none")
    raise SystemExit
print(ergo_py.is_fast, flush=True)
try:
    made = found[0].create(isolated=False)
except TypeError:
    made = found[0].create("legacy")
run = getattr(found[0], "run_string", None) or found[0].exec
run(made, "import ergo_py; print(ergo_py.is_fast, flush=True)")


class Echo(ergo_py.Actor):
    def handle_call(self, request, caller):
        return request


async def main():
    async with ergo_py.open_node("first@localhost", log_output="none") as node:
        print(await node.call(await node.spawn(Echo), "answer"), flush=True)


trio.run(main)
found[0].destroy(made)
"""


def test_only_the_first_interpreter_of_a_program_uses_the_extension() -> None:
    pytest.importorskip("ergo_py._core.speed._speed", reason="the C extension is not built")

    told = in_program(IN_A_SECOND_INTERPRETER)

    if told == "none":
        pytest.skip("this Python has no module for other interpreters")
    assert told.split() == ["True", "False", "answer"]


class TestRefusals:
    """The extension that is there does not fit: nothing is replaced."""

    speed: Any
    before: list[Any]

    @pytest.fixture(autouse=True)
    def _extension(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reason = "the C extension is not built"
        self.speed = pytest.importorskip("ergo_py._core.speed._speed", reason=reason)
        self.before = [Behaviour.send, Router.send, Turn.begin_batch]
        monkeypatch.delenv("ERGO_PURE", raising=False)

    def assert_refused(self) -> None:
        assert installation.install()
        assert [Behaviour.send, Router.send, Turn.begin_batch] == self.before

    def test_a_missing_extension_is_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ergo_py._core.speed._speed", None)
        monkeypatch.delattr("ergo_py._core.speed._speed", raising=False)

        self.assert_refused()

    def test_an_older_build_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.speed, "INTERFACE", 0)

        self.assert_refused()

    def test_a_python_without_gil_refuses_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)

        self.assert_refused()

    def test_a_class_without_an_expected_slot_refuses_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class NewTask:
            """The task of a trio without slots."""

        monkeypatch.setattr(installation, "Task", NewTask)

        self.assert_refused()

    @pytest.mark.skipif(not ergo_py.info.is_fast, reason="the C extension is not installed")
    def test_classes_of_another_interpreter_refuse_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(installation, "Calls", type("Calls", (Calls,), {}))

        self.assert_refused()

    @pytest.mark.parametrize("wrong", [None, [], {}, {"Process": 5}])
    def test_bind_refuses_anything_but_the_needed_classes(self, wrong: Any) -> None:
        with pytest.raises((TypeError, AttributeError)):
            self.speed.bind(wrong)

    def test_a_class_without_a_needed_method_has_no_replacement(self) -> None:
        with pytest.raises(LookupError, match=r"Behaviour\.spawn"):
            self.speed.method(Behaviour, "Behaviour.spawn")


@pytest.mark.skipif(not ergo_py.info.is_fast, reason="the C extension is not installed")
@pytest.mark.parametrize("method", REPLACED)
def test_a_replaced_method_keeps_its_documentation_and_signature(method: Any) -> None:
    assert method.__doc__.strip().endswith(".")
    assert method.__text_signature__.startswith("($self")


PACKAGE = Path(ergo_py.__file__).parent
COPIED = re.compile(r"#define (\w+) +([\d.]+) +/\*(?: (_[A-Z_]+))?.*\bof (\w+\.py) \*/")


def test_constants_of_the_extension_are_those_of_the_modules_that_they_name() -> None:
    copied = [
        (wanted or name, value, module)
        for source in sorted((PACKAGE / "_core/speed").glob("*.[ch]"))
        for name, value, wanted, module in COPIED.findall(source.read_text(encoding="utf-8"))
    ]

    for name, value, module in copied:
        texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob(module)]
        defined = rf"^_?{name}: Final = {re.escape(value)}$"
        assert any(re.search(defined, text, re.MULTILINE) for text in texts), (name, value, module)
    assert len(copied) >= 6
