"""`SourceFiles`: the files that a program consists of, and which of them has changed."""

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
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
        self._stamps: dict[str, tuple[int, ...]] = {}
        """The files with their state at the last look."""

    def add(self, path: str) -> None:
        """Watch a file from now on, besides those of modules."""
        path = os.path.abspath(path)  # the program may change its directory
        stamp = _stamp(path)
        if stamp is not None:
            self._stamps.setdefault(path, stamp)

    def add_failed(self, error: BaseException | None) -> None:
        """Watch also the files in which an error has arisen: a module that could not be imported is
        no module.
        """
        if isinstance(error, SyntaxError) and error.filename is not None:
            self._note_own(error.filename)
        trace: TracebackType | None = None if error is None else error.__traceback__
        while trace is not None:
            self._note_own(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next

    def changed(self) -> str | None:
        """A file that has changed since the last look; None if there is none. A module that is new
        is watched from now on. A file that is missing has not changed: an editor may be about to
        replace it.
        """
        found = None
        for path, before in self._stamps.items():
            stamp = _stamp(path)
            if stamp is not None and stamp != before:
                self._stamps[path] = stamp
                found = path
        for module in list(self._modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.endswith(".py"):
                self._note_own(file)
        return found

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
