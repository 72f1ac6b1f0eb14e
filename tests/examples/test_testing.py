"""The tests of the thermostat pass, and the README says how many there are."""

import re
import subprocess
import sys

from tests.examples.programs import EXAMPLES, ROOT

NO_PLUGINS = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "xdist", "pytest_cov")]


def test_the_tests_of_the_example_pass_as_its_readme_says() -> None:
    readme = (EXAMPLES / "testing" / "README.md").read_text()
    [promised] = re.findall(r"^```text\n(.*?)\n```$", readme, re.MULTILINE | re.DOTALL)

    done = subprocess.run(
        # Without what takes longer to import than the tests take to run.
        [sys.executable, "-m", "pytest", "-q", *NO_PLUGINS, "examples/testing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert f"{promised} in" in done.stdout


def test_the_page_about_testing_shows_every_test_of_the_example() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()

    tests = re.findall(
        r"^(?:async )?def (test_\w+)", (EXAMPLES / "testing" / "test_thermostat.py").read_text(), re.MULTILINE
    )

    assert len(tests) == 11
    assert [name for name in tests if f":pyobject: {name}\n" not in page] == []
