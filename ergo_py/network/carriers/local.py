"""`Local`: a network of the nodes of one user on one machine, over Unix sockets.

Each node listens at a file in a directory that only its user may enter. A node connects to another
with its first frame and sends on that connection; frames of the other arrive on a connection that
the other has made. The operating system vouches for the user at the other end.
"""

import errno
import os
import socket
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import quote, unquote
from weakref import WeakSet

import trio
from trio.lowlevel import current_task

from ..._core.kernel import Kernel
from ..._core.runtime.parking import park, wake
from ..._core.vocabulary.errors import ControlSocketError
from ..._core.vocabulary.public_names import show_public_names
from ...control import socket_paths
from ..carrier import Sink
from ..errors import NetworkError, NodeNameTakenError
from ..network import Network
from ..node_requests.permits import Allow
from ..node_requests.spawns import SpawnList
from ..settings import NetworkSettings
from ..stores.local_store import LocalStore
from .frame_reader import HEADER, FrameReader, PartialFrames, ProtocolError
from .node_socket import NodeSocket, remove_leftovers

__all__ = ["Local"]

_FRAME: Final = 16 << 20
_NAME: Final = 1024
"""The most bytes of the first frame of a connection, the name of its node."""
_BUFFER: Final = 4 << 20
"""Bytes that may wait for a connection. More are dropped: the session sends them again."""
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
_AGAIN: Final = 10.0
"""Seconds between the attempts of a node that has left the network to join it again."""
_ATTEMPTS: Final = 5
"""How often a lock is tried: another program may look at it, for a moment."""


class Local:
    """The network of all nodes of this user on this machine.

    For example::

        async with open_node("shop@here", network=Local(types=[messages])) as node:
            total = await node.call(Name("counter", "stock@here"), Total())

    It opens no port. Nothing is encrypted, since nothing leaves the machine.
    """

    def __init__(
        self,
        *,
        types: Iterable[type | ModuleType] = (),
        directory: str | os.PathLike[str] | None = None,
        beat: float = 1.0,
        patience: float = 5.0,
        backlog: int = 16 << 20,
        window: int = 1 << 20,
        spawns: SpawnList | None = None,
        allow: Allow | None = None,
        max_calls: int = 100_000,
        max_watches: int = 100_000,
    ) -> None:
        """Describe the network.

        Args:
            types: the classes of messages that travel, or modules that define them.
            directory: where the nodes of this network meet; None for a directory of the user.
                Nobody else may enter it.
            beat: seconds between the heartbeats of an idle session.
            patience: a node that is silent for this many seconds is down. A program that ends is
                noticed at once.
            backlog: bytes that may wait for a node before ``send`` refuses.
            window: bytes that may be on the way to a node.
            spawns: the behaviours that other nodes may start here, by name, as in
                ``spawns={"worker": Worker}``. A node needs the permit ``spawn`` as well.
            allow: the acts that other nodes are permitted, by patterns of their names; the name
                itself counts first, then the longest pattern that fits. The permits are ``send``,
                ``call``, ``watch``, ``exit``, ``forward``, which all nodes have by ``default``, and
                ``look``, ``kill``, ``spawn``, as in ``allow={"ops@*": "default,look"}``.
            max_calls: calls between two nodes, in each direction, that may wait for an answer.
            max_watches: processes, names and events of a node that another node may watch.

        Raises:
            BadInputError: a value is invalid.
        """
        self.types = tuple(types) if isinstance(types, Iterable) else types
        """The listed types."""
        self._settings = NetworkSettings(
            self.types, beat, patience, backlog, window, spawns, allow, max_calls, max_watches
        )
        self._directory = None if directory is None else Path(directory)
        self.hooks = ()
        """Messages between processes of a node are never encoded."""
        self.settings = {
            "directory": None if directory is None else os.fspath(self._directory or ""),
            "beat": beat,
            "patience": patience,
            "backlog": backlog,
            "window": window,
            "max_calls": max_calls,
            "max_watches": max_watches,
        }
        """The other arguments, as another program takes them."""

    def join_network(self, kernel: Kernel) -> Network:
        """Make the network of a node that opens."""
        return self._settings.make(kernel, _LocalCarrier(kernel, self._directory))


