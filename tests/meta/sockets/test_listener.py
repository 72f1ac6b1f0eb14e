"""Servers: accepting, limits, receivers, and how everything ends with them."""

import errno
import socket
import subprocess
import sys
import textwrap
import threading
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks.replacements import Owner, replace
from ergo_py import (
    Actor,
    Alias,
    BadInputError,
    ChildSpec,
    Crashed,
    Down,
    Drain,
    Killed,
    NodeStoppedError,
    Normal,
    Reason,
    Shutdown,
)
from ergo_py._core.runtime.bridge import Bridge, ReaderThread
from ergo_py.errors import CallTimeoutError, ProcessUnknownError, UnhandledCallError
from ergo_py.meta import TCP
from ergo_py.meta.parsing.framing import LengthHeader
from ergo_py.meta.poller import SocketPoller
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import (
    Cause,
    Endpoint,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPSend,
)
from ergo_py.meta.sockets.tcp import TCPServer
from ergo_py.meta.sockets.tls import TLSFiles
from tests.actors import Puppet
from tests.meta.support import (
    connections_under_way,
    drains_of,
    hold_ends_of_drains,
    meta_of,
    pause_after,
    replace_logger,
)
from tests.meta.wires import (
    Ear,
    Mail,
    Wire,
    dial_with_late_ack,
    echo,
    needs_handshakes,
    needs_ipv6,
    serve,
    spawn_meta,
    until,
    wired_node,
)
from tests.support import replace_private

_word: ContextVar[str] = ContextVar("_word", default="of no server")
CERTIFICATES = Path(__file__).parent.parent / "certificates"

# -- limits ----------------------------------------------------------------------------------------


