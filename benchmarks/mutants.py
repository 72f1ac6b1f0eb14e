"""``python -m benchmarks.mutants``: break the code in small ways, a single break at a time, and
list the breaks that no test notices.

All tests of a module are collected once. Each mutant is then put into a forked copy of this
program, where they run until the first failure: the quick tests first, and before them the tests
that have noticed most mutants so far. A mutant that no test fails for has survived: either a test
is missing, or the change makes no difference, and ``mutants.toml`` says why.
"""

import argparse
import gc
import importlib.abc
import importlib.machinery
import inspect
import os
import random
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest
import trio

from .mutation import Mutant, mutants_of

__all__ = ["Explained", "explained", "install", "page"]

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "design" / "tests.md"
BEGIN, END = "<!-- mutants -->", "<!-- end of mutants -->"

_OF_META: Final = (
    "tests/_core/metas/test_meta.py",
    "tests/_core/metas/test_meta_events.py",
    "tests/_core/metas/test_meta_inspection.py",
    "tests/_core/metas/test_meta_cleanup.py",
    "tests/_core/metas/test_termination.py",
    "tests/_core/metas/test_reader.py",
    "tests/_core/metas/test_sender.py",
    "tests/_core/metas/test_handler.py",
    "tests/_core/metas/test_inbox.py",
    "tests/_core/verbs/test_meta_process.py",
    "tests/_core/metas/test_outbox.py",
    "tests/_core/runtime/test_idle_handlers.py",
    "tests/_core/metas/test_shared_state.py",
    "tests/_core/messaging/test_observer.py",
    "tests/_core/runtime/test_thread_fairness.py",
)

TESTS: dict[str, tuple[str, ...]] = {
    "ergo_py/_core/tables/mailbox.py": (
        "tests/_core/tables/test_mailbox.py",
        "tests/_core/metas/test_inbox.py",
        "tests/_core/messaging/test_router.py",
        "tests/_core/messaging/test_full_mailboxes.py",
        "tests/_core/metas/test_outbox.py",
        "tests/_core/processes/test_message_loop.py",
    ),
    "ergo_py/supervision/strategies.py": (
        "tests/supervision/test_strategies.py",
        "tests/supervision/test_supervisor.py",
        "tests/supervision/test_supervisor_operations.py",
        "tests/supervision/test_pool.py",
    ),
    "ergo_py/supervision/start_order.py": (
        "tests/supervision/test_start_order.py",
        "tests/supervision/test_strategies.py",
        "tests/supervision/test_supervisor.py",
        "tests/supervision/test_supervisor_operations.py",
        "tests/supervision/test_pool.py",
    ),
    "ergo_py/supervision/child.py": (
        "tests/supervision/test_child.py",
        "tests/supervision/test_strategies.py",
        "tests/supervision/test_supervisor.py",
        "tests/supervision/test_supervisor_operations.py",
        "tests/supervision/test_pool.py",
    ),
    "ergo_py/_core/runtime/bridge.py": (
        "tests/_core/runtime/test_bridge.py",
        "tests/_core/messaging/test_sending_from_threads.py",
        "tests/_core/messaging/test_calling_from_threads.py",
        "tests/_core/messaging/test_router.py",
        "tests/_core/messaging/test_full_mailboxes.py",
        "tests/_core/metas/test_reader.py",
        "tests/_core/inspection/test_watchdog.py",
    ),
    "ergo_py/_core/verbs/meta_process.py": (
        "tests/_core/verbs/test_meta_process.py",
        "tests/_core/metas/test_handler.py",
        "tests/_core/metas/test_sender.py",
        "tests/_core/runtime/test_resources.py",
        "tests/_core/metas/test_meta.py",
        "tests/_core/metas/test_meta_events.py",
        "tests/_core/metas/test_meta_inspection.py",
        "tests/_core/metas/test_meta_cleanup.py",
    ),
    "ergo_py/web/parsing/http1.py": ("tests/web/parsing/test_http1.py",),
    "ergo_py/web/parsing/frames.py": ("tests/web/parsing/test_frames.py",),
    "ergo_py/web/parsing/deflate.py": ("tests/web/parsing/test_frames.py",),
    "ergo_py/web/parsing/handshake.py": (
        "tests/web/parsing/test_frames.py",
        "tests/web/test_websocket.py",
    ),
    "ergo_py/web/waiting_peers.py": ("tests/web/test_waiting_peers.py",),
    "ergo_py/_core/metas/meta.py": _OF_META,
    "ergo_py/_core/metas/spawn.py": _OF_META,
}
"""The modules that are broken, and the tests that should notice."""

