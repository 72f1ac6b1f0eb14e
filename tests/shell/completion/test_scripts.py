"""The completion scripts, in the shells themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ergo_py.shell.arguments import SHELLS
from ergo_py.shell.completion.scripts import SCRIPTS
from tests.shell.terminal import ROOT

PREPARE_BASH = """\
eval "$(ergo completion bash)"
complete -p ergo
offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ergo; echo "${COMPREPLY[*]}"; }
"""

# Outside of an interactive completion, zsh has no function that adds words; print them instead.
PREPARE_ZSH = """\
compdef() { echo "compdef $*"; }
_describe() { local -a found=("${(@P)2}"); print -r -- "${(@)found%%:*}"; }
_files() { print files; }
eval "$(ergo completion zsh)"
offer() { words=("$@"); CURRENT=$#; _ergo; }
"""

PREPARE_FISH = """\
ergo completion fish | source
function offer
    complete -C (string join ' ' -- $argv) | string replace -r '\\t.*' '' | string join ' '
end
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file, and with `ergo` on the path."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ergo"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ergo_py "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "my shop.py").touch()
    return tmp_path


def output_of(shell: list[str], script: str, place: Path) -> list[str]:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    done = subprocess.run(
        [*shell, script],
        cwd=place,
        env={
            **os.environ,
            "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(place),
            "XDG_RUNTIME_DIR": str(place),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_every_shell_has_a_script() -> None:
    assert list(SCRIPTS) == list(SHELLS)


def test_bash_completes_commands_options_and_files(place: Path) -> None:
    lines = output_of(
        ["bash", "--norc", "-c"],
        f"{PREPARE_BASH}offer ergo dea\noffer ergo ps --sort = lo\noffer ergo run my",
        place,
    )

    assert lines == ["complete -F _ergo ergo", "dead-letters", "load", "my shop.py"]


def test_zsh_completes_commands_options_and_files(place: Path) -> None:
    lines = output_of(
        ["zsh", "-f", "-c"],
        f"{PREPARE_ZSH}offer ergo dea\noffer ergo ps --sort=lo\noffer ergo run my",
        place,
    )

    assert lines == ["compdef _ergo ergo", "dead-letters", "--sort=load", "files"]


def test_fish_completes_commands_options_and_files(place: Path) -> None:
    lines = output_of(
        ["fish", "--no-config", "-c"],
        f"{PREPARE_FISH}offer ergo dea\noffer ergo ps --sort=lo\noffer ergo run my\ntrue",
        place,
    )

    assert lines == ["dead-letters", "--sort=load", "my shop.py"]