async def test_a_full_server_pauses_and_continues_when_a_connection_ends(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, max_connections=2)
        first, second, third = [await wire.dial(server) for _ in range(3)]
        await third.send_all(b"patience")
        await mail.wait_for(TCPConnected, 2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(mail.of(TCPConnected)) == 2

        await first.aclose()

        assert await third.receive_some() == b"patience"
        assert server.connections == 2
        await second.aclose()
        await third.aclose()


async def test_a_full_server_refuses_connections_if_configured(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, max_connections=1, when_full=TCP.WhenFull.REFUSE)
        first = await wire.dial(server)
        await mail.wait_for(TCPConnected, 1)

        second = await wire.dial(server)
        with_nothing = await second.receive_some()
        await first.aclose()
        await mail.wait_for(TCPDisconnected, 1)
        third = await wire.dial(server)
        await third.send_all(b"now?")

        assert with_nothing == b""
        assert await third.receive_some() == b"now?"
        facts = await node.inspect_meta(server.id)
        assert (facts["accepted"], facts["refused"], facts["open"]) == ("2", "1", "1")
        await second.aclose()
        await third.aclose()


async def test_a_connection_without_a_free_thread_is_refused_and_the_server_continues(
    tmp_path: Path,
) -> None:
    wire = Wire("tcp", "thread", tmp_path)
    async with wired_node(max_reader_threads=2) as node:
        server, mail = await serve(node, wire)
        first = await wire.dial(server)
        await mail.wait_for(TCPConnected, 1)

        second = await wire.dial(server)
        with_nothing = await second.receive_some()
        await first.aclose()
        await mail.wait_for(TCPDisconnected, 1)
        await until(lambda: len(node.metas()) == 1)
        third = await wire.dial(server)
        await third.send_all(b"now?")

        assert with_nothing == b""
        assert await third.receive_some() == b"now?"
        assert server.refused == 1
        await second.aclose()
        await third.aclose()


OUT_OF_DESCRIPTORS = """
    import os, resource, sys, trio
    from ergo_py import Actor, open_node
    from ergo_py.meta.sockets.messages import TCP
    from ergo_py.meta.sockets.tcp import TCPServer

    class Echo(Actor):
        async def init(self):
            await self.spawn_meta(server)

        def handle_message(self, message, sender):
            if isinstance(message, TCP.Data):
                self.send(message.connection, TCP.Send(message.data))

    async def ask(stream):
        await stream.send_all(b"?")
        with trio.fail_after(30):
            return await stream.receive_some()

    async def main():
        async with open_node("small@localhost", watchdog=None, log_output="none") as node:
            await node.spawn(Echo)
            first = await trio.open_tcp_stream(*server.local)
            assert await ask(first) == b"?"
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
            second = await trio.open_tcp_stream(*server.local)
            assert await ask(second) == b"?"
            # Made before the descriptors run out. A server inside of accept() has a descriptor
            # already, so nothing is left to chance.
            sock = trio.socket.socket()
            hoard = []
            try:
                while True:
                    hoard.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            await sock.connect(tuple(server.local))
            third = trio.SocketStream(sock)
            while server.errors < 3:
                await trio.sleep(0.01)
            assert await ask(first) == b"?"
            began = trio.current_time()
            errors = server.errors
            await trio.sleep(0.5)
            seconds = trio.current_time() - began
            assert server.errors - errors < 20 * seconds, "it did not back off"
            for fd in hoard:
                os.close(fd)
            assert await ask(third) == b"?"
            print("survived", server.connections)

    server = TCPServer(reader=sys.argv[1])
    trio.run(main)
"""


@pytest.mark.parametrize("reader", ["thread", "task"])
def test_a_server_survives_a_lack_of_descriptors(reader: str) -> None:
    # A program of its own, because the limit holds for a whole program.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(OUT_OF_DESCRIPTORS), reader],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "survived 3\n"


class Unlucky(socket.socket):
    """A listening socket with an ``accept`` that fails now and then, with errors of the operating
    system. It does not where 0 is to come.
    """

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors and (number := self.errors.pop(0)):
            raise OSError(number, "as the operating system has it")
        return super().accept()


class UnluckyServer(TCPServer):
    def __init__(self, errors: list[int], reader: ReaderKind, **options: Any) -> None:
        super().__init__(reader=reader, **options)
        self.to_come = errors

    async def _listen(self) -> socket.socket:
        sock = Unlucky(fileno=(await super()._listen()).detach())
        sock.errors = self.to_come
        return sock


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_server_survives_connections_that_ended_before_accept(
    reader: ReaderKind,
) -> None:
    # Those of accept(2): of a connection that was gone, of a firewall, and any error that a new
    # connection has met with already.
    names = (
        "ECONNABORTED EPERM ENETDOWN EPROTO ENOPROTOOPT EHOSTDOWN ENONET "
        "EHOSTUNREACH EOPNOTSUPP ENETUNREACH ETIMEDOUT"
    )
    errors = [getattr(errno, name) for name in names.split() if hasattr(errno, name)]
    count = len(errors)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)
        server = UnluckyServer(errors, reader)
        await spawn_meta(node, owner, server)

        async with await trio.open_tcp_stream(*server.local) as stream:
            await stream.send_all(b"hello")
            answer = await stream.receive_some()

        assert answer == b"hello"
        assert (await node.inspect_meta(server.id, "errors")) == {"errors": str(count)}


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_connections_accepted_before_an_error_are_served(reader: ReaderKind) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)
        server = UnluckyServer([0, errno.ECONNABORTED, 0, errno.EMFILE], reader)
        await spawn_meta(node, owner, server)

        streams = [await trio.open_tcp_stream(*server.local) for _ in range(4)]
        for stream in streams:
            await stream.send_all(b"hello")

        assert [await stream.receive_some() for stream in streams] == [b"hello"] * 4
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_server_with_a_broken_socket_crashes_with_the_error(reader: ReaderKind) -> None:
    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        server = UnluckyServer([], reader)
        alias = await spawn_meta(node, owner, server, needed=False)
        await node.call(owner, lambda me: me.monitor(alias))

        # A thread may be inside of accept() by now, and this single peer gets it out of there; if
        # it is not, the peer is too late.
        server.to_come.append(errno.ENOTSOCK)
        with socket.socket() as peer:
            peer.setblocking(False)
            peer.connect_ex(server.local)
            reason = (await mail.first(Down)).reason

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, OSError)
        assert reason.error.errno == errno.ENOTSOCK


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_server_without_descriptors_waits_a_little_longer_each_time(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        server = TCPServer(reader=reader)
        await spawn_meta(node, owner, server)
        lack = OSError(errno.EMFILE, "too many open files")

        pauses = [pause_after(server, lack) for _ in range(7)]
        async with await trio.open_tcp_stream(*server.local):
            await until(lambda: server.accepted == 1)
        again = pause_after(server, lack)

        assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert again == 0.05


# -- receivers -------------------------------------------------------------------------------------


async def test_a_named_process_may_receive(wire: Wire) -> None:
    async with wired_node() as node:
        mail = Mail()
        await node.spawn(Ear, mail, echo, name="clerk")
        server, owners = await serve(node, wire, receiver="clerk")

        async with await wire.dial(server) as stream:
            await stream.send_all(b"hello")
            answer = await stream.receive_some()
        await mail.first(TCPDisconnected)

        assert answer == b"hello"
        assert [type(message) for message in mail.heard] == [TCPConnected, TCPData, TCPDisconnected]
        assert owners.heard == []


async def test_several_processes_take_turns_and_keep_their_connections(wire: Wire) -> None:
    async with wired_node() as node:
        mails = [Mail(), Mail(), Mail()]
        clerks = [await node.spawn(Ear, mail, echo) for mail in mails]
        server, _ = await serve(node, wire, receiver=clerks)

        streams = []
        for number in range(6):
            streams.append(await wire.dial(server))
            await mails[number % 3].wait_for(TCPConnected, number // 3 + 1)
        for stream in streams:
            await stream.send_all(b"x")
            await stream.receive_some()
            await stream.aclose()
        for mail in mails:
            await mail.wait_for(TCPDisconnected, 2)

        for mail in mails:
            mine = {message.connection for message in mail.of(TCPConnected)}
            assert len(mine) == 2
            assert {message.connection for message in mail.heard} == mine
            assert len(mail.of(TCPData)) == 2


async def test_a_connection_without_its_receiver_ends_with_that_cause(wire: Wire) -> None:
    async with wired_node() as node:
        watcher = Mail()
        mail = Mail()
        clerk = await node.spawn(Ear, mail)
        server, _ = await serve(node, wire, receiver=clerk)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection
        pid = await node.spawn(Ear, watcher)
        await node.call(pid, lambda me: me.monitor(connection))

        node.kill(clerk)
        await until(lambda: clerk not in node.processes())
        await stream.send_all(b"anybody?")
        down = await watcher.first(Down)

        assert "receiver is gone" in str(down.reason)
        assert await stream.receive_some() == b""
        await stream.aclose()


class Session(Ear):
    """The actor of a connection."""


async def test_each_connection_may_have_its_own_actor_that_ends_with_the_connection(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        mail = Mail()
        server, owners = await serve(node, wire, receiver=partial(Session, mail, echo))
        before = set(node.processes())

        one, two = await wire.dial(server), await wire.dial(server)
        await mail.wait_for(TCPConnected, 2)
        sessions = [pid for pid in node.processes() if pid not in before]
        infos = [node.process_info(pid) for pid in sessions]
        await one.send_all(b"last words")
        answer = await one.receive_some()
        await one.aclose()
        await until(lambda: len(node.processes()) == len(before) + 1)
        await two.send_all(b"still here")
        other = await two.receive_some()

        assert answer == b"last words"
        assert other == b"still here"
        assert len(sessions) == 2
        assert all(info.behaviour == "Session" and info.parent == server.parent for info in infos)
        first = next(
            message.connection for message in mail.of(TCPData) if message.data == b"last words"
        )
        assert [type(message) for message in mail.heard if message.connection == first] == [
            TCPConnected,
            TCPData,
            TCPDisconnected,
        ]
        assert owners.heard == []
        await two.aclose()
        await until(lambda: set(node.processes()) == before)


async def test_a_function_may_create_the_actor_of_each_connection(wire: Wire) -> None:
    async with wired_node() as node:
        mails: list[Mail] = []

        def session() -> Session:
            mails.append(Mail())
            return Session(mails[-1], echo)

        server, _ = await serve(node, wire, receiver=session)

        async with await wire.dial(server) as one, await wire.dial(server) as two:
            for stream, words in ((one, b"first"), (two, b"second")):
                await stream.send_all(words)
                assert await stream.receive_some() == words

        assert [mail.of(TCPData)[0].data for mail in mails] == [b"first", b"second"]
        assert (await node.inspect_meta(server.id))["receiver"] == "a session for each"


async def test_a_function_that_returns_no_actor_refuses_only_that_connection(wire: Wire) -> None:
    made: list[Any] = ["a str", ValueError("not this one"), Session(Mail(), echo)]

    def session() -> Session:
        one = made.pop(0)
        if isinstance(one, Exception):
            raise one
        assert isinstance(one, Session | str)
        return one  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=session)

        streams = [await wire.dial(server) for _ in range(3)]
        await streams[2].send_all(b"three")

        assert await streams[0].receive_some() == b""
        assert await streams[1].receive_some() == b""
        assert await streams[2].receive_some() == b"three"
        assert server.refused == 2
        for stream in streams:
            await stream.aclose()


async def test_a_crash_of_an_actor_ends_only_its_own_connection(
    wire: Wire,
) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPData) and message.data == b"crash":
            raise ValueError("as asked")
        echo(me, message)

    async with wired_node() as node:
        mail = Mail()
        server, _ = await serve(node, wire, receiver=partial(Session, mail, react))
        bad, good = await wire.dial(server), await wire.dial(server)
        await mail.wait_for(TCPConnected, 2)

        await bad.send_all(b"crash")
        ended = await bad.receive_some()
        await good.send_all(b"fine")

        assert ended == b""
        assert await good.receive_some() == b"fine"
        await until(lambda: server.connections == 1)
        await bad.aclose()
        await good.aclose()


async def test_an_actor_may_say_goodbye_and_stop(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPData):
            me.send(message.connection, TCPSend(b"goodbye"))
            me.stop()

    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Session, Mail(), react))

        async with await wire.dial(server) as stream:
            await stream.send_all(b"quit")
            assert b"".join([part async for part in stream]) == b"goodbye"

        await until(lambda: server.connections == 0 and len(node.processes()) == 1)


