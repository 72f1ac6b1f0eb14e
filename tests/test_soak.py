"""The soak, for a few seconds: all kinds of things at once, and the books balance. ``make soak``
does the same for longer.
"""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from benchmarks import soak
from benchmarks.soak_world import Books, Letter, World, letter
from ergo_py._core.tables.dead_letters import DeadLetters


@pytest.mark.no_cover
def test_a_soak_of_a_few_seconds_loses_no_letter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"

    status = soak.main(
        [
            "--minutes",
            "0.05",
            "--period",
            "1",
            "--seed",
            "7",
            "--slowest",
            "60",
            "--most-left",
            "1000",
            "--least",
            "100",
            "--results",
            str(path),
        ]
    )

    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["violations"] == []
    assert status == 0
    assert report["counts"]["sent"] > 0
    assert report["rests"] > 0
    assert "nothing was lost" in capsys.readouterr().out


@pytest.mark.no_cover
def test_a_silently_lost_letter_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: DeadLetters, *_letter: Any) -> None: ...

    monkeypatch.setattr(DeadLetters, "add", forget)
    monkeypatch.setattr(soak, "PATIENCE", 1.0)

    # On a busy machine so little time is not enough to lose anything.
    status = soak.main(
        ["--minutes", "0.02", "--period", "1", "--seed", "7", "--slowest", "60", "--least", "100"]
    )

    assert status == 1
    assert "the books do not balance" in capsys.readouterr().out


def test_the_seed_decides_the_actions_and_their_order() -> None:
    class Idle(soak.Soak):
        """Notes the actions instead of doing them."""

        async def _guarded(self, act: Any, chance: Any) -> None:
            done.append((act.__name__, chance.random()))

    async def some(seed: int) -> None:
        run = Idle(World.__new__(World), seed, 1.0)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                run.act(nursery)
                await trio.testing.wait_all_tasks_blocked()

    runs = []
    for seed in (1, 1, 2):
        done: list[tuple[str, float]] = []
        trio.run(partial(some, seed))
        runs.append(done)

    assert runs[0] == runs[1] != runs[2]


def test_growth_of_memory_threads_and_files_is_a_violation() -> None:
    class Alone(soak.Soak):
        """Has nothing but its measures."""

        @property
        def node(self) -> Any:
            return SimpleNamespace(info=lambda: SimpleNamespace(threads_abandoned=1))

    run = Alone(World.__new__(World), 1, slowest=0.1)
    flat = {"memory": 10**8, "threads": 10, "files": 20, "letters": 1}
    run.measures = [flat] * 4 + [{"memory": 10**9, "threads": 1000, "files": 2000, "letters": 2}]
    run.latencies.extend([0.01] * 50 + [0.2] * 50)

    run.judge()

    assert [violation.split()[0] for violation in run.violations] == [
        "memory",
        "threads",
        "files",
        "1",
        "one",
    ]


def test_letters_of_each_receiver_are_kept_apart() -> None:
    books = Books()
    for to in ("a", "a", "b"):
        books.send(letter(to))
    books.handle(letter("a"))
    books.end("Letter to b", "dead")

    missing = {kind: count for kind, count in books.missing.items() if count}

    assert missing == {"Letter to a": 1}
    assert isinstance(letter("a"), Letter)
