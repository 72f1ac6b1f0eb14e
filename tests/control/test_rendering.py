"""Text for people: it fits, it lines up, and it cannot move the cursor."""

from typing import Any

import pytest

from ergo_py.control.rendering import (
    clock,
    crash,
    duration,
    facts,
    fit,
    group_crashes,
    narrowed,
    pairs,
    process_table,
    table,
    table_text,
)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0000021, "2µs"),
        (0.0123, "12ms"),
        (1.26, "1.3s"),
        (75, "1m15s"),
        (3720, "1h02m"),
        (90000, "1d01h"),
    ],
)
def test_durations_have_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_tables_line_up_and_fit() -> None:
    text = table_text(table("ID NAME", [(1, "a"), (22, "long name")], right="ID"))

    assert text == "ID  NAME\n 1  a\n22  long name"
    assert table_text(table("ID NAME", [(22, "long name")]), 8) == "ID  NAME\n22  lon…"
    assert table_text(table("ID", [])) == "ID"
    assert fit("abc", 3) == "abc"
    assert fit("abcd", 3) == "ab…"


def test_control_characters_in_values_are_not_printed() -> None:
    assert "\x1b" not in table_text(table("NAME", [("\x1b[31mred",)]))
    assert "\x1b" not in pairs({"a\x1b": "\x1b]0;title\x07"})


def row(**more: object) -> dict[str, object]:
    return {
        "id": 4,
        "kind": "process",
        "name": None,
        "behaviour": "Room",
        "state": "running",
        "mailbox": 3,
        "messages": 10,
        "time": 0.5,
        "uptime": 61.0,
        "callback": "handle_message",
        "message_type": "Say",
        "parent": 0,
        "rate": 12.4,
        "load": 0.25,
        "worst": 0.9,
        **more,
    }


def test_a_row_shows_the_activity_of_a_process_or_meta_process() -> None:
    meta = row(
        id=12,
        kind="meta",
        callback=None,
        thread="ergo-tcp-12",
        thread_id=99,
        backlog=7,
        frames=["a.py:1 in f: x"],
    )

    assert table_text(process_table([row()])).splitlines()[1] == (
        " 4  -     Room       running     3       10  500ms  1m01s  handle_message(Say)"
    )
    assert "    12   25%    90%" in table_text(process_table([row()], rates=True))
    assert table_text(process_table([meta], threads=True)).splitlines()[1:] == [
        "12  -     Room       running     3       10     -  1m01s  of 0, thread ergo-tcp-12 (99), "
        "7 behind",
        "        a.py:1 in f: x",
    ]


def test_the_facts_of_a_running_child_have_its_state_and_not_its_phase() -> None:
    assert facts({"state": "sleep", "phase": "running"}) == ({"state": "sleep"}, "")
    assert facts({"phase": "backing off"}) == ({"phase": "backing off"}, "")


def test_a_narrow_table_drops_columns_but_keeps_the_sort_column() -> None:
    made = process_table([row(name="room")], rates=True, sort="time")

    assert "TIME↓" in table_text(made)
    assert narrowed(made, 200) == made
    assert narrowed(made, 70).heads == (
        "ID",
        "NAME",
        "BEHAVIOUR",
        "STATE",
        "MAIL",
        "MSG/S",
        "LOAD",
        "TIME",
        "DOING",
    )
    assert narrowed(made, 1).heads == ("ID", "NAME", "MAIL", "MSG/S", "TIME", "DOING")
    assert (
        table_text(made, 50).splitlines()[1] == " 4  room     3     12  500ms  handle_message(Say)"
    )


CRASH: dict[str, Any] = {
    "pid": 4,
    "name": "room",
    "behaviour": "Room",
    "reason": "crashed: X",
    "at": 0.0,
    "uptime": 1.0,
    "handled": 5,
    "callback": "handle_call",
    "message_type": "Say",
    "waiting": ["A", "B"],
    "left": 3,
    "recent": ["X", "Y"],
    "restarts": 2,
    "traceback": "Traceback:\n  line\n",
}


def test_crashes_of_the_same_code_are_together_with_their_number() -> None:
    order = [(1, "a", 0.0), (2, "b", 10.0), (3, "a", 20.0), (4, "a", 30.0)]
    told = group_crashes(
        CRASH | {"pid": pid, "group": group, "at": at, "reason": f"crashed: X: {pid}"}
        for pid, group, at in order
    )

    assert [each.reason for each in told] == ["crashed: X: 2", "crashed: X: 4"]
    assert "times" not in str(told[0])
    assert told[1].facts[0] == f"3 times since {clock(0.0)}; this is the last"
    assert len(group_crashes([CRASH, CRASH | {"pid": 5}])) == 2  # of an earlier version


def test_a_crash_is_rendered_with_all_its_details() -> None:
    told = crash(CRASH)

    lines = str(told).splitlines()
    assert lines[0].endswith("4 room Room: crashed: X")
    assert lines[1:] == [
        "    in handle_call of Say",
        "    lived 1.0s, 5 handled, 3 not handled: A, B, …, the last were X, Y, 2 restarts before",
        "    Traceback:",
        "      line",
    ]