async def test_an_actor_that_cannot_be_created_refuses_only_that_connection(wire: Wire) -> None:
    class Picky(Ear):
        async def init(self) -> None:
            if len(made) == 1:
                made.append("refused")
                raise ValueError("not this one")
            made.append("made")

    made: list[str] = []
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Picky, Mail(), echo))

        streams = []
        for _ in range(3):
            streams.append(await wire.dial(server))
            await until(lambda: len(made) == len(streams))
        await streams[0].send_all(b"one")
        await streams[2].send_all(b"three")

        assert await streams[0].receive_some() == b"one"
        assert await streams[1].receive_some() == b""
        assert await streams[2].receive_some() == b"three"
        assert made == ["made", "refused", "made"]
        assert server.refused == 1
        for stream in streams:
            await stream.aclose()


async def test_an_actor_that_ends_at_once_leaves_no_connection_behind(wire: Wire) -> None:
    class Shy(Ear):
        async def init(self) -> None:
            self.stop()

    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Shy, Mail()))

        # Whether it is gone before its connection is there is a matter of luck.
        for _ in range(30):
            async with await wire.dial(server) as stream:
                assert await stream.receive_some() == b""

        await until(lambda: server.connections == 0 and len(node.metas()) == 1)
        assert server.accepted + server.refused == 30


# -- newcomers -------------------------------------------------------------------------------------


class Slow(Ear):
    """The actor of a connection, which begins when it is let."""

    def __init__(self, begun: list[str], gate: trio.Event) -> None:
        super().__init__(Mail(), echo)
        self.begun, self.gate = begun, gate

    async def init(self) -> None:
        self.begun.append("begun")
        await self.gate.wait()


async def test_a_new_connection_does_not_wait_for_the_init_of_other_actors(wire: Wire) -> None:
    begun: list[str] = []
    gate = trio.Event()
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Slow, begun, gate))

        streams = [await wire.dial(server) for _ in range(5)]
        await until(lambda: len(begun) == 5)
        gate.set()
        for stream in streams:
            await stream.send_all(b"x")

        assert [await stream.receive_some() for stream in streams] == [b"x"] * 5
        assert server.accepted == 5
        for stream in streams:
            await stream.aclose()


async def test_a_limited_number_of_connections_waits_for_their_actors_to_start(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "connections that wait for actors", 3)
    begun: list[str] = []
    gate = trio.Event()
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Slow, begun, gate))

        streams = [await wire.dial(server) for _ in range(8)]
        await until(lambda: len(begun) == 3)
        await trio.testing.wait_all_tasks_blocked(0.05)
        waiting = server.connections
        gate.set()
        for stream in streams:
            await stream.send_all(b"x")

        assert waiting == 3
        assert [await stream.receive_some() for stream in streams] == [b"x"] * 8
        for stream in streams:
            await stream.aclose()


async def test_a_server_creates_a_limited_number_of_connections_per_turn(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "connections made in a turn", 3)
    replace_private(monkeypatch, "reader threads made in a turn", 3)
    async with wired_node() as node:
        server, _ = await serve(node, wire)

        peers = [wire.dial_plain(server) for _ in range(30)]
        counts = [0]
        while server.accepted < 30:
            await trio.lowlevel.checkpoint()
            counts.append(server.accepted + connections_under_way(server))

        # This task may have its turn first in a pass of the loop, and last in the next.
        assert max(after - before for before, after in pairwise(counts)) <= 6
        for peer in peers:
            peer.close()


async def test_a_server_adopts_all_accepted_sockets_if_the_loop_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    post = Bridge.post

    def refuse(bridge: Bridge, job: Any, *args: Any) -> None:
        if bridge.on_loop() and job.__name__ == "adopt":
            raise NodeStoppedError("test", "its loop is over")
        post(bridge, job, *args)

    monkeypatch.setattr(Bridge, "post", refuse)
    replace_private(monkeypatch, "reader threads made in a turn", 2)
    async with wired_node() as node:
        server, _ = await serve(node, Wire("tcp", "thread", Path()))

        peers = [socket.create_connection(server.local) for _ in range(10)]
        await until(lambda: server.accepted == 10)

        for peer in peers:
            peer.close()


@pytest.mark.parametrize("when_full", TCP.WhenFull)
async def test_a_connection_counts_before_its_actor_has_started(
    wire: Wire, when_full: TCP.WhenFull
) -> None:
    begun: list[str] = []
    gate = trio.Event()
    async with wired_node() as node:
        options: Any = {"max_connections": 2, "when_full": when_full}
        server, _ = await serve(node, wire, receiver=partial(Slow, begun, gate), **options)

        streams = [await wire.dial(server) for _ in range(2)]
        await until(lambda: len(begun) == 2)
        third = await wire.dial(server)
        if when_full is TCP.WhenFull.REFUSE:
            assert await third.receive_some() == b""
        else:
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert (len(begun), server.connections) == (2, 2)
        gate.set()
        await streams[0].aclose()
        if when_full is TCP.WhenFull.PAUSE:
            await until(lambda: len(begun) == 3)
        await until(lambda: server.connections == len(begun) - 1)

        assert server.refused == (1 if when_full is TCP.WhenFull.REFUSE else 0)
        await streams[1].aclose()
        await third.aclose()


async def test_a_server_that_ends_does_not_wait_for_actors_that_have_not_begun(wire: Wire) -> None:
    begun: list[str] = []
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Slow, begun, trio.Event()))
        streams = [await wire.dial(server) for _ in range(3)]
        await until(lambda: len(begun) == 3)

        node.send_exit(server.id)
        ended = [await stream.receive_some() for stream in streams]

        assert ended == [b""] * 3
        await until(lambda: node.metas() == [] and len(node.processes()) == 1)
        assert server.accepted == server.refused == server.connections == 0
        for stream in streams:
            await stream.aclose()


async def test_a_server_ends_actors_that_have_not_begun_after_the_end_of_its_reader(
    tmp_path: Path,
) -> None:
    wire = Wire("tcp", "task", tmp_path)
    begun: list[str] = []
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Slow, begun, trio.Event()))
        stream = await wire.dial(server)
        await until(lambda: len(begun) == 1)

        node.send_exit(server.id)
        # As if the reader had been awake, and had noticed the exit before the termination began.
        meta_of(server).reader.gone.set()

        assert await stream.receive_some() == b""
        await until(lambda: node.metas() == [] and len(node.processes()) == 1)
        assert server.refused == 0
        await stream.aclose()