_PYTEST: Final = (
    "-q",
    "-x",
    "--no-header",
    "-m",
    "not no_cover",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
)
_PATIENCE: Final = 4.0
"""Seconds that any test may take, beside ten times its duration with the original module, and
beside waiting for a processor.
"""


# -- installing a mutant ---------------------------------------------------------------------------


def install(module: str, original: str, changed: str) -> bool:
    """Give the functions of a module that is imported already the code that they have in another
    version of it.

    Returns False if that cannot be done: then the module has to be imported again.
    """
    path = str(ROOT / module)
    pairs = zip(
        _codes(compile(original, path, "exec")), _codes(compile(changed, path, "exec")), strict=True
    )
    # Where nothing is changed, the code stays: some objects know it by its identity.
    new = {
        (old.co_qualname, old.co_firstlineno): code
        for old, code in pairs
        if _does(old) != _does(code)
    }
    # Objects that were frozen meanwhile, by a test or by the test runner, are not among the
    # objects.
    gc.unfreeze()
    found = set()
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == path:
            place = function.__code__.co_qualname, function.__code__.co_firstlineno
            if place in new:
                found.add(place)
                try:
                    function.__code__ = new[place]
                except ValueError:  # a function that no longer uses a variable around it
                    return False
                if original.splitlines()[place[1] - 1].strip() == "@enable_ki_protection":
                    # It is the code that is protected, and this code is new.
                    trio.lowlevel.enable_ki_protection(function)
    return found == new.keys()


def _does(code: CodeType) -> tuple[Any, ...]:
    """The behaviour of a function, wherever its lines are."""
    inside = [
        _does(one) if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, inside


_IS_FUNCTION = inspect.CO_NEWLOCALS


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods of a module, without those inside them."""
    for one in code.co_consts:
        if isinstance(one, CodeType) and not one.co_flags & _IS_FUNCTION:
            # The body of a class: it has run, and has left its methods.
            yield from _codes(one)
        elif isinstance(one, CodeType) and "<locals>" not in one.co_qualname:
            yield one


class _Broken(importlib.abc.SourceLoader):
    """Loads the mutant in the place of the module."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = str(ROOT / mutant.module)
        self._source = mutant.source.encode()

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if path != self._path:
            raise OSError("no byte code is kept")
        return self._source


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._name = mutant.module.removesuffix(".py").replace("/", ".")
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, _Broken(self._mutant), origin=str(ROOT / self._mutant.module)
        )


# -- trying them -----------------------------------------------------------------------------------


