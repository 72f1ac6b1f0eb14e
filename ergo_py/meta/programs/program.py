"""`Program`: a program of the operating system. It starts the program, and ends it with all
processes that it started.
"""

import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio
from trio.lowlevel import FdStream

from ..._core.vocabulary.errors import ErgoError, NotAllowedError
from ..._core.vocabulary.public_names import show_public_names
from .lifeline import LIFELINE
from .options import LIMITS, ProgramOptions, StopTimes, Terminal
from .process_groups import forget_group, note_group

__all__ = ["Program", "ProgramFailedError"]

_LAUNCH: Final = str(Path(__file__).with_name("launcher.py"))


class ProgramFailedError(ErgoError):
    """The program of a port with ``check=True`` did not end with status 0."""

    def __init__(self, program: str, status: int | None, by_signal: int | None) -> None:
        super().__init__(
            f"{program} "
            + (
                f"ended with status {status}"
                if by_signal is None
                else f"died of {_name(by_signal)}"
            )
        )
        self.program = program
        self.status = status
        self.signal = by_signal


class Program:
    """A running program with its pipes. Its owner must ``end`` it, or at least ``close`` it."""

    def __init__(
        self, process: trio.Process, master: FdStream | None, lifeline: int | None = None
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        note_group(process.pid)
        self._is_terminal = master is not None
        self._is_gone = False
        self._began = time.monotonic()
        self._ended: float | None = None
        self.stdin: Any = master or process.stdin
        self.stdout: Any = master or process.stdout
        self.stderr: Any = process.stderr

    @property
    def pid(self) -> int:
        """The program's number in the operating system; also that of its process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, or the negated number of the signal that ended it; None while it
        runs.
        """
        return self._process.returncode

    # -- birth -------------------------------------------------------------------------------------

    @classmethod
    async def start(cls, options: ProgramOptions) -> "Program":
        """Start the program.

        Raises:
            OSError: the program cannot be started, and why.
            BadInputError: there is no such user or group.
            NotAllowedError: this process ignores SIGCHLD, so the end of the program could not be
                observed.
        """
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # With SIGCHLD ignored, the system forgets a program as soon as it ends: every status
            # reads 0, and another process may get its number at once.
            raise NotAllowedError(
                "SIGCHLD is ignored in this program (perhaps inherited: `trap '' CHLD` in a "
                "shell), so how a program ends cannot "
                "be found out; call signal.signal(signal.SIGCHLD, signal.SIG_DFL) in the main "
                "thread first"
            )
        environment = options.environment()
        path = options.path(environment)
        with _PseudoTerminal(options.terminal) as terminal, _Lifeline(options.lifeline) as lifeline:
            popen: dict[str, Any] = {
                "env": environment,
                "cwd": options.cwd,
                "stdin": subprocess.PIPE if terminal.slave is None else terminal.slave,
                "stdout": subprocess.PIPE if terminal.slave is None else terminal.slave,
                "stderr": subprocess.PIPE if terminal.slave is None else terminal.slave,
                # A process group of its own in either case: signals are sent to the group.
                **({"start_new_session": True} if options.new_session else {"process_group": 0}),
            }
            if options.limits or options.terminal is not None:
                process = await _launch(options, path, environment, popen)
            else:
                uid, gid, groups = options.identity()
                if uid is not None or gid is not None:
                    popen |= {"user": uid, "group": gid, "extra_groups": groups}
                if lifeline.reading is not None:
                    environment[LIFELINE] = str(lifeline.reading)
                    popen["pass_fds"] = [lifeline.reading]
                process = await trio.lowlevel.open_process(
                    list(options.argv), executable=path, **popen
                )
            return cls(process, terminal.keep_master(), lifeline.keep_writing())

    # -- life --------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until the program itself has ended, regardless of the processes it has started."""
        await self._process.wait()
        if self._ended is None:
            self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the program has run."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    def signal(self, number: int) -> bool:
        """Send a signal to the program and all processes it has started. False if none of them is
        left.
        """
        if self._is_gone:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # a process is there, but has become another user's
            return True
        return True

    def write_some(self, data: bytes) -> int:
        """Write as much as its input takes at once, and return the number of bytes. Errors are left
        to ``stdin.send_all``, which reports them.
        """
        try:
            return os.write(self.stdin.fileno(), data)
        except OSError:
            return 0

    def close_stdin(self) -> None:
        """Close the program's input. A terminal cannot be closed from this side: send the
        end-of-file character, as a person would type it.
        """
        if not self._is_terminal:
            self.stdin.close()
            return
        try:
            os.write(self.stdin.fileno(), b"\x04")
        except OSError:  # the terminal is full or gone: the signals follow
            return

    def resize(self, terminal: Terminal) -> None:
        """Change the size of the program's terminal; the program gets SIGWINCH.

        Raises:
            OSError: the program has no terminal.
        """
        if not self._is_terminal:
            raise OSError(errno.ENOTTY, "this program has no terminal")
        _set_size(self.stdin.fileno(), terminal)

    # -- the end -----------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether it and all processes of its process group have ended."""
        # The system reuses the number only after the last process of the group is gone, and this
        # object does not use it after that.
        if not self._is_gone and self.returncode is not None and not self.signal(0):
            self._gone()
        return self._is_gone

    def _gone(self) -> None:
        self._is_gone = True
        forget_group(self.pid)

    async def end(self, times: StopTimes, *, at_once: bool) -> bool:
        """End the program and the processes it has started: close its input, SIGTERM, SIGKILL.
        False if a process is left even then.
        """
        self.close_stdin()
        if not at_once:
            if await self._gone_within(times.close):
                return True
            self.signal(signal.SIGTERM)
            if await self._gone_within(times.terminate):
                return True
        self.signal(signal.SIGKILL)
        return await self._gone_within(times.kill)

    async def _gone_within(self, seconds: float) -> bool:
        pause = 0.001
        with trio.move_on_after(seconds):
            while not self.is_gone:
                if self.returncode is None:
                    await self.wait()
                    continue
                # The system does not report the end of the last process in a group, so poll, with
                # growing pauses.
                await trio.sleep(pause)
                pause = min(2 * pause, 0.05)
                if await trio.to_thread.run_sync(_only_dead, self.pid):
                    self._gone()
        return self.is_gone

    def close(self) -> None:
        """Release everything at once, and leave no process running. For a shutdown without the time
        to ``end`` the program.
        """
        if not self.is_gone:
            self.signal(signal.SIGKILL)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)
        give_up = time.monotonic() + 0.5
        while self.returncode is None and time.monotonic() < give_up:
            time.sleep(0.001)
        forget_group(self.pid)


