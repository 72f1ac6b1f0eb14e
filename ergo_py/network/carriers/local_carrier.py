"""`LocalCarrier`: the end of a node in a `Local` network. It listens at a file, and connects to the
files of other nodes.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote
from weakref import WeakSet

import trio

from ..._core.kernel import Kernel
from ..._core.vocabulary.errors import ControlSocketError
from ...control import socket_paths
from ..carrier import Sink
from ..errors import NetworkError, NodeNameTakenError
from ..stores.local_store import LocalStore
from .frame_reader import FrameReader, PartialFrames, ProtocolError
from .frame_writer import FrameWriter
from .node_socket import NodeSocket, remove_leftovers

__all__ = ["LocalCarrier"]

_FRAME: Final = 16 << 20
_NAME: Final = 1024
"""The most bytes of the first frame of a connection, the name of its node."""
_SUFFIX: Final = ".node"
_NO_LISTENER: Final = frozenset(
    {errno.ECONNREFUSED, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR}
)
"""Errors of a connection to a file at which no program of this user listens."""
_PARTIAL_FRAMES: Final = 16 * _FRAME
"""Bytes of frames that have not arrived whole, of all connections together."""
_LONGEST: Final = 100
"""Most bytes of a path; operating systems allow 104 or 108."""
_KEEP: Final = 1.0
"""Seconds between two looks at the files of this node's name."""
# Not measured: two programs have the same name, which a person has to change.
_AGAIN: Final = 10.0
"""Seconds between the attempts of a node that has left the network to join it again."""
_ATTEMPTS: Final = 5
"""How often a lock is tried: another program may look at it, for a moment."""


