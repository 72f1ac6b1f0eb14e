"""The page "Troubleshooting" shows the output that a person sees with the program that has all
these troubles.
"""

import re
import time

import pytest

from ergo_py import Why
from ergo_py.shell.cli import main
from tests.control.rig import runtime_directory
from tests.shell.terminal import ROOT, background
from tests.shell.transcripts import assert_ran, transcripts

__all__ = ["runtime_directory"]

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def wait_for_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    """Until all of it has happened."""
    end, out, err = time.monotonic() + 100, "", ""
    while time.monotonic() < end:
        main(["tree", "trouble"])
        out, err = capsys.readouterr()
        if out.count("mailbox 1") == 2 and "1 restart" in out:
            return
        time.sleep(0.05)
    raise AssertionError(f"the trouble does not begin: {out}{err}")


def test_the_commands_print_the_transcripts_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with background(
        "run", "--control", "look,act", "--log-level", "off", "examples/looking/trouble.py"
    ):
        wait_for_trouble(capsys)

        for transcript in transcripts(PAGE, "trouble"):
            assert_ran(transcript, capsys)
        main(["info", "trouble", "waiter"])

        assert re.search(r"^ +asks +printer$", capsys.readouterr().out, re.MULTILINE)


def test_the_page_has_a_remedy_for_each_kind_of_dead_letter() -> None:
    table = PAGE.partition("| why | remedy |")[2].partition("\n\n")[0]

    for why in set(Why) - {Why.NO_NODE}:
        assert all(word in table for word in why.value.removeprefix("the receiver ").split()), why
