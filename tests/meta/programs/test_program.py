"""Programs without a port around them: the user they run as, where they are found, and how they are
ended.
"""

import os
import pwd
import signal
import sys
from pathlib import Path

import pytest
import trio

from ergo_py import BadInputError, NotAllowedError
from ergo_py.meta import Port
from ergo_py.meta.programs.options import ProgramOptions
from ergo_py.meta.programs.program import Program
from tests.meta.support import process_groups
from tests.support import needs_proc


def test_a_program_is_searched_along_its_own_path_or_else_along_ours(
    tmp_path: Path,
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    options = ProgramOptions(["tool"])

    assert options.path({"PATH": str(tmp_path)}) == str(tool)
    assert ProgramOptions(["sh"]).path({}).endswith("/sh")
    assert ProgramOptions(["./tool"]).path({}) == "./tool"
    with pytest.raises(FileNotFoundError):
        options.path({"PATH": "/nowhere"})


def test_a_user_comes_with_all_its_groups_and_may_be_a_number() -> None:
    nobody = pwd.getpwnam("nobody")
    groups = os.getgrouplist("nobody", nobody.pw_gid)

    assert ProgramOptions(["true"]).identity() == (None, None, None)
    assert ProgramOptions(["true"], user="nobody").identity() == (
        nobody.pw_uid,
        nobody.pw_gid,
        groups,
    )
    assert ProgramOptions(["true"], user=nobody.pw_uid).identity() == (
        nobody.pw_uid,
        nobody.pw_gid,
        groups,
    )
    assert ProgramOptions(["true"], user="nobody", group=7).identity() == (nobody.pw_uid, 7, groups)
    assert ProgramOptions(["true"], group="root").identity() == (None, 0, None)
    with pytest.raises(BadInputError):
        ProgramOptions(["true"], group="surely-no-such-group").identity()


def test_values_of_the_environment_are_not_shown() -> None:
    options = ProgramOptions(["true"], env={"TOKEN": "s3cret"})

    assert "s3cret" not in repr(options)


@pytest.mark.parametrize("times", [{"close": -1}, {"terminate": "long"}, {"kill": float("nan")}])
def test_invalid_times_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(BadInputError):
        Port.StopTimes(**times)


@pytest.mark.parametrize("size", [{"rows": 0}, {"columns": 70_000}])
def test_invalid_terminals_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(BadInputError):
        Port.Terminal(**size)


def test_the_error_of_a_failed_program_shows_its_status_or_signal() -> None:
    assert str(Port.FailedError("tool", 3, None)) == "tool ended with status 3"
    assert str(Port.FailedError("tool", None, signal.SIGSEGV)) == "tool died of SIGSEGV"
    assert str(Port.FailedError("tool", None, 1234)) == "tool died of signal 1234"


async def test_no_program_is_started_while_sigchld_is_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(NotAllowedError, match="SIGCHLD is ignored"):
            await Program.start(ProgramOptions(["false"]))
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_closing_kills_the_program_at_once_and_may_be_repeated() -> None:
    with trio.fail_after(30):
        program = await Program.start(ProgramOptions(["sleep", "60"]))

        assert program.pid in process_groups()
        program.close()
        program.close()

    assert program.returncode == -signal.SIGKILL
    assert program.is_gone
    assert program.pid not in process_groups()
    assert program.signal(signal.SIGTERM) is False


async def test_a_full_terminal_does_not_delay_the_end_of_the_program() -> None:
    with trio.fail_after(30):
        program = await Program.start(ProgramOptions(["sleep", "60"], terminal=Port.Terminal()))
        # Filled to the brim, so that not even the end of the input can be written.
        os.set_blocking(program.stdin.fileno(), False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(program.stdin.fileno(), b"x" * 4096)

        ended = await program.end(Port.StopTimes(0.01, 5.0, 1.0), at_once=False)
        program.close()

    assert ended
    assert program.returncode in (-signal.SIGTERM, -signal.SIGHUP)


NEGLECTFUL = """
import os, sys, time
keeper = os.fork()
if keeper == 0:
    if os.fork() == 0:
        os._exit(0)
    # Outside of the group, but still the parent of a member, and never collects its status.
    os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(0.1)
"""


@needs_proc
async def test_zombies_of_the_process_group_count_as_ended() -> None:
    with trio.fail_after(30):
        program = await Program.start(ProgramOptions([sys.executable, "-c", NEGLECTFUL]))
        keeper = int(await program.stdout.receive_some())
        try:
            ended = await program.end(Port.StopTimes(60.0, 60.0, 60.0), at_once=False)
        finally:
            os.kill(keeper, signal.SIGKILL)
            program.close()

    assert ended
