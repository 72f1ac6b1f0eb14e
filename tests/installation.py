"""An environment with nothing of this checkout: ergo_py comes from a built wheel. Its dependencies
and pytest are those of the environment that runs the tests, so that no package index is needed.
"""

import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

__all__ = ["build_wheel", "clean_environment", "install"]

ROOT = Path(__file__).parent.parent


def clean_environment() -> dict[str, str]:
    """The variables of the environment without those that lead to this checkout."""
    foreign = ("PYTHON", "VIRTUAL_ENV", "COV_", "ERGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def build_wheel(into: Path) -> Path:
    """Build a wheel in pure Python: the C extension is not needed here, and takes longer."""
    _run("hatchling", "build", "--target", "wheel", "--directory", into)
    (wheel,) = into.glob("*.whl")
    return wheel


def install(wheel: Path, into: Path) -> Path:
    """Make an environment with the wheel; returns the folder of its programs."""
    venv.create(into, symlinks=True)
    _run(
        *("pip", "--python", into / "bin" / "python", "install"),
        *("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", wheel),
    )
    (packages,) = into.glob("lib/python*/site-packages")
    # A folder that a .pth file names is searched, but its own .pth files are not read: among them
    # is the .pth file of an editable installation of this checkout.
    around = str(metadata.distribution("trio").locate_file(""))
    (packages / "around.pth").write_text(f"{around}\n", encoding="utf-8")
    return into / "bin"


def _run(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**clean_environment(), "ERGO_PURE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
