"""`SourceFiles`: the files that a program consists of, and which of them has changed."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time_ns
from types import ModuleType, TracebackType
from typing import Final

__all__ = ["SourceFiles"]

_PACKAGE: Final = str(Path(__file__).parents[2])
"""The folder of this package, whose files are not those of the program."""


class SourceFiles:
    """The files of the imported modules, without those of Python, of installed packages and of
    ergo_py.

    Args:
        modules: the imported modules by their names; more may come.
    """

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules
        self._others = tuple(f"{folder}{os.sep}" for folder in _other_folders())
        self._began = time_ns()
        self.written: set[str] = set()
        """The files that have changed while a start of the program loaded it. The next start does
        not tell of them again: a program that writes a module before its import would start for
        ever.
        """
        self._known: frozenset[str] = frozenset()
        self._stamps: dict[str, tuple[int, ...]] = {}
        """The files with their state at the last look; an empty state differs from all others."""

    def know(self, written: Iterable[str]) -> None:
        """Know the files that the starts before this one have told of."""
        self.written.update(written)
        self._known = frozenset(self.written)

    def add(self, path: str) -> None:
        """Watch a file from now on, besides those of modules."""
        path = os.path.abspath(path)  # the program may change its directory
        stamp = _stamp(path)
        if stamp is not None:
            self._stamps.setdefault(path, stamp)

    def add_failed(self, error: BaseException | None) -> None:
        """Watch also the files in which an error has arisen: a module that could not be imported is
        no module. A module that is missing is watched where it may come.
        """
        if isinstance(error, ImportError) and error.name is not None:
            for folder in map(os.path.abspath, sys.path):
                place = os.path.join(folder, *error.name.split("."))
                # The folder, too: a package needs no __init__.py.
                for path in (f"{place}.py", os.path.join(place, "__init__.py"), place):
                    if not path.startswith(self._others):
                        self._stamps.setdefault(path, _stamp(path) or ())
        if isinstance(error, SyntaxError) and error.filename is not None:
            self._note_own(error.filename)
        trace: TracebackType | None = None if error is None else error.__traceback__
        while trace is not None:
            self._note_own(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next

    def note_loaded(self) -> None:
        """Watch the files of the modules that are imported. The next look tells of those that have
        changed while the program was loaded, perhaps after their import.
        """
        self._note_modules()
        now = time_ns()  # a clock of another machine may run ahead
        for path, stamp in self._stamps.items():
            if stamp and self._began < stamp[0] <= now and path not in self._known:
                self.written.add(path)
                self._stamps[path] = ()

    def changed(self) -> list[str]:
        """The files that have changed since the last look. A module that is new is watched from now
        on. A file that is missing has not changed: an editor may be about to replace it.
        """
        found = []
        for path, before in self._stamps.items():
            stamp = _stamp(path)
            if stamp is not None and stamp != before:
                self._stamps[path] = stamp
                found.append(path)
        self._note_modules()
        return found

    def _note_modules(self) -> None:
        for module in list(self._modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.endswith(".py"):
                self._note_own(file)

    def _note_own(self, path: str) -> None:
        if path not in self._stamps and not path.startswith(self._others):
            self.add(path)


def _other_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return [_PACKAGE, paths["stdlib"], paths["platstdlib"], *site.getsitepackages()]


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
