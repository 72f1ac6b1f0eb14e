"""A program ends with the program that started it, whatever its code does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ergo_py.meta.programs.lifeline import LIFELINE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends the signal")

# The expression holds the lock of the interpreter, so no thread of Python could end the program.
STUCK = """
import re, signal
from ergo_py.meta.programs.lifeline import LIFELINE, end_with_parent

end_with_parent(signal.Signals({by}))
print("ready", flush=True)
re.match("(a+)+$", "a" * 100 + "b")
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "by, ending", [(signal.SIGKILL, signal.SIGKILL), (signal.SIGHUP, signal.SIGALRM)]
)
def test_a_stuck_program_ends_when_its_lifeline_ends(
    moment: str, by: signal.Signals, ending: signal.Signals
) -> None:
    reading, writing = os.pipe()
    if moment == "before":
        os.close(writing)
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.format(by=int(by))],
        stdout=subprocess.PIPE,
        env={**os.environ, LIFELINE: str(reading)},
        pass_fds=[reading],
        cwd=Path(__file__).parents[3],
    ) as program:
        os.close(reading)
        assert program.stdout is not None
        if moment == "after":
            assert program.stdout.readline() == b"ready\n"
            assert program.poll() is None
            os.close(writing)  # SIGHUP has the number 1, so the alarm follows after a second

        assert program.wait(60) == -ending


def test_a_program_without_a_lifeline_goes_on() -> None:
    program = (
        "import signal; from ergo_py.meta.programs.lifeline import end_with_parent; "
        "end_with_parent(signal.SIGKILL); print('goes on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        timeout=60,
        check=True,
    )

    assert done.stdout == b"goes on\n"
