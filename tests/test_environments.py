"""The odd environments in which ``python -m benchmarks test-environments`` runs the tests
have the properties they are named after.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENVIRONMENT = str(ROOT / ".ci" / "environment")

# A program for each, which fails in an ordinary environment.
PROOFS = {
    "fresh-clock": "import time; assert time.monotonic() < 300",
    "long-tmpdir": "import tempfile; assert len(tempfile.gettempdir()) == 100",
    "no-ipv6": """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
try:
    with socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
except OSError:
    pass
else:
    raise AssertionError("there is IPv6")
""",
    "ascii": """
import sys, locale
assert sys.stdout.encoding == 'ascii'
assert locale.getpreferredencoding() != 'UTF-8'
""",
    "no-proc": """
import os
assert not os.path.exists('/proc/self')
assert not os.path.exists('/dev/fd/0')
""",
    "no-eventfd": "import os; assert not hasattr(os, 'eventfd')",
    "ignored-signals": """
import signal
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    assert signal.getsignal(number) is signal.SIG_IGN
""",
    "user-settings": """
import os, shutil
assert os.umask(0) == 0o077
assert shutil.get_terminal_size() == (41, 11)
assert "NO_COLOR" in os.environ and "TERM" not in os.environ
""",
    "no-capabilities": """
import os, tempfile
with tempfile.NamedTemporaryFile() as file:
    try:
        os.chown(file.name, os.geteuid() + 1, -1)
    except PermissionError:
        pass
    else:
        raise AssertionError("the file has another owner")
""",
    "trio-turns": "import os; assert os.environ['ERGO_DIRECT_HANDOFF'] == '0'",
}


def within(name: str, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [ENVIRONMENT, name, *command],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", PROOFS)
def test_an_odd_environment_has_its_property_or_is_skipped_with_a_reason(name: str) -> None:
    done = within(name, sys.executable, "-c", PROOFS[name])

    if done.returncode == 77:
        assert re.fullmatch(rf"{name}: skipped: [^\n]+\n", done.stdout)
        pytest.skip(done.stdout.strip())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", PROOFS)
def test_the_exit_status_of_the_command_is_passed_on(name: str) -> None:
    assert within(name, "sh", "-c", "exit 5").returncode in (5, 77)


def test_every_environment_is_tried_here() -> None:
    assert subprocess.run(
        [ENVIRONMENT], capture_output=True, encoding="utf-8", check=True
    ).stdout.split() == [*PROOFS]
    assert within("nowhere", "true").returncode == 2


def test_unavailable_environments_are_skipped_with_their_reason(tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text(
        "#!/bin/sh\necho 'unshare: not permitted here' >&2\nexit 1\n", encoding="utf-8"
    )
    refusing.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        [ROOT / ".ci" / "test-environments", "fresh-clock ascii", "true"],
        env={**os.environ, "PATH": path, "PYTHON": sys.executable},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "fresh-clock: skipped: no time namespace: unshare: not permitted here\n" in done.stdout
    assert done.stdout.endswith("passed:  ascii\nfailed:  none\nskipped: fresh-clock\n")
