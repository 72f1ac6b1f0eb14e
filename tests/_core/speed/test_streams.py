"""Reads and writes of stream connections, in C or in Python."""

import gc
import socket
import struct
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import pytest
import trio

import ergo_py
import ergo_py.info
from ergo_py.meta import TCP
from ergo_py.meta.sockets.messages import Cause
from ergo_py.meta.sockets.streams import installation
from ergo_py.meta.sockets.streams.writer import Writer
from ergo_py.meta.sockets.tcp import TCPServer
from tests.meta.support import connections_of, read_size, replace_sending
from tests.meta.wires import Ear, Mail, MovableClock, echo, spawn_meta, until, wired_node


class Echo:
    """An echo server with a reader task, and a client that is not ours."""

    def __init__(self) -> None:
        self.mail = Mail()
        self.server = TCPServer(reader="task")

    async def open(self, node: ergo_py.Node) -> None:
        await spawn_meta(node, await node.spawn(Ear, self.mail, echo, name="ear"), self.server)
        self.stream = await trio.open_tcp_stream(*self.server.local)
        await self.mail.first(TCP.Connected)
        (self.connection,) = connections_of(self.server)

    async def ask(self, data: bytes) -> None:
        """Send data, and wait until all of it has come back."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stream.send_all, data)
            got = b""
            while len(got) < len(data):
                got += await self.stream.receive_some()
        assert got == data


async def test_a_connection_counts_its_messages_and_adapts_its_reads() -> None:
    echoed = Echo()
    async with wired_node() as node:
        await echoed.open(node)
        connection, small = echoed.connection, read_size(echoed.connection)
        for size in (1, small - 1, small):
            await echoed.ask(b"x" * size)
        assert connection.messages_in == connection.messages_out == 3
        assert read_size(connection) == 2 * small
        await echoed.ask(b"y" * 100_000)
        whole = 2 * small + 100_000
        assert connection.bytes_in == connection.bytes_out == whole
        assert sum(len(message.data) for message in echoed.mail.of(TCP.Data)) == whole
        while read_size(connection) > small:
            before = read_size(connection)
            await echoed.ask(b"z")
            assert read_size(connection) == before // 2
        assert 0.0 <= trio.current_time() - connection.last_in < 100.0
        assert connection.handle_inspect("pending")["pending"] == "0"
        await echoed.stream.aclose()
        ended = await echoed.mail.first(TCP.Disconnected)

    assert (ended.reason, ended.bytes_in) == (Cause.EOF, ended.bytes_out)


async def test_bytes_that_the_system_does_not_take_are_written_later_and_in_order() -> None:
    echoed = Echo()
    async with wired_node() as node:
        await echoed.open(node)
        data = bytes(range(256)) * 8

        def some(data: bytes, flags: int) -> int:
            return send(data[: max(1, len(data) // 2)], flags)

        send = replace_sending(echoed.connection, some)
        await echoed.ask(data)
        replace_sending(echoed.connection, send)
        await echoed.ask(b"and more")

        assert echoed.connection.bytes_out == len(data) + 8
        assert echoed.connection.pending == 0
        await echoed.stream.aclose()


@pytest.mark.parametrize(
    "error, crashes, detail",
    [
        (ConnectionResetError(104, "Connection reset by peer"), [], "Connection reset by peer"),
        (KeyError("no"), ["handle_message"], ""),
    ],
)
async def test_an_error_of_a_write_ends_the_connection_and_not_the_sender(
    error: Exception, crashes: list[str], detail: str
) -> None:
    def fail(_data: bytes, _flags: int) -> int:
        raise error

    echoed = Echo()
    async with wired_node() as node:
        await echoed.open(node)
        replace_sending(echoed.connection, fail)

        await echoed.stream.send_all(b"hello")
        ended = await echoed.mail.first(TCP.Disconnected)

        assert [crash.callback for crash in node.crashes()] == crashes
        assert detail in ended.detail
        assert (ended.reason is Cause.RESET) == (not crashes)
        assert node.send("ear", "still there")
        assert node.send("ear", "still there")
        await echoed.stream.aclose()


async def test_reads_and_writes_leave_no_references() -> None:
    echoed = Echo()
    async with wired_node() as node:
        await echoed.open(node)
        alias, counts = echoed.connection.id, list[list[int]]()
        for _ in range(3):
            for _ in range(200):
                await echoed.ask(b"x")
            echoed.mail.heard.clear()
            gc.collect()
            objects: list[Any] = [alias, None, True, TCP.Data, TCP.Send, echoed.connection]
            counts.append([sys.getrefcount(each) for each in objects])

        assert all(abs(a - b) < 100 for a, b in zip(counts[1], counts[2], strict=True))
        await echoed.stream.aclose()


async def test_a_message_that_cannot_be_written_at_once_is_left_to_the_handler() -> None:
    echoed = Echo()
    async with wired_node() as node:
        await echoed.open(node)
        connection = echoed.connection
        node.send(connection.id, TCP.Send([b"three ", b"pieces ", b"at once"]))
        buffer: Any = bytearray(b" and a buffer")
        node.send(connection.id, TCP.Send(buffer))
        got = b""
        while len(got) < 33:
            got += await echoed.stream.receive_some()
        assert got == b"three pieces at once and a buffer"
        await until(lambda: connection.messages_out == 2)
        await echoed.stream.aclose()


def test_a_message_to_send_is_made_and_refused_as_ever() -> None:
    class Special(TCP.Send):
        """A class of its own."""

    data, make = b"data", cast(Any, TCP.Send)

    assert TCP.Send(data) == TCP.Send(data=data) == TCP.Send([b"da", b"ta"])
    assert TCP.Send(data).data is data
    assert type(Special(data)) is Special
    assert Special(data).data is data
    with pytest.raises(ergo_py.BadInputError, match="encode text first"):
        make("text")
    with pytest.raises(TypeError, match="data"):
        make()
    with pytest.raises(TypeError, match="positional"):
        make(data, data)
    with pytest.raises(TypeError, match="unexpected"):
        make(data, more=data)


async def test_a_read_that_fails_ends_the_connection() -> None:
    echoed = Echo()
    async with wired_node() as node:
        await echoed.open(node)
        await echoed.ask(b"hello")
        sock = echoed.stream.socket
        # Closing resets the connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        ended = await echoed.mail.first(TCP.Disconnected)

        assert ended.reason is Cause.RESET
        assert ended.detail == "Connection reset by peer"


# -- the installation ------------------------------------------------------------------------------


def replaced() -> list[Callable[..., Any]]:
    return [Writer.flush, Writer.serve]  # and private functions


def test_all_functions_of_streams_are_replaced_or_none() -> None:
    assert [not isinstance(each, FunctionType) for each in replaced()] == [ergo_py.info.is_fast] * 2


def test_a_class_without_an_expected_slot_keeps_the_python_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NewWriter:
        """A writer without slots."""

        flush = serve = None

    before = replaced()
    monkeypatch.setattr(installation, "Writer", NewWriter)

    assert installation.install()
    assert replaced() == before


def test_a_clock_with_other_steps_is_called() -> None:
    assert installation.known_clock(MovableClock) is None


def test_a_trio_without_its_clock_is_no_obstacle() -> None:
    assert installation.known_clock(None) is None


def test_c_knows_the_clock_of_trio() -> None:
    assert installation.known_clock(type(trio_clock())) is not None


def trio_clock() -> trio.abc.Clock:
    """The clock that trio uses by default."""

    async def find() -> trio.abc.Clock:
        return trio.lowlevel.current_clock()

    return trio.run(find)
