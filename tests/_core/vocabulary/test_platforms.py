"""Where Python lacks the modules of Linux and macOS, the parts that need them say so, and the rest
works.
"""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ergo_py.meta
from ergo_py import pipelines
from ergo_py._core.vocabulary import public_names
from ergo_py._core.vocabulary.public_names import platform_text

ROOT = Path(__file__).parent.parent.parent.parent

# trio and the standard library choose their parts by `sys.platform`, so they are loaded before
# Linux and macOS are taken away.
ELSEWHERE = """\
import importlib.metadata, logging, os, select, shutil, signal, socket, ssl, subprocess, sys
import tempfile, trio, trio.testing

MISSING = {"fcntl", "grp", "pwd", "readline", "resource", "termios", "tty"}

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotHere())
for name in MISSING & sys.modules.keys():
    del sys.modules[name]
for module, names in {
    os: (
        "fork register_at_fork geteuid getuid killpg eventfd set_blocking "
        "O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_DIRECTORY"
    ),
    select: "poll PIPE_BUF POLLIN POLLOUT",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGWINCH pthread_kill",
    socket: "SO_REUSEPORT MSG_DONTWAIT",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

"""


def elsewhere(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python without the modules and functions of Linux and macOS."""
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE + program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )


def refused_names(program: str) -> tuple[set[str], str]:
    done = elsewhere(program)
    assert done.returncode == 0, done.stderr
    names, _, text = done.stdout.partition("\n")
    return set(names.split()), text


def test_only_bridges_to_sockets_and_programs_need_linux_or_macos() -> None:
    names, text = refused_names(
        """\
import ergo_py, ergo_py.blocking, ergo_py.meta, ergo_py.testing, ergo_py.web

refused = {}
for package in (ergo_py, ergo_py.blocking, ergo_py.meta, ergo_py.testing, ergo_py.web):
    for name in package.__all__:
        try:
            getattr(package, name)
        except ImportError as error:
            refused[name] = str(error)
print(*refused)
print(refused.get("TCPServer"))
"""
    )

    assert names >= {"TCPServer", "TCPConnection", "UDPServer", "UnixServer", "Port"}
    others = {name for name in names if not name.startswith(("Port", "TCP", "UDP", "Unix", "Web"))}
    assert others == set()
    assert text == (
        "ergo_py.meta.TCPServer works on Linux and macOS only: it needs the module 'fcntl' of "
        f"Python's standard library, which is missing on this platform ({sys.platform}). Actors, "
        "supervisors, messages and framings work without it; on Windows, run this program in WSL "
        "or in a container\n"
    )


def test_actors_and_supervisors_work_on_other_platforms() -> None:
    done = elsewhere(
        """\
from ergo_py import Actor, ChildSpec, open_node

class Doubler(Actor):
    def handle_call(self, request, caller):
        return 2 * request

async def main():
    async with open_node("elsewhere@localhost") as node:
        await node.supervise([ChildSpec("doubler", Doubler)], name="root")
        print(await node.service("doubler").call(21))

trio.run(main)
"""
    )

    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_a_command_that_needs_linux_or_macos_says_so() -> None:
    done = elsewhere("from ergo_py.shell.cli import main\nsys.exit(main(['ps']))")

    assert done.returncode == 1
    assert done.stderr.startswith("ergo: ergo ps works on Linux and macOS only: it needs")


@pytest.mark.parametrize("missing, is_explained", [("tty", True), ("trio", False)])
def test_a_missing_module_is_explained_by_the_platform_if_it_depends_on_it(
    missing: str, is_explained: bool
) -> None:
    error = ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    assert (platform_text("ergo_py.Actor", error) is not None) is is_explained


def test_a_missing_library_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(home: str) -> ModuleType:
        raise ImportError("no libpq", name="psycopg")

    monkeypatch.setattr(public_names, "import_module", fails)
    monkeypatch.delitem(vars(pipelines), "PostgresQueue", raising=False)

    with pytest.raises(ImportError, match=r"'ergo_py\[postgres\]' \(no libpq\)") as seen:
        _ = pipelines.PostgresQueue
    assert seen.value.name == "psycopg"


def test_a_missing_package_is_reported_as_it_is() -> None:
    done = elsewhere("MISSING.add('ergo_py.node')\nfrom ergo_py import open_node")

    assert done.stderr.endswith("ModuleNotFoundError: No module named 'ergo_py.node'\n")


@pytest.mark.parametrize("missing, says", [("fcntl", "Linux and macOS only"), ("trio", "'trio'")])
def test_a_public_name_names_the_platform_if_its_module_cannot_be_imported(
    missing: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(home: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    name = "Port"
    monkeypatch.setattr(public_names, "import_module", fails)
    monkeypatch.delitem(vars(ergo_py.meta), name, raising=False)

    with pytest.raises(ImportError, match=says) as caught:
        getattr(ergo_py.meta, name)

    assert caught.value.name == missing
