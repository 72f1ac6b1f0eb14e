"""Ports, against real programs."""

import os
import pwd
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from ergo_py import (
    BadInputError,
    CallTimeoutError,
    Crashed,
    InitError,
    Killed,
    Normal,
    Shutdown,
    SpawnError,
)
from ergo_py.errors import UnhandledCallError
from ergo_py.meta import Port
from ergo_py.meta.parsing.decoder import FramingError
from ergo_py.meta.parsing.framing import LengthHeader, Raw
from ergo_py.meta.parsing.lines import Text
from ergo_py.meta.programs.messages import (
    PortCloseInput,
    PortData,
    PortErrorData,
    PortErrorLine,
    PortExited,
    PortInputLost,
    PortLine,
    PortResize,
    PortSignal,
    PortStarted,
    PortWrite,
)
from tests.meta.owner import Owned, eventually, owning
from tests.support import needs_proc

QUICK = Port.StopTimes(0.05, 0.3, 1.0)
IGNORES_TERM = ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]


def lines(owned: Owned) -> list[str]:
    return [message.line for message in owned.of(PortLine)]


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in b"ZX"
    except FileNotFoundError:
        return False


# -- traffic ---------------------------------------------------------------------------------------


async def test_the_output_of_a_program_becomes_messages_between_start_and_exit() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sh", "-c", "echo one; echo two; printf three"]))
        exited = await owned.until(PortExited)
        reason = await owned.down()

        first = owned.heard[0]
        assert isinstance(first, PortStarted)
        assert first.port == port
        assert lines(owned) == ["one", "two", "three"]
        assert (exited.status, exited.signal, exited.bytes_out, exited.bytes_err) == (
            0,
            None,
            13,
            0,
        )
        assert exited.seconds >= 0
        assert reason == Normal()


async def test_a_write_by_call_is_answered_when_written_and_close_input_ends_a_sort() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sort"]))

        written = await owned.node.call(port, PortWrite("pear\napple\n"))
        owned.node.send(port, PortWrite(b"fig\n"))
        await owned.node.call(port, PortCloseInput())
        exited = await owned.until(PortExited)

        assert written == 11
        assert lines(owned) == ["apple", "fig", "pear"]
        assert exited.bytes_in == 15


async def test_error_output_is_kept_apart_from_output() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "echo good; echo bad >&2"]))
        await owned.until(PortExited)

        assert lines(owned) == ["good"]
        assert [message.line for message in owned.of(PortErrorLine)] == ["bad"]


async def test_binary_outputs_are_cut_into_frames_and_input_is_framed() -> None:
    async with owning() as owned:
        framing = LengthHeader(size=2)
        port = await owned.spawn(Port(["cat"], stdout=framing, stdin=framing))

        written = await owned.node.call(port, PortWrite(b"hello"))
        await owned.node.call(port, PortWrite(b""))
        await owned.node.call(port, PortCloseInput())
        await owned.until(PortExited)

        assert written == 7
        assert [message.data for message in owned.of(PortData)] == [b"hello", b""]


async def test_each_output_has_its_own_mode() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "echo text; printf '\\0\\1' >&2"], stderr=Raw()))
        await owned.until(PortExited)

        assert lines(owned) == ["text"]
        assert b"".join(message.data for message in owned.of(PortErrorData)) == b"\0\1"


async def test_a_line_over_the_cap_comes_in_parts() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "echo abcdefgh; echo x"], stdout=Text(max_line=3)))
        await owned.until(PortExited)

        parts = [(message.line, message.is_whole) for message in owned.of(PortLine)]
        assert parts == [("abc", False), ("def", False), ("gh", True), ("x", True)]


async def test_an_invalid_frame_ends_the_port_with_the_error_and_the_program() -> None:
    async with owning() as owned:
        framing = LengthHeader(size=1, max_frame=4)
        await owned.spawn(
            Port(["sh", "-c", "printf '\\002ok\\377'; sleep 60"], stdout=framing, stop=QUICK)
        )
        reason = await owned.down()

        assert [message.data for message in owned.of(PortData)] == [b"ok"]
        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, FramingError)
        assert owned.of(PortExited)[0].signal == signal.SIGTERM


