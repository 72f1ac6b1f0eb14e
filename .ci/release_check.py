"""Check that a release is complete: version, changelog, repository, wheel and sdist.

    python .ci/release_check.py DIST [--upload]

DIST is the folder with the built files. It prints every problem, and exits with status 1 if there
is any; `python -m benchmarks release-check` builds the files first. The addresses in
pyproject.toml are needed for an upload only: a placeholder among them is a problem with --upload,
and a reminder without. The workflow `wheels` builds the wheels that an index takes.
"""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ergo_py"
IN_WHEEL = [
    "ergo_py/__init__.py",
    "ergo_py/py.typed",
    "ergo_py/shell/scaffold/template/pyproject.toml.in",
    "pytest_ergo_py.py",
]
IN_SDIST = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "docs/tutorial.md",
    "examples/counter/main.py",
    "hatch_build.py",
    "pyproject.toml",
    "tests/conftest.py",
    # The C extension is built from all of them.
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"{PACKAGE}/**/*.[ch]")),
]


def project_of(root: Path) -> dict[str, Any]:
    """The table ``[project]`` of pyproject.toml."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = settings["project"]
    return project


def section(changelog: str, version: str) -> str | None:
    """The text of a section of the changelog; None if there is none."""
    found = re.search(
        rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    return None if found is None else found[1].strip()


def problems_of_tree(root: Path) -> Iterator[str]:
    """Problems of the files in the repository."""
    project = project_of(root)
    version = project["version"]
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"the version {version} is no version of a release, such as 0.2.0 or 0.2.0rc1"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not section(changelog, version):
        yield f"CHANGELOG.md has no section for {version}: write ## [{version}] - YYYY-MM-DD"
    elif not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        yield f"the section {version} of CHANGELOG.md has no date: write [{version}] - YYYY-MM-DD"
    if section(changelog, "Unreleased"):
        yield f"the section Unreleased of CHANGELOG.md is not empty: move it to {version}"
    page = "docs/first-steps.md"
    text = (root / page).read_text(encoding="utf-8")
    for shown in sorted(set(re.findall(r"ergo_py-(\d[\w.]*)-py3", text)) - {version}):
        yield f"{page} shows the wheel of version {shown}, not {version}"


def placeholders(root: Path) -> Iterator[str]:
    """Addresses in pyproject.toml that lead nowhere."""
    for name, address in project_of(root).get("urls", {}).items():
        if re.search(r"\.example(/|$)", address):
            yield f"the address {name} of pyproject.toml is the placeholder {address}"


def problems_of_repository(root: Path, version: str) -> Iterator[str]:
    """Uncommitted changes, and a tag at another commit."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    if git("status", "--porcelain"):
        yield "there are uncommitted changes: git status lists them"
    tagged = git("rev-list", "-n", "1", f"v{version}", "--")
    if tagged and tagged != git("rev-parse", "HEAD"):
        yield f"the tag v{version} is at another commit: choose the next version"


def problems_of_files(dist: Path, version: str) -> Iterator[str]:
    """Files that are missing from the wheel and the sdist, or do not belong there."""
    wheels = sorted(dist.glob(f"{PACKAGE}-{version}-*.whl"))
    sdists = sorted(dist.glob(f"{PACKAGE}-{version}.tar.gz"))
    if not wheels:
        yield f"{dist} has no wheel of version {version}"
    if not sdists:
        yield f"{dist} has no sdist of version {version}"
    for path in sorted(set(dist.iterdir()) - {*wheels, *sdists}):
        yield f"{path.name} does not belong to version {version}"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        info = f"{PACKAGE}-{version}.dist-info"
        wanted = [*IN_WHEEL, f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"]
        yield from (f"{wheel.name} lacks {name}" for name in wanted if name not in names)
        yield from (f"{wheel.name} holds {name}" for name in sorted(names) if _is_litter(name))
    for sdist in sdists:
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        yield from (f"{sdist.name} lacks {name}" for name in IN_SDIST if name not in names)
        yield from (f"{sdist.name} holds {name}" for name in sorted(names) if _is_litter(name))


def _is_litter(name: str) -> bool:
    return re.search(r"(^|/)(__pycache__|\.venv|\.git/|\.hypothesis|_build/)", name) is not None


def main(arguments: list[str]) -> int:
    """Print the problems, and return the status."""
    for_upload = "--upload" in arguments
    folders = [Path(each) for each in arguments if each != "--upload"] or [ROOT / "dist"]
    version = project_of(ROOT)["version"]
    addresses = list(placeholders(ROOT))
    problems = [
        *problems_of_tree(ROOT),
        *problems_of_repository(ROOT, version),
        *problems_of_files(folders[0], version),
        *(addresses if for_upload else []),
    ]
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    if addresses and not for_upload:
        sys.stdout.write(f"before the upload, replace {len(addresses)} placeholder addresses\n")
    if problems:
        sys.stdout.write(f"{len(problems)} problems: {PACKAGE} {version} cannot be released yet\n")
        return 1
    sys.stdout.write(f"{PACKAGE} {version} can be released: git tag -s v{version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
