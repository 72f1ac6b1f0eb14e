"""Breaking modules in small ways: each break is a single change, in its place, and the explanations
of surviving breaks are true.
"""

import importlib.util
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import mutants
from benchmarks.mutation import mutants_of

SOURCE = '''
"""Documentation is not broken."""
LIMIT: int = 3


class Box:
    size = 1

    def fits(self, much: float) -> bool:
        if much < LIMIT and self.size:
            return True
        return False


def first(much: int = 0) -> int:
    box = Box()
    box.size = much
    return 1 if box.fits(1) else 0
'''


def test_a_mutant_is_the_module_with_a_single_change_named_by_its_place() -> None:
    made = mutants_of("some.py", SOURCE)

    assert [mutant.name for mutant in made] == [
        "module: 3 -> 4",
        "Box: 1 -> 2",
        "Box.fits: much < LIMIT and self.size -> much < LIMIT or self.size",
        "Box.fits: much < LIMIT -> much <= LIMIT",
        "Box.fits: return True -> return None",
        "Box.fits: True -> False",
        "Box.fits: return False -> return None",
        "Box.fits: False -> True",
        "module: 0 -> 1",
        "first: box.size = much -> pass",
        "first: return 1 if box.fits(1) else 0 -> return None",
        "first: 1 -> 2",
        "first: 1 -> 2 (2)",
        "first: 0 -> 1",
        "Box.fits: self.size -> not self.size",
        "first: box.fits(1) -> not box.fits(1)",
    ]
    assert len({mutant.source for mutant in made} | {SOURCE}) == len(made) + 1
    assert [mutant.name for mutant in made if not mutant.is_inside] == [
        "module: 3 -> 4",
        "Box: 1 -> 2",
        "module: 0 -> 1",
    ]


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name, becomes, untouched",
    [("first: 1 -> 2 (2)", 2, "Box.fits"), ("Box.fits: return True -> return None", 0, "first")],
)
def test_a_mutant_replaces_the_already_imported_code(
    name: str, becomes: int, untouched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "some.py").write_text(SOURCE)
    module = imported(tmp_path / "some.py")
    held, other = module.first, attrgetter(untouched)(module)
    before, code = held(1), other.__code__
    [mutant] = [one for one in mutants_of("some.py", SOURCE) if one.name == name]

    done = mutants.install("some.py", SOURCE, mutant.source)

    assert done
    assert (before, held(1)) == (1, becomes)
    assert other.__code__ is code


def test_the_design_page_shows_the_explanations_of_mutants() -> None:
    known = mutants.explained()

    page = mutants.PAGE.read_text(encoding="utf-8")

    assert f"{mutants.BEGIN}\n\n{mutants.page(known)}\n\n{mutants.END}" in page


@pytest.mark.parametrize("module", mutants.TESTS)
def test_each_mutant_that_is_explained_exists_and_all_are_accounted_for(module: str) -> None:
    known = mutants.explained()[module]

    names = {
        mutant.name
        for mutant in mutants_of(module, (mutants.ROOT / module).read_text(encoding="utf-8"))
    }

    assert set(known.survived) - names == set()
    assert known.killed + len(known.survived) == known.tried <= known.made
    assert all(known.survived.values())
