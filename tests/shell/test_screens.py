"""Which screen is chosen, and the output of the plain screen: the words are the same either way."""

import ast
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ergo_py.control.rendering import crash, process_table, table
from ergo_py.shell import screens
from ergo_py.shell.screens import Screen, choose_screen
from tests.control.test_rendering import row

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
OBITUARY: dict[str, Any] = {
    "pid": 4,
    "name": "room",
    "behaviour": "Room",
    "reason": "crashed: KeyError: 'tea'",
    "at": 0.0,
    "uptime": 1.0,
    "handled": 5,
    "callback": "handle_message",
    "message_type": "Say",
    "waiting": [],
    "left": 0,
    "recent": [],
    "restarts": 0,
    "traceback": (
        "Traceback (most recent call last):\n"
        '  File "room.py", line 7, in handle_message\n'
        "    self.pieces[item] -= a_rather_long_name_for_a_number\n"
        "KeyError: 'tea'\n"
    ),
}


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def sit_down_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Tty())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_rich_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="needs the package rich")
    from ergo_py.shell.rich_screen import RichScreen

    sit_down_at_a_terminal(monkeypatch)
    chosen = choose_screen(70)
    monkeypatch.setenv("TERM", "dumb")
    dumb = choose_screen(70)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    piped = choose_screen(70)

    assert isinstance(chosen, RichScreen)
    assert chosen.width == 70
    assert (type(dumb), dumb.width, dumb.alarm("x")) == (Screen, 70, "x")
    # A pipe has no width, so nothing is cut.
    assert (type(piped), piped.width) == (Screen, 0)


def test_without_rich_the_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    sit_down_at_a_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "ergo_py.shell.rich_screen", None)

    chosen = choose_screen(30)

    assert type(chosen) is Screen
    assert chosen.alarm("help") == "\x1b[1;31mhelp\x1b[0m"
    assert chosen.aside("a" * 40) == "\x1b[2m" + "a" * 29 + "…\x1b[0m"
    assert (
        chosen.live_table(table("ID NAME", [(1, "x")])) == f"\x1b[7m{'ID  NAME':30}\x1b[0m\n1   x"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert choose_screen(30).alarm("help") == "help"


def test_plain_text_shows_all_values() -> None:
    screen = Screen()
    facts = {"name": "room", "mailbox": 3}

    assert screen.table(process_table([row()])).splitlines()[1].split()[2:4] == ["Room", "running"]
    assert screen.pairs(facts) == "   name  room\nmailbox  3"
    assert screen.tree("a\n└─ b") == "a\n└─ b"
    assert screen.title("x" * 200) == "x" * 200


def test_rich_screens_and_plain_screens_show_the_same_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rich", reason="needs the package rich")
    from ergo_py.shell.rich_screen import RichScreen

    sit_down_at_a_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "vt100")
    rich, plain = choose_screen(120), Screen(120)
    rows = process_table(
        [row(), row(id=5, name="kitchen", state="sleep")], rates=True, sort="mailbox"
    )
    died = crash(OBITUARY)

    def bare(text: str) -> list[list[str]]:
        return [line.split() for line in ESCAPES.sub("", text).splitlines()]

    assert type(rich) is RichScreen
    for shown, expected in (
        (rich.table(rows), plain.table(rows)),
        (rich.live_table(rows), plain.live_table(rows)),
        (rich.pairs({"a": 1, "long": "x"}), plain.pairs({"a": 1, "long": "x"})),
        (rich.tree("a\n└─ b <PID 2 x> (running)"), plain.tree("a\n└─ b <PID 2 x> (running)")),
        (rich.crash(died), plain.crash(died)),
        (rich.title("t"), "t"),
        (rich.alarm("t"), "t"),
        (rich.aside("t"), "t"),
    ):
        assert bare(shown) == bare(expected)


def test_no_two_modules_of_the_shell_import_each_other() -> None:
    folder = Path(screens.__file__).parent
    imports = {
        path.stem: {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None
        }
        for path in folder.glob("*.py")
    }

    assert [
        (name, other)
        for name, others in imports.items()
        for other in others
        if name in imports.get(other, ())
    ] == []