async def test_bytes_that_are_no_text_end_a_strict_port() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["printf", "\\377"], stdout=Text(errors="strict")))
        reason = await owned.down()

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, UnicodeDecodeError)


async def test_a_program_that_floods_its_error_output_loses_no_line() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "seq 1 20000 >&2; echo done"]))
        exited = await owned.until(PortExited)

        assert [int(message.line) for message in owned.of(PortErrorLine)] == list(range(1, 20_001))
        assert lines(owned) == ["done"]
        assert exited.bytes_err == sum(len(f"{n}\n") for n in range(1, 20_001))


async def test_a_program_waits_for_a_slow_owner() -> None:
    async with owning() as owned:
        go_on = await owned.hold()
        await owned.spawn_elsewhere(Port(["seq", "1", "20000"], receiver=owned.owner), backlog=10)

        queued = await owned.filled(10)
        go_on()
        await owned.until(PortExited)

        assert queued == 10
        assert [int(line) for line in lines(owned)] == list(range(1, 20_001))


# -- the environment of a program ------------------------------------------------------------------


async def test_no_environment_variable_is_inherited_unless_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ERGO_SECRET", "s3cret")
    monkeypatch.setenv("ERGO_OPEN", "yes")
    async with owning() as owned:
        await owned.spawn(Port(["env"], env={"A": "1"}))
        await owned.until(PortExited)
        bare = lines(owned)
        owned.heard.clear()
        await owned.spawn(Port(["env"], env={"A": "1"}, inherit_env=["ERGO_OPEN", "ERGO_MISSING"]))
        await owned.until(PortExited)
        some = lines(owned)
        owned.heard.clear()
        port = await owned.spawn(
            Port(["sh", "-c", "env; cat"], env={"ERGO_OPEN": "no"}, inherit_env=True)
        )
        await owned.until(PortLine)
        shown = await owned.node.inspect_meta(port)
        await owned.node.call(port, PortCloseInput())
        await owned.until(PortExited)

        assert bare == ["A=1"]
        assert sorted(some) == ["A=1", "ERGO_OPEN=yes"]
        assert {"ERGO_SECRET=s3cret", "ERGO_OPEN=no"} <= set(lines(owned))
        assert "ERGO_SECRET" in shown["env"]
        assert "s3cret" not in str(shown)


async def test_a_program_runs_in_the_given_directory(tmp_path: Path) -> None:
    async with owning() as owned:
        await owned.spawn(Port(["pwd"], cwd=tmp_path))
        await owned.until(PortExited)

        assert lines(owned) == [str(tmp_path)]


async def test_limits_hold_for_the_program() -> None:
    async with owning() as owned:
        command = "ulimit -n; ulimit -c; env; trap -p PIPE"
        await owned.spawn(
            Port(["bash", "-c", command], limits={"nofile": 99, "core": (0, 0)}, env={"A": "1"})
        )
        await owned.until(PortExited)

        assert lines(owned)[:2] == ["99", "0"]
        # The changes that the interpreter in between makes to environment and signals are not seen
        # by the program.
        assert not [line for line in lines(owned) if line.startswith(("LC_", "trap"))]


async def test_a_limit_that_cannot_be_set_fails_the_spawn() -> None:
    async with owning() as owned:
        with pytest.raises(InitError, match="limit"):
            await owned.spawn(Port(["true"], limits={"nofile": (10, 5)}))


@pytest.fixture
def nobody() -> pwd.struct_passwd:
    try:
        subprocess.run(["true"], user="nobody", extra_groups=[], check=True)
    except PermissionError:
        pytest.skip("this user may not run programs as another one")
    return pwd.getpwnam("nobody")


@pytest.mark.parametrize("limits", [{}, {"nofile": 64}])
async def test_a_program_runs_as_another_user_with_the_groups_of_that_user(
    nobody: pwd.struct_passwd, limits: dict[str, int]
) -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "id -u; id -g; id -G"], user="nobody", limits=limits))
        await owned.until(PortExited)

        assert lines(owned) == [str(nobody.pw_uid), str(nobody.pw_gid), str(nobody.pw_gid)]


