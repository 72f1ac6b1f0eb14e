"""Start-up: the time of a whole program that imports the package, opens a node, or asks a running
node with ``ergo ps``, beside programs that only import trio, or trio and structlog.

Each figure is the CPU time of a program of its own, from its start to its end, so the start of
Python itself is part of all of them.
"""

import compileall
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from time import perf_counter
from typing import Any

from ergo_py.blocking import open_node

from ..harness import Case, Figures, Goal, Line, Variant

_OPENS = """\
import trio
from ergo_py import Actor, open_node

async def main():
    async with open_node(log_output="none") as node:
        await node.spawn(Actor)

trio.run(main)
"""


_NAMES = "from ergo_py import Actor, ChildSpec, open_node"

_COUNTS = f"""\
import builtins, json, sys
import enum, trio

found, before, build = {{}}, set(sys.modules), builtins.__build_class__

def count(body, name, *bases, **keywords):
    made = build(body, name, *bases, **keywords)
    kind = (
        "Enum" if isinstance(made, enum.EnumMeta)
        else "Protocol" if getattr(made, "_is_protocol", False)
        else "NamedTuple" if issubclass(made, tuple)
        else "Exception" if issubclass(made, BaseException)
        else "object"
    )
    found[kind] = found.get(kind, 0) + 1
    return made

def functions(code):
    inner = [each for each in code.co_consts if hasattr(each, "co_consts")]
    return len(inner) + sum(map(functions, inner))

builtins.__build_class__ = count
{_NAMES}
modules = [sys.modules[name] for name in sys.modules if name not in before]
print(json.dumps({{
    "modules": len(modules),
    "functions": sum(
        functions(each.__loader__.get_code(each.__name__) or compile("", "", "exec"))
        for each in modules
    ),
    "classes": found,
}}))
"""
"""Says how many modules, functions and classes of each kind the import of three names makes."""

_CLASSES = {
    "Enum": "    ONE = 1\n    TWO = 2\n    THREE = 3\n",
    "Protocol": "    def take(self, given: int) -> int: ...\n",
    "NamedTuple": "    one: int\n    two: str\n    three: float\n",
    "Exception": "    pass\n",
    "object": "    __slots__ = ('one', 'two', 'three')\n",
}
_FUNCTION = "def function_{}(self, given: int, other: str) -> int:\n    return given\n"


def _write_modules(directory: Path, counts: Mapping[str, Any]) -> None:
    """Write the bare minimum: as many modules, with as many classes of these kinds, and as many
    functions, each of a single line.
    """
    modules, kinds = counts["modules"], counts["classes"]
    plain = kinds["object"]
    parts = [
        ["from enum import Enum\nfrom typing import NamedTuple, Protocol\n"] for _ in range(modules)
    ]
    number = 0
    for kind, count in kinds.items():
        for each in range(count):
            text = f"class Class{number}({kind}):\n{_CLASSES[kind]}"
            if kind == "object":
                own = range(each, counts["functions"], plain)
                text += "".join(indent(_FUNCTION.format(one), "    ") for one in own)
            parts[number % modules].append(text)
            number += 1
    for each, lines in enumerate(parts):
        (directory / f"module_{each}.py").write_text("".join(lines), encoding="utf-8")
    names = ", ".join(f"module_{each}" for each in range(modules))
    (directory / "names.py").write_text(f"import trio, {names}\n", encoding="utf-8")
    compileall.compile_dir(directory, quiet=1)


def _names_by_hand(size: int) -> Figures:
    """trio, and modules that have as many classes and functions as those of three names, and do
    nothing.
    """
    counts = subprocess.run(
        [sys.executable, "-c", _COUNTS], capture_output=True, text=True, check=True
    )
    with tempfile.TemporaryDirectory() as directory:
        _write_modules(Path(directory), json.loads(counts.stdout))
        program = f"import sys; sys.path.insert(0, {directory!r}); import names"
        return _program("-c", program)(size)


def _cost(arguments: list[str]) -> tuple[float, float]:
    """CPU and wall time of a Python program, in milliseconds."""
    # Without bytecode files each program would compile all modules, which takes most of the time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    command = [sys.executable, *arguments]
    began = perf_counter()
    pid = os.posix_spawn(sys.executable, command, environment, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return (used.ru_utime + used.ru_stime) * 1e3, (perf_counter() - began) * 1e3


def _program(*arguments: str) -> Variant:
    """The cheapest of several runs: noise only ever adds to the time of a program."""

    def run(size: int) -> Figures:
        taken = [_cost([*arguments]) for _ in range(size)]
        return {"cpu": min(cpu for cpu, _ in taken), "wall": min(wall for _, wall in taken)}

    return run


@contextmanager
def _runtime_directory() -> Iterator[None]:
    """A directory for the control socket, where no other node is."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        try:
            yield
        finally:
            del os.environ["XDG_RUNTIME_DIR"]
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before


def _ps(size: int) -> Figures:
    """``ergo ps``, which asks a node in this program. The time of the node is not counted."""
    with _runtime_directory(), open_node("bench@localhost", control="look", log_output="none"):
        return _program("-m", "ergo_py", "ps")(size)


CASES = [
    Case(
        name="start-up",
        about="a whole program, from its start to its end",
        unit="ms",
        size=5,
        least=1,
        variants={
            "ergo import": _program("-c", "import ergo_py"),
            "ergo names": _program("-c", _NAMES),
            "names by hand": _names_by_hand,
            "ergo node": _program("-c", _OPENS),
            "ergo ps": _ps,
            "trio": _program("-c", "import trio"),
            "its libraries": _program("-c", "import trio, structlog"),
        },
        lines=[
            Line("import ergo_py", "ergo import", goals=(Goal("import", 1.5, "trio"),)),
            Line("import three names", "ergo names", goals=(Goal("names", 1.4, "trio"),)),
            Line("by hand: as many modules, classes and functions", "names by hand"),
            Line("open the first node", "ergo node", goals=(Goal("node", 1.5, "its libraries"),)),
            Line("ergo ps", "ergo ps", goals=(Goal("ps", 1.25, "trio"),)),
        ],
    ),
]
