"""``python -m benchmarks NAME`` runs a command of the table, and pages name no other commands."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.__main__ import main
from benchmarks.commands import COMMANDS, Command

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture
def in_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command runs in a child process, in place of the tests."""

    def execute(file: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
        assert file == arguments[0]
        done = subprocess.run(arguments, env=environment, timeout=100, check=False)
        raise SystemExit(done.returncode)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execvpe", execute)


def add(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setitem(COMMANDS, "told", Command("for this test", script))


@pytest.mark.usefixtures("in_a_child")
def test_a_command_gets_its_options_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import os, sys; print(sys.executable, os.getcwd(), sys.argv[1:])"
    add(monkeypatch, f'"$python" -c "{program}" "$@"')

    with pytest.raises(SystemExit) as ended:
        main(["told", "--only", "two words", "$HOME", "--help"])

    assert ended.value.code == 0
    options = ["--only", "two words", "$HOME", "--help"]
    assert capfd.readouterr().out == f"{sys.executable} {ROOT} {options}\n"


@pytest.mark.usefixtures("in_a_child")
def test_a_command_ends_with_its_first_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    add(monkeypatch, "echo first\n(exit 7)\necho second")

    with pytest.raises(SystemExit) as ended:
        main(["told"])

    assert ended.value.code == 7
    assert capfd.readouterr().out == "first\n"


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(SystemExit, match="no command 'bench-peers'; `python -m benchmarks list`"):
        main(["bench-peers"])


@pytest.mark.parametrize("argument", ["list", "--help"])
def test_a_list_has_a_line_for_each_command(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])

    assert ended.value.code == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert all([name, command.purpose] in lines for name, command in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_names_programs_that_exist(name: str) -> None:
    command = COMMANDS[name]
    script = command.script

    modules = re.findall(r'"\$python" -m ([\w.]+)', script)
    files = re.findall(r"(?<![\w/.-])(?:\.ci|tests)/[\w./-]+", script)
    assert modules or files
    assert [module for module in modules if find_spec(module) is None] == []
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert not command.environment or f"{command.environment}/.installed:" in MAKEFILE
    subprocess.run(["bash", "-n", "-c", script], timeout=100, check=True)


def test_the_page_for_contributors_lists_all_commands() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

    listed = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page, re.MULTILINE)
    assert listed == [(name, command.purpose) for name, command in COMMANDS.items()]


def named(text: str) -> set[str]:
    """The commands of a text: quoted targets as ``make NAME``, and names of the table."""
    targets = re.findall(r"`(make [a-z-]+)[` ]", text)
    return {*targets, *re.findall(r"\bpython -m benchmarks ([a-z][a-z-]*)", text)}


OWN = {
    *(f"make {target}" for target in re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)),
    *COMMANDS,
    "list",
}
OF_A_NEW_PROJECT = {"make run", "make image"}


@pytest.mark.parametrize(
    "place", ["*.md", ".*.yaml", ".ci/*", ".github/**/*.*", "pyproject.toml", "docs/**/*.md"]
)
def test_pages_and_settings_name_commands_that_exist(place: str) -> None:
    for path in ROOT.glob(place):
        if path.is_file() and path.name != "CHANGELOG.md" and "_build" not in path.parts:
            assert named(path.read_text(encoding="utf-8")) - OWN - OF_A_NEW_PROJECT == set(), path


@pytest.mark.parametrize("package", ["benchmarks", "tests", "examples"])
def test_code_names_commands_that_exist(package: str) -> None:
    for path in {*(ROOT / package).rglob("*.py")} - {Path(__file__)}:
        assert named(path.read_text(encoding="utf-8")) - OWN - OF_A_NEW_PROJECT == set(), path


@pytest.mark.parametrize(
    "text", ["`make nothing`", "`make nothing ARGS=1`", "python -m benchmarks a"]
)
def test_a_command_that_does_not_exist_is_noticed(text: str) -> None:
    assert len(named(text) - OWN) == 1