async def test_an_actor_that_begins_although_its_server_has_ended_ends_as_well(wire: Wire) -> None:
    class Deaf(Slow):
        async def init(self) -> None:
            with trio.CancelScope(shield=True):
                await super().init()

    begun: list[str] = []
    gate = trio.Event()
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Deaf, begun, gate))
        stream = await wire.dial(server)
        await until(lambda: len(begun) == 1)

        node.send_exit(server.id)
        await until(lambda: server.stopping)
        gate.set()

        assert await stream.receive_some() == b""
        await until(lambda: node.metas() == [] and len(node.processes()) == 1)
        await stream.aclose()


async def test_an_actor_without_its_connection_ends(tmp_path: Path) -> None:
    wire = Wire("tcp", "thread", tmp_path)
    mail = Mail()
    # A thread for the server, none for a connection.
    async with wired_node(max_reader_threads=1) as node:
        server, _ = await serve(node, wire, receiver=partial(Session, mail, echo))

        async with await wire.dial(server) as stream:
            ended = await stream.receive_some()

        assert ended == b""
        await until(lambda: len(node.processes()) == 1)
        assert (server.refused, server.connections) == (1, 0)
        assert mail.heard == []


async def test_a_connection_without_a_thread_of_the_system_ends_and_the_server_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_thread: ReaderThread) -> None:
        raise RuntimeError("can't start new thread")

    wire = Wire("tcp", "thread", tmp_path)
    mail = Mail()
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Session, mail, echo))
        with monkeypatch.context() as patch:
            patch.setattr(ReaderThread, "start", no_more)
            async with await wire.dial(server) as refused:
                answer = await refused.receive_some()
        async with await wire.dial(server) as taken:
            await taken.send_all(b"now?")
            second = await taken.receive_some()

        assert (answer, second) == (b"", b"now?")
        assert node.info().reader_threads == 2
        assert [type(message) for message in mail.heard[:1]] == [TCPConnected]


class Leaves(Ear):
    """The actor of a connection, which ends the whole program."""

    def init(self) -> None:
        raise SystemExit(5)


def leave() -> Ear:
    raise SystemExit(5)


@pytest.mark.counted
@pytest.mark.parametrize("receiver", [partial(Leaves, Mail()), leave], ids=["init", "function"])
async def test_a_system_exit_in_the_factory_of_an_actor_is_passed_on(
    wire: Wire, receiver: Any
) -> None:
    with pytest.raises(SystemExit, match="5"):
        async with wired_node() as node:
            server, _ = await serve(node, wire, receiver=receiver)
            async with await wire.dial(server):
                await trio.sleep_forever()


@pytest.mark.parametrize("when_full", TCP.WhenFull)
async def test_several_waiting_connections_are_accepted_in_a_single_turn(
    tmp_path: Path, when_full: TCP.WhenFull
) -> None:
    wire = Wire("tcp", "task", tmp_path)
    async with wired_node() as node:
        server, mail = await serve(node, wire, max_connections=10, when_full=when_full)
        # Connected by the operating system, without the loop.
        socks = [wire.dial_plain(server) for _ in range(12)]

        while not server.connections:
            await trio.lowlevel.checkpoint()

        assert server.connections == 10
        assert server.refused == (2 if when_full is TCP.WhenFull.REFUSE else 0)
        await mail.wait_for(TCPConnected, 10)
        for sock in socks:
            sock.close()


# -- connections without tasks ---------------------------------------------------------------------


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_connection_that_only_reads_and_answers_has_no_task(
    short_path: Path, kind: str
) -> None:
    wire = Wire(kind, "task", short_path)
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        await trio.testing.wait_all_tasks_blocked()
        before = tasks()
        streams = [await wire.dial(server) for _ in range(5)]
        for stream in streams:
            await stream.send_all(b"x")
        answers = [await stream.receive_some() for stream in streams]
        during = tasks()
        for stream in streams:
            await stream.aclose()
        ended = await mail.wait_for(TCPDisconnected, 5)

        assert answers == [b"x"] * 5
        assert (before, during, tasks()) == (before, before, before)
        assert {(message.reason, message.bytes_in) for message in ended} == {(Cause.EOF, 1)}
        assert server.connections == 0
        assert node.metas() == [server.id]


