"""Build the optional C extension: for hatchling while a wheel or an editable install is built, and
for `make` as a program of its own.

    python hatch_build.py [--into DIRECTORY] [--sanitize]

Without a C compiler or Python's headers, and with ERGO_PURE=1, the package is built in pure Python.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by make
    BuildHookInterface = object

FOLDER = "ergo_py/_core/speed"
MODULE = "_speed" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so")
SANITIZERS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


class CannotBuild(Exception):
    """The extension cannot be built here. Says why, in a single line."""


def build(root: Path, into: Path, flags: list[str]) -> Path:
    """Compile the extension, and return the path of the module."""
    if os.environ.get("ERGO_PURE"):
        raise CannotBuild("ERGO_PURE is set")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotBuild("this Python has no GIL")
    module = into / MODULE
    # Under another name first: a running program may have loaded the module.
    unfinished = module.with_suffix(".new")
    # LDSHARED is the compiler with the flags of this system for a shared library.
    compiler = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    if "CC" in os.environ:
        compiler = [*shlex.split(os.environ["CC"]), *compiler[1:]]
    command = [
        *compiler,
        *shlex.split(sysconfig.get_config_var("CFLAGS") or ""),
        *shlex.split(sysconfig.get_config_var("CCSHARED") or "-fPIC"),
        # Calls of functions in libpython without a stub in between.
        *(["-fno-plt"] if sys.platform == "linux" else []),
        *("-O3", "-g0", "-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden"),
        *("-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type"),
        *flags,
        # Last, so that the user's choice counts.
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")),
        *(str(source) for source in sorted((root / FOLDER).glob("*.c"))),
        "-o",
        str(unfinished),
    ]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise CannotBuild(f"there is no compiler {error.filename}") from None
    except subprocess.CalledProcessError as error:
        first = next((line for line in error.stderr.splitlines() if "error" in line), "")
        raise CannotBuild(first or f"{compiler[0]} exits with {error.returncode}") from None
    unfinished.replace(module)
    return module


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the extension to a wheel, or puts it beside its source for an editable install. A wheel
    leaves nothing in the folder of the source: `pip install .` builds one.
    """

    scratch: TemporaryDirectory[str] | None = None
    """Where the extension of a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        root = Path(self.root)
        into = root / FOLDER
        if version != "editable":
            self.scratch = TemporaryDirectory()
            into = Path(self.scratch.name)
        try:
            module = build(root, into, [])
        except CannotBuild as why:
            self.app.display_warning(f"ergo_py is built in pure Python: {why}")
            return
        if version != "editable":
            build_data["force_include"][str(module)] = f"{FOLDER}/{MODULE}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling after it has written the wheel."""
        if self.scratch is not None:
            self.scratch.cleanup()


def main(arguments: list[str]) -> int:
    """Build the extension, and print its path, or the reason in a single line."""
    root = Path(__file__).resolve().parent
    flags = SANITIZERS if "--sanitize" in arguments else []
    into = root / FOLDER
    if "--into" in arguments:
        into = Path(arguments[arguments.index("--into") + 1])
        into.mkdir(parents=True, exist_ok=True)
    try:
        module = build(root, into, flags)
    except CannotBuild as why:
        sys.stderr.write(f"ergo_py runs in pure Python: {why}\n")
        return 1
    sys.stdout.write(f"{module}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
