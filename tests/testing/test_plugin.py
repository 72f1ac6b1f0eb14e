"""The pytest plugin: its fixtures fail tests that leak, pass the others, and it does nothing to
those that do not ask.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import needs_proc

SAMPLES = Path(__file__).parent / "samples"
# Plug-ins that the samples do not need take longer to import than the samples take to run.
LIGHT = [
    f"-pno:{plugin}"
    for plugin in (
        "cacheprovider",
        "hypothesispytest",
        "xdist",
        "pytest_cov",
        "_hypothesis_pytestplugin",
    )
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of pytest for the sample tests, with all plugins that are installed, in a program
    of its own.
    """
    folder = tmp_path_factory.mktemp("samples")
    for sample in SAMPLES.glob("*.py"):
        if sample.stem == "with_anyio" and find_spec("anyio") is None:
            continue
        (folder / f"test_{sample.name}").write_text(sample.read_text(encoding="utf-8"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            *LIGHT,
            "--strict-markers",
            "-W",
            "error",
            str(folder),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout


def outcomes(printed: str, sample: str) -> dict[str, str]:
    # The last word counts: with anyio's plugin a test may have passed before its tear-down fails.
    return dict(re.findall(rf"test_{sample}\.py::(test_\w+)(?:\[\w+\])? (\w+)", printed))


def names(sample: str) -> list[str]:
    return re.findall(
        r"^async def (test_\w+)",
        (SAMPLES / f"{sample}.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    )


@needs_proc
def test_with_pytest_trio_tests_with_leaks_fail_and_name_them(printed: str) -> None:
    found = outcomes(printed, "with_trio")

    assert len(found) == 14, printed
    assert found == {
        name: "PASSED" if name.startswith("test_passes") else "FAILED"
        for name in names("with_trio")
    }, printed
    for complaint in (
        "Fragile crashed: crashed: ValueError: boom",
        "expected any number of crashes with OSError, but there was none",
        "thread 'forgotten' is left",
        "is left: socket:",
        "is left: pipe:",
        "child program",
        "thread 'ergo-deaf-",
        "Busy had to be killed",
    ):
        assert complaint in printed, complaint


def test_with_the_anyio_plugin_tests_with_leaks_fail_too(printed: str) -> None:
    pytest.importorskip("anyio", reason="needs the package anyio")
    found = outcomes(printed, "with_anyio")

    # There the check is a part of the tear-down, so its failure is called an error.
    assert len(found) == 4, printed
    assert found == {
        name: "PASSED" if name.startswith("test_passes") else "ERROR"
        for name in names("with_anyio")
    }, printed


def test_the_plugin_imports_no_package_before_a_test_uses_it() -> None:
    program = (
        "import sys, pytest_ergo_py\n"
        "print([name for name in ('ergo_py', 'trio', 'structlog', 'outcome') if name in "
        "sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200
    )

    assert done.stdout == "[]\n"


def test_pytest_loads_the_plugin_automatically(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin("ergo_py")

    assert getattr(plugin, "__name__", None) == "pytest_ergo_py"
    assert any(line.startswith("ergo_node(") for line in pytestconfig.getini("markers"))


def test_no_fixture_is_used_without_being_asked_for(request: pytest.FixtureRequest) -> None:
    assert not {"node", "virtual_clock", "ergo_node", "ergo_virtual_clock"} & set(
        request.fixturenames
    )


NAMES = """
import pytest

async def test_prefixed_names_are_there(ergo_node, ergo_virtual_clock):
    assert ergo_node.name == "test@localhost"

def test_which_short_names_are_there(request):
    find = request.session._fixturemanager.getfixturedefs
    there = {name for name in ("node", "virtual_clock") if find(name, request.node)}
    assert there == SHORT
"""


@pytest.mark.parametrize(
    "names, there, status",
    [
        ("", {"node", "virtual_clock"}, 0),
        ("prefixed", set(), 0),
        ("none", set(), 4),
    ],
)
def test_a_project_chooses_whether_fixtures_have_short_names(
    tmp_path: Path, names: str, there: set[str], status: int
) -> None:
    (tmp_path / "test_names.py").write_text(NAMES.replace("SHORT", repr(there)), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntrio_mode = true\n" + (f"ergo_py_fixtures = {names}\n" if names else ""),
        encoding="utf-8",
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *LIGHT, "-W", "error", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )

    assert done.returncode == status, done.stdout + done.stderr
    if status:
        assert "ergo_py_fixtures is 'none'; write short or prefixed" in done.stderr
