"""Every example is in the index, its README shows its command and its output, and the output is
right.
"""

import re
import subprocess
import sys

import pytest

from ergo_py.testing import VirtualClock
from tests.examples.programs import EXAMPLES, ROOT, promised, promises, run_here
from tests.support import without_blockages

FOLDERS = sorted(
    path.name for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.py"))
)
ELSEWHERE = {
    "bank": "tests/examples/test_bank.py",
    "cluster": "tests/examples/test_cluster.py",
    "cores": "tests/workers/test_worker_nodes.py",
    "demo": "tests/examples/test_demo.py",
    "fleet": "tests/examples/test_fleet.py",
    "guide": "tests/examples/test_guide.py",
    "looking": "tests/test_docs_looking.py",
    "loops": "tests/loops/test_hosts.py",
    "redis": "tests/examples/test_redis.py",
    "tcp": "tests/examples/test_sockets.py",
    "testing": "tests/examples/test_testing.py",
    "tutorial": "tests/examples/test_tutorial.py",
    "udp": "tests/examples/test_sockets.py",
    "web": "tests/examples/test_web.py",
}
"""Examples that need a partner, or print more than their READMEs show, and the tests that run
them.
"""
NEEDING = {"postgres.py": "tests/examples/test_bridges.py"}
"""Programs with dependencies that may not be installed, and the tests that run them if they are."""
TIMED = {"examples/state_machine/door.py"}
"""Programs that wait for their own timers. On a machine that stands still for a moment, several of
them would be due at once: the tests run these programs in virtual time.
"""
COMMANDS = [
    pytest.param(command, printed, id=command)
    for folder in FOLDERS
    if folder not in ELSEWHERE
    for command, printed in promises(folder)
    if not any(program in command for program in NEEDING)
]


@pytest.mark.parametrize("command, printed", COMMANDS)
def test_an_example_prints_the_output_in_its_readme(
    command: str, printed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if alone := re.fullmatch(r"python (examples/\S+\.py)", command):
        run_here(ROOT / alone[1], clock=VirtualClock() if alone[1] in TIMED else None)
    else:
        python = f"'{sys.executable}' -W error"
        subprocess.run(
            ["sh", "-c", re.sub(r"\bpython\b", lambda _: python, command, count=1)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            timeout=200,
            check=True,
        )

    told = capfd.readouterr()
    assert told.out == printed
    # Only the gateway has something to tell: its decoder is killed.
    lines = without_blockages(told.err)
    assert "child=decoder" in lines if "gateway" in command else lines == ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_readme_shows_the_command_and_the_output_of_each_program(folder: str) -> None:
    text = (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")

    programs = list((EXAMPLES / folder).glob("*.py"))

    assert promises(folder)
    # A program is named, or a file beside it has its output.
    assert (
        sorted(
            str(path)
            for path in programs
            if path.name not in text and not path.with_suffix(".txt").exists()
        )
        == []
    )


@pytest.mark.parametrize(
    "folder, file", [*ELSEWHERE.items(), *((name, file) for name, file in NEEDING.items())]
)
def test_an_example_run_by_another_test_file_is_named_in_it(folder: str, file: str) -> None:
    assert re.search(rf"\b{re.escape(folder)}\b", (ROOT / file).read_text(encoding="utf-8"))


def test_the_index_lists_every_example_once_with_its_subject() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")

    listed = re.findall(r"^\| \[`(\w+)`\]\((\w+)/README\.md\) \| (\S.+) \|$", index, re.MULTILINE)

    assert sorted(name for name, _, _ in listed) == FOLDERS
    assert all(name == link for name, link, _ in listed)


def test_the_killed_ledger_loses_no_deposit() -> None:
    # That it prints this is seen above.
    assert "500 deposits made, 500 in the store, 500 in all" in promised("service")