class TaskNames(trio.abc.Instrument):
    """Notes the tasks that are made."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.names.append(task.name)


@pytest.mark.parametrize("reader", ["task", "thread"])
async def test_connections_begin_together_without_a_task_and_end_so_without_a_thread(
    tmp_path: Path, reader: ReaderKind
) -> None:
    wire = Wire("tcp", reader, tmp_path)
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        # The server starts the task that serves all readers with its first connection.
        with wire.dial_plain(server):
            await mail.wait_for(TCPConnected, 1)
            await trio.testing.wait_all_tasks_blocked()
            made = TaskNames()
            trio.lowlevel.add_instrument(made)
            socks = [wire.dial_plain(server) for _ in range(5)]
            await mail.wait_for(TCPConnected, 6)
            # All at once, before the loop runs again.
            for sock in socks:
                sock.close()
            ended = await mail.wait_for(TCPDisconnected, 5)
            trio.lowlevel.remove_instrument(made)

        assert {message.reason for message in ended} == {Cause.EOF}
        assert [name for name in made.names if reader == "task" or " ending" not in name] == []


async def test_an_answer_to_a_message_that_waits_is_written_before_the_end(tmp_path: Path) -> None:
    def answer(me: Ear, message: object) -> None:
        if isinstance(message, Alias):
            me.send(message, TCPSend(b"late"))

    wire = Wire("tcp", "task", tmp_path)
    async with wired_node() as node:
        server, mail = await serve(node, wire, answer)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection
        await trio.testing.wait_all_tasks_blocked()
        # Both at once, before the loop runs again.
        node.send(meta_of(server).process.id, connection)
        stream.socket.shutdown(socket.SHUT_WR)

        assert await stream.receive_some() == b"late"
        assert await stream.receive_some() == b""
        await stream.aclose()


class Greeter(Actor):
    """The first of its kind has the connection that all others write to."""

    first: Alias | None = None

    def init(self) -> None:
        if Greeter.first is not None:
            for _ in range(60):
                self.send(Greeter.first, TCPSend(bytes(16_000)))

    def handle_message(self, message: object, sender: object) -> None:
        if isinstance(message, TCPConnected) and Greeter.first is None:
            Greeter.first = message.connection


async def test_data_of_a_new_session_reaches_a_peer_that_half_closes_in_the_same_pass(
    tmp_path: Path,
) -> None:
    Greeter.first = None
    wire = Wire("tcp", "task", tmp_path)
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=Greeter, send_buffer=65_536)
        stream = await wire.dial(server)
        await until(lambda: Greeter.first is not None)
        await trio.testing.wait_all_tasks_blocked()
        # Both at once, before the loop runs again.
        with wire.dial_plain(server):
            stream.socket.shutdown(socket.SHUT_WR)
            await until(lambda: server.connections == 2)
            data = b""
            while piece := await stream.receive_some():
                data += piece

        assert data == bytes(60 * 16_000)
        await stream.aclose()


class SlowOwner(Actor):
    """Takes a while for the end of each connection."""

    def __init__(self, server: TCPServer, mail: Mail) -> None:
        self.server = server
        self.mail = mail

    async def init(self) -> None:
        await self.spawn_meta(self.server, backlog=2, stop_timeout=0.2)

    async def handle_message(self, message: object, sender: object) -> None:
        self.mail.add(message)
        if isinstance(message, TCPDisconnected):
            await trio.sleep(0.1)


async def test_a_slow_receiver_hears_of_all_connections_that_end_together(tmp_path: Path) -> None:
    wire = Wire("tcp", "task", tmp_path)
    server, mail = wire.server(), Mail()
    async with wired_node() as node:
        await node.spawn(SlowOwner, server, mail)
        socks = []
        for count in range(1, 9):
            socks.append(wire.dial_plain(server))
            await mail.wait_for(TCPConnected, count)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for sock in socks:
            sock.close()

        # The notices wait in its mailbox, longer than a connection has time to end.
        with trio.fail_after(20):
            assert len(await mail.wait_for(TCPDisconnected, 8)) == 8


async def test_the_function_that_makes_a_session_sees_the_context_of_the_server(
    wire: Wire,
) -> None:
    seen: list[str] = []

    def make() -> Ear:
        seen.append(_word.get())
        return Ear(Mail())

    async def spawn(me: Puppet) -> None:
        _word.set("of the server")
        await me.spawn_meta(server)

    async with wired_node() as node:
        server = wire.server(receiver=make)
        await node.call(await node.spawn(Puppet), spawn)
        stream = await wire.dial(server)
        await until(lambda: seen)
        await stream.aclose()

    assert seen == ["of the server" if wire.reader == "task" else "of no server"]


@pytest.mark.parametrize("backlog", [10**12, 10**20])
async def test_a_backlog_may_be_larger_than_any_number_of_c(wire: Wire, backlog: int) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)
        server = wire.server()
        await spawn_meta(node, owner, server, backlog=backlog)
        stream = await wire.dial(server)
        for number in range(3):
            await stream.send_all(b"%d" % number)
            assert await stream.receive_some() == b"%d" % number
        await stream.aclose()


class Unready(Puppet):
    """Fails in its init, with a background task that takes a moment to end."""

    def __init__(self, cleaned: list[str], gate: trio.Event) -> None:
        super().__init__()
        self.cleaned = cleaned
        self.gate = gate

    def init(self) -> None:
        self.start_task(self.wait)
        raise ValueError("not today")

    async def wait(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.gate.wait()
            self.cleaned.append("cleaned")


async def test_a_session_that_fails_in_its_init_is_cleaned_up_while_the_server_goes_on(
    tmp_path: Path,
) -> None:
    wire = Wire("tcp", "task", tmp_path)
    cleaned: list[str] = []
    gate = trio.Event()
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=partial(Unready, cleaned, gate))
        first, second = [await wire.dial(server) for _ in range(2)]
        await until(lambda: connections_under_way(server) == 2)
        waiting = server.refused
        gate.set()

        assert (await first.receive_some(), await second.receive_some()) == (b"", b"")
        await until(lambda: server.connections == 0)
        assert (waiting, server.refused) == (0, 2)
        assert cleaned == ["cleaned", "cleaned"]
        assert len(node.processes()) == 1
        await first.aclose()
        await second.aclose()


async def test_a_connection_that_cannot_be_watched_ends_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = SocketPoller.add

    def add(
        self: SocketPoller, sock: Any, readable: Any, ended: Any = None, task: Any = None
    ) -> Any:
        if task is None:
            raise OSError(errno.ENOSPC, "no watches left")
        return watched(self, sock, readable, ended, task)

    monkeypatch.setattr(SocketPoller, "add", add)
    wire = Wire("tcp", "task", tmp_path)
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        stream = await wire.dial(server)
        ended = await mail.first(TCPDisconnected)

        assert (ended.reason, ended.detail) == (Cause.RESET, "no watches left")
        assert node.metas() == [server.id]
        await stream.aclose()


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_actor", [False, True])
async def test_the_connections_of_a_server_end_with_it(wire: Wire, own_actor: bool) -> None:
    async with wired_node() as node:
        mail = Mail()
        receiver = partial(Session, mail, echo) if own_actor else await node.spawn(Ear, mail, echo)
        server, _ = await serve(node, wire, receiver=receiver)
        streams = [await wire.dial(server) for _ in range(5)]
        await mail.wait_for(TCPConnected, 5)

        node.send_exit(server.id, Shutdown("enough"))
        disconnected = await mail.wait_for(TCPDisconnected, 5)

        assert all(
            message.reason is Cause.ASKED and message.detail == "shutdown: enough"
            for message in disconnected
        )
        assert [await stream.receive_some() for stream in streams] == [b""] * 5
        await until(lambda: node.metas() == [])
        await until(lambda: len(node.processes()) == (1 if own_actor else 2))
        for stream in streams:
            await stream.aclose()


async def test_many_connections_with_peers_that_do_not_read_end_together(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            me.send(message.connection, TCPSend(bytes(8_000_000)))

    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail, react, shutdown=90.0)
        server = wire.server(linger=90.0)
        await spawn_meta(node, owner, server, stop_timeout=90.0)
        socks = [wire.dial_plain(server) for _ in range(20)]
        await mail.wait_for(TCPConnected, 20)

        began = trio.current_time()
        node.send_exit(owner)
        await until(lambda: node.processes() == [] and node.metas() == [])

        assert trio.current_time() - began < 60
        for sock in socks:
            sock.close()


async def test_an_address_is_free_again_as_soon_as_its_server_is_gone(wire: Wire) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        first = wire.server()
        alias = await spawn_meta(node, owner, first)
        # With connections, which the operating system remembers for a while.
        streams = [await wire.dial(first) for _ in range(3)]
        await until(lambda: first.connections == 3)
        await node.call(owner, lambda me: me.monitor(alias))

        for _ in range(5):
            node.send_exit(alias)
            await until(lambda: node.metas() == [])
            again = (
                TCPServer(port=first.local[1], reader=wire.reader)
                if wire.kind == "tcp"
                else type(first)(first.local, reader="thread")
            )
            alias = await spawn_meta(node, owner, again)
            streams.append(await wire.dial(again))

        for stream in streams:
            await stream.aclose()


async def test_a_server_and_its_connections_end_with_the_owner(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        stream = await wire.dial(server)
        await mail.first(TCPConnected)

        node.send_exit(server.parent)
        await until(lambda: node.processes() == [])

        assert node.metas() == []
        assert await stream.receive_some() == b""
        with pytest.raises(
            (ConnectionRefusedError, FileNotFoundError, OSError), match=r"connect|No such"
        ):
            await wire.dial(server)
        await stream.aclose()


async def test_stopping_the_node_with_many_connections_takes_a_moment(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        streams = [await wire.dial(server) for _ in range(100)]
        await mail.wait_for(TCPConnected, 100)

    assert node.exit_report is not None
    assert not node.exit_report.killed
    assert not node.exit_report.abandoned
    for stream in streams:
        await stream.aclose()


class Faithful:
    """A peer that comes back as soon as its connection is closed, until it is refused."""

    def __init__(self, wire: Wire, server: Any) -> None:
        self.wire = wire
        self.server = server
        self.refused = trio.Event()

    async def run(self) -> None:
        try:
            while True:
                async with await self.wire.dial(self.server) as stream:
                    while await stream.receive_some():
                        pass
        except (OSError, trio.BrokenResourceError):
            self.refused.set()


@pytest.mark.parametrize("how", ["node", "owner", "server"])
async def test_a_stopping_server_accepts_no_connection_while_its_sessions_end(
    wire: Wire, how: str
) -> None:
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(mail))
        return made[-1]

    mail = Mail()
    async with trio.open_nursery() as nursery:
        async with wired_node() as node:
            server, _ = await serve(node, wire, receiver=make)
            peers = [Faithful(wire, server) for _ in range(20)]
            for peer in peers:
                nursery.start_soon(peer.run)
            await mail.wait_for(TCPConnected, 20)
            if how != "node":
                node.send_exit(server.parent if how == "owner" else server.id, Shutdown())
                await until(lambda: len(node.processes()) == (0 if how == "owner" else 1))
        for peer in peers:
            await peer.refused.wait()

    assert len(made) == 20
    assert node.exit_report is not None
    assert (node.exit_report.killed, node.exit_report.abandoned) == ((), ())


async def test_the_sessions_of_a_server_end_together_and_may_still_say_goodbye(wire: Wire) -> None:
    leaving: list[Alias] = []
    all_leave = trio.Event()
    mail = Mail()

    class Guest(Session):
        connection: Alias

        async def handle_message(self, message: Any, sender: Any) -> None:
            self.connection = message.connection
            await super().handle_message(message, sender)

        async def pre_stop(self, reason: Reason) -> None:
            leaving.append(self.connection)
            if len(leaving) == 10:
                all_leave.set()
            await all_leave.wait()
            self.send(self.connection, TCPSend(b"goodbye"))

    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=lambda: Guest(mail))
        streams = [await wire.dial(server) for _ in range(10)]
        await mail.wait_for(TCPConnected, 10)

        node.send_exit(server.parent, Shutdown())

        assert [await stream.receive_some() for stream in streams] == [b"goodbye"] * 10
        assert [await stream.receive_some() for stream in streams] == [b""] * 10
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_an_owner_that_crashes_has_a_successor_at_the_same_address(
    reader: ReaderKind,
) -> None:
    places: list[Any] = []

    class Owner(Puppet):
        async def init(self) -> None:
            port = places[0].port if places else 0
            server = TCPServer(port=port, receiver=partial(Session, mail, echo), reader=reader)
            await self.spawn_meta(server)
            places.append(server.local)

    mail = Mail()
    async with wired_node() as node:
        await node.supervise([ChildSpec("owner", Owner)])
        streams = [await trio.open_tcp_stream(*places[0]) for _ in range(10)]
        await mail.wait_for(TCPConnected, 10)

        node.send("owner", lambda me: 1 / 0)
        assert [await stream.receive_some() for stream in streams] == [b""] * 10
        await until(lambda: len(places) == 2)

        async with await trio.open_tcp_stream(*places[0]) as again:
            await again.send_all(b"there?")
            assert await again.receive_some() == b"there?"
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize("needed", [None, False])
async def test_the_owner_ends_with_a_failed_server_unless_needed_is_false(
    wire: Wire, needed: bool | None
) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        server = wire.server()
        await spawn_meta(node, owner, server, needed=needed)
        await node.call(owner, lambda me: me.monitor(server.id))

        node.kill(server.id)
        if needed is None:
            await node.wait_ended(owner)
        else:
            await until(lambda: node.metas() == [])
            assert await node.call(owner, "what?") == [Down(server.id, Killed())]


async def test_a_server_that_is_needed_outlives_connections_that_fail(wire: Wire) -> None:
    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        server = wire.server()
        await spawn_meta(node, owner, server, needed=True)
        async with await wire.dial(server):
            connection = (await mail.first(TCPConnected)).connection

            node.send_exit(connection, "broken")
            await mail.first(TCPDisconnected)
            await until(lambda: len(node.metas()) == 1)

        async with await wire.dial(server):
            await mail.wait_for(TCPConnected, 2)


# -- looking inside --------------------------------------------------------------------------------


async def test_the_inspection_of_a_server_counts_ended_connections(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, max_connections=10)
        for number in range(1, 4):
            async with await wire.dial(server) as stream:
                await stream.send_all(b"12345")
                await stream.receive_some()
            await mail.wait_for(TCPDisconnected, number)
        async with await wire.dial(server):
            await mail.wait_for(TCPConnected, 4)

            facts = await node.inspect_meta(server.id)
            some = await node.inspect_meta(server.id, "open")

        assert facts["local"] == str(server.local)
        assert facts["receiver"] == "owner"
        assert facts["reader"] == wire.reader
        assert (facts["accepted"], facts["open"], facts["refused"], facts["failed"]) == (
            "4",
            "1",
            "0",
            "0",
        )
        assert (facts["bytes in"], facts["bytes out"], facts["pending"]) == ("15", "15", "0")
        assert facts["max connections"] == "10"
        assert some == {"open": "1"}


@pytest.mark.parametrize("how", ["reset", "wrong frame", "timeout"])
async def test_connections_ended_by_peers_push_no_crash_out_of_the_obituaries(
    wire: Wire, how: str
) -> None:
    async with wired_node(obituaries=3) as node:
        mail = Mail()
        crashed = await node.spawn(Puppet)
        node.send(crashed, lambda me: 1 / 0)
        await node.wait_ended(crashed)
        idle = 0.01 if how == "timeout" else None
        server, _ = await serve(
            node,
            wire,
            receiver=partial(Session, mail),
            framing=LengthHeader(max_frame=10),
            idle_timeout=idle,
        )

        for count in range(1, 6):
            with wire.dial_plain(server) as sock:
                await mail.wait_for(TCPConnected, count)
                if how == "wrong frame":
                    sock.sendall(b"\xff" * 8)
                elif how == "reset":
                    connection = mail.of(TCPConnected)[-1].connection
                    node.send(connection, TCPSend(b"never read"))
                    await until(partial(sock.recv, 1, socket.MSG_PEEK))
                    # A close with unread data in hand is a reset.
                    sock.close()
                await mail.wait_for(TCPDisconnected, count)

        await until(lambda: len(node.metas()) == 1)
        cause = {
            "reset": Cause.RESET,
            "wrong frame": Cause.PROTOCOL_ERROR,
            "timeout": Cause.TIMEOUT,
        }[how]
        assert {ended.reason for ended in mail.of(TCPDisconnected)} == {cause}
        assert [one.pid for one in node.crashes()] == [crashed]
        assert len([one for one in node.ended() if one.failed]) == 4


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_failed_handshake_is_logged_with_address_and_reason_and_rate_limited(
    reader: ReaderKind, tmp_path: Path
) -> None:
    wire = Wire("tcp", reader, tmp_path)
    lines: list[tuple[str, str, dict[str, Any]]] = []

    class Log:
        def info(self, text: str, **fields: Any) -> None:
            lines.append(("info", text, fields))

        def warning(self, text: str, **fields: Any) -> None:
            lines.append(("warning", text, fields))

    def has_lines(count: int) -> bool:
        return len(lines) >= count

    async with wired_node() as node:
        server, _ = await serve(
            node, wire, tls=TLSFiles(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
        )
        replace_logger(server, Log())
        addresses = []
        for count in range(1, 4):
            with wire.dial_plain(server) as sock:
                addresses.append(str(Endpoint(*sock.getsockname())))
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n" if count < 3 else b"")
                if count == 3:
                    sock.close()
                await until(partial(has_lines, count))

        assert [level for level, _, _ in lines] == ["warning", "info", "info"]
        assert {text for _, text, _ in lines} == {"a TLS handshake failed"}
        assert [fields["peer"] for _, _, fields in lines] == addresses
        assert [fields["failed"] for _, _, fields in lines] == [1, 2, 3]
        assert "protocol error: TLS" in lines[0][2]["reason"]
        assert "closed by the peer" in lines[2][2]["reason"]
        assert node.crashes() == []


async def test_reader_threads_have_telling_names_and_reader_tasks_have_no_thread(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        async with await wire.dial(server):
            connection = (await mail.first(TCPConnected)).connection

            info = node.meta_info(connection)

        if wire.reader == "thread":
            assert info.thread == f"ergo-{wire.kind}-{connection.number}"
            assert "_read_in_thread" in info.stack
        else:
            assert info.thread is None
        assert info.behaviour == {"tcp": "TCPConnection", "unix": "UnixConnection"}[wire.kind]
        with pytest.raises(ProcessUnknownError):
            node.meta_info(connection._replace(number=10**6))


@pytest.mark.parametrize(
    "options",
    [
        {"receiver": []},
        {"receiver": 5},
        {"receiver": Ear(Mail())},
        {"receiver": int},
        {"receiver": {"clerk"}},
        {"nodelay": "no"},
        {"reuse_port": 1},
        {"dual_stack": None},
        {"max_connections": 0},
        {"when_full": "pause"},
        {"queue": 0},
        {"queue": 2**31},
        {"reader": "fibre"},
        {"framing": b"\n"},
        {"tls": "certificate.pem"},
        {"tls": True},
        {"when_slow": "drop"},
        {"write_limit": 0},
        {"idle_timeout": 0},
        {"frame_timeout": -1},
        {"linger": -1},
        {"keepalive": 60},
        {"keepalive_bytes": b"x"},
        {"keepalive_period": 1.0},
        {"keepalive_bytes": "x", "keepalive_period": 1.0},
        {"receive_buffer": 0},
        {"receive_buffer": 2**31},
        {"colour": "red"},
        {"port": 65536},
        {"port": -1},
        {"host": 5},
    ],
    ids=" ".join,
)
def test_invalid_options_are_refused_when_the_server_is_created(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        TCPServer(**options)


async def test_a_connection_closed_by_its_peer_ends_normally(wire: Wire) -> None:
    ends: list[object] = []

    class Counting(Ear):
        def handle_child_exit(self, child: object, reason: object) -> None:
            ends.append(reason)

    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Counting, mail, echo)
        server = wire.server(receiver=partial(Session, Mail(), echo))
        await spawn_meta(node, owner, server)

        async with await wire.dial(server) as stream:
            await stream.send_all(b"x")
            await stream.receive_some()
        await until(lambda: ends)

        assert ends == [Normal()]


# -- drain -----------------------------------------------------------------------------------------


async def test_a_drain_serves_the_peers_in_the_queue_and_waits_for_all_connections(
    wire: Wire,
) -> None:
    answers: list[object] = []
    async with wired_node() as node, trio.open_nursery() as nursery:
        server, mail = await serve(node, wire, max_connections=1)
        first = await wire.dial(server)
        await mail.wait_for(TCPConnected)
        waiting = [await wire.dial(server) for _ in range(20)]  # in the queue of the system
        for peer in waiting:
            await peer.send_all(b"hello")

        async def drain() -> None:
            answers.append(await node.call(server.id, Drain(60.0), timeout=None))

        nursery.start_soon(drain)
        for peer in waiting:
            assert await peer.receive_some() == b"hello"
        assert server.is_draining
        family = socket.AF_INET if wire.kind == "tcp" else socket.AF_UNIX
        # The path of a Unix server is free by then, as the port is.
        refusal = ConnectionRefusedError if wire.kind == "tcp" else FileNotFoundError
        with socket.socket(family) as late, pytest.raises(refusal):
            late.connect(server.local)
        for peer in waiting:
            await peer.aclose()
        await mail.wait_for(TCPDisconnected, 20)
        await first.send_all(b"still")
        assert await first.receive_some() == b"still"
        assert answers == []
        await first.aclose()
        await until(lambda: answers)

    assert answers == [0]


async def test_a_drain_cuts_the_connections_that_take_too_long(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        peer = await wire.dial(server)
        await mail.wait_for(TCPConnected)

        assert await node.call(server.id, Drain(0.01)) == 1
        assert await peer.receive_some() == b""
        ended = await mail.first(TCPDisconnected)
        assert (ended.reason, ended.detail) == (Cause.ASKED, "the server has ended")
        assert await node.call(server.id, Drain(0.01)) == 0
        with pytest.raises(UnhandledCallError):
            await node.call(server.id, "anything else")
        await peer.aclose()


async def test_the_drain_of_a_caller_that_has_left_does_not_cut_that_of_another(
    wire: Wire,
) -> None:
    answers: list[object] = []

    async def drain(timeout: float) -> None:
        answers.append(await node.call(server.id, Drain(timeout), timeout=None))

    async with wired_node() as node:
        server, mail = await serve(node, wire)
        peer = await wire.dial(server)
        await mail.wait_for(TCPConnected)
        ends = hold_ends_of_drains(server)
        with pytest.raises(CallTimeoutError):
            await node.call(server.id, Drain(0.02), timeout=0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, 60.0)
            await until(lambda: ends and drains_of(server) == 2)
            ends[0]()  # the time of the first drain is over
            await peer.send_all(b"hello")
            assert await peer.receive_some() == b"hello"
            await peer.aclose()
        assert answers == [0]


async def test_a_drain_cuts_late_connections_although_the_caller_has_left(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        peer = await wire.dial(server)
        await mail.wait_for(TCPConnected)
        with pytest.raises(CallTimeoutError):
            await node.call(server.id, Drain(0.1), timeout=0.01)
        assert await peer.receive_some() == b""
        await peer.aclose()


async def test_a_drain_waits_for_the_peers_that_the_thread_has_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[object] = []
    has_accepted, may_adopt = threading.Event(), threading.Event()
    post = Bridge.post

    def post_late(bridge: Bridge, function: Any, *args: Any) -> Any:
        if function.__name__ == "adopt":
            has_accepted.set()
            may_adopt.wait(60)
        return post(bridge, function, *args)

    monkeypatch.setattr(Bridge, "post", post_late)
    wire = Wire("tcp", "thread", tmp_path)
    async with wired_node() as node, trio.open_nursery() as nursery:
        server, _ = await serve(node, wire)
        peer = await wire.dial(server)
        await peer.send_all(b"hello")
        await trio.to_thread.run_sync(has_accepted.wait)

        async def drain() -> None:
            answers.append(await node.call(server.id, Drain(60.0), timeout=None))

        nursery.start_soon(drain)
        await until(lambda: server.is_draining)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        may_adopt.set()
        assert await peer.receive_some() == b"hello"
        await peer.aclose()

    assert answers == [0]


@needs_handshakes
@pytest.mark.parametrize("reader", ["thread", "task"])
@pytest.mark.parametrize(
    "host, peer_host",
    [
        ("127.0.0.1", "127.0.0.1"),
        pytest.param("::1", "::1", marks=needs_ipv6),
        pytest.param("::", "127.0.0.1", marks=needs_ipv6),
    ],
)
async def test_a_drain_serves_peers_with_a_late_last_ack(
    reader: ReaderKind, host: str, peer_host: str
) -> None:
    answers: list[object] = []
    async with wired_node() as node, trio.open_nursery() as nursery:
        owner = await node.spawn(Ear, Mail(), echo)
        server = TCPServer(host, reader=reader)
        await spawn_meta(node, owner, server)
        peers = [dial_with_late_ack((peer_host, server.local.port)) for _ in range(3)]

        async def drain() -> None:
            answers.append(await node.call(server.id, Drain(60.0), timeout=None))

        nursery.start_soon(drain)
        await until(lambda: server.is_draining)
        for peer in peers:
            await peer.send_all(b"hello")
            assert await peer.receive_some() == b"hello"
            await peer.aclose()

    assert answers == [0]


async def test_a_drain_accepts_after_the_last_handshake_and_ignores_later_handshakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [frozenset({b"a", b"b"}), frozenset({b"b", b"c"}), frozenset({b"c"})]
    seen: list[bool] = []

    def look(sock: socket.socket) -> frozenset[bytes]:
        seen.append(bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)))
        return looks.pop(0)

    monkeypatch.setattr("ergo_py.meta.sockets.acceptor.handshakes_at", look)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        server = TCPServer(reader="task")
        await spawn_meta(node, owner, server)

        assert await node.call(server.id, Drain(60.0), timeout=None) == 0

    assert seen == [True] * 3


async def test_a_drain_waits_for_handshakes_no_longer_than_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forever = frozenset({b"a"})
    monkeypatch.setattr("ergo_py.meta.sockets.acceptor.handshakes_at", lambda sock: forever)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        server = TCPServer(reader="task")
        await spawn_meta(node, owner, server)

        assert await node.call(server.id, Drain(0.05), timeout=None) == 0
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(server.local)


async def test_handshakes_have_a_moment_where_the_system_does_not_tell_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Trio:
        Event = trio.Event
        lowlevel = trio.lowlevel
        current_time = staticmethod(trio.current_time)

        @staticmethod
        async def sleep(seconds: float) -> None:
            slept.append(seconds)

    slept: list[float] = []
    monkeypatch.setattr("ergo_py.meta.sockets.acceptor.handshakes_at", lambda sock: None)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        for timeout in (1.0, 0.1):
            server = TCPServer(reader="thread")
            await spawn_meta(node, owner, server)
            with monkeypatch.context() as patch:
                patch.setattr("ergo_py.meta.sockets.acceptor.trio", Trio)
                assert await node.call(server.id, Drain(timeout)) == 0

    assert slept == [0.25, 0.1]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ECONNABORTED])
async def test_a_drain_serves_the_queue_although_accept_fails_for_a_while(error: int) -> None:
    async with wired_node() as node, trio.open_nursery() as nursery:
        mail = Mail()
        owner = await node.spawn(Ear, mail, echo)
        server = UnluckyServer([], "task", max_connections=1)
        await spawn_meta(node, owner, server)
        first = await trio.open_tcp_stream(*server.local)
        await mail.wait_for(TCPConnected)
        waiting = [await trio.open_tcp_stream(*server.local) for _ in range(3)]
        server.to_come += [error, 0, error]

        nursery.start_soon(partial(node.call, server.id, Drain(60.0), timeout=None))
        for peer in waiting:
            await peer.send_all(b"hello")
            assert await peer.receive_some() == b"hello"
        for peer in (first, *waiting):
            await peer.aclose()

    assert server.to_come == []


@pytest.mark.parametrize("reader", ["thread", "task"])
@pytest.mark.parametrize("shared", ["socket", "port"])
async def test_no_fresh_connection_is_reset_while_servers_are_replaced(
    reader: ReaderKind, shared: str
) -> None:
    async def serve_peers() -> None:
        for peer in peers:
            assert await peer.receive_some() == b"hello"
            await peer.aclose()

    with socket.create_server(("127.0.0.1", 0), backlog=128, reuse_port=True) as sock:
        address = sock.getsockname()
        make: Any = partial(TCPServer, sock=sock, reader=reader)
        if shared == "port":
            make = partial(TCPServer, *address, reader=reader, reuse_port=True)
            sock.close()
        async with wired_node() as node:
            owner = await node.spawn(Owner, make())
            for _ in range(5):
                peers = [await trio.open_tcp_stream(*address) for _ in range(20)]
                for peer in peers:
                    await peer.send_all(b"hello")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(serve_peers)
                    owner, cut = await replace(node, owner, make())
                assert cut == 0


@needs_handshakes
@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_no_handshake_under_way_is_reset_while_servers_are_replaced_at_a_port(
    reader: ReaderKind,
) -> None:
    async def serve_peers() -> None:
        for peer in peers:
            await peer.send_all(b"hello")
            assert await peer.receive_some() == b"hello"
            await peer.aclose()

    async with wired_node() as node:
        first = TCPServer(reader=reader, reuse_port=True)
        owner, address = await node.spawn(Owner, first), first.local
        for _ in range(3):
            # Each of both servers gets some of them.
            successor = await node.spawn(Owner, TCPServer(*address, reader=reader, reuse_port=True))
            peers = [dial_with_late_ack(address) for _ in range(12)]
            server = await node.call(owner, "alias")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_peers)
                assert await node.call(server, Drain(60.0), timeout=None) == 0
            node.send_exit(owner, Shutdown())
            owner = successor
