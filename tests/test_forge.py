"""The files for a forge, a container and an editor run the commands of this project, with the
versions that it supports.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.commands import COMMANDS

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [
    version
    for classifier in PROJECT["classifiers"]
    if (version := classifier.removeprefix("Programming Language :: Python :: ")).startswith("3.")
]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def is_known(command: str) -> bool:
    """Whether a command is a target of make, a command of the benchmarks or a program of .ci."""
    match command.removeprefix(".venv/bin/").split():
        case ["make", target]:
            return bool(re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE))
        case ["python", "-m", "benchmarks", name]:
            return name in COMMANDS
        case [program]:
            return program.startswith(".ci/") and (ROOT / program).is_file()
    return False


def test_the_workflow_runs_make_check_on_every_supported_python_on_linux_and_macos() -> None:
    job = load(".github/workflows/check.yml")["jobs"]["check"]

    assert job["strategy"]["matrix"] == {
        "python": PYTHONS,
        "system": ["ubuntu-latest", "macos-latest"],
    }
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make check"]


def test_every_command_of_the_workflow_exists() -> None:
    jobs = load(".github/workflows/check.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]

    assert {"make check", ".ci/test-bounds", "make walk"} <= set(commands)
    assert ".venv/bin/python -m benchmarks release-check" in commands
    assert [command for command in commands if not is_known(command)] == []


def test_the_workflow_of_the_wheels_builds_each_kind_and_publishes_tags_only() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    workflow = load(".github/workflows/wheels.yml")
    jobs, runs = workflow["jobs"], {}
    for name, job in jobs.items():
        runs[name] = [step["run"] for step in job["steps"] if "run" in step]

    built = settings["cibuildwheel"]["build"].split()
    assert built == [f"cp{version.replace('.', '')}-*" for version in PYTHONS]
    systems = jobs["platform"]["strategy"]["matrix"]["system"]
    assert {system.partition("-")[0] for system in systems} == {"ubuntu", "macos"}
    assert runs["platform"][-1] == "python -m cibuildwheel --output-dir dist"
    assert runs["pure"] == ["make build", ".ci/test-wheels"]
    assert all(map(is_known, runs["pure"]))
    assert jobs["publish"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == ["platform", "pure"]
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda p: p.stem)
def test_every_action_is_pinned_by_the_hash_of_its_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)

    assert used
    unpinned = [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each)]
    assert unpinned == []


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda p: p.stem)
def test_no_checkout_leaves_the_credentials_of_the_workflow_behind(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    kept = text.count("uses: actions/checkout@") - text.count("persist-credentials: false")
    assert kept == 0


def test_the_local_run_of_the_checks_is_that_of_the_workflow() -> None:
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").endswith("exec make check\n")


def test_the_hooks_of_pre_commit_are_targets_of_make() -> None:
    (repository,) = load(".pre-commit-config.yaml")["repos"]

    assert repository["repo"] == "local"
    assert [hook for hook in repository["hooks"] if not is_known(hook["entry"])] == []


def test_the_development_container_is_set_up_by_make() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))

    assert is_known(container["postCreateCommand"])
    assert container["image"].rpartition(":")[2] in PYTHONS


def test_the_image_installs_as_the_first_steps_say_and_runs_the_demonstration() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    demo = re.search(r"^DEMO +\?= (.+)$", MAKEFILE, re.MULTILINE)

    assert demo is not None
    assert steps == [
        ("FROM", "python:3.13-slim"),
        ("COPY", ". /source"),
        ("RUN", "pip install --no-cache-dir /source"),
        ("WORKDIR", "/demo"),
        ("COPY", "examples examples"),
        ("USER", "nobody"),
        ("CMD", json.dumps(["python", *demo[1].split()])),
    ]
    page = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")
    assert all(line.removeprefix("#   ") in page for line in lines[1:3])


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_a_form_for_issues_has_fields_with_labels(name: str) -> None:
    form = load(f".github/ISSUE_TEMPLATE/{name}")

    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids) > 0
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_template_of_a_pull_request_names_the_checks() -> None:
    template = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")

    assert all(map(is_known, re.findall(r"`(make [a-z-]+)`", template)))
    assert "*Deprecation* in `CONTRIBUTING.md`" in template
    assert "\n## Deprecation\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_commands_of_the_release_process_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Releases")[2]
    commands = re.findall(r"`((?:make|python -m benchmarks) [a-z-]+)`", text)

    assert "python -m benchmarks release-check" in commands
    assert [command for command in commands if not is_known(command)] == []


def test_the_metadata_names_addresses_and_platforms() -> None:
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} == PROJECT["urls"].keys()
    assert {"Operating System :: POSIX :: Linux", "Operating System :: MacOS"} <= set(
        PROJECT["classifiers"]
    )
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or later" in (
        ROOT / "README.md"
    ).read_text(encoding="utf-8")


def test_dependencies_have_a_lowest_version_that_test_bounds_can_install() -> None:
    for bounds in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        assert [bound for bound in bounds if not re.fullmatch(r"[\w-]+>=[\d.]+", bound)] == []
