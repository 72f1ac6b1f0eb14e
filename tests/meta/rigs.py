"""A rig for each bridge: how it is made, how the world on its other side stirs, and how that world
is taken away.

A new bridge is put through the conformance suite by a class here and its line in ``RIGS``.
"""

import os
import shutil
import signal
import socket
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import trio

from ergo_py import PID, Alias, MetaProcess, Node
from ergo_py.meta import BlockingCalls, Invoke, Poller, Port
from ergo_py.meta.descriptors import Descriptors, FdReadable, WatchFd
from ergo_py.meta.files.directory_watch import DirectoryWatch, PathChanged
from ergo_py.meta.files.files import FileLine, FileReader, FileWrite, FileWriter
from ergo_py.meta.files.stdin import StandardInput, StdinLine
from ergo_py.meta.parsing.framing import FixedLength
from ergo_py.meta.programs.messages import PortLine, PortWrite
from ergo_py.meta.signals import SignalReceived, Signals
from ergo_py.meta.sockets.datagrams import UDPData
from ergo_py.meta.sockets.messages import TCPData
from ergo_py.meta.sockets.tcp import TCPConnection, TCPServer
from ergo_py.meta.sockets.udp import UDPClient, UDPServer
from ergo_py.meta.sockets.unix import UnixConnection, UnixServer
from tests.meta.owner import eventually

__all__ = ["MARK", "RIGS", "Rig"]


