"""``ergo top`` in a real terminal: which view is chosen, and how each leaves the terminal."""

import os
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("textual", reason="needs the package textual")
pytest.importorskip("pyte", reason="needs the package pyte")

import pyte

from ergo_py.blocking.loop_thread import OwnedNode, open_node
from tests.shell.terminal import Terminal, at_terminal, background
from tests.shell.top.rig import HOSTILE, Shelf

WITHOUT_TEXTUAL = (
    "import sys; sys.modules['textual'] = None; from ergo_py.shell.cli import main; "
    "sys.exit(main(sys.argv[1:]))"
)
HINT = "`pip install 'ergo_py[terminal]'` adds a view that scrolls and filters"
LEFT = "\x1b[?1049l"
"""The sequence that brings back the earlier content of the screen."""


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("view@here", control="look", log_output="none", watchdog=None) as node:
        node.spawn(Shelf, name="shelf")
        yield node


def screen(terminal: Terminal, lines: int = 30, columns: int = 120) -> list[str]:
    """The screen as its user sees it."""
    drawn = pyte.Screen(columns, lines)
    pyte.Stream(drawn).feed(terminal.raw)
    return [line.rstrip() for line in drawn.display]


def test_the_live_view_opens_a_process_and_gives_the_terminal_back(node: OwnedNode) -> None:
    with at_terminal("top", "view", "--interval", "0.2") as terminal:
        terminal.wait_for("shelf")
        listed = screen(terminal)
        terminal.type("\r")
        terminal.wait_for("1 Info")
        terminal.type("2")
        terminal.wait_for("count")
        opened = screen(terminal)
        terminal.type("q")
        terminal.wait_for("quit")
        terminal.type("q")
        status = terminal.status()
    with at_terminal("top", "view") as interrupted:
        interrupted.wait_for("shelf")
        interrupted.type("\x03")
        status_of_ctrl_c = interrupted.status()

    assert listed[0].split()[:3] == ["ergo", "top", "view@here"]
    assert any(line.split()[:3] == ["1", "shelf", "Shelf"] for line in listed)
    assert "1 shelf Shelf" in opened[0]
    assert any(line.split() == ["count", "0"] for line in opened)
    assert (status, status_of_ctrl_c) == (0, 130)
    assert LEFT in terminal.raw
    assert LEFT in interrupted.raw
    assert "Traceback" not in terminal.text + interrupted.text
    assert HINT not in terminal.text


def test_control_sequences_of_a_node_do_not_reach_the_terminal(node: OwnedNode) -> None:
    node.spawn(Shelf, name=HOSTILE)
    with at_terminal("top", "view", "--interval", "0.2", columns=200) as terminal:
        terminal.wait_for("\\x1b]0;owned\\x07")
        terminal.type("\x1b[B\r")
        terminal.wait_for("1 Info")
        terminal.type("2")
        terminal.wait_for("count")
        opened = screen(terminal, columns=200)
        terminal.type("q")
        terminal.wait_for("quit")
        terminal.type("q")
        status = terminal.status()

    assert "\x1b]0;owned" not in terminal.raw
    assert "\x1b[2J [" not in terminal.raw
    assert any("[red]x[/red] \\x1b]0;owned\\x07 \\x1b[2J [@click" in line for line in opened)
    assert status == 0


def test_without_the_library_the_plain_view_runs_and_names_it(node: OwnedNode) -> None:
    arguments = ["top", "view", "--interval", "0.2"]
    command = ["-W", "error", "-c", WITHOUT_TEXTUAL, *arguments]
    with at_terminal(command=command) as terminal:
        terminal.wait_for("q quit")
        terminal.type("q")
        status = terminal.status()
    with at_terminal(*arguments, "--plain") as plain:
        plain.wait_for("q quit")
        plain.type("q")
        status_of_plain = plain.status()
    with at_terminal(*arguments, TERM="dumb") as dumb:
        dumb.wait_for("q quit")
        dumb.type("q")
        status_of_dumb = dumb.status()

    assert (status, status_of_plain, status_of_dumb) == (0, 0, 0)
    assert terminal.text.rstrip().endswith(HINT)
    assert HINT not in plain.text + dumb.text


def test_a_node_that_does_not_permit_a_look_is_reported_on_the_usual_screen() -> None:
    with (
        open_node("view@here", control="act", log_output="none", watchdog=None),
        at_terminal("top", "view") as terminal,
    ):
        status = terminal.status()

    assert status == 6
    assert "ps needs the permission 'look'" in terminal.raw.rpartition(LEFT)[2]


PROGRAM = (
    "import trio; from ergo_py import Actor, open_node\n"
    "async def main():\n"
    "    async with open_node('view@here', control='look', log_output='none') as node:\n"
    "        await node.spawn(Actor, name='sleeper')\n"
    "        print('up', flush=True)\n"
    "        await trio.sleep_forever()\n"
    "trio.run(main)\n"
)


def test_a_stopped_and_a_killed_program_are_reported() -> None:
    with background(command=["-c", PROGRAM]) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        with at_terminal("top", "view", "--interval", "0.2") as terminal:
            terminal.wait_for("sleeper")
            os.kill(program.pid, signal.SIGSTOP)
            terminal.wait_for("has not answered for")
            os.kill(program.pid, signal.SIGCONT)
            terminal.wait_for("sleeper")
            program.kill()
            terminal.wait_for("has ended; the view waits for it to start again")
            with background(command=["-c", PROGRAM]):
                terminal.wait_for("sleeper")
            terminal.type("q")
            status = terminal.status()

    assert status == 0