class _LocalCarrier:
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
        self._ways: dict[str, _Way] = {}
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
            for way in self._ways.values():
                way.close()

    async def _serve(self, node_socket: NodeSocket) -> str:
        """Take connections until other nodes cannot find this node any more. Returns why."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, node_socket.listener, nursery)
            while not (why := node_socket.keep()):  # noqa: ASYNC110 - files tell no changes
                await trio.sleep(_KEEP)
            nursery.cancel_scope.cancel()
        for way in self._ways.values():
            way.close()
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
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    await trio.sleep(0.1)
                    continue
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
                    with trio.move_on_after(5.0):
                        node = (await frames.first(_NAME)).decode("utf-8", "replace")
                    if node not in ("", self._name):
                        await self._read_frames(node, frames)
            except (OSError, ProtocolError):
                pass
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
            self._nursery.start_soon(self._refuse, to)
            return
        way = self._ways.get(to)
        if way is None or way.is_closed:
            way = self._ways[to] = _Way()
            self._nursery.start_soon(self._connect, to, way)
        way.send(frame)

    async def _refuse(self, to: str) -> None:
        if self._sink is not None:
            self._sink.unreachable(to, self._why_left)

    async def _connect(self, to: str, way: "_Way") -> None:
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
                await way.run(plain, self._name.encode())
        except ControlSocketError as error:
            why = str(error)
        except (OSError, trio.TooSlowError) as error:
            # Else its accept queue is full, or the connection broke. The session sends again, which
            # connects again, and decides when the node is down.
            if getattr(error, "errno", None) not in _NO_LISTENER:
                return
            why = "no such node on this machine"
        finally:
            way.close()
            if self._ways.get(to) is way:
                del self._ways[to]
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
        for way in list(self._ways.values()):
            await way.wait_written()


class _Way:
    """A connection to another node, and the frames that wait for it."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | memoryview] = deque()
        """Frames, and a view of the rest of a frame that is partly written: copies of the rest of
        a long frame would be as many as its writes.
        """
        self._size = 0
        self._socket: socket.socket | None = None
        self._task: trio.lowlevel.Task | None = None
        self._is_writing = False
        self._written = trio.Event()
        self.is_closed = False

    async def wait_written(self) -> None:
        """Wait until no frame waits."""
        while self._waiting:
            await self._written.wait()

    def send(self, frame: bytes) -> None:
        """Write a frame now if the socket takes it, else soon."""
        data = HEADER.pack(len(frame)) + frame
        if self._socket is not None and not self._waiting and not self._is_writing:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:  # the writing task finds the error, too
                sent = 0
            if sent == len(data):
                return
            self._waiting.append(memoryview(data)[sent:])
            self._size += len(data) - sent
        elif self._size + len(data) <= _BUFFER or not self._waiting:
            self._waiting.append(data)
            self._size += len(data)
        if self._task is not None:
            wake(self._task)

    async def run(self, connection: socket.socket, name: bytes) -> None:
        """Write frames until the other end closes the connection."""
        self._waiting.appendleft(HEADER.pack(len(name)) + name)
        self._size += HEADER.size + len(name)
        self._socket = connection
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_for_end, connection, nursery.cancel_scope)
            self._task = task = current_task()
            try:
                while True:
                    while self._waiting:
                        await self._write(connection)
                    self._note_written()
                    await park(task)
            except OSError:  # the other end is gone
                nursery.cancel_scope.cancel()

    async def _write(self, connection: socket.socket) -> None:
        data = self._waiting[0]
        self._is_writing = True
        try:
            sent = connection.send(data)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connection)
            return
        finally:
            self._is_writing = False
        self._size -= sent
        if sent == len(data):
            self._waiting.popleft()
        else:
            self._waiting[0] = memoryview(data)[sent:]

    async def _wait_for_end(self, connection: socket.socket, scope: trio.CancelScope) -> None:
        # The other end never writes on this connection: it is readable when it is closed.
        await trio.lowlevel.wait_readable(connection)
        scope.cancel()

    def _note_written(self) -> None:
        self._written.set()
        self._written = trio.Event()

    def close(self) -> None:
        """Drop the frames that wait: the session sends them again."""
        self.is_closed = True
        self._socket = None
        self._waiting.clear()
        self._size = 0
        self._note_written()


_carriers: Final[WeakSet[_LocalCarrier]] = WeakSet()


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


show_public_names(__name__)
