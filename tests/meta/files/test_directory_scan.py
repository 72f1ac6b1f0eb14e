"""The picture of a tree, against a real tree and against a naive model."""

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergo_py.meta.files.directory_scan import Change, Tree

ADDED, MODIFIED, DELETED = Change.ADDED, Change.MODIFIED, Change.DELETED


def pictured(path: Path, *, recursive: bool = True) -> Tree:
    tree = Tree(str(path), recursive=recursive)
    tree.look()
    return tree


def test_added_modified_and_deleted_files_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    tree = pictured(tmp_path)

    file.write_text("a")
    came = tree.look()
    file.write_text("longer")
    changed = tree.look()
    file.unlink()
    went = tree.look()

    assert came == [(ADDED, str(file))]
    assert changed == [(MODIFIED, str(file))]
    assert went == [(DELETED, str(file))]
    assert tree.look() == []


def test_a_directory_is_added_before_its_contents_and_deleted_after_them(tmp_path: Path) -> None:
    tree = pictured(tmp_path)
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").touch()

    came = [Path(path).name for _, path in tree.look()]
    (tmp_path / "d").rename(tmp_path.parent / "elsewhere")
    went = [Path(path).name for _, path in tree.look(str(tmp_path / "d"))]

    assert came == ["d", "e", "f"]
    assert went == ["f", "e", "d"]
    assert len(tree) == 0


def test_a_new_file_is_no_change_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    tree = pictured(tmp_path)

    (tmp_path / "d" / "f").touch()

    assert tree.look() == [(ADDED, str(tmp_path / "d" / "f"))]


def test_a_replaced_file_is_modified_even_with_equal_size_and_time(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    for path in (file, other):
        path.write_text("same")
        os.utime(path, (1, 1))
    tree = pictured(tmp_path)

    other.replace(file)

    assert tree.look() == [(DELETED, str(other)), (MODIFIED, str(file))]


def test_without_recursion_files_in_a_subdirectory_are_not_seen(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    tree = pictured(tmp_path, recursive=False)

    (tmp_path / "d" / "f").touch()
    (tmp_path / "g").touch()

    assert tree.look() == [(ADDED, str(tmp_path / "g"))]


def test_an_ignored_directory_and_its_contents_are_not_seen(tmp_path: Path) -> None:
    tree = Tree(str(tmp_path), ignore=lambda path: path.endswith(".git"))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    (tmp_path / "file").touch()

    assert tree.look() == [(ADDED, str(tmp_path / "file"))]
    assert tree.look(str(tmp_path / ".git")) == []


def test_directories_may_be_nested_deeper_than_the_stack_of_python(tmp_path: Path) -> None:
    deep = [str(tmp_path)]
    for _ in range(1100):
        deep.append(f"{deep[-1]}/d")
        os.mkdir(deep[-1])
    tree = Tree(str(tmp_path))
    try:
        assert tree.look() == [(ADDED, path) for path in deep[1:]]
        assert tree.is_directory(deep[-1])
    finally:
        # Here, since the removal of old test directories may be recursive.
        for path in reversed(deep[1:]):
            os.rmdir(path)
    assert tree.look() == [(DELETED, path) for path in reversed(deep[1:])]


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    tree = Tree(str(tmp_path))

    assert tree.look() == [(ADDED, str(tmp_path / "loop"))]


NAMES = st.sampled_from(["a", "b", "a/c", "a/d", "b/e", "b/e/f"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "mkdir", "remove", "look", "look at"]), NAMES),
    min_size=1,
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_scan_of_changed_paths_finds_as_much_as_a_full_scan(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    root.mkdir()
    tree = Tree(str(root))
    told: dict[str, Change] = {}
    touched: set[str] = set()
    count = 0

    for step, name in [*steps, ("look at", "a")]:
        path = root / name
        count += 1
        try:
            match step:
                case "write":
                    path.write_text("x" * count)
                case "mkdir":
                    path.mkdir()
                case "remove" if path.is_dir():
                    path.rename(tmp_path / f"{root.name}-{count}")
                case "remove":
                    path.unlink()
            touched.add(str(path))
        except OSError:
            continue
        changes = []
        if step == "look":
            changes = tree.look()
        elif step == "look at":
            changes = tree.look(*touched)
        if step.startswith("look"):
            touched.clear()
        for change, where in changes:
            assert (change is ADDED) == (told.get(where, DELETED) is DELETED)
            told[where] = change

    there = {str(path) for path in root.rglob("*")}
    assert {path for path, change in told.items() if change is not DELETED} == there
    assert set(tree.paths()) == there
