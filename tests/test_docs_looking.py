"""The transcripts of the page "Looking inside" are the output that a person sees."""

import re
import time
from pathlib import Path

import pytest

from ergo_py.control.commands import COMMANDS
from ergo_py.control.connection import Limits
from ergo_py.control.protocol import MAX_ANSWER, MAX_REQUEST
from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Status
from tests.control.rig import runtime_directory
from tests.examples.programs import promised
from tests.shell.terminal import ROOT, at_terminal, background
from tests.shell.transcripts import assert_ran, assert_typed, transcripts

__all__ = ["runtime_directory"]

PAGE = (ROOT / "docs" / "looking-inside.md").read_text(encoding="utf-8")


def wait_for_stock(capsys: pytest.CaptureFixture[str], row: str) -> None:
    """Until the program is up and its stock is in this state; looking at it like this leaves no
    trace.
    """
    end, err = time.monotonic() + 100, ""
    while time.monotonic() < end:
        main(["ps", "shop", "--find", "stock"])
        out, err = capsys.readouterr()
        if re.search(row, out):
            return
        time.sleep(0.05)
    raise AssertionError(f"the shop does not open: {err}")


def test_the_shell_prints_the_transcript_of_the_page() -> None:
    (transcript,) = transcripts(PAGE, "ergo shell examples/looking/shop.py")
    with at_terminal("shell", "--plain", "examples/looking/shop.py") as terminal:
        terminal.wait_for(">>> ")
        end = time.monotonic() + 100
        while terminal.ask("(await node.inspect('stock'))['sold']") != "'2'\n":
            assert time.monotonic() < end, "the customer does not come"

        assert_typed(terminal, transcript)


def test_a_plain_python_prompt_prints_the_transcript_of_the_page() -> None:
    (transcript,) = transcripts(PAGE, "python")
    with at_terminal(command=["-q"], PYTHON_BASIC_REPL="1") as terminal:
        terminal.wait_for(">>> ")

        assert_typed(terminal, transcript)


def test_the_commands_print_the_transcripts_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with background("run", "--control", "look,act,attach", "examples/looking/shop.py"):
        wait_for_stock(capsys, r"Stock +sleep +0 +2")

        looks, threads, died, held = transcripts(PAGE, "shop")
        assert promised("looking") in looks
        for transcript in (looks, threads, died, held):
            assert_ran(transcript, capsys)
        (transcript,) = transcripts(PAGE, "ergo attach shop")
        with at_terminal("attach", "--plain", "shop") as terminal:
            terminal.wait_for(">>> ")
            assert_typed(terminal, transcript)


def test_a_blocked_loop_is_shown_as_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    (transcript,) = transcripts(PAGE, "blocked")
    with background(command=["examples/looking/blocked.py"]) as program:
        wait_for_stock(capsys, r"Stock +running")

        assert_ran(transcript, capsys)
        program.kill()


def block(name: str) -> list[str]:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1].splitlines()[2:]


def test_the_page_lists_all_exit_statuses() -> None:
    source = (ROOT / "ergo_py" / "shell" / "exit_codes.py").read_text(encoding="utf-8")
    said = dict(re.findall(r'([A-Z_]+) = \d+\n    """(.*?)"""', source))

    expected = [f"| {status.value} | {said.get(status.name, 'done')} |" for status in Status]

    assert block("statuses") == expected


def test_the_page_lists_all_commands_with_their_arguments() -> None:
    control = ROOT / "ergo_py" / "control"
    source = "\n\n\n".join(
        path.read_text(encoding="utf-8")
        for path in (control / "commands.py", control / "view_commands.py")
    )
    rows = [re.match(r"\| `([\w-]+)` \| (\w+) \| ?(.*?) ?\|$", row) for row in block("commands")]
    listed = {
        row[1]: (row[2], set(re.findall(r"`(\w+)`", row[3]))) for row in rows if row is not None
    }

    assert {name: permission for name, (permission, _) in listed.items()} == {
        name: command.permission for name, command in COMMANDS.items()
    }
    window = source.partition("def _window(")[2].partition("\n\n\n")[0]
    for name, command in COMMANDS.items():
        function = command.on_loop or command.in_thread or command.in_own_thread
        assert function is not None
        text = source.partition(f"def {function.__name__}(")[2].partition("\n\n\n")[0]
        kinds = "text|number|numbers|objects|flag|words|anything"
        asked = set(re.findall(rf'arguments\.(?:{kinds})\("(\w+)"', text))
        if name == "sample":
            asked |= set(re.findall(rf'arguments\.(?:{kinds})\("(\w+)"', window))
        if "arguments.target" in text or "arguments.process" in text:
            asked.add("to")
        assert listed[name][1] == asked, name


def test_the_page_names_all_limits() -> None:
    rows = [row.split("|")[2].strip() for row in block("limits")]

    assert rows == [
        f"{MAX_REQUEST}, {MAX_ANSWER}",
        str(Limits.clients),
        f"{Limits.line:g}, {Limits.writing:g}",
        f"{1 / Limits.pace:g}, {1 / Limits.pace_of_all:g}",
        f"{Limits.idle:g}",
    ]


def test_the_first_sentence_is_about_inspect_meta() -> None:
    assert PAGE.splitlines()[2].startswith("`await node.inspect_meta(alias)` ")
    assert all(
        (ROOT / Path(path)).is_file() for path in re.findall(r"examples/looking/\w+\.py", PAGE)
    )
