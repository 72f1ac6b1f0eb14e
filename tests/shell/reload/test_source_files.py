"""`SourceFiles`: the watched files of a program."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

import ergo_py
from ergo_py.shell.reload.source_files import SourceFiles


def module(path: Path) -> ModuleType:
    made = ModuleType(path.stem)
    made.__file__ = str(path)
    return made


def test_a_changed_file_of_a_module_is_told_once(tmp_path: Path) -> None:
    program, later = tmp_path / "program.py", tmp_path / "later.py"
    program.write_text("a = 1", encoding="utf-8")
    later.write_text("b = 1", encoding="utf-8")
    modules = {"program": module(program), "builtin": ModuleType("builtin")}
    files = SourceFiles(modules)
    assert files.changed() == []

    program.write_text("a = 10", encoding="utf-8")
    modules["later"] = module(later)
    assert files.changed() == [str(program)]
    assert files.changed() == []
    later.write_text("b = 10", encoding="utf-8")
    assert files.changed() == [str(later)]


def test_a_file_that_each_start_writes_is_told_by_the_first_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, now = tmp_path / "written.py", 100
    written.write_text("a = 1", encoding="utf-8")
    monkeypatch.setattr("ergo_py.shell.reload.source_files.time_ns", lambda: now)

    def load(known: Iterable[str] = ()) -> SourceFiles:
        nonlocal now
        files = SourceFiles({"written": module(written)})
        files.know(known)
        os.utime(written, ns=(now + 50, now + 50))
        now += 100
        files.note_loaded()
        return files

    first = load()
    assert first.changed() == [str(written)]
    second = load(first.written)
    assert second.changed() == []
    assert second.written == {str(written)}


def test_a_file_that_is_replaced_has_changed_and_a_missing_file_has_not(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("a = 1", encoding="utf-8")
    files = SourceFiles({})
    files.add(str(program))

    program.unlink()
    assert files.changed() == []
    program.write_text("a = 10", encoding="utf-8")
    assert files.changed() == [str(program)]


@pytest.mark.parametrize("own", [ergo_py, json, pytest])
def test_files_of_python_of_packages_and_of_ergo_py_are_not_watched(
    own: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def look(path: str) -> None:
        looked.append(path)

    monkeypatch.setattr("ergo_py.shell.reload.source_files._stamp", look)
    SourceFiles({"own": own}).changed()
    assert looked == []


def test_files_of_a_failed_import_are_watched(tmp_path: Path) -> None:
    broken, raising = tmp_path / "broken.py", tmp_path / "raising.py"
    broken.write_text("def", encoding="utf-8")
    raising.write_text("import broken", encoding="utf-8")
    files = SourceFiles({})
    sys.path.insert(0, str(tmp_path))
    try:
        __import__("raising")
    except SyntaxError as error:
        files.add_failed(error)
    finally:
        sys.path.remove(str(tmp_path))

    for path in (broken, raising):
        path.write_text("fixed = True", encoding="utf-8")
        assert files.changed() == [str(path)]


def test_a_file_that_changes_while_the_program_is_loaded_is_told_afterwards(
    tmp_path: Path,
) -> None:
    program, early, late, ahead = [tmp_path / f"{name}.py" for name in ("a", "b", "c", "d")]
    for path in (program, early, late, ahead):
        path.write_text("a = 1", encoding="utf-8")
        os.utime(path, (1000, 1000))
    files = SourceFiles({path.stem: module(path) for path in (early, late, ahead)})
    files.add(str(program))

    program.write_text("a = 10", encoding="utf-8")
    os.utime(program, (2000, 2000))
    late.write_text("a = 10", encoding="utf-8")
    now = late.stat().st_mtime + 1000
    os.utime(ahead, (now, now))  # as a clock of another machine
    files.note_loaded()

    assert files.changed() == [str(program), str(late)]
    assert files.changed() == []


@pytest.mark.parametrize("created", ["later.py", "later/__init__.py", "later/part.py"])
def test_a_missing_module_is_noticed_when_it_comes(
    created: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    files = SourceFiles({})
    try:
        __import__("later.part")
    except ImportError as error:
        files.add_failed(error)
    assert files.changed() == []

    path = tmp_path / created
    path.parent.mkdir(exist_ok=True)
    path.write_text("", encoding="utf-8")

    assert files.changed() != []