async def test_a_program_leads_a_session_or_a_process_group() -> None:
    async with owning() as owned:
        for new_session in (True, False):
            port = await owned.spawn(Port(["cat"], new_session=new_session))
            pid = (await owned.until(PortStarted)).pid
            assert os.getpgid(pid) == pid
            assert os.getsid(pid) == (pid if new_session else os.getsid(0))
            owned.node.send_exit(port)
            await owned.down()


async def test_a_terminal_carries_input_output_and_error_output_of_the_program() -> None:
    async with owning() as owned:
        command = "tty >/dev/null && stty size; echo err >&2; read x; echo got $x; cat"
        port = await owned.spawn(Port(["bash", "-c", command], terminal=Port.Terminal(10, 20)))
        await _line(owned, "err")
        await owned.node.call(port, PortWrite("hello\n"))
        await _line(owned, "got hello")
        await owned.node.call(port, PortCloseInput())
        exited = await owned.until(PortExited)

        assert lines(owned)[0] == "10 20"
        assert exited.status == 0


async def test_a_terminal_can_be_resized() -> None:
    async with owning() as owned:
        port = await owned.spawn(
            Port(
                ["sh", "-c", "while stty size; do sleep 0.01; done"],
                terminal=Port.Terminal(),
                stop=QUICK,
            )
        )
        await _line(owned, "24 80")

        await owned.node.call(port, PortResize(30, 40))

        await _line(owned, "30 40")


async def test_a_program_without_a_terminal_cannot_be_resized() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["cat"]))

        with pytest.raises(OSError, match="no terminal"):
            await owned.node.call(port, PortResize(30, 40))


# -- that cannot be started ------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, {"nofile": 64}])
async def test_a_program_that_cannot_be_started_fails_the_spawn(
    limits: dict[str, int], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    async with owning() as owned:
        with pytest.raises(InitError, match="no such program") as missing:
            await owned.spawn(Port(["surely-no-such-program"], limits=limits))
        with pytest.raises(InitError, match="Permission denied"):
            await owned.spawn(Port([str(plain)], limits=limits))
        with pytest.raises(InitError, match="No such file"):
            await owned.spawn(Port(["true"], cwd=tmp_path / "nowhere", limits=limits))
        with pytest.raises(InitError, match="user of this system"):
            await owned.spawn(Port(["true"], user="surely-nobody-here", limits=limits))

        assert isinstance(missing.value.__cause__, FileNotFoundError)
        assert owned.node.metas() == []


@pytest.mark.parametrize(
    "options",
    [
        {"argv": "ls -l"},
        {"argv": []},
        {"argv": ["a\0b"]},
        {"env": {"A": 1}},
        {"env": {"A=B": "1"}},
        {"limits": {"patience": 1}},
        {"limits": {"nofile": "many"}},
        {"stdout": "lines"},
        {"stdin": Text()},
        {"terminal": Port.Terminal(), "new_session": False},
        {"argv": 5},
        {"env": ["A=1"]},
        {"env": {"A": "1\0"}},
        {"inherit_env": "PATH"},
        {"limits": ["nofile"]},
        {"limits": {"nofile": (1, 2, 3)}},
        {"terminal": True},
        {"stop": 5},
        {"user": 1.5},
        {"check": "no"},
        {"new_session": "no"},
        {"receiver": 5},
    ],
)
def test_invalid_arguments_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(BadInputError):
        Port(**{"argv": ["true"], **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lambda: PortWrite(5), lambda: PortResize(0, 80)])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
def test_invalid_requests_are_refused_before_they_are_sent(
    make: Callable[[], object],
) -> None:
    with pytest.raises(BadInputError):
        make()


async def test_stop_times_longer_than_the_stop_timeout_are_refused() -> None:
    async with owning() as owned:
        with pytest.raises(InitError, match="stop_timeout"):
            await owned.spawn(Port(["cat"], stop=Port.StopTimes(1, 10, 1)))

        port = await owned.spawn(Port(["cat"], stop=Port.StopTimes(1, 10, 1)), stop_timeout=13.0)
        owned.node.send_exit(port)
        await owned.down()


async def test_a_program_that_dies_at_once_delivers_its_output_and_its_signal() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "echo last words; kill -9 $$"]))
        exited = await owned.until(PortExited)

        assert (exited.status, exited.signal) == (None, signal.SIGKILL)
        assert lines(owned) == ["last words"]
        assert await owned.down() == Normal()


