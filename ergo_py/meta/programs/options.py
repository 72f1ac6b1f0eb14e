"""`ProgramOptions`: how a program of the operating system is started and stopped."""

import errno
import os
import pwd
import resource
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from grp import getgrnam
from typing import Final

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.options import check_flag, check_number
from ..._core.vocabulary.public_names import show_public_names

__all__ = ["LIMITS", "ProgramOptions", "StopTimes", "Terminal"]

LIMITS: Final = {
    name.removeprefix("RLIMIT_").lower(): number
    for name, number in vars(resource).items()
    if name.startswith("RLIMIT_")
}


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
            check_number(f"Port.StopTimes({name})", getattr(self, name), least=0.0)

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
        check_number("Port.Terminal(rows)", self.rows, least=1, whole=True, most=0xFFFF)
        check_number("Port.Terminal(columns)", self.columns, least=1, whole=True, most=0xFFFF)


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
    lifeline: bool = False
    """Give the program a pipe that ends when this program ends, for `lifeline.end_with_parent`."""

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
            raise BadInputError(
                "terminal", self.terminal, "Port.Terminal(rows=24, columns=80), or None"
            )
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
            if name not in LIMITS:
                raise BadInputError("limits", name, "one of " + ", ".join(sorted(LIMITS)))
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


show_public_names(__name__)