class LocalCarrier:
    """The end of a node in a `Local` network."""

    max_operation = _FRAME - 1024

    def __init__(self, kernel: Kernel, directory: Path | None) -> None:
        self._kernel = kernel
        self._name = kernel.pid.node
        self._given = directory
        self._place = Path()
        self._sink: Sink | None = None
        self._nursery: trio.Nursery | None = None
        self._socket: NodeSocket | None = None
        self._why_left = ""
        """Why this node cannot be reached under its name."""
        self._store: LocalStore | None = None
        self._writers: dict[str, FrameWriter] = {}
        """The connections to other nodes, by their names."""
        self._readers: dict[str, trio.CancelScope] = {}
        """The connections from other nodes that are read, by the names of the nodes."""
        self._partial_frames = PartialFrames(_PARTIAL_FRAMES)
        self._sockets: dict[socket.socket, None] = {}
        """All connections."""
        _carriers.add(self)

    async def run(self, sink: Sink, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen, connect and carry frames until cancelled."""
        self._sink = sink
        node_socket = await self._listen()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                while True:
                    self._why_left = await self._serve(node_socket)
                    node_socket.close()
                    sink.left(self._why_left)
                    node_socket = await self._listen_again()
                    self._why_left = ""
                    sink.joined()
        finally:
            self._nursery = None
            node_socket.close()
            if self._store is not None:
                self._store.close()
            for writer in self._writers.values():
                writer.close()

    async def _serve(self, node_socket: NodeSocket) -> str:
        """Take connections until other nodes cannot find this node any more. Returns why."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, node_socket.listener, nursery)
            while not (why := node_socket.keep()):  # noqa: ASYNC110 - files tell no changes
                await trio.sleep(_KEEP)
            nursery.cancel_scope.cancel()
        # Frames that are still written would carry the name of this node, which another node may
        # have now.
        for writer in self._writers.values():
            writer.close()
        return why

    async def _listen(self) -> NodeSocket:
        """Listen under the name of the node."""
        try:
            self._place = self._directory()
            path = self._path(self._name)
        except ControlSocketError as error:
            raise NetworkError(str(error)) from None
        remove_leftovers(self._place)
        for _ in range(_ATTEMPTS):
            try:
                self._socket = NodeSocket(path)
                return self._socket
            except BlockingIOError:
                await trio.sleep(0.01)
            except OSError as error:
                raise NetworkError(
                    f"no socket in {self._place}: {error.strerror or error}"
                ) from error
        raise NodeNameTakenError(
            f"a running node has the name {self._name!r}; give each node its own name"
        )

    async def _listen_again(self) -> NodeSocket:
        while True:
            await trio.sleep(_AGAIN)
            with suppress(NetworkError):
                return await self._listen()

    def forked(self) -> None:
        """Close what a forked child has got: the program of the node may end before the child."""
        if self._socket is not None:
            self._socket.forked()
        if self._store is not None:
            self._store.forked()
        for connection in self._sockets:
            connection.close()

    def _directory(self) -> Path:
        if self._given is None:
            return socket_paths.directory(create=True)
        return socket_paths.checked(self._given, "give the network another directory=")

    def _path(self, node: str) -> Path:
        path = self._place / f"{quote(node, safe='@', errors='backslashreplace')}{_SUFFIX}"
        if len(os.fsencode(path)) > _LONGEST:
            raise ControlSocketError(
                f"the path {path} is longer than {_LONGEST} bytes, the limit for sockets; give the "
                "node a shorter name, or the network a directory= with a shorter path"
            )
        return path

    # -- frames of other nodes ---------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # The peer stays in the queue, so the socket stays readable: without a pause, this
                # loop would spin until a descriptor is free.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    await trio.sleep(0.1)
                    continue
                # An error of the connection that was to be accepted, not of the listener.
                if error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                raise
            nursery.start_soon(self._read, connection)

    async def _read(self, connection: socket.socket) -> None:
        """Read the frames of a connection. The first is the name of its node."""
        assert self._sink is not None
        node = ""
        with self._kept(connection):
            connection.setblocking(False)
            try:
                if socket_paths.peer_user(connection) == os.geteuid():
                    frames = FrameReader(connection, self._partial_frames)
                    # A program that connects and says nothing must not keep a descriptor for good.
                    # Not measured: an honest node sends its name with its first write.
                    with trio.move_on_after(5.0):
                        node = (await frames.first(_NAME)).decode("utf-8", "replace")
                    if node not in ("", self._name):
                        await self._read_frames(node, frames)
            except (OSError, ProtocolError):
                # The connection is broken, or its bytes are no frames: either way nothing more can
                # be read. A node that was connected is lost below; a stranger is only closed.
                pass
        # A newer connection of the same node may be read by now: then the node is not lost.
        if node not in ("", self._name, *self._readers):
            self._lose(node)

    @contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[socket.socket]:
        self._sockets[connection] = None
        try:
            with connection:
                yield connection
        finally:
            self._sockets.pop(connection, None)

    async def _read_frames(self, node: str, frames: FrameReader) -> None:
        """Read the frames of a node. A node has a single connection: a new one replaces the old
        one, which the node has given up.
        """
        assert self._sink is not None
        scope = trio.CancelScope()
        if node in self._readers:
            self._readers[node].cancel()
        self._readers[node] = scope
        try:
            with scope:
                await frames.run(node, self._sink, _FRAME)
        finally:
            frames.close()
            # Not the entry of a newer connection, which has cancelled this reader.
            if self._readers.get(node) is scope:
                del self._readers[node]

    def _lose(self, node: str) -> None:
        """The program of a node has closed its connection: find out whether it still listens."""
        assert self._sink is not None
        try:
            path = self._path(node)
        except ControlSocketError:
            return
        if not _listens(path):
            self._sink.unreachable(node, "its program has ended")

    # -- frames to other nodes ---------------------------------------------------------------------

    def send(self, to: str, frame: bytes) -> None:
        """Carry a frame to a node. Connects with the first."""
        if self._nursery is None:  # the node goes down
            return
        if self._why_left:
            # In a task: the session is in the middle of a step when it sends, and must not end
            # inside of that step.
            self._nursery.start_soon(self._refuse, to)
            return
        writer = self._writers.get(to)
        if writer is None or writer.is_closed:
            writer = self._writers[to] = FrameWriter()
            self._nursery.start_soon(self._connect, to, writer)
        writer.send(frame)

    async def _refuse(self, to: str) -> None:
        if self._sink is not None:
            self._sink.unreachable(to, self._why_left)

    async def _connect(self, to: str, writer: FrameWriter) -> None:
        assert self._sink is not None
        why = ""
        try:
            path = self._path(to)
            with self._kept(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as plain:
                plain.setblocking(False)
                connection = trio.socket.from_stdlib_socket(plain)
                with trio.fail_after(5.0):
                    await connection.connect(str(_socket_file(path)))
                if socket_paths.peer_user(plain) != os.geteuid():
                    raise ControlSocketError(f"{path} belongs to another user")
                # The first frame says which node this is.
                await writer.run(plain, self._name.encode())
        except ControlSocketError as error:
            why = str(error)
        except (OSError, trio.TooSlowError) as error:
            # Else its accept queue is full, or the connection broke. The session sends again, which
            # connects again, and decides when the node is down.
            if getattr(error, "errno", None) not in _NO_LISTENER:
                return
            why = "no such node on this machine"
        finally:
            writer.close()
            # Not the entry of a newer writer, which a frame has made since this connection was
            # closed.
            if self._writers.get(to) is writer:
                del self._writers[to]
        if why:
            self._sink.unreachable(to, why)
        else:
            self._lose(to)

    async def discover(self, _seconds: float, /) -> list[str]:
        """The names of all other nodes that listen now."""
        found = []
        for path in sorted(self._place.glob(f"*{_SUFFIX}")):
            name = unquote(path.name.removesuffix(_SUFFIX))
            if not path.name.startswith(".") and name != self._name and _listens(path):
                found.append(name)
        return found

    def store(self) -> LocalStore:
        """The store of all nodes that meet in the directory."""
        if self._store is None:
            self._store = LocalStore(self._place, self._name, self._kernel.pid.creation)
        return self._store

    async def flush(self) -> None:
        """Wait until all frames are written."""
        for writer in list(self._writers.values()):
            await writer.wait_written()


_carriers: Final[WeakSet[LocalCarrier]] = WeakSet()


def _close_in_forked_child() -> None:
    for carrier in tuple(_carriers):
        carrier.forked()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_close_in_forked_child)


def _listens(path: Path) -> bool:
    """Whether a program listens at a socket file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(_socket_file(path)))
        except OSError as error:  # else its accept queue is full
            return error.errno not in _NO_LISTENER
    return True


def _socket_file(path: Path) -> Path:
    """The path of a socket. A link could lead to the socket of another node.

    Raises:
        FileNotFoundError: there is none.
    """
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileNotFoundError(errno.ENOENT, "no socket", str(path))
    return path
