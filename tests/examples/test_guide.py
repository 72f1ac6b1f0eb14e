"""The programs of the guides print the texts beside them, and the pages show these texts."""

import re
from pathlib import Path

import pytest

from tests.examples.programs import EXAMPLES, run_here

GUIDE = EXAMPLES / "guide"
ELSEWHERE = {
    "nats_nodes": "tests/network/nats/test_nats.py",
    "handed_over": "tests/handover/test_succession.py",
    "moved_session": "tests/handover/test_moved_connections.py",
    "moved_state": "tests/handover/test_moved_processes.py",
    "inherited_socket": "tests/meta/test_inherited_sockets.py",
    "service_program": "tests/test_service_manager.py",
}
"""Programs that need a server, and the tests that run them where it is installed."""
NEEDS = {"serial_device": "serial"}
"""Programs with an extra, and its module."""
PROGRAMS = sorted(path for path in GUIDE.glob("*.py") if path.stem not in ELSEWHERE)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_of_the_guides_prints_its_recorded_output(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if program.stem in NEEDS:
        pytest.importorskip(NEEDS[program.stem])
    run_here(program)

    assert capsys.readouterr().out == program.with_suffix(".txt").read_text(encoding="utf-8")


def test_no_output_file_is_without_its_program() -> None:
    assert {path.stem for path in GUIDE.glob("*.txt")} == {path.stem for path in PROGRAMS}


def test_the_readme_shows_the_output_of_the_events_program() -> None:
    readme = (GUIDE / "README.md").read_text(encoding="utf-8")

    [shown] = re.findall(r"^```text\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)

    assert shown == (GUIDE / "events.txt").read_text(encoding="utf-8")