class Trials:
    """Collects the tests of a module, as a plug-in of pytest, and tries mutants instead of running
    them.
    """

    def __init__(self, module: str, mutants: Sequence[Mutant], until: float, output: int) -> None:
        self._module = module
        self._source = (ROOT / module).read_text(encoding="utf-8")
        self._mutants = mutants
        self._until = until
        self._output = output
        self._took: dict[int, float] = {}
        self._kills: Counter[int] = Counter()
        self._pipe = -1
        self.killed: list[Mutant] = []
        self.survived: list[Mutant] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In a copy: the first failure ends it."""
        if report.failed:
            os.write(self._pipe, b"failed\n")
            os._exit(1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the module as it is, and then each mutant."""
        if session.testsfailed:
            raise pytest.UsageError(f"the tests of {self._module} cannot be collected")
        as_it_is = Mutant(self._module, 0, "module", "nothing", self._source, True)
        failed = self._try(session, as_it_is, range(len(session.items)))
        if failed is not None:
            raise pytest.UsageError(
                f"{session.items[failed].nodeid} fails with {self._module} as it is"
            )
        for mutant in self._mutants:
            if time.monotonic() > self._until:
                break
            if self._is_killed(session, mutant):
                self.killed.append(mutant)
            else:
                self.survived.append(mutant)
                self.say(f"survived: {mutant}")
            if (tried := len(self.killed) + len(self.survived)) % 50 == 0:
                self.say(f"{self._module}: {tried} of {len(self._mutants)} tried")
        return True

    def say(self, text: str) -> None:
        """Print a line, past the capture of the output of tests."""
        os.write(self._output, f"{text}\n".encode())

    def _is_killed(self, session: pytest.Session, mutant: Mutant) -> bool:
        if not mutant.is_inside:
            return _fails_when_imported(mutant, 600.0)
        order = sorted(self._took, key=lambda one: (-self._kills[one], self._took[one]))
        failed = self._try(session, mutant, order)
        if failed == -1:
            return _fails_when_imported(mutant, 600.0)
        if failed is not None:
            self._kills[failed] += 1
        return failed is not None

    def _try(self, session: pytest.Session, mutant: Mutant, order: Sequence[int]) -> int | None:
        """Which test fails with a mutant, or takes too long; -1 if it cannot be put in place like
        this.
        """
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 2
            try:
                os.setsid()
                self._pipe = writing
                status = self._run(session, mutant, order)
            finally:
                os._exit(status)
        os.close(writing)
        try:
            return self._follow(pid, reading, mutant.line == 0)
        finally:
            os.close(reading)
            try:
                # All processes that its tests have started are in the group that it leads.
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(pid, 0)

    def _run(self, session: pytest.Session, mutant: Mutant, order: Sequence[int]) -> int:
        if not install(mutant.module, self._source, mutant.source):
            os.write(self._pipe, b"impossible\n")
            return 2
        items = [session.items[one] for one in order]
        for number, item, following in zip(order, items, [*items[1:], None], strict=True):
            os.write(self._pipe, f"{number}\n".encode())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        os.write(self._pipe, b"passed\n")
        return 0

    def _follow(self, pid: int, reading: int, is_first: bool) -> int | None:
        current, begun, rest = -1, time.monotonic(), b""
        waited = 0.0
        while True:
            ready, _, _ = select.select([reading], [], [], 1.0)
            text = os.read(reading, 4096) if ready else b""
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                if line == b"impossible":
                    return -1
                now = time.monotonic()
                if is_first and current >= 0:
                    self._took[current] = max(
                        0.0, now - begun - (_waited_for_processor(pid) - waited)
                    )
                if line == b"failed":
                    return current
                if line == b"passed":
                    return None
                current, begun, waited = int(line), now, _waited_for_processor(pid)
            if ready and not text:
                # It has left without a word.
                return max(current, 0)
            spent = time.monotonic() - begun - (_waited_for_processor(pid) - waited)
            if spent > (600.0 if is_first else _PATIENCE + 10 * self._took.get(current, 0.0)):
                # A test that makes others wait does not run first the next time.
                self._kills[current] -= 2
                return max(current, 0)


def _waited_for_processor(pid: int) -> float:
    """Seconds that the threads of a program were ready and did not run."""
    waited = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waited += int(task.read_text(encoding="utf-8").split()[1]) / 1e9
        except OSError:  # it has ended
            continue
    return waited


def _fails_when_imported(mutant: Mutant, limit: float) -> bool:
    """Run the tests with a mutant that is imported as such, in a program of its own."""
    command = [sys.executable, "-m", "benchmarks.mutants", mutant.module, "--only", mutant.name]
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            timeout=limit,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return True
    return ran.returncode != 0


