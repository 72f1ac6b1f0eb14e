import os
import signal
import subprocess
import sys

import pytest

from ergo_py.meta.programs import process_groups as process_groups_module
from ergo_py.meta.programs.process_groups import forget_group, kill_groups, note_group
from tests.meta.support import process_groups, replace_process_groups


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_process_groups(monkeypatch, {})


def test_only_noted_process_groups_are_killed() -> None:
    wait = "import sys; sys.stdin.read()"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", wait], stdin=subprocess.PIPE, start_new_session=True
        )
        for _ in range(2)
    ]
    try:
        for one in started:
            note_group(one.pid)
        forget_group(started[1].pid)
        kill_groups()

        assert started[0].wait(30) == -signal.SIGKILL
        assert started[1].poll() is None
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_groups_that_cannot_be_killed_do_not_prevent_killing_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def refuse(group: int, number: int) -> None:
        tried.append(group)
        raise ProcessLookupError if group == 1 else PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    for group in (1, 2, 3):
        note_group(group)
    kill_groups()

    assert sorted(tried) == [1, 2, 3]


def test_a_forked_copy_does_not_know_the_groups() -> None:
    note_group(4711)
    process_groups_module._forget_in_copy()

    assert process_groups() == {}
