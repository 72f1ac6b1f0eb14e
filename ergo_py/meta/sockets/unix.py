"""`UnixServer` and `UnixConnection`: connections between programs of a machine, with the messages
and options of TCP.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Self, Unpack

import trio

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..._core.vocabulary.reasons import Reason
from ..readers import ReaderKind
from ..receivers import ReceiverOption, check_receiver
from .listener import Listener
from .messages import Address, WhenFull
from .options import StreamKeywords, StreamOptions, read_stream_options
from .socket_setup import GivenSocket, check_stream, describe
from .socket_source import connect, listen
from .streams.connection import StreamConnection

__all__ = ["UnixConnection", "UnixServer"]

_DESCRIPTORS: Final = "/proc/self/fd"
"""The directory in which Linux shows each open descriptor as a link to its file."""
_FAMILIES: Final = (int(socket.AF_UNIX),)
_REPLACED: Final = "another file has taken the place of the socket"


class UnixConnection(StreamConnection):
    """A connection over a Unix socket. A server makes them of accepted sockets; :meth:`connect`
    makes a client.
    """

    kind = "unix"

    def __init__(
        self,
        sock: socket.socket,
        *,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        **options: Unpack[StreamKeywords],
    ) -> None:
        """Take over a connected socket, such as either end of a ``socket.socketpair``.

        The options are those of :meth:`connect`.

        Raises:
            BadInputError: an option has a wrong type or value.
        """
        check_stream("UnixConnection(sock)", sock)
        checked = _read_options("UnixConnection", options, UnixConnection)
        super().__init__(check_receiver(receiver), checked, reader, given=sock)

    @classmethod
    def connect(
        cls,
        path: str | os.PathLike[str],
        *,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        connect_timeout: float = 4.0,
        **options: Unpack[StreamKeywords],
    ) -> Self:
        """Make a client. It connects before ``spawn_meta`` returns; if it cannot, ``spawn_meta``
        raises ``InitError``.

        Args:
            path: the path of the server's socket; with a zero byte in front, a name of Linux's
                abstract namespace.
            receiver: the address that gets the messages; None for the owner.
            reader: ``"thread"`` blocks a thread in the socket, ``"task"`` reads in a task of the
                loop.
            connect_timeout: seconds within which the connection must be made.
            **options: ``framing``, ``batch``, ``last_word``, ``idle_timeout``, ``frame_timeout``,
                ``linger``, ``write_limit``, ``when_slow``, ``receive_buffer``, ``send_buffer``,
                ``keepalive_bytes`` and ``keepalive_period``, as for :meth:`TCPConnection.connect`.

        Raises:
            BadInputError: an option has a wrong type or value.
        """
        goal = _check_path(path)
        checked = _read_options("UnixConnection.connect", options, cls.connect)
        return cls._connect_to(goal, connect_timeout, receiver, checked, reader)

    async def _connect(self, goal: str) -> socket.socket:
        return await connect(goal, socket.SOCK_STREAM, partial(self._connect_to_goal, goal))

    async def _connect_to_goal(self, goal: str) -> socket.socket:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await sock.connect(goal)
            return socket.socket(fileno=sock.detach())
        except OSError as error:
            raise _naming(error, goal) from None
        finally:
            sock.close()

    def _goal_text(self, goal: str) -> str:
        return _shown(goal)

    def _ends(self, sock: socket.socket) -> tuple[Address, Address]:
        peer = _peer(sock) if self._goal is None else self._goal.address
        return _shown(sock.getsockname()), peer


class UnixServer(Listener):
    """A server at a Unix socket. It creates the socket's file, and removes the file when it ends.

    Args:
        path: the path of the socket, at most 107 bytes. With a zero byte in front, it is not a file
            but a name of Linux's abstract namespace.
        sock: the socket to listen with, instead of a path or beside it, as for :class:`TCPServer`.
            The server does not remove the file of such a socket.
        mode: the permissions of the file, which decide about the users that may connect; by
            default, only the user of this program.
        receiver: the address or addresses that get the messages, None for the owner, or a behaviour
            to spawn for each connection.
        reader: ``"thread"`` or ``"task"``, for the server and its connections.
        max_connections: how many connections may be open at once; None for no limit.
        when_full: ``TCP.WhenFull.PAUSE`` or ``TCP.WhenFull.REFUSE`` for further connections.
        queue: how many connections may wait in the operating system to be accepted.
        **options: ``framing``, ``batch``, ``last_word``, ``idle_timeout``, ``frame_timeout``,
            ``linger``, ``write_limit``, ``when_slow``, ``receive_buffer``, ``send_buffer``,
            ``keepalive_bytes`` and ``keepalive_period``, as for :class:`TCPServer`.
    """

    kind = "unix-accept"
    makes: type[StreamConnection] = UnixConnection

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        sock: socket.socket | str | None = None,
        mode: int = 0o600,
        receiver: ReceiverOption = None,
        reader: ReaderKind = "thread",
        max_connections: int | None = None,
        when_full: WhenFull = WhenFull.PAUSE,
        queue: int = 1024,
        **options: Unpack[StreamKeywords],
    ) -> None:
        check_number("mode", mode, least=0, whole=True, most=0o777)
        super().__init__(
            receiver,
            _read_options("UnixServer", options, UnixServer),
            reader,
            max_connections,
            when_full,
            queue,
            GivenSocket(
                "UnixServer", sock, socket.SOCK_STREAM, _FAMILIES, is_placed=path is not None
            ),
        )
        self._path = "" if path is None and sock is not None else _check_path(path)
        """The path of the socket that the server makes, if it makes one."""
        self._mode = mode
        self._made: tuple[int, int] | None = None
        """Device and inode of the file, so that the server removes only its own file."""

    async def _listen(self) -> socket.socket:
        return await listen(self._path, socket.SOCK_STREAM, self._bind_to_path)

    async def _bind_to_path(self) -> socket.socket:
        _remove_stale(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._path.startswith("\0"):
                sock.bind(self._path)
            else:
                self._made = _bind(sock, self._path, self._mode)
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                raise _naming(error, self._path) from None
            raise
        return sock

    @property
    def local(self) -> str:
        """The path at which the server listens; ``@`` stands for a leading zero byte."""
        return str(self._local) or _shown(self._path)

    def _address(self, sock: socket.socket) -> str:
        return _shown(sock.getsockname())

    def _properties(self, sock: socket.socket) -> dict[str, tuple[object, object]]:
        path = os.fsdecode(sock.getsockname())
        found: dict[str, tuple[object, object]] = {"path": (_shown(self._path), _shown(path))}
        with suppress(OSError, ValueError):  # its file is gone, or it never had any
            found["mode"] = oct(self._mode), oct(stat.S_IMODE(os.lstat(path).st_mode))
        return found

    def _wake_acceptor(self) -> None:
        """Free the path as a TCP server frees its port: the next program may listen while this
        server still serves its connections.
        """
        with suppress(OSError):  # `terminate` tries again, and reports the error
            self._remove_file()
        super()._wake_acceptor()

    async def terminate(self, reason: Reason) -> None:
        """Remove the file, and end as any server does."""
        try:
            self._remove_file()
        finally:
            await super().terminate(reason)

    def _remove_file(self) -> None:
        """Remove the file of the server. The file of a shared socket stays for those that hold the
        socket, too: a restarted server, or the next version of this program.
        """
        if self._made is not None and not self._is_shared:
            if _identity(self._path) == self._made:
                os.unlink(self._path)
            self._made = None  # the file of the next program may have the same number


def _read_options(
    what: str, options: StreamKeywords, made_by: Callable[..., object]
) -> StreamOptions:
    checked = read_stream_options(what, options, made_by)
    if checked.tls:
        raise BadInputError("tls", checked.tls, "None: a Unix socket does not leave the machine")
    return checked


def _check_path(path: object) -> str:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise BadInputError("path", path, "the path of a socket")
    text = os.fspath(path)
    if not isinstance(text, str) or len(os.fsencode(text)) > 107:
        raise BadInputError(
            "path", path, "a path of at most 107 bytes, which is all that a Unix socket can have"
        )
    if "\0" in text and not text.startswith("\0"):
        raise BadInputError(
            "path",
            path,
            "a path without zero bytes; only the first byte may be zero, for an abstract name",
        )
    return text


def _shown(address: str | bytes) -> str:
    text = os.fsdecode(address)
    return "@" + text[1:] if text.startswith("\0") else text


def _naming(error: OSError, path: str) -> OSError:
    """The same error with the path in its text, which the operating system leaves out."""
    return OSError(error.errno, f"{describe(error)}: {_shown(path)}")


def _peer(sock: socket.socket) -> str:
    try:
        return _shown(sock.getpeername())
    except OSError:  # the peer is gone already
        return ""


def _bind(sock: socket.socket, path: str, mode: int) -> tuple[int, int]:
    """Bind, and give the file its permissions. The system refuses connections until ``listen`` is
    called, so no client can be too early.

    Other users may be able to write to the directory, and to replace the socket by a link to any
    file: nothing here follows a link.

    Raises:
        OSError: the socket could not be bound, or another file is at the path now.
    """
    try:
        # Linux creates the file with this mode, less the bits of the umask.
        os.fchmod(sock.fileno(), mode)
    except OSError:  # another system
        pass
    sock.bind(path)
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW) if hasattr(os, "O_PATH") else None
    try:
        status = os.lstat(path) if held is None else os.fstat(held)
        if not stat.S_ISSOCK(status.st_mode) or status.st_nlink > 1:
            raise FileExistsError(errno.EEXIST, _REPLACED)
        if stat.S_IMODE(status.st_mode) != mode:
            if held is None:
                os.chmod(path, mode, follow_symlinks=False)
            else:
                _chmod_held(held, path, mode)
        return status.st_dev, status.st_ino
    finally:
        if held is not None:
            os.close(held)


def _chmod_held(held: int, path: str, mode: int) -> None:
    """Give the socket that ``held`` refers to its permissions, and no other file, wherever ``path``
    leads by now.

    Raises:
        OSError: ``path`` leads to another file, or may be made to while this function runs.
    """
    try:
        os.chmod(f"{_DESCRIPTORS}/{held}", mode)
        return
    except FileNotFoundError:  # /proc is not mounted
        pass
    parent = os.path.dirname(path) or "."
    directory = os.open(parent, os.O_PATH | os.O_DIRECTORY)
    try:
        name = os.path.basename(path)
        status, made = os.fstat(directory), os.fstat(held)
        if not os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), made):
            raise FileExistsError(errno.EEXIST, _REPLACED)
        writable = (
            status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        )
        if writable or status.st_uid not in (0, os.geteuid()):
            os.unlink(name, dir_fd=directory)
            raise PermissionError(
                errno.EPERM,
                f"the socket cannot be given mode {mode:#o}: the umask leaves "
                f"{stat.S_IMODE(made.st_mode):#o} of it, "
                f"/proc is not mounted, and other users may replace files in {parent}. Mount "
                "/proc, use a directory "
                f"that only this user may write to, or set a umask that allows the mode",
            )
        os.chmod(name, mode, dir_fd=directory)
    finally:
        os.close(directory)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:  # there is no file, so there is none of ours
        return None
    return status.st_dev, status.st_ino


def _remove_stale(path: str) -> None:
    """Remove a socket that a killed server left behind: no process listens at it."""
    try:
        if path.startswith("\0") or not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        # Probe with the wrong socket type: a listening server refuses it with another error, and
        # does not notice the attempt.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
    except OSError:  # not there, or not accessible: bind() will report the error
        return


show_public_names(__name__)
