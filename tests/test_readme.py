"""The README is short, and the commands of the page behind it work with the installed wheel;
tests/examples/test_sockets.py repeats the output of its program, and `make walk` installs as the
page says.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ergo_py.shell.scaffold.project_name import ProjectName
from ergo_py.shell.scaffold.template_files import render
from tests.installation import clean_environment
from tests.shell.terminal import UTF_8

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_STEPS = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")


def shown(mark: str) -> list[tuple[str, str]]:
    """Each file that is named in a comment ``<!-- mark: file -->``, and the block below it."""
    return re.findall(
        rf"<!-- {mark}: (\S+) -->\n```\w+\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
    )


def test_the_readme_shows_the_sum_server_in_25_lines_of_code() -> None:
    ((path, source),) = shown("file")

    assert path == "examples/tcp/sum_server.py"
    assert len([line for line in source.splitlines() if line]) <= 25


def test_the_readme_is_two_screens_long() -> None:
    # A forge shows 105 characters of text or one line of code in about 24 pixels; pictures, of
    # which the README has one, and the space between paragraphs take the rest of 1800.
    texts = re.split(r"^```.*$", re.sub(r"<!--.*?-->|\]\([^)]*\)", "", README), flags=re.MULTILINE)
    prose = [line for text in texts[::2] for line in text.splitlines() if line]
    code = [line for text in texts[1::2] for line in text.strip("\n").splitlines()]

    assert sum(-(-len(line) // 105) for line in prose) + len(code) <= 62
    assert len(re.findall(r"!\[", README)) == 1


@pytest.mark.parametrize("target", ["demo", "check"])
def test_the_readme_begins_with_a_target_of_make(target: str) -> None:
    assert re.search(rf"^make {target} ", README, re.MULTILINE)
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("other", ["asyncio alone", "pykka", "Ray", "Celery"])
def test_the_readme_says_in_a_line_why_not(other: str) -> None:
    assert re.search(rf"^- \*\*Why not {other}\?\*\* .{{20,95}}$", README, re.MULTILINE)


def commands(name: str) -> list[str]:
    """The commands of the block below ``<!-- run: name -->``, without comments."""
    (block,) = re.findall(
        rf"<!-- run: {name} -->\n```sh\n(.*?)^```$", FIRST_STEPS, re.MULTILINE | re.DOTALL
    )
    return [shlex.join(shlex.split(line, comments=True)) for line in block.splitlines()]


class User:
    """A user in a folder of their own, with the programs of an environment on the path."""

    def __init__(self, place: Path, programs: Path) -> None:
        self.place = place
        self.env = {
            **clean_environment(),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(place),
            "HOME": str(place),
            **UTF_8,
        }

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.place,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=200,
            check=False,
        )

    def start(self, command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self.place,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )


@pytest.fixture
def user(short_path: Path, installed: Path) -> User:
    short_path.chmod(0o700)
    return User(short_path, installed)


def test_the_installed_package_is_that_of_the_wheel(user: User, installed: Path) -> None:
    done = user.run("python -c 'import ergo_py; print(ergo_py.__file__)'; ergo --version")

    path, version, *off = done.stdout.splitlines()
    assert Path(path).is_relative_to(installed.parent)
    assert version.endswith("(pure Python)")
    assert off == ["off: the C extension: it was not built"]
    assert commands("install")[-1] == "ergo --version"


def test_a_running_program_is_inspected_with_the_commands_of_the_first_steps(user: User) -> None:
    run, *looks = commands("look")
    shutil.copytree(ROOT / "examples" / "looking", user.place / "examples" / "looking")
    assert [look.split()[1] for look in looks] == ["ps", "crashes", "attach"]

    with user.start(run) as program:
        try:
            end = time.monotonic() + 100
            while "shop@localhost" not in user.run("ergo nodes").stdout:
                assert program.poll() is None
                assert time.monotonic() < end, "the shop does not open"
            for look in looks:
                done = user.run(look)
                assert (done.returncode, done.stderr) == (0, ""), look
        finally:
            program.send_signal(signal.SIGINT)
            out, _ = program.communicate(timeout=100)

    assert program.returncode == 0, out


def test_the_installed_command_creates_the_project_of_the_first_steps(user: User) -> None:
    command = commands("new")[0]
    assert command == "ergo new shop"

    done = user.run(command)

    assert (done.returncode, done.stderr) == (0, "")
    for path, text in render(ProjectName.of("shop")):
        assert (user.place / "shop" / path).read_text(encoding="utf-8") == text


def test_the_completion_script_of_the_first_steps_is_loaded_by_bash(user: User) -> None:
    assert '`eval "$(ergo completion bash)"`' in FIRST_STEPS

    done = user.run("bash --norc -c 'eval \"$(ergo completion bash)\"; complete -p ergo'")

    assert done.stdout == "complete -F _ergo ergo\n"