async def test_a_checked_port_ends_with_the_failure_of_its_program() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sh", "-c", "exit 3"], check=True))
        reason = await owned.down()

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, Port.FailedError)
        assert reason.error.status == 3
        assert "status 3" in str(reason)


# -- input -----------------------------------------------------------------------------------------


async def test_the_loss_of_the_input_is_reported_once_and_writes_are_refused() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sh", "-c", "exec 0<&-; echo closed; sleep 60"], stop=QUICK))
        await owned.until(PortLine)

        with pytest.raises(BrokenPipeError):
            await owned.node.call(port, PortWrite("x"))
        owned.node.send(port, PortWrite("y"))
        with pytest.raises(BrokenPipeError):
            await owned.node.call(port, PortWrite("z"))
        owned.node.send_exit(port)
        await owned.down()

        assert len(owned.of(PortInputLost)) == 1


async def test_writing_after_the_input_was_closed_is_refused() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sh", "-c", "cat; sleep 60"], stop=QUICK))
        await owned.node.call(port, PortCloseInput())

        with pytest.raises(BrokenPipeError, match="closed"):
            await owned.node.call(port, PortWrite("x"))


async def test_the_stop_ends_a_write_to_a_program_that_does_not_read() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sleep", "60"], stop=QUICK))
        with pytest.raises(CallTimeoutError):
            await owned.node.call(port, PortWrite(b"x" * 1_000_000), timeout=0.05)

        owned.node.send_exit(port)

        assert await owned.down() == Shutdown()


async def test_a_port_can_be_inspected_while_its_program_does_not_read() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sleep", "60"]))
        owned.node.send(port, PortWrite(b"x" * 1_000_000))
        await eventually(lambda: owned.node.meta_info(port).callback == "handle_message")

        inspected = await owned.node.inspect_meta(port, timeout=20)

        assert inspected["running"] == "True"
        assert inspected["bytes_in"] == "0"


async def test_a_signal_reaches_the_program() -> None:
    async with owning() as owned:
        port = await owned.spawn(
            Port(["bash", "-c", "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done"])
        )
        await owned.until(PortLine)

        sent = await owned.node.call(port, PortSignal(signal.SIGUSR1))

        assert sent is True
        assert (await owned.until(PortLine)).line == "usr1"


async def test_a_port_refuses_an_unknown_request() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["cat"]))

        with pytest.raises(UnhandledCallError):
            await owned.node.call(port, "what?")
        owned.node.send(port, "what?")

        assert (await owned.node.inspect_meta(port))["program"] == "cat"


# -- the end ---------------------------------------------------------------------------------------


async def test_closing_the_input_ends_a_program_that_reads_to_the_end() -> None:
    async with owning() as owned:
        port = await owned.spawn(Port(["sh", "-c", "cat; echo bye"]))
        await owned.until(PortStarted)

        owned.node.send_exit(port, "enough")
        exited = await owned.until(PortExited)

        assert (exited.status, lines(owned)) == (0, ["bye"])
        assert str(await owned.down()) == "enough"


async def test_a_program_that_does_not_read_ends_by_a_signal_and_its_last_output_arrives() -> None:
    async with owning() as owned:
        command = (
            "trap 'echo out; echo err >&2; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
        )
        port = await owned.spawn(Port(["bash", "-c", command], stop=QUICK))
        await owned.until(PortLine)

        owned.node.send_exit(port)
        exited = await owned.until(PortExited)

        assert exited.status == 7
        assert lines(owned) == ["ready", "out"]
        assert owned.of(PortErrorLine)[-1].line == "err"


