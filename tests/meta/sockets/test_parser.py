"""The object that turns the bytes of a connection into messages."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from ergo_py import Alias
from ergo_py.meta.parsing.framing import Delimiter
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import (
    Cause,
    TCPConnected,
    TCPDisconnected,
    TCPFrames,
    TCPProtocolError,
    TCPSend,
)
from ergo_py.meta.sockets.streams.parser import FrameParser
from ergo_py.meta.sockets.tcp import TCPServer
from tests.meta.wires import Ear, Mail, spawn_meta, wired_node


class Pairs:
    """Two digits are a message, their sum. Returns a message for each call, however many bytes it
    gets.
    """

    def __init__(self, alias: Alias) -> None:
        self.alias = alias
        self.kept = b""
        self.has_more = self.paused = False
        self.unfinished = self.count = self.produced = 0
        self.error: str | None = None

    def end(self) -> None:
        """All whole pairs are told."""

    def rest(self) -> None:
        """Keep the connection in its program."""

    def feed(self, data: bytes) -> Sequence[Any]:
        self.kept += data
        pair = self.kept[:2]
        self.count = 0
        self.has_more = False
        if not pair.isdigit():
            self.error = f"{pair!r} are no digits"
            return ()
        if len(pair) == 2:
            self.kept = self.kept[2:]
            self.count = 1
        self.unfinished = len(self.kept)
        self.has_more = bool(self.count and self.kept)
        return [(self.alias, pair[0] + pair[1] - 96)] if self.count else ()


class Adder(TCPServer):
    """A server whose connections have a parser of their own."""

    _new_parser = Pairs


def answer(me: Ear, message: object) -> None:
    match message:
        case (Alias() as connection, int(total)):
            me.send(connection, TCPSend(b"%d;" % total))
        case TCPProtocolError(connection):
            me.send(connection, TCPSend(b"?"))


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_a_connection_sends_the_messages_of_the_parser_that_it_is_given(
    reader: ReaderKind,
) -> None:
    mail = Mail()
    async with wired_node() as node:
        owner = await node.spawn(Ear, mail, answer)
        server = Adder(reader=reader, last_word=True)
        await spawn_meta(node, owner, server)
        stream = await trio.open_tcp_stream(*server.local)
        await stream.send_all(b"12345")
        await stream.send_all(b"9x")
        said = b""
        while some := await stream.receive_some():
            said += some
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert said == b"3;7;14;?"
        connected = mail.of(TCPConnected)[0].connection
        assert [message[1] for message in mail.of(tuple)] == [3, 7, 14]
        assert {message[0] for message in mail.of(tuple)} == {connected}
        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert disconnected.detail == "b'x' are no digits"


def test_a_frame_parser_counts_the_frames_of_a_batch() -> None:
    alias = Alias("here", 1, 1)
    parser = FrameParser(alias, Delimiter(b"\n").decoder(), batch=True)

    messages = parser.feed(b"a\nb\nc")

    assert messages == (TCPFrames(alias, [b"a", b"b"]),)
    assert (parser.count, parser.unfinished, parser.has_more) == (2, 1, False)
