"""Rich output on a terminal: it fits, it has colours, and foreign text is never taken for
markup.
"""

import re

import pytest

pytest.importorskip("rich", reason="needs the package rich")

from ergo_py.control.rendering import crash, process_table, table
from ergo_py.shell.rich_screen import RichScreen
from tests.control.test_rendering import row
from tests.shell.test_screens import ESCAPES, OBITUARY


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("width", [200, 100, 60, 30, 10])
def test_a_table_has_a_line_for_each_row_and_fits(width: int) -> None:
    rows = process_table(
        [row(name="a name that is rather long " * 3), row(id=123456)], rates=True, sort="load"
    )

    for shown in (RichScreen(width).table(rows), RichScreen(width).live_table(rows)):
        lines = [ESCAPES.sub("", line) for line in shown.splitlines()]
        assert len(lines) == 3
        assert max(map(len, lines)) <= width


def test_the_heads_of_a_live_table_stand_out_over_the_whole_width() -> None:
    heads = (
        RichScreen(80)
        .live_table(process_table([row()], rates=True, sort="mailbox"))
        .splitlines()[0]
    )

    assert "\x1b[7m" in heads
    assert len(ESCAPES.sub("", heads)) == 80
    assert "MAIL↓" in heads


def test_states_and_numbers_have_colours_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = process_table([row(state="suspended", mailbox=3)])

    coloured = RichScreen(100).table(rows)
    monkeypatch.setenv("NO_COLOR", "1")
    bare = RichScreen(100).table(rows)

    assert "\x1b[33msuspended" in coloured
    assert re.search(r"\x1b\[1;33m +3", coloured)
    assert not re.search(r"\x1b\[[\d;]*3\dm", bare)


def test_markup_and_escapes_in_values_have_no_effect() -> None:
    screen = RichScreen(100)
    hostile = "[red]x[/red] [link=y] \x1b[2J :smile:"

    shown = [
        screen.table(table("NAME", [(hostile,)])),
        screen.pairs({hostile: hostile}),
        screen.crash(crash({**OBITUARY, "name": hostile, "reason": hostile, "traceback": hostile})),
        screen.alarm("[red]x[/red] [link=y] :smile:"),
    ]

    for text in shown:
        assert "\x1b[2J" not in text
        assert "[red]x[/red] [link=y]" in ESCAPES.sub("", text)
        assert ":smile:" in text


def test_the_frames_of_a_thread_stand_below_its_row() -> None:
    rows = process_table([row(frames=["a.py:1 in f: x"]), row(id=5)], threads=True)

    lines = [ESCAPES.sub("", line) for line in RichScreen(100).table(rows).splitlines()]

    assert [line.split()[0] for line in lines] == ["ID", "4", "a.py:1", "5"]


def test_a_traceback_is_coloured_and_its_long_lines_are_shown_whole() -> None:
    shown = RichScreen(40).crash(crash(OBITUARY))

    bare = ESCAPES.sub("", shown)
    assert "\x1b[96" in shown
    assert max(map(len, bare.splitlines()[1:])) <= 40
    assert "".join(bare.split()).count("self.pieces[item]-=a_rather_long_name_for_a_number") == 1


def test_a_tree_is_never_cut() -> None:
    line = "└─ " + "x" * 100 + " Worker <PID 2 x> (sleep)"

    assert ESCAPES.sub("", RichScreen(40).tree(f"root\n{line}")) == f"root\n{line}"