def _run_imported(mutant: Mutant) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    return int(pytest.main([*_PYTEST, *TESTS[mutant.module]]))


# -- the program -----------------------------------------------------------------------------------


class Explained:
    """The entries of ``mutants.toml`` about a module."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.made: int = table.get("made", 0)
        self.tried: int = table.get("tried", 0)
        self.killed: int = table.get("killed", 0)
        self.survived: dict[str, str] = table.get("survived", {})
        """The mutants that may survive, each with the reason."""


def explained() -> dict[str, Explained]:
    """The explanations for each module."""
    known = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    return {module: Explained(known.get(module, {})) for module in TESTS}


def page(known: Mapping[str, Explained]) -> str:
    """The table in ``docs/design/tests.md`` about them."""
    rows = [
        "| module | mutants | tried | a test notices | no test notices |",
        "|---|---:|---:|---:|---:|",
    ]
    rows += [
        f"| `{name}` | {one.made} | {one.tried} | {one.killed} | {len(one.survived)} |"
        for name, one in known.items()
    ]
    rows += ["", "| in | change that no test notices | because |", "|---|---|---|"]
    for name, one in known.items():
        for mutant, why in one.survived.items():
            where, _, change = mutant.replace("|", "\\|").partition(": ")
            rows.append(f"| `{Path(name).stem}.{where}` | `{change}` | {why} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", help="files to break (default: all that are listed here)"
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="when to stop (default: 120)")
    parser.add_argument(
        "--sample", type=int, help="how many mutants of each module to try (default: all)"
    )
    parser.add_argument("--lines", help="only those that begin in these lines, such as 100-120")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="which ones a sample holds, and in which order they come",
    )
    parser.add_argument(
        "--only", help="the name of one mutant; the tests then say what they notice"
    )
    parser.add_argument(
        "--page", action="store_true", help="only write what is known into docs/design/tests.md"
    )
    chosen = parser.parse_args(arguments)
    unknown = [module for module in chosen.modules if module not in TESTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(TESTS)}")
    if chosen.page:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{page(explained())}\n\n{END}{after}", encoding="utf-8")
        return 0
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "unshrunk"
    modules = chosen.modules or list(TESTS)
    if chosen.only:
        [mutant] = [
            one for module in modules for one in _made(module, chosen) if one.name == chosen.only
        ]
        return _run_imported(mutant)
    until = time.monotonic() + 60 * chosen.minutes
    return max(_in_a_copy(module, chosen, until) for module in modules)


def _made(module: str, chosen: argparse.Namespace) -> list[Mutant]:
    made = mutants_of(module, (ROOT / module).read_text(encoding="utf-8"))
    if chosen.lines:
        first, _, last = chosen.lines.partition("-")
        made = [mutant for mutant in made if int(first) <= mutant.line <= int(last or first)]
    random.Random(chosen.seed).shuffle(made)
    return made[: chosen.sample]


def _in_a_copy(module: str, chosen: argparse.Namespace, until: float) -> int:
    """Try the mutants of a module in a program that has imported nothing for another module."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 2
    try:
        status = _try_all(module, chosen, until)
    finally:
        os._exit(status)


def _try_all(module: str, chosen: argparse.Namespace, until: float) -> int:
    known, made, began = explained()[module].survived, _made(module, chosen), time.monotonic()
    output = os.dup(1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    trials = Trials(module, [one for one in made if one.name not in known], until, output)
    status = pytest.main([*_PYTEST, *TESTS[module]], plugins=[trials])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        trials.say(f"{module}: the tests could not be run")
        return 2
    tried = len(trials.killed) + len(trials.survived)
    trials.say(
        f"{module}: {tried} of {len(made)} mutants tried, {len(trials.killed)} killed, "
        f"{len(trials.survived)} survived,"
        f" {len(made) - len(trials._mutants)} explained ({time.monotonic() - began:.0f} s)"
    )
    return 1 if trials.survived else 0


if __name__ == "__main__":
    sys.exit(main())
