"""`.ci/release_check.py`: a release with a gap is refused, with every gap named."""

import importlib.util
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci/release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load()

FIRST_STEPS = "docs/first-steps.md"
CHANGELOG = """\
# Changelog

## [Unreleased]

## [1.2.0] - 2026-11-30

### Added

- A feature.

## [1.1.0] - 2026-01-01

- The first.
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of a project that can be released."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "ergo_py"\nversion = "1.2.0"\n'
        'urls.Source = "https://forge.org/ergo_py"\n',
        encoding="utf-8",
    )
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / FIRST_STEPS).write_text("ergo_py-1.2.0-py3-none-any.whl", encoding="utf-8")
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_complete_tree_has_no_problems(tree: Path) -> None:
    assert list(check.problems_of_tree(tree)) == []


@pytest.mark.parametrize(
    "file, old, new, problem",
    [
        ("CHANGELOG.md", "[1.2.0]", "[1.3.0]", "CHANGELOG.md has no section for 1.2.0"),
        ("CHANGELOG.md", " - 2026-11-30", "", "the section 1.2.0 of CHANGELOG.md has no date"),
        ("CHANGELOG.md", "sed]\n", "sed]\n\n- More.\n", "Unreleased of CHANGELOG.md is not empty"),
        ("pyproject.toml", '"1.2.0"', '"1.2.0.dev1"', "1.2.0.dev1 is no version of a release"),
        (
            FIRST_STEPS,
            "1.2.0",
            "1.1.0",
            f"{FIRST_STEPS} shows the wheel of version 1.1.0, not 1.2.0",
        ),
    ],
)
def test_a_gap_in_the_tree_is_named(
    file: str, old: str, new: str, problem: str, tree: Path
) -> None:
    replace(tree / file, old, new)

    assert problem in "\n".join(check.problems_of_tree(tree))


def test_a_placeholder_address_stops_an_upload_and_is_a_reminder_before(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tree, "init", "--quiet")
    replace(tree / "pyproject.toml", "forge.org", "forge.example")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "first")
    dist = tree.parent / f"{tree.name} dist"
    build(dist, wheel=[*check.IN_WHEEL, *INFO], sdist=check.IN_SDIST)
    monkeypatch.setattr(check, "ROOT", tree)

    assert check.main([str(dist)]) == 0
    assert capsys.readouterr().out == (
        "before the upload, replace 1 placeholder addresses\n"
        "ergo_py 1.2.0 can be released: git tag -s v1.2.0\n"
    )
    assert check.main([str(dist), "--upload"]) == 1
    assert capsys.readouterr().out == (
        "the address Source of pyproject.toml is the placeholder https://forge.example/ergo_py\n"
        "1 problems: ergo_py 1.2.0 cannot be released yet\n"
    )


def git(tree: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=tree, check=True, capture_output=True)


def test_uncommitted_changes_and_a_tag_elsewhere_are_named(tree: Path) -> None:
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "first")
    assert list(check.problems_of_repository(tree, "1.2.0")) == []
    git(tree, "tag", "v1.2.0")
    assert list(check.problems_of_repository(tree, "1.2.0")) == []

    replace(tree / FIRST_STEPS, "ergo_py", "ergo")
    assert list(check.problems_of_repository(tree, "1.2.0")) == [
        "there are uncommitted changes: git status lists them"
    ]
    git(tree, "commit", "--quiet", "--all", "--message", "second")
    assert list(check.problems_of_repository(tree, "1.2.0")) == [
        "the tag v1.2.0 is at another commit: choose the next version"
    ]


def build(dist: Path, *, wheel: list[str], sdist: list[str]) -> None:
    dist.mkdir()
    with zipfile.ZipFile(dist / "ergo_py-1.2.0-py3-none-any.whl", "w") as archive:
        for name in wheel:
            archive.writestr(name, "")
    with tarfile.open(dist / "ergo_py-1.2.0.tar.gz", "w:gz") as files:
        for name in sdist:
            files.addfile(tarfile.TarInfo(f"ergo_py-1.2.0/{name}"), io.BytesIO())


INFO = [f"ergo_py-1.2.0.dist-info/{name}" for name in ("licenses/LICENSE", "entry_points.txt")]


def test_complete_files_have_no_problems(tmp_path: Path) -> None:
    build(tmp_path / "dist", wheel=[*check.IN_WHEEL, *INFO], sdist=check.IN_SDIST)

    assert list(check.problems_of_files(tmp_path / "dist", "1.2.0")) == []


def test_missing_and_superfluous_files_are_named(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    build(dist, wheel=[*check.IN_WHEEL[1:], *INFO], sdist=[*check.IN_SDIST, "a/__pycache__/b.pyc"])
    (dist / "ergo_py-1.1.0.tar.gz").touch()

    assert list(check.problems_of_files(dist, "1.2.0")) == [
        "ergo_py-1.1.0.tar.gz does not belong to version 1.2.0",
        "ergo_py-1.2.0-py3-none-any.whl lacks ergo_py/__init__.py",
        "ergo_py-1.2.0.tar.gz holds a/__pycache__/b.pyc",
    ]


def test_an_empty_folder_has_neither_wheel_nor_sdist(tmp_path: Path) -> None:
    assert list(check.problems_of_files(tmp_path, "1.2.0")) == [
        f"{tmp_path} has no wheel of version 1.2.0",
        f"{tmp_path} has no sdist of version 1.2.0",
    ]


def test_the_files_that_a_release_needs_are_in_this_repository() -> None:
    missing = [name for name in check.IN_WHEEL + check.IN_SDIST if not (ROOT / name).is_file()]

    assert missing == []


def test_this_repository_has_a_dated_section_of_its_version_in_the_changelog() -> None:
    problems = list(check.problems_of_tree(ROOT))

    # Between releases the next section collects changes.
    assert [each for each in problems if "Unreleased" not in each] == []
