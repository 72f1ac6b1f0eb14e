"""`Program`: a program of the operating system. It starts the program, and ends it with all
processes that it started.
"""

import errno
import fcntl
import json
import os
import pwd
import resource
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from grp import getgrnam
from pathlib import Path
from typing import Any, Final

import trio
from trio.lowlevel import FdStream

from ..._core.runtime.process_groups import forget_group, note_group
from ..._core.vocabulary.errors import BadInputError, ErgoError, NotAllowedError
from ..._core.vocabulary.options import check_flag, check_number

__all__ = ["Program", "ProgramFailedError", "ProgramOptions", "StopTimes", "Terminal"]

_LAUNCH: Final = str(Path(__file__).with_name("launcher.py"))
_LIMITS: Final = {
    name.removeprefix("RLIMIT_").lower(): number
    for name, number in vars(resource).items()
    if name.startswith("RLIMIT_")
}


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


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How long, in seconds, each step of stopping a program may take; together at most the port's
    ``stop_timeout``.

    First the program's input is closed. After ``close`` seconds the program and all processes it
    has started get SIGTERM. After ``terminate`` more seconds they get SIGKILL, and the kernel has
    ``kill`` seconds to end them.
    """

    close: float = 0.5
    terminate: float = 2.0
    kill: float = 1.0

    def __post_init__(self) -> None:
        for name in ("close", "terminate", "kill"):
            check_number(f"StopTimes({name})", getattr(self, name), least=0.0)

    @property
    def total(self) -> float:
        """The sum of all steps."""
        return self.close + self.terminate + self.kill


@dataclass(frozen=True, slots=True)
class Terminal:
    """The size of a pseudo-terminal."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        check_number("Terminal(rows)", self.rows, least=1, whole=True, most=0xFFFF)
        check_number("Terminal(columns)", self.columns, least=1, whole=True, most=0xFFFF)


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The program to run, its user, its directory and its limits. Checked when it is made; users
    and paths are looked up only at the start.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    inherit_env: bool | Collection[str] = False
    cwd: str | os.PathLike[str] | None = None
    user: str | int | None = None
    group: str | int | None = None
    limits: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    new_session: bool = True
    terminal: Terminal | None = None

    def __post_init__(self) -> None:
        argv = self.argv
        if (
            not isinstance(argv, Sequence)
            or isinstance(argv, str | bytes)
            or not argv
            or not all(isinstance(word, str) and "\0" not in word for word in argv)
        ):
            raise BadInputError(
                "argv",
                argv,
                'a list of words, such as ["ls", "-l"]; for a shell ["sh", "-c", command]',
            )
        self._check_environment()
        self._check_limits()
        for what, value in (("user", self.user), ("group", self.group)):
            if not isinstance(value, str | int | None) or isinstance(value, bool):
                raise BadInputError(what, value, "a name or a number")
        check_flag("new_session", self.new_session)
        if not isinstance(self.terminal, Terminal | None):
            raise BadInputError("terminal", self.terminal, "Terminal(rows=24, columns=80), or None")
        if self.terminal is not None and not self.new_session:
            raise BadInputError(
                "new_session", False, "True for a program with a terminal of its own"
            )

    def _check_environment(self) -> None:
        if not isinstance(self.env, Mapping):
            raise BadInputError("env", type(self.env), "a mapping from names to values")
        for name, value in self.env.items():
            if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
                # Do not show the value: it may be a secret.
                raise BadInputError(
                    "env", name, "names and values that are str, and no = in a name"
                )
            if "\0" in name + value:
                raise BadInputError("env", name, "names and values without a zero byte")
        names = self.inherit_env
        if not isinstance(names, bool) and (
            isinstance(names, str | bytes)
            or not isinstance(names, Collection)
            or not all(isinstance(name, str) for name in names)
        ):
            raise BadInputError(
                "inherit_env", names, 'names of variables, such as ["PATH"], or True for all'
            )

    def _check_limits(self) -> None:
        if not isinstance(self.limits, Mapping):
            raise BadInputError("limits", self.limits, 'a mapping, such as {"nofile": 64}')
        for name, limit in self.limits.items():
            if name not in _LIMITS:
                raise BadInputError("limits", name, "one of " + ", ".join(sorted(_LIMITS)))
            if isinstance(limit, tuple) and len(limit) != 2:
                raise BadInputError(
                    f"limits[{name!r}]", limit, "one number, or the soft and the hard limit"
                )
            for number in limit if isinstance(limit, tuple) else (limit,):
                check_number(f"limits[{name!r}]", number, least=-1, whole=True)

    def environment(self) -> dict[str, str]:
        """The environment of the program: the given variables, and the inherited ones of this
        program.
        """
        inherited: Mapping[str, str] = {}
        if self.inherit_env is True:
            inherited = os.environ
        elif self.inherit_env is not False:
            inherited = {name: os.environ[name] for name in self.inherit_env if name in os.environ}
        return {**inherited, **self.env}

    def path(self, environment: Mapping[str, str]) -> str:
        """The path of the program. A name without a slash is searched for along its own PATH, or
        along this program's if it has none.

        Raises:
            FileNotFoundError: there is no such program.
        """
        name = self.argv[0]
        if "/" in name:
            return name
        found = shutil.which(name, path=environment.get("PATH", os.environ.get("PATH")))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such program", name)
        return os.path.abspath(found)

    def identity(self) -> tuple[int | None, int | None, list[int] | None]:
        """User, group and further groups to change to; None for those that stay.

        Raises:
            BadInputError: there is no such user or group.
        """
        uid = gid = groups = None
        if self.user is not None:
            try:
                entry = (
                    pwd.getpwnam(self.user)
                    if isinstance(self.user, str)
                    else pwd.getpwuid(self.user)
                )
            except KeyError:
                raise BadInputError(
                    "user", self.user, "the name or number of a user of this system"
                ) from None
            # Change all of them, or the program would keep the groups of this process.
            uid, gid = entry.pw_uid, entry.pw_gid
            groups = os.getgrouplist(entry.pw_name, gid)
        if self.group is not None:
            try:
                gid = getgrnam(self.group).gr_gid if isinstance(self.group, str) else self.group
            except KeyError:
                raise BadInputError(
                    "group", self.group, "the name or number of a group of this system"
                ) from None
        return uid, gid, groups


class Program:
    """A running program with its pipes. Its owner must ``end`` it, or at least ``close`` it."""

    def __init__(self, process: trio.Process, master: FdStream | None) -> None:
        self._process = process
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
        with _PseudoTerminal(options.terminal) as terminal:
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
                process = await trio.lowlevel.open_process(
                    list(options.argv), executable=path, **popen
                )
            return cls(process, terminal.keep_master())

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
            (_LIMITS[name], *(limit if isinstance(limit, tuple) else (limit, limit)))
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
