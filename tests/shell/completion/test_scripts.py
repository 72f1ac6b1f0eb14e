"""The completion scripts, in the shells themselves, by the Tab key."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from ergo_py.shell.arguments import SHELLS
from ergo_py.shell.completion.scripts import SCRIPTS
from tests.shell.terminal import ROOT, at_terminal


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file, and with `ergo` on the path."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ergo"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ergo_py "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "my shop.py").touch()
    return tmp_path


INTERACTIVE = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(ergo completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(ergo completion zsh)"'),
    "fish": (["--no-config", "-i"], "ergo completion fish | source"),
}
"""For each shell its arguments without the settings of the user, and the line of the page."""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_commands_options_and_files(shell: str, place: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    # Completions are real; other commands only tell their words.
    ergo = place / "bin" / "ergo"
    real = ergo.read_text(encoding="utf-8")
    ergo.write_text(
        real.replace(
            "exec",
            'case "$1" in complet*) ;; *) printf "ran %s:" $# "$@"; echo; exit;; esac\nexec',
        ),
        encoding="utf-8",
    )
    arguments, install = INTERACTIVE[shell]
    with at_terminal(
        command=arguments,
        python=program,
        cwd=place,
        PATH=f"{place / 'bin'}:{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
        HOME=str(place),
        XDG_RUNTIME_DIR=str(place),
    ) as terminal:
        terminal.type(f"{install}; echo rea''dy\n")
        terminal.wait_for("ready\n")

        terminal.type("ergo dea\t\n")
        terminal.wait_for("ran 1:ran dead-letters:")
        terminal.type("ergo ps --sort=lo\t\n")
        terminal.wait_for("ran 2:ran ps:ran --sort=load:")
        terminal.type("ergo run my\t\n")
        terminal.wait_for("ran 2:ran run:ran my shop.py:")


def test_every_shell_has_a_script() -> None:
    assert list(SCRIPTS) == list(SHELLS)