class Rig:
    """A bridge, and the world on its other side. Nothing is opened before ``make``, and ``close``
    closes all of it.
    """

    traffic: type[Any] | None = None
    """The messages that the receiver gets for a stir; None for a bridge that only answers."""
    is_lossless = True
    """Whether each stir is reported even if the receiver is slow."""
    ends_when_lost = True
    """Whether the bridge ends by itself when its other side is gone, or lives on without it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.node: Node
        self.alias: Alias

    def make(self, receiver: PID) -> MetaProcess:
        """The bridge."""
        raise NotImplementedError

    async def started(self) -> None:
        """Called when it runs."""

    async def stir(self, count: int) -> int:
        """Have something happen on the other side. How many messages that makes."""
        raise NotImplementedError

    def lose(self) -> None:
        """Take the other side away."""

    def close(self) -> None:
        """Give everything back that the bridge does not own."""


# -- programs --------------------------------------------------------------------------------------


MARK = f"ERGO_PY_CONFORMANCE_OF_{os.getpid()}"
"""In the environment of programs and of all they start, by which they are found wherever they are.
"""


class ProgramRig(Rig):
    traffic = PortLine
    options: dict[str, Any] = {}

    def make(self, receiver: PID) -> MetaProcess:
        return Port(["cat"], receiver=receiver, env={MARK: "yes"}, **self.options)

    async def started(self) -> None:
        self.os_pid = int((await self.node.inspect_meta(self.alias))["os_pid"])

    async def stir(self, count: int) -> int:
        for number in range(count):
            self.node.send(self.alias, PortWrite(f"{number}\n"))
        return count

    def lose(self) -> None:
        os.kill(self.os_pid, signal.SIGKILL)


class StubbornProgramRig(ProgramRig):
    """It heeds neither the end of its input nor SIGTERM, and has a child that keeps its pipes."""

    options = {"stop": Port.StopTimes(0.05, 0.1, 1.0)}

    def make(self, receiver: PID) -> MetaProcess:
        command = "trap '' TERM; sleep 60 & while :; do read line && echo $line || sleep 0.05; done"
        return Port(["bash", "-c", command], receiver=receiver, env={MARK: "yes"}, **self.options)


class TerminalProgramRig(ProgramRig):
    options = {"terminal": Port.Terminal(), "stop": Port.StopTimes(0.3, 0.3, 1.0)}

    def make(self, receiver: PID) -> MetaProcess:
        self.silent = self.place / "silent"
        command = ["sh", "-c", 'stty -echo && : > "$0"; cat', str(self.silent)]
        return Port(command, receiver=receiver, env={MARK: "yes"}, **self.options)

    async def stir(self, count: int) -> int:
        # Until the terminal is told not to echo, each line might come twice.
        await eventually(self.silent.exists)
        return await super().stir(count)


# -- files -----------------------------------------------------------------------------------------


class FifoRig(Rig):
    traffic = FileLine
    follow = False

    def make(self, receiver: PID) -> MetaProcess:
        self.path = self.place / "fifo"
        os.mkfifo(self.path)
        return FileReader(self.path, follow=self.follow, interval=0.01, receiver=receiver)

    async def started(self) -> None:
        self.writer = os.open(self.path, os.O_WRONLY)

    async def stir(self, count: int) -> int:
        os.write(self.writer, b"x\n" * count)
        return count

    def lose(self) -> None:
        self.close()

    def close(self) -> None:
        writer, self.writer = self.writer, -1
        if writer >= 0:
            os.close(writer)


class FollowedFifoRig(FifoRig):
    follow = True
    ends_when_lost = False


class FollowedFileRig(Rig):
    traffic = FileLine
    ends_when_lost = False

    def make(self, receiver: PID) -> MetaProcess:
        self.path = self.place / "log"
        self.path.touch()
        return FileReader(self.path, follow=True, interval=0.01, receiver=receiver)

    async def stir(self, count: int) -> int:
        with self.path.open("a") as file:
            file.write("x\n" * count)
        return count

    def lose(self) -> None:
        self.path.unlink()


class FileWriterRig(Rig):
    ends_when_lost = False

    def make(self, receiver: PID) -> MetaProcess:
        return FileWriter(self.place / "file")

    async def stir(self, count: int) -> int:
        for _ in range(count):
            assert await self.node.call(self.alias, FileWrite("x\n")) == 2
        return count

    def lose(self) -> None:
        (self.place / "file").unlink()


class WatchRig(Rig):
    traffic = PathChanged
    polling = False

    def make(self, receiver: PID) -> MetaProcess:
        self.path = self.place / "watched"
        self.path.mkdir()
        self.count = 0
        return DirectoryWatch(self.path, polling=self.polling, interval=0.01, receiver=receiver)

    async def stir(self, count: int) -> int:
        for _ in range(count):
            self.count += 1
            (self.path / str(self.count)).touch()
        return count

    def lose(self) -> None:
        shutil.rmtree(self.path)


class PollingWatchRig(WatchRig):
    polling = True


# -- descriptors, signals, standard input ----------------------------------------------------------


class DescriptorsRig(Rig):
    traffic = FdReadable
    is_lossless = False
    ends_when_lost = False

    def make(self, receiver: PID) -> MetaProcess:
        self.read, self.write = os.pipe()
        return Descriptors(receiver=receiver)

    async def started(self) -> None:
        await self.node.call(self.alias, WatchFd(self.read))

    async def stir(self, count: int) -> int:
        # It is never read, so it is reported again and again.
        os.write(self.write, b"x")
        return count

    def lose(self) -> None:
        os.close(self.write)
        self.write = -1

    def close(self) -> None:
        for fd in (self.read, self.write):
            if fd >= 0:
                os.close(fd)


class SignalsRig(Rig):
    traffic = SignalReceived
    is_lossless = False
    ends_when_lost = False

    def make(self, receiver: PID) -> MetaProcess:
        self.before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return Signals(signal.SIGUSR1, receiver=receiver)

    async def stir(self, count: int) -> int:
        for _ in range(min(count, 20)):
            os.kill(os.getpid(), signal.SIGUSR1)
            # A signal that comes while another is on its way is the same signal.
            await trio.sleep(0.002)
        return 1

    def lose(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def close(self) -> None:
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, "a signal was not given back"
        signal.signal(signal.SIGUSR1, self.before)


class StandardInputRig(Rig):
    traffic = StdinLine

    def make(self, receiver: PID) -> MetaProcess:
        self.read, self.write = os.pipe()
        return StandardInput(fd=self.read, receiver=receiver)

    async def stir(self, count: int) -> int:
        os.write(self.write, b"x\n" * count)
        return count

    def lose(self) -> None:
        os.close(self.write)
        self.write = -1

    def close(self) -> None:
        for fd in (self.read, self.write):
            if fd >= 0:
                os.close(fd)


# -- blocking code ---------------------------------------------------------------------------------


class CallsRig(Rig):
    ends_when_lost = False
    threads = 1

    def make(self, receiver: PID) -> MetaProcess:
        self.target: list[int] = []
        return BlockingCalls(self.target, threads=self.threads)

    async def stir(self, count: int) -> int:
        for number in range(count):
            await self.node.call(self.alias, Invoke("append", number))
        return count

    def lose(self) -> None:
        self.node.send(self.alias, Invoke("no_such_method"))


class ManyCallsRig(CallsRig):
    threads = 4


class PollerRig(Rig):
    traffic = int

    def make(self, receiver: PID) -> MetaProcess:
        self.queue: SimpleQueue[int | None] = SimpleQueue()
        return Poller(self.poll, receiver=receiver)

    def poll(self) -> int | None:
        try:
            found = self.queue.get(timeout=0.02)
        except Empty:
            return None
        if found is None:
            raise ConnectionError("the device is gone")
        return found

    async def stir(self, count: int) -> int:
        for number in range(count):
            self.queue.put(number)
        return count

    def lose(self) -> None:
        self.queue.put(None)


# -- sockets ---------------------------------------------------------------------------------------


class ServerRig(Rig):
    """A server with a single connection from a plain socket; each byte comes in a message of its
    own.
    """

    traffic = TCPData
    ends_when_lost = False
    reader: Any = "thread"

    def make(self, receiver: PID) -> MetaProcess:
        self.server: Any = self.make_server(receiver)
        self.peer: Any = None
        return self.server

    def make_server(self, receiver: PID) -> MetaProcess:
        return TCPServer(receiver=receiver, reader=self.reader, framing=FixedLength(1))

    def dial(self) -> socket.socket:
        return socket.create_connection(self.server.local)

    async def started(self) -> None:
        self.peer = await trio.to_thread.run_sync(self.dial)

    async def stir(self, count: int) -> int:
        self.peer.sendall(b"x" * count)
        return count

    def lose(self) -> None:
        self.peer.close()

    def close(self) -> None:
        if self.peer is not None:
            self.peer.close()


class UnixServerRig(ServerRig):
    def make_server(self, receiver: PID) -> MetaProcess:
        return UnixServer(
            self.place / "sock", receiver=receiver, reader=self.reader, framing=FixedLength(1)
        )

    def dial(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(self.server.local)
        return peer


class ConnectionRig(Rig):
    """A client, connected to a plain socket."""

    traffic = TCPData
    reader: Any = "thread"

    def make(self, receiver: PID) -> MetaProcess:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.peer: socket.socket | None = None
        return TCPConnection.connect(
            *self.listener.getsockname(),
            receiver=receiver,
            reader=self.reader,
            framing=FixedLength(1),
        )

    async def started(self) -> None:
        self.peer, _ = await trio.to_thread.run_sync(self.listener.accept)

    async def stir(self, count: int) -> int:
        assert self.peer is not None
        self.peer.sendall(b"x" * count)
        return count

    def lose(self) -> None:
        assert self.peer is not None
        self.peer.close()

    def close(self) -> None:
        self.listener.close()
        if self.peer is not None:
            self.peer.close()


class UnixConnectionRig(ConnectionRig):
    def make(self, receiver: PID) -> MetaProcess:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.place / "sock"))
        self.listener.listen()
        self.peer = None
        return UnixConnection.connect(
            self.place / "sock", receiver=receiver, reader=self.reader, framing=FixedLength(1)
        )


class UDPServerRig(Rig):
    traffic = UDPData
    is_lossless = False
    ends_when_lost = False
    reader: Any = "thread"

    def make(self, receiver: PID) -> MetaProcess:
        self.peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.bridge: Any = UDPServer(receiver=receiver, reader=self.reader)
        return self.bridge

    async def stir(self, count: int) -> int:
        for _ in range(count):
            self.peer.sendto(b"x", self.bridge.local)
            # Not faster than they are taken: a datagram that finds no room is lost.
            await trio.lowlevel.checkpoint()
        return count

    def lose(self) -> None:
        self.peer.close()

    def close(self) -> None:
        self.peer.close()


class UDPClientRig(UDPServerRig):
    def make(self, receiver: PID) -> MetaProcess:
        self.peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.peer.bind(("127.0.0.1", 0))
        client = self.bridge = UDPClient(
            *self.peer.getsockname(), receiver=receiver, reader=self.reader
        )
        return client


def in_task(rig: type[Any]) -> type[Any]:
    """The same with a reader that is a task."""
    return type(f"Task{rig.__name__}", (rig,), {"reader": "task"})


RIGS: list[type[Rig]] = [
    ProgramRig,
    StubbornProgramRig,
    TerminalProgramRig,
    FifoRig,
    FollowedFifoRig,
    FollowedFileRig,
    FileWriterRig,
    WatchRig,
    PollingWatchRig,
    DescriptorsRig,
    SignalsRig,
    StandardInputRig,
    CallsRig,
    ManyCallsRig,
    PollerRig,
    ServerRig,
    in_task(ServerRig),
    UnixServerRig,
    in_task(UnixServerRig),
    ConnectionRig,
    in_task(ConnectionRig),
    UnixConnectionRig,
    in_task(UnixConnectionRig),
    UDPServerRig,
    in_task(UDPServerRig),
    UDPClientRig,
    in_task(UDPClientRig),
]
