"""The paths of control sockets: a file per node in a directory that only its user may enter."""

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

__all__ = ["bind_socket", "checked", "clean", "directory", "peer_user", "sockets"]

_SUFFIX: Final = ".sock"
_LONGEST: Final = 100
"""Maximum bytes of a path; operating systems allow 104 or 108."""
_NAME: Final = 40
"""Bytes of the path reserved for the file name."""
_SHORT: Final = "/tmp"
"""The parent directory if the path of the temporary directory leaves no room for a file name."""
_UNFINISHED: Final = 60.0
"""Seconds after which an unnamed socket counts as left behind by a crashed program."""


def directory(*, create: bool = False) -> Path:
    """The directory of control sockets: ``ergo`` in the user's run-time directory, or else a
    directory of the user among the temporary files.

    If the path of the temporary directory is too long for sockets, the directory is in ``/tmp``.

    Raises:
        ControlSocketError: it belongs to another user, or others may enter it.
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
            place.chmod(0o700)  # a umask may take the user's own permissions away
        except FileExistsError:  # made by an earlier node: the checks below apply to it
            pass
        except OSError as error:
            raise ControlSocketError(
                f"no directory for control sockets at {place}: {error.strerror}; set "
                "XDG_RUNTIME_DIR to a directory of your own"
            ) from error
    return checked(place)


_REMEDY: Final = "set XDG_RUNTIME_DIR to a directory of your own, for the node and for `ergo`"


def checked(place: Path, remedy: str = _REMEDY) -> Path:
    """Return a directory of sockets if only its user may enter it, or if it does not exist.
    ``remedy`` says how to choose another directory.

    Raises:
        ControlSocketError: it belongs to another user, or others may enter it.
    """
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return place
    problem = _problem(found)
    if problem:
        # Try no other directory: `ergo` must look where the node is, regardless of the actions of
        # other users.
        raise ControlSocketError(
            f"{place} {problem}; sockets of nodes need a directory that only you may enter (mode "
            f"0700): make it so, or {remedy}"
        )
    return place


def _problem(found: os.stat_result) -> str:
    """Why this directory is unsuitable; empty if it is suitable."""
    if not stat.S_ISDIR(found.st_mode):
        return "is no directory"
    if found.st_uid != os.geteuid():
        hint = f" (write `sudo -u '#{found.st_uid}' …`)" if os.geteuid() == 0 else ""
        return f"belongs to user {found.st_uid}, and you are user {os.geteuid()}{hint}"
    if found.st_mode & 0o077:
        return f"may be entered by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def bind_socket(node: str) -> tuple[socket.socket, Path]:
    """Listen for a node. The file gets its final name only when the socket listens, so a named file
    without a listener is stale.

    Raises:
        ControlSocketError: the system refuses.
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
        except OSError:  # the error that prevented its creation
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
                f"the path {path} is longer than {_LONGEST} bytes, the limit for sockets; give the "
                "node a shorter name, or set XDG_RUNTIME_DIR to a directory with a shorter path"
            )
        if not path.exists():
            return path
    raise OSError(f"a thousand sockets of {node} exist already; remove some from {place}")


def sockets() -> Iterator[tuple[str, int, Path]]:
    """Every socket in the directory, with the node name and the process id that its file name
    contains.
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
    """Remove the sockets of nodes that no longer run; return their paths."""
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
        except OSError:  # its accept queue is full, so a node is listening
            return False
    return False


def peer_user(connection: socket.socket) -> int:
    """The user id of the peer, from the operating system itself.

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
    raise ControlSocketError("this system does not report the user at the other end of a socket")