def _only_dead(group: int) -> bool:
    """Whether all processes left in a group are zombies: they have ended, and their parents have
    not collected them yet.
    """
    try:
        numbers = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:  # there is no /proc: count them as alive
        return False
    for number in numbers:
        try:
            with open(f"/proc/{number}/stat", "rb") as file:
                # After the name in parentheses, which may contain any character: state, parent,
                # group.
                state, _, its_group, *_ = file.read().rpartition(b")")[2].split()
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if int(its_group) == group and state not in b"ZX":
            return False
    return bool(numbers)


class _PseudoTerminal:
    """The two ends of a pseudo-terminal while the program starts; empty if the program gets
    pipes.
    """

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal
        self._master: int | None = None
        self.slave: int | None = None

    def __enter__(self) -> "_PseudoTerminal":
        if self._terminal is not None:
            self._master, self.slave = os.openpty()
            _set_size(self._master, self._terminal)
        return self

    def keep_master(self) -> FdStream | None:
        """This side's end, once the program has started."""
        master, self._master = self._master, None
        return None if master is None else FdStream(master)

    def __exit__(self, *_: object) -> None:
        for fd in (self._master, self.slave):
            if fd is not None:
                os.close(fd)


class _Lifeline:
    """The two ends of the pipe that ends with this program, while another program starts; empty if
    that program gets none.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._writing: int | None = None
        self.reading: int | None = None

    def __enter__(self) -> "_Lifeline":
        if self._is_wanted:
            self.reading, self._writing = os.pipe()
        return self

    def keep_writing(self) -> int | None:
        """This side's end, once the program has started."""
        writing, self._writing = self._writing, None
        return writing

    def __exit__(self, *_: object) -> None:
        for fd in (self.reading, self._writing):
            if fd is not None:
                os.close(fd)


def _set_size(fd: int, terminal: Terminal) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", terminal.rows, terminal.columns, 0, 0))


async def _launch(
    options: ProgramOptions, path: str, environment: Mapping[str, str], popen: dict[str, Any]
) -> trio.Process:
    """Start the program through ``launcher.py``, and wait until the script has become the program,
    or reports an error.
    """
    if not sys.executable:
        raise OSError(
            errno.ENOEXEC,
            "limits and terminals need a Python interpreter, and sys.executable does not name one",
        )
    uid, gid, groups = options.identity()
    orders = {
        "env": list(environment),
        "terminal": options.terminal is not None,
        "limits": [
            (LIMITS[name], *(limit if isinstance(limit, tuple) else (limit, limit)))
            for name, limit in options.limits.items()
        ],
        "uid": uid,
        "gid": gid,
        "groups": groups,
    }
    ours, theirs = os.pipe()
    async with FdStream(ours) as report:
        try:
            process = await trio.lowlevel.open_process(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    _LAUNCH,
                    str(theirs),
                    path,
                    json.dumps(orders),
                    *options.argv,
                ],
                pass_fds=[theirs],
                **popen,
            )
        finally:
            os.close(theirs)
        try:
            said = b""
            # The loop ends when the program begins: exec closes the descriptor.
            while data := await report.receive_some():
                said += data
            if said:
                number, text = json.loads(said)
                raise OSError(number or errno.EINVAL, text, path)
        except BaseException:
            Program(process, None).close()
            raise
    return process


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


show_public_names(__name__)
