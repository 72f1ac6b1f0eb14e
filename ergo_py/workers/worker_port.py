"""`WorkerPort`: runs a program of this package, which ends with this program."""

import os
import sys
from dataclasses import replace
from typing import Any

from ..meta.programs.port import Port

__all__ = ["WorkerPort", "module_path"]


class WorkerPort(Port):
    """Runs a module of this package as a program, with the environment of this program.

    The program ends when its input ends: when the port closes it, or this program is killed. A
    program that cannot notice that is ended by the system (see `lifeline`).
    """

    def __init__(self, module: str, settings: str, **options: Any) -> None:
        super().__init__([sys.executable, "-m", module, settings], inherit_env=True, **options)
        self._options = replace(self._options, lifeline=True)


def module_path() -> list[str]:
    """The places in which another program finds the modules of this program."""
    return [entry or os.getcwd() for entry in sys.path]
