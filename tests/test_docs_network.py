"""The transcripts of the page "More than one node" are the output that a person sees."""

import re
import time

import pytest

from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Status
from tests.control.rig import runtime_directory
from tests.shell.terminal import ROOT, background
from tests.shell.transcripts import assert_ran, transcripts

__all__ = ["runtime_directory"]

PAGE = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")


def wait_for_stock(capsys: pytest.CaptureFixture[str]) -> None:
    """Until both nodes are up, and the stock has got its message."""
    end, out, err = time.monotonic() + 100, "", ""
    while time.monotonic() < end:
        main(["ps", "stock@here", "--via", "shop", "--find", "stock"])
        out, err = capsys.readouterr()
        if re.search(r"Stock +sleep +0 +1", out):
            return
        time.sleep(0.05)
    raise AssertionError(f"the nodes do not open: {out}{err}")


def test_commands_pass_through_a_node_to_another_node(capsys: pytest.CaptureFixture[str]) -> None:
    (transcript,) = transcripts(PAGE, "via shop")
    with background(command=["-m", "examples.looking.afar"]):
        wait_for_stock(capsys)

        assert_ran(transcript, capsys)
        assert main(["tree", "stock@here", "--via", "shop", "--json"]) == Status.DONE
        assert '"name": "store"' in capsys.readouterr().out
        assert main(["top", "stock@here", "--via", "shop", "--count", "1"]) == Status.DONE
        assert "Stock" in capsys.readouterr().out
        assert main(["ps", "shop@here", "--via", "shop"]) == Status.DONE
        capsys.readouterr()
        for words, status, text in (
            (["ps", "stock", "--via", "shop"], Status.USAGE, "needs the whole name of the other"),
            (["ps", "--via", "shop"], Status.USAGE, "needs the whole name of the other node"),
            (["ps", "x@here", "--via", "shop"], Status.NO_NODE, "x@here: no connection to node"),
            (["ps", "stock@here", "--via", "y"], Status.NO_NODE, "no node with the name 'y'"),
            (["info", "stock@here", "5555", "--via", "shop"], Status.NO_PROCESS, "on stock@here"),
            (["inspect", "stock@here", "x", "--via", "shop"], Status.NO_PROCESS, "no process"),
        ):
            assert main(words) == status
            assert text in capsys.readouterr().err
