"""The ledger that is killed while clients call it: nothing is lost, and the README tells what it prints."""

import re
import subprocess
import sys

from tests.examples.programs import EXAMPLES, ROOT


def test_the_killed_ledger_loses_nothing_and_the_readme_says_what_it_prints() -> None:
    readme = (EXAMPLES / "service" / "README.md").read_text()
    [promised] = re.findall(r"^```text\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "service" / "main.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == promised
    assert "500 deposits made, 500 in the store, 500 in all" in done.stdout
