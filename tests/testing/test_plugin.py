"""The pytest plugin: its fixtures fail tests that leak, pass the others, and it does nothing to those that do not ask."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"
# What the samples do not need takes longer to import than they take to run.
LIGHT = [
    f"-pno:{plugin}"
    for plugin in ("cacheprovider", "hypothesispytest", "xdist", "pytest_cov", "_hypothesis_pytestplugin")
]


def run(sample: str, folder: Path, *options: str) -> tuple[dict[str, str], str]:
    """Run sample tests in a program of their own; the outcome of each, and what was printed."""
    (folder / f"test_{sample}.py").write_text((SAMPLES / f"{sample}.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *LIGHT, "--strict-markers", *options, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return dict(re.findall(r"::(test_\w+)(?:\[\w+\])? (\w+)", done.stdout)), done.stdout


def test_with_pytest_trio_tests_that_leave_something_fail_and_say_what(tmp_path: Path) -> None:
    outcomes, printed = run("with_trio", tmp_path, "-o", "trio_mode=true", "-W", "error")

    names = re.findall(r"^(?:async )?def (test_\w+)", (SAMPLES / "with_trio.py").read_text(), re.MULTILINE)
    expected = {name: "PASSED" if name.startswith("test_passes") else "FAILED" for name in names}
    assert len(names) >= 14
    assert outcomes == expected, printed
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


def test_with_the_plugin_of_anyio_they_do_so_as_well(tmp_path: Path) -> None:
    pytest.importorskip("anyio")

    outcomes, printed = run("with_anyio", tmp_path, "-p", "no:trio")

    # There the check is a part of the tear-down, so what fails it is called an error.
    assert outcomes == {
        "test_passes_clean": "PASSED",
        "test_passes_threads": "PASSED",
        "test_fails_crash": "ERROR",
        "test_fails_socket": "ERROR",
    }, printed
    assert "Fragile crashed: crashed: ValueError: boom" in printed
    assert "is left: socket:" in printed


def test_nothing_is_imported_until_a_test_asks() -> None:
    program = (
        "import sys, pytest_ergo_py\n"
        "print([name for name in ('ergo_py', 'trio', 'structlog', 'outcome') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "[]\n"


def test_pytest_finds_the_plugin_by_itself(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin("ergo_py")

    assert getattr(plugin, "__name__", None) == "pytest_ergo_py"
    assert any(line.startswith("ergo_node(") for line in pytestconfig.getini("markers"))


def test_no_fixture_is_used_without_being_asked_for(request: pytest.FixtureRequest) -> None:
    assert not {"node", "virtual_clock"} & set(request.fixturenames)
