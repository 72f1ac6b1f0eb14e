"""Where control sockets are: one file for each node in a directory that is its user's alone."""

import os
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from .._core.vocabulary.errors import ControlSocketError

__all__ = ["bind_socket", "clean", "directory", "peer_user", "sockets"]

_SUFFIX: Final = ".sock"
_LONGEST: Final = 100
"""Bytes of a path; the systems allow 104 or 108."""
_NAME: Final = 40
"""Bytes of these that are left for the name of a socket."""
_SHORT: Final = "/tmp"
"""Where the directory is if the path of the temporary directory leaves no room for a name."""
_UNFINISHED: Final = 60.0
"""Seconds after which a socket that never got its name was left behind by somebody who died."""


def directory(*, create: bool = False) -> Path:
    """``ergo`` in the user's run-time directory, or else a directory of the user's own among the
    temporary files.

    A path that is too long for sockets is not used for temporary files; then the directory is in
    ``/tmp``.

    Raises:
        ControlSocketError: it belongs to somebody else, or others may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        place = Path(runtime) / "ergo"
    else:
        place = Path(tempfile.gettempdir()) / f"ergo-{os.geteuid()}"
        if len(os.fsencode(place)) > _LONGEST - _NAME:
            place = Path(_SHORT) / place.name
    if create:
        try:
            place.mkdir(mode=0o700)
            place.chmod(0o700)  # of a umask that takes the user's own permissions away
        except FileExistsError:
            pass
        except OSError as error:
            raise ControlSocketError(
                f"no directory for control sockets at {place}: {error.strerror}; set "
                "XDG_RUNTIME_DIR to one of your own"
            ) from error
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return place
    problem = _problem(found)
    if problem:
        # No other directory is tried: `ergo` has to look where the node is, whatever another user
        # does in between.
        raise ControlSocketError(
            f"{place} {problem}; control sockets need a directory that only you may enter (mode "
            "0700): make it so, "
            "or set XDG_RUNTIME_DIR to a directory of your own, for the node and for `ergo`"
        )
    return place


def _problem(found: os.stat_result) -> str:
    """Why this is no directory for control sockets; empty if it is one."""
    if not stat.S_ISDIR(found.st_mode):
        return "is no directory"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, and you are user {os.geteuid()}"
    if found.st_mode & 0o077:
        return f"may be entered by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def bind_socket(node: str) -> tuple[socket.socket, Path]:
    """Listen for a node. The file gets its name when somebody listens at it, so that a named file
    without is a stale one.

    Raises:
        ControlSocketError: the system does not let us.
    """
    place = directory(create=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = place / f".{os.getpid()}+{id(listener):x}"
    try:
        path = _free_name(place, node)
        listener.bind(str(hidden))
        os.chmod(hidden, 0o600)
        listener.listen(16)
        listener.setblocking(False)
        os.rename(hidden, path)
    except OSError as error:
        listener.close()
        try:
            hidden.unlink(missing_ok=True)
        except OSError:  # the same that kept us from making it
            pass
        raise ControlSocketError(
            f"no control socket in {place}: {error.strerror or error}"
        ) from error
    return listener, path


def _free_name(place: Path, node: str) -> Path:
    stem = quote(node, safe="@")
    for number in range(1, 1000):
        path = place / f"{stem}+{os.getpid()}{f'+{number}' if number > 1 else ''}{_SUFFIX}"
        if len(os.fsencode(path)) > _LONGEST:
            raise OSError(
                f"the path {path} is longer than {_LONGEST} bytes, and a socket's must not be; "
                "give the node a shorter name, or set XDG_RUNTIME_DIR to a directory with a "
                "shorter path"
            )
        if not path.exists():
            return path
    raise OSError(f"there are a thousand sockets of {node}")


def sockets() -> Iterator[tuple[str, int, Path]]:
    """Every socket in the directory, with the name of its node and the number of its program, as
    far as the file name says.
    """
    place = directory()
    if not place.is_dir():
        return
    for path in sorted(place.glob(f"*{_SUFFIX}")):
        # "+" is never part of a quoted name.
        name, _, numbers = path.name.removesuffix(_SUFFIX).partition("+")
        pid = numbers.partition("+")[0]
        if pid.isdecimal() and _is_socket(path):
            yield unquote(name), int(pid), path


def clean() -> list[Path]:
    """Remove the sockets of nodes that are no more; says which."""
    removed = []
    place = directory()
    unfinished = [
        path
        for path in (place.glob(".*+*") if place.is_dir() else ())
        if _is_socket(path) and time.time() - _born(path) > _UNFINISHED
    ]
    for path in [*(path for _, _, path in sockets()), *unfinished]:
        if _is_stale(path):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:  # gone meanwhile
        return False


def _born(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _is_stale(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:  # it has as many clients waiting as it takes: so it lives
            return False
    return False


def peer_user(connection: socket.socket) -> int:
    """The number of the user at the other end, from the operating system itself.

    Raises:
        ControlSocketError: this system does not tell.
    """
    if hasattr(socket, "SO_PEERCRED"):
        return int(
            struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        )
    if sys.platform == "darwin" or "bsd" in sys.platform:
        # LOCAL_PEERCRED at SOL_LOCAL: a version, the user, and the groups.
        return int(struct.unpack_from("2I", connection.getsockopt(0, 1, 76))[1])
    raise ControlSocketError("this system does not say who is at the other end of a socket")
