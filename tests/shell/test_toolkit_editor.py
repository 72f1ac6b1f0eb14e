"""The prompt with the library prompt_toolkit, in a real terminal."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit", reason="needs the package prompt_toolkit")
pytest.importorskip("pyte", reason="needs the package pyte")

from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from ergo_py.blocking.loop_thread import OwnedNode, open_node
from ergo_py.shell.prompt import is_complete
from ergo_py.shell.toolkit_editor import Names, make_history
from tests.actors import Recorder
from tests.shell.display import Display
from tests.shell.terminal import at_terminal


@contextmanager
def at_prompt(*arguments: object) -> Iterator[Display]:
    """A prompt in a terminal that does not tell where its cursor is."""
    with at_terminal(*arguments, lines=40, PROMPT_TOOLKIT_NO_CPR="1") as terminal:
        yield Display(terminal, lines=40)


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("desk@here", control="look,attach", log_output="none", watchdog=None) as node:
        node.spawn(Recorder, name="recorder")
        yield node


def enter(display: Display, keys: str) -> None:
    """Press keys when the prompt is ready; before that, the terminal would interpret some."""
    display.wait(lambda lines: lines[last_of(lines)] == ">>>")
    display.terminal.type(keys)


def last_of(lines: list[str]) -> int:
    """The number of the last line that is not empty."""
    return max((number for number, line in enumerate(lines) if line), default=0)


def colour_of(display: Display, text: str) -> str:
    """The colour of the first letter of a text in an input. Other lines may have it by chance, such
    as a digit of the number of the program.
    """
    for y, line in enumerate(display.lines):
        if line.startswith(">>> ") and text in line:
            return str(display.screen.buffer[y][line.index(text)].fg)
    raise AssertionError(f"{text!r} is not on the screen")


def test_inputs_have_colours_several_lines_and_completion(node: OwnedNode) -> None:
    with at_prompt("attach", "desk") as display:
        terminal = display.terminal
        enter(display, "x = 'tea' if True else 7")
        display.wait_line(">>> x = 'tea' if True else 7")
        # A letter may be drawn first and coloured later.
        colours = ["green", "magenta", "cyan"]
        display.wait(
            lambda lines: [colour_of(display, text) for text in ("'tea'", "if", "7")] == colours
        )
        terminal.type("\n")
        # A block goes on, indented, until an empty line.
        enter(display, "for each in x:\nprint(each)")
        block = display.wait_line("...     print(each)")
        terminal.type("\n\n")
        display.wait(lambda lines: [*"tea"] == [line for line in lines if line in [*"tea"]])
        # Tab completes a name that only the node knows.
        enter(display, "found_by_tab = 1\n")
        display.wait_line(">>> found_by_tab = 1")
        enter(display, "found_b\t")
        display.wait_line(">>> found_by_tab")
        terminal.type(" + 1\n")
        display.wait_line("2")
        # Top-level await works, and an error is shown.
        enter(display, "await node.inspect('recorder')\n")
        display.wait_line("{}")
        enter(display, "1 +* 2\n")
        display.wait_line("SyntaxError: invalid syntax")
        enter(display, "\x04")
        status = terminal.status()

    assert ">>> for each in x:" in block
    assert status == 0


def test_ctrl_c_takes_an_input_back_and_interrupts_a_running_input(node: OwnedNode) -> None:
    with at_prompt("attach", "desk") as display:
        terminal = display.terminal
        enter(display, "an input that is taken back\x03")
        display.wait_line("KeyboardInterrupt")
        enter(display, "print('waiting'); await trio.sleep_forever()\n")
        display.wait_line("waiting")
        terminal.type("\x03")
        display.wait(lambda lines: lines.count("KeyboardInterrupt") == 2)
        enter(display, "6 * 7\n")
        display.wait_line("42")
        enter(display, "exit\n")
        status = terminal.status()

    assert status == 0


def test_earlier_inputs_are_found_again_also_in_the_next_session(
    node: OwnedNode, runtime_directory: Path
) -> None:
    folder = runtime_directory / ".local" / "state" / "ergo"
    folder.mkdir(parents=True)
    # The plain prompt has left lines.
    (folder / "history").write_text("print('from the plain prompt')\n", encoding="utf-8")
    with at_prompt("attach", "desk") as display:
        terminal = display.terminal
        enter(display, "for each in (1, 2):\nprint(each * 10)\n\n")
        display.wait_line("20")
        enter(display, "print('other')\n")
        display.wait_line("other")
        enter(display, "\x04")
        terminal.status()
    with at_prompt("attach", "desk") as display:
        terminal = display.terminal
        # Arrow up finds only inputs with the same beginning, all lines of it.
        enter(display, "for\x1b[A")
        display.wait_line("...     print(each * 10)")
        terminal.type("\x1b[F\n\n")
        display.wait_line("20")
        enter(display, "\x12plain prompt")
        display.wait_line(">>> print('from the plain prompt')")
        terminal.type("\r\r")
        display.wait_line("from the plain prompt")
        enter(display, "\x04")
        terminal.status()

    inputs = folder / "inputs"
    assert stat.S_IMODE(inputs.stat().st_mode) == 0o600
    assert (folder / "history").read_text(encoding="utf-8").count("\n") == 1


def test_the_output_of_the_program_appears_above_the_input(tmp_path: Path) -> None:
    begin = tmp_path / "begin"
    (tmp_path / "clock.py").write_text(
        "import pathlib, trio\n"
        "async def main(node):\n"
        "    while True:\n"
        "        await trio.sleep(0.2)\n"
        f"        if pathlib.Path({str(begin)!r}).exists():\n"
        "            print('tick', flush=True)\n",
        encoding="utf-8",
    )
    with at_prompt("shell", tmp_path / "clock.py") as display:
        terminal = display.terminal
        enter(display, "node.na")
        # The editor moves output above the input once it has shown a prompt.
        begin.touch()
        # Whole lines above, and the input below.
        lines = display.wait(
            lambda lines: lines.count("tick") >= 3 and lines[last_of(lines)] == ">>> node.na"
        )
        terminal.type("me\n")
        display.wait_line("'clock@localhost'")
        enter(display, "exit\n")
        status = terminal.status()

    assert [line for line in lines[1:] if "tick" in line and line != "tick"] == []
    assert status == 0


@pytest.mark.parametrize("how", ["--plain", "dumb", "missing"])
def test_the_plain_prompt_stays(node: OwnedNode, how: str) -> None:
    without = (
        "import sys; sys.modules['prompt_toolkit'] = None; from ergo_py.shell.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["attach", "desk", *(["--plain"] if how == "--plain" else [])]
    command = ["-W", "error", "-c", without, *arguments] if how == "missing" else None
    term = "dumb" if how == "dumb" else "xterm"
    with at_terminal(*arguments, command=command, TERM=term) as terminal:
        terminal.wait_for(">>> ")
        answer = terminal.ask("6 * 7")
        terminal.type("\x04")
        status = terminal.status()

    assert (answer, status) == ("42\n", 0)
    # It asks for a line at a time, without colours.
    assert "\x1b[0;1m>>>" not in terminal.raw


def test_names_that_cannot_be_printed_or_asked_for_are_not_offered() -> None:
    def complete(text: str) -> list[str]:
        if text == "silent":
            raise TimeoutError("no answer")
        return ["node.name", "node.\x1b[2J"]

    def offered(text: str) -> list[str]:
        found = Names(complete).get_completions(Document(text), CompleteEvent())
        return [completion.text for completion in found]

    assert offered("print(node.n") == ["node.name"]
    assert offered("silent") == []
    assert offered("1 + ") == []


def test_the_history_keeps_the_last_inputs_and_needs_no_file(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.shell.toolkit_editor._MOST", 3)
    plain = short_path / "history"
    for number in range(8):
        make_history(plain).store_string(f"input\n{number}")
    shortened = list(make_history(plain).load_history_strings())
    (short_path / "file").touch()
    nowhere = make_history(short_path / "file" / "history")
    nowhere.store_string("x")

    assert shortened[0] == "input\n7"
    assert 3 <= len(shortened) <= 6
    assert list(nowhere.load_history_strings()) == ["x"]


def test_an_input_is_complete_as_python_counts() -> None:
    assert is_complete("1 + 1")
    assert is_complete("await node.inspect('x')")
    assert is_complete("1 +* 2")
    assert is_complete("for x in y:\n    pass\n")
    assert not is_complete("for x in y:\n    pass")
    assert not is_complete("f(1,")
