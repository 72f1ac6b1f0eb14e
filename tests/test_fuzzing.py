"""Any input from outside is understood or refused: the findings of fuzzing are tried again, and a
few new inputs are made up.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings

from benchmarks import fuzzing
from benchmarks.fuzzing import CORPUS, TARGETS, corpus_of, made_up

KEPT = [
    pytest.param(target, path, id=f"{target}: {path.stem}")
    for target in TARGETS
    for path in corpus_of(target)
]


@pytest.mark.parametrize("target,path", KEPT)
def test_inputs_of_the_corpus_do_not_fail(target: str, path: Path) -> None:
    outcome = TARGETS[target](path.read_bytes())

    assert outcome


@pytest.mark.parametrize("target", TARGETS)
def test_generated_inputs_do_not_fail(target: str) -> None:
    outcomes: set[str] = set()

    @settings(max_examples=30)
    @given(made_up(target))
    def attempt(data: bytes) -> None:
        outcomes.add(TARGETS[target](data))

    attempt()

    assert outcomes


def test_every_target_has_a_corpus() -> None:
    kept = {target for target in TARGETS if corpus_of(target)}

    assert kept == set(TARGETS)
    assert all(path.stat().st_size <= 64 * 1024 for path in CORPUS.rglob("*.bin"))


def test_failures_are_printed_and_new_inputs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fragile(data: bytes) -> str:
        assert b"\x00" not in data, "it broke"
        return "short" if len(data) < 3 else "long"

    monkeypatch.setattr(fuzzing, "CORPUS", tmp_path / "a" / "corpus")
    monkeypatch.setattr(fuzzing, "TARGETS", {"fragile": fragile})

    status = fuzzing.main(["--minutes", "0.02"])

    assert status == 1
    assert "it broke" in capsys.readouterr().out
    assert len(list((tmp_path / "a" / "corpus" / "fragile").glob("*.bin"))) in (1, 2)
