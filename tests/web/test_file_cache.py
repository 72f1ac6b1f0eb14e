"""The files in memory: how many, and which of them."""

import os
from pathlib import Path

import pytest

from ergo_py.web import Response
from ergo_py.web.mounts import file_cache
from ergo_py.web.mounts.file_cache import FileCache, StoredFile, mark_of
from ergo_py.web.mounts.file_facts import FileFacts


def store(path: Path, size: int, changed: float = 0.0) -> StoredFile:
    path.write_bytes(bytes(size))
    facts = path.stat()
    return StoredFile(
        FileFacts(facts.st_size, facts.st_mtime_ns, path.name, "", 0),
        Response(200, bytes(size)),
        [(str(path), mark_of(facts)), (f"{path}.gz", None)],
        is_local=True,
        changed=changed,
    )


def key(name: str) -> tuple[tuple[str, ...], bool]:
    return (name,), False


def test_the_files_that_were_not_used_go_first(tmp_path: Path) -> None:
    cache = FileCache(300)
    for name in "abc":
        cache.put(key(name), store(tmp_path / name, 100))
    assert cache.get(key("a")) is not None

    cache.put(key("d"), store(tmp_path / "d", 100))

    assert [name for name in "abcd" if cache.get(key(name)) is not None] == ["a", "c", "d"]
    assert (len(cache), cache.size) == (3, 300)


@pytest.mark.parametrize("size,is_kept", [(99, True), (100, True), (101, False)])
def test_a_file_longer_than_the_limit_is_not_kept(tmp_path: Path, size: int, is_kept: bool) -> None:
    cache = FileCache(100)
    cache.put(key("a"), store(tmp_path / "a", size))

    assert (cache.get(key("a")) is not None) is is_kept
    assert cache.size == (size if is_kept else 0)


def test_another_version_takes_the_place_of_a_file(tmp_path: Path) -> None:
    cache = FileCache(100)
    cache.put(key("a"), store(tmp_path / "a", 60))
    cache.put(key("a"), store(tmp_path / "a", 70))
    assert (len(cache), cache.size) == (1, 70)

    cache.put(key("a"), store(tmp_path / "a", 200))
    assert (len(cache), cache.size) == (0, 0)


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "_MOST_FILES", 2)
    cache = FileCache(100)
    for name in "abc":
        cache.put(key(name), store(tmp_path / name, 0))

    assert (len(cache), cache.get(key("a"))) == (2, None)


@pytest.mark.parametrize("age,is_kept", [(-5.0, False), (1.9, False), (2.1, True)])
def test_a_file_that_has_just_changed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, is_kept: bool
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    cache = FileCache(100)
    cache.put(key("a"), store(tmp_path / "a", 5, changed=1_000.0 - age))

    assert (cache.get(key("a")) is not None) is is_kept


@pytest.mark.parametrize("change", ["none", "times", "content", "removed", "packed"])
def test_a_stored_file_is_current_until_its_paths_lead_elsewhere(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "a"
    stored = store(path, 5)
    match change:
        case "times":
            os.utime(path, (1, 1))
        case "content":
            path.write_bytes(b"longer than before")
        case "removed":
            path.unlink()
        case "packed":
            (tmp_path / "a.gz").touch()

    assert stored.is_current() is (change == "none")