async def test_a_program_that_ignores_the_signal_is_killed_with_its_children() -> None:
    async with owning() as owned:
        port = await owned.spawn(
            Port(["bash", "-c", "trap '' TERM; sleep 60 & echo $!; wait"], stop=QUICK)
        )
        child = int((await owned.until(PortLine)).line)

        owned.node.send_exit(port)
        exited = await owned.until(PortExited)

        assert exited.signal == signal.SIGKILL
        assert not runs(child)


async def test_a_grandchild_that_keeps_the_pipe_open_is_ended_with_the_port() -> None:
    async with owning() as owned:
        command = "(trap '' TERM; echo $BASHPID; while :; do sleep 0.1; done) & read; exit 5"
        port = await owned.spawn(Port(["bash", "-c", command], stop=QUICK))
        grandchild = int((await owned.until(PortLine)).line)
        owned.node.send(port, PortWrite("\n"))
        exited = await owned.until(PortExited)

        assert exited.status == 5
        assert not runs(grandchild)


@needs_proc
async def test_a_grandchild_outside_of_the_group_does_not_keep_the_port_open() -> None:
    # Long lines: the pipe is never empty, and the owner has few messages to handle.
    endless = 'trap "" PIPE; echo $$; a=$(printf %4000s); while :; do echo "$a"; done 2>/dev/null'
    stranger = f"setsid timeout 100 bash -c '{endless}'"
    async with owning() as owned:
        # It ends once the other program has left the group and speaks.
        port = await owned.spawn(Port(["bash", "-c", f"{stranger} & read"], stop=QUICK))
        pid = int((await owned.until(PortLine)).line)
        try:
            owned.node.send(port, PortWrite("\n"))
            await owned.until(PortExited)

            assert runs(pid)
        finally:
            os.kill(pid, signal.SIGKILL)


async def test_killing_the_port_kills_the_program_at_once() -> None:
    async with owning() as owned:
        port = await owned.spawn(
            Port(IGNORES_TERM, stop=Port.StopTimes(60, 60, 60)), stop_timeout=200
        )
        pid = (await owned.until(PortStarted)).pid

        with trio.fail_after(25):
            owned.node.kill(port)
            assert await owned.down() == Killed()

        assert not runs(pid)
        assert owned.of(PortExited)[0].signal == signal.SIGKILL


async def test_the_end_of_the_owner_is_the_end_of_the_program() -> None:
    async with owning() as owned:
        await owned.spawn(Port(["sleep", "60"], stop=QUICK))
        pid = (await owned.until(PortStarted)).pid

        owned.node.send_exit(owned.owner)
        await owned.node.wait_ended(owned.owner)

        assert not runs(pid)


async def test_an_owner_with_a_full_mailbox_does_not_delay_the_stop() -> None:
    async with owning() as owned:
        go_on = await owned.hold()
        port = await owned.spawn_elsewhere(
            Port(["yes", "x" * 1000], receiver=owned.owner, stop=QUICK), backlog=5
        )
        await owned.filled(5)

        with trio.fail_after(25):
            owned.node.send_exit(port)
            await eventually(lambda: owned.node.metas() == [])
        go_on()


async def test_an_interrupted_stop_leaves_no_program_behind() -> None:
    port = Port(IGNORES_TERM, stop=Port.StopTimes(0, 0, 0))
    async with owning() as owned:
        alias = await owned.spawn(port, stop_timeout=0.6)
        pid = (await owned.until(PortStarted)).pid
        await owned.until(PortLine)

        # Longer than the kernel waits: it leaves the reader behind in the middle of the steps.
        port._times = Port.StopTimes(60, 60, 60)
        owned.node.send_exit(alias)
        await owned.down()

        assert not runs(pid)


async def test_a_port_stopped_in_its_init_leaves_no_program_behind() -> None:
    pids: list[int] = []

    class Stillborn(Port):
        async def init(self) -> None:
            await super().init()
            pids.append(int(self.handle_inspect()["os_pid"]))
            self.stop()

    async with owning() as owned:
        with pytest.raises(SpawnError):
            await owned.spawn(Stillborn(["sleep", "60"]))

        assert not runs(pids[0])


async def _line(owned: Owned, text: str) -> None:
    while (await owned.until(PortLine)).line != text:
        pass
