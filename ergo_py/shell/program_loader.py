"""`load`: imports the program named on the command line, as ``module:app``, ``path/to/file.py`` or
``path/to/file.py:app``.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.hints import did_you_mean
from ..program import refusing_run
from .exit_codes import Leave, Status

__all__ = ["Program", "load", "load_file", "load_test_file", "load_module"]

_WANTED = "an `async def main(node)`, or a behaviour class such as `class App(Actor)`"


@dataclass(frozen=True, slots=True)
class Program:
    """The program that was found."""

    module: ModuleType
    app: Any
    """A behaviour class, or an async function that takes the node; None if the module has none and
    the command line names none.
    """
    name: str
    """The default name of its node."""


def load(target: str, arguments: list[str], *, needs_app: bool) -> Program:
    """Import a program. Its ``sys.argv`` is the same as if Python had started it directly.

    Raises:
        Leave: there is no such program, or it cannot be run.
    """
    where, _, attribute = target.partition(":")
    with refusing_run(where):
        if where.endswith(".py") or "/" in where:
            module = load_file(Path(where), arguments)
        else:
            module = _import_module(where, arguments)
    app = _app(module, attribute, where)
    if app is None and needs_app:
        found = _candidates(module)
        instead = (
            f"it has {', '.join(found)}: write {where}:{found[0]}" if found else f"write {_WANTED}"
        )
        raise Leave(
            Status.USAGE,
            f"{where} has neither a `main` nor an `app` that can be run; {instead}",
        )
    stem = (
        Path(where).stem
        if where.endswith(".py")
        else where.removesuffix(".__main__").rpartition(".")[2]
    )
    return Program(module, app, f"{stem}@localhost")


def load_module(name: str) -> ModuleType:
    """Import a module that the command line names beside the program.

    Raises:
        Leave: there is no such module, or it cannot be imported.
    """
    return _import_module(name, sys.argv[1:])


def load_test_file(path: Path) -> ModuleType:
    """Import a file of tests, as a module of its package, as pytest does: it may import its
    neighbours by relative imports.

    Raises:
        Leave: there is no such file, or it cannot be imported.
    """
    full, here = path.resolve(), Path.cwd()
    parts = full.relative_to(here).with_suffix("").parts if full.is_relative_to(here) else ()
    is_module = bool(parts) and all(part.isidentifier() for part in parts)
    return load_file(path, [], ".".join(parts) if is_module else path.stem)


def load_file(path: Path, arguments: list[str], name: str = "") -> ModuleType:
    """Import a file, under a name or under its own.

    Raises:
        Leave: there is no such file, or it cannot be imported.
    """
    if not path.is_file():
        beside = [each.name for each in path.parent.glob("*.py")]
        hint = did_you_mean(path.name, beside, show="{}")
        raise Leave(Status.USAGE, f"there is no file {path}{hint}")
    # As `python file.py` and `python -m` do: a file may import its neighbours, or modules in the
    # current directory.
    sys.path[:0] = [str(path.parent.resolve()), str(Path.cwd())]
    sys.argv = [str(path), *arguments]
    name = name or path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Leave(Status.USAGE, f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(str(path), error) from None
    return module


def _import_module(name: str, arguments: list[str]) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise Leave(
            Status.USAGE, f"{name!r} is no module; write module:app, or a path such as ./program.py"
        )
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = [name, *arguments]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Leave(
                Status.USAGE,
                f"there is no module {error.name!r}, neither here nor among the installed modules",
            ) from None
        raise _failed(name, error) from None
    except Exception as error:
        raise _failed(name, error) from None


def _failed(program: str, error: Exception) -> Leave:
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename == __file__
        or "importlib" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    report = "".join(traceback.format_exception(type(error), error, trace))
    return Leave(Status.FAILED, f"{report}{program} could not be imported")


def _app(module: ModuleType, attribute: str, where: str) -> object:
    names = [attribute] if attribute else ["main", "app"]
    missing = object()
    for name in names:
        app = getattr(module, name, missing)
        inner = f"{module.__name__}.__main__"
        if (
            app is missing
            and hasattr(module, "__path__")
            and importlib.util.find_spec(inner) is not None
        ):
            # A package that runs with `python -m package` has its main function there.
            app = getattr(importlib.import_module(inner), name, missing)
        if app is missing:
            continue
        if isinstance(app, type) and issubclass(app, Behaviour):
            return app
        if inspect.iscoroutinefunction(app):
            _check_takes_node(app, f"{where}:{name}")
            return app
        if attribute:
            raise Leave(Status.USAGE, f"{where}:{name} is {_kind(app)}; it must be {_WANTED}")
    if attribute:
        candidates = _candidates(module)
        hint = did_you_mean(attribute, candidates)
        if not hint and candidates:
            hint = f"; it has {', '.join(candidates)}"
        raise Leave(Status.USAGE, f"{where} has no {attribute!r}{hint}")
    return None


def _candidates(module: ModuleType) -> list[str]:
    """The names of what a module defines and `ergo run` can run."""
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
        and (
            inspect.iscoroutinefunction(value)
            or (isinstance(value, type) and issubclass(value, Behaviour))
        )
    ]


def _check_takes_node(function: Any, name: str) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise Leave(
            Status.USAGE,
            f"{name}{inspect.signature(function)} must take one argument, the node: `async def "
            "main(node)`; `ergo run` opens the node and handles the signals",
        ) from None


def _kind(value: object) -> str:
    return "a plain function" if inspect.isfunction(value) else f"of type {type(value).__name__}"
