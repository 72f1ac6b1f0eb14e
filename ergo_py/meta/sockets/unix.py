"""Unix sockets: connections between programs of one machine, with the messages and options of TCP."""

import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Any, Final, Self, Unpack

import trio

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.reasons import Reason
from ..readers import ReaderKind
from ..receivers import ReceiverOption, check_receiver
from .connection import Stream
from .listener import Listener
from .messages import Address
from .options import StreamKeywords, StreamOptions, WhenFull, read_stream_options
from .socket_setup import check_stream, describe

__all__ = ["UnixConnection", "UnixServer"]

_DESCRIPTORS: Final = "/proc/self/fd"
"""Where Linux shows the open descriptors as links to their very files."""
_REPLACED: Final = "something else has been put in the place of the socket"


class UnixConnection(Stream):
    """A connection over a Unix socket. A server makes them of what it accepts; :meth:`connect`
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
        """Take over a socket that is connected, such as one of a ``socket.socketpair``.

        Raises:
            BadInputError: an option cannot be right.
        """
        check_stream("UnixConnection(sock)", sock)
        self._begin(
            sock,
            check_receiver(receiver),
            _read_options("UnixConnection", options, UnixConnection),
            reader,
        )

    def _begin(
        self,
        sock: socket.socket | None,
        to: Target | None,
        options: StreamOptions,
        reader: ReaderKind,
    ) -> None:
        super().__init__(to, options, reader)
        self._given = sock
        self._path = ""
        self._connect_timeout = 0.0

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
        """Make a client. It connects before ``spawn_meta`` returns, which raises ``InitError`` if
        it cannot.

        Raises:
            BadInputError: an option cannot be right.
        """
        check_number("connect_timeout", connect_timeout, least=0.001)
        self = cls.__new__(cls)
        self._begin(
            None,
            check_receiver(receiver),
            _read_options("UnixConnection.connect", options, cls.connect),
            reader,
        )
        self._path = _check_path(path)
        self._connect_timeout = connect_timeout
        return self

    async def _open(self) -> socket.socket:
        if self._given is not None:
            return self._given
        with trio.move_on_after(self._connect_timeout) as scope:
            sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                await sock.connect(self._path)
                return socket.socket(fileno=sock.detach())
            except OSError as error:
                raise _naming(error, self._path) from None
            finally:
                sock.close()
        assert scope.cancelled_caught
        raise TimeoutError(
            f"no connection to {_shown(self._path)} within {self._connect_timeout:g} s"
        )

    def _ends(self, sock: socket.socket) -> tuple[Address, Address]:
        return _shown(sock.getsockname()), self._path or _peer(sock)


class UnixServer(Listener):
    """A server at a Unix socket. It makes the socket's file, and removes it in the end.

    Args:
        path: where; one that begins with a zero byte is no file but a name of Linux's own.
        mode: who may connect, as permissions of the file; by default the user's alone.
        receiver: as for :class:`TCPServer`, and so are the other options.
    """

    kind = "unix-accept"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
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
        )
        self._path = _check_path(path)
        self._mode = mode
        self._made: tuple[int, int] | None = None
        """Device and number of the file, so that no other's is removed in the end."""

    async def _listen(self) -> socket.socket:
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
        """Where it listens."""
        return _shown(self._path)

    def _address(self, sock: socket.socket) -> str:
        return _shown(sock.getsockname())

    def _make(self, sock: socket.socket, address: object) -> Stream:
        connection = UnixConnection.__new__(UnixConnection)
        connection._begin(sock, self._receivers.next(), self._options, self.reader)
        return connection

    async def terminate(self, reason: Reason) -> None:
        """Remove the file, and end as any server does."""
        try:
            if self._made is not None and _identity(self._path) == self._made:
                os.unlink(self._path)
        finally:
            await super().terminate(reason)


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
            "a path without zero bytes; one at its beginning makes a name that is no file",
        )
    return text


def _shown(address: Any) -> str:
    text = os.fsdecode(address)
    return "@" + text[1:] if text.startswith("\0") else text


def _naming(error: OSError, path: str) -> OSError:
    """The same error, saying where: the operating system does not."""
    return OSError(error.errno, f"{describe(error)}: {_shown(path)}")


def _peer(sock: socket.socket) -> str:
    try:
        return _shown(sock.getpeername())
    except OSError:  # gone already
        return ""


def _bind(sock: socket.socket, path: str, mode: int) -> tuple[int, int]:
    """Bind, and give the file its permissions. Connections are refused until ``listen`` is called,
    so nobody is too early.

    Others may write to the directory, and put a link to any file in the place of the socket:
    nothing here follows one.

    Raises:
        OSError: it could not be bound, or something else is at the path now.
    """
    try:
        # Linux makes the file like this, less what the umask takes away.
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
    except OSError:  # nothing is there, so nothing of ours is either
        return None
    return status.st_dev, status.st_ino


def _remove_stale(path: str) -> None:
    """Remove a socket that a server left behind when it was killed: one that nobody listens at."""
    try:
        if path.startswith("\0") or not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        # One of the wrong type: if somebody listens it is refused for that, and the server does not
        # even notice.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
    except OSError:  # not there, or not ours to look at: bind() will say what is wrong
        return
